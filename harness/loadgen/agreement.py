"""Whether the files of a test agree: LoadGen's summary with its detail log, and both with its trace and requests.csv.

Each of them holds the same measurements, so a digit that was changed in one of them shows in another.
"""

import gzip
import json
import math
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.common import reading
from harness.loadgen.log import DETAIL, Latency, TestResult, records
from harness.loadgen.requests import Request, decimal, read_requests, times_of
from harness.loadgen.trace import TRACE, read_trace
from harness.loadgen.validity import ENTRY

SUMMARY = "mlperf_log_summary.txt"
LINE = re.compile(r"^\s*(\S.*?)\s*:\s*(\S+)\s*$", re.M)
WORDS = {"sec": "second", "to": "per", "w/": "with", "ns": "", "ms": ""}  # of LoadGen's labels and keys, as one
CHECKS = {"Performance constraints": "latency", "Min duration": "min_duration", "Min queries": "min_queries"}
CHECKS |= {"Early stopping": "early_stopping"}
KINDS = ("result query", "result per query", "result", "effective")  # of a log's entries that a line may be of
NAMES = {"latency_ms": "latency", "ttft_ms": "TTFT", "tpot_ms": "TPOT"}
NANOSECOND = 1e-6  # milliseconds


def disagreements(folder: Path, result: TestResult) -> Iterator[str]:
    """What two files of a test say differently; `result` is its detail log's. Raises LogError, UsageError."""
    yield from of_summary(folder, result)
    requests = read_requests(folder)
    if result.mode != "PerformanceOnly" or any(request.clock != "loadgen" for request in requests):
        return
    yield from of_trace(folder, requests)
    if any(request.failure for request in requests) or result.scenario == "MultiStream":
        return  # LoadGen counts failures as answers, and latencies of whole queries
    is_plain = all(request.first_tokens == 1 and request.output_tokens > 1 for request in requests)
    for name, found in times_of(requests).items():
        logged = getattr(result, name)
        if logged and found and (is_plain or name != "tpot_ms"):
            yield from of_times(folder, NAMES[name], logged, found)


def of_times(folder: Path, name: str, logged: Latency, found: Latency) -> Iterator[str]:
    """LoadGen's numbers are whole nanoseconds, cut off; the mean of TPOT twice, since each TPOT is one, too."""
    for point, value in vars(logged).items():
        most = 2 * NANOSECOND if (name, point) == ("TPOT", "mean") else 1.5 * NANOSECOND
        if abs(value - (here := getattr(found, point))) > most:
            yield f"{folder.name}: {name} {point} is {value:.6f} ms in {DETAIL}, and {here:.6f} ms by requests.csv"


def of_trace(folder: Path, requests: list[Request]) -> Iterator[str]:
    """The rows of requests.csv that LoadGen's trace, kept compressed, has otherwise."""
    if not (packed := folder / f"{TRACE}.gz").is_file():
        return
    with tempfile.TemporaryDirectory() as place:
        with gzip.open(packed) as small, (Path(place) / TRACE).open("wb") as whole:
            shutil.copyfileobj(small, whole)
        samples = read_trace(Path(place))
    begin = min((sample.scheduled_ms for sample in samples), default=0.0)
    if len(samples) != len(requests):
        yield f"{folder.name}: requests.csv has {len(requests):,} requests, LoadGen's trace {len(samples):,}"
        return
    for line, (request, sample) in enumerate(zip(requests, samples, strict=True), start=2):
        mine = (request.sample, *map(decimal, (request.issued_s, request.ttft_ms, request.latency_ms)))
        times = ((sample.scheduled_ms - begin) / 1e3, sample.ttft_ms, sample.latency_ms)
        if mine != (sample.index, *map(decimal, times)):
            yield f"{folder.name}: requests.csv:{line} is another request than LoadGen's trace has"


def of_summary(folder: Path, result: TestResult) -> Iterator[str]:
    """Where LoadGen's summary for people says something else than its detail log."""
    path = folder / SUMMARY
    text = reading.read_text(path, errors="replace") if path.is_file() else ""
    if not text.strip():
        yield f"{path.name} of {folder.name} is empty"
    if result.valid is None:
        return  # of an accuracy test it says that it has nothing to say
    wanted = {"Scenario": result.scenario, "Mode": result.mode, "Result is": "VALID" if result.valid else "INVALID"}
    lines = LINE.findall(text)
    for name, value in wanted.items():
        found = [said for label, said in lines if label == name]
        if found != [value]:
            said = f"says {name} {found[0]}" if found else f"has no line {name!r}"
            yield f"{path.name} of {folder.name} {said}; the detail log says {value}"
    logged: dict[frozenset[str], Any] = {words(key): entry for key, entry, _ in records(folder / DETAIL)}
    for label, said in lines:
        check = CHECKS.get(label.removesuffix("satisfied").strip())
        names = (ENTRY.get(check, ""), *(f"{kind} {label}" for kind in KINDS))  # type: ignore[call-overload]
        entry = next((logged[words(name)] for name in names if words(name) in logged), None)
        if isinstance(entry, bool | int | float) and not is_same(said, entry):
            yield f"{path.name} of {folder.name} says {label} {said}; the detail log says {json.dumps(entry)}"


def words(name: str) -> frozenset[str]:
    """The words of a label or a key, whatever their order."""
    parts = re.split(r"[\s_()]+", name.lower())
    return frozenset(filter(None, (WORDS.get(part, part) for part in parts)))


def is_same(said: str, value: float | bool) -> bool:
    """Whether a number or a yes is the log's, which has six digits of a number that is no whole one."""
    if isinstance(value, bool):
        return (said.lower() == "yes") == value
    if isinstance(value, int) and said.isdigit():
        return said == str(value)
    try:
        number = float(said)
    except ValueError:
        return False
    printed = 0.6 * 10.0 ** -len(said.partition(".")[2]) if "e" not in said else 0.0
    return math.isclose(number, value, rel_tol=1e-5, abs_tol=printed)
