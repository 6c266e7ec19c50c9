"""Whether what a run claims follows from LoadGen's log, requests.csv and machine.csv. Needs no package."""

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from math import isclose
from pathlib import Path
from typing import Any, Literal, NamedTuple

from harness.config.mlperf import Limits
from harness.config.patterns import ClosedLoop, Sequential
from harness.core import reading
from harness.core.document import number
from harness.core.errors import UsageError
from harness.loadgen import log, recording
from harness.loadgen.log import DETAIL, TestResult, records
from harness.loadgen.mending import mend, steady_part
from harness.loadgen.recording import Recording, joules_by_power
from harness.loadgen.requests import (
    FILE,
    Request,
    read_requests,
    spread,
    times_of,
    without_failures,
)

SUMMARY = "mlperf_log_summary.txt"
LINE = re.compile(r"^\s*(\S.*?)\s*:\s*(\S+)\s*$", re.M)
WORDS = {"sec": "second", "to": "per", "w/": "with", "ns": "", "ms": ""}  # of LoadGen's labels and keys, as one
CHECKS = {"Performance constraints": "latency", "Min duration": "min_duration", "Min queries": "min_queries"}
CHECKS |= {"Early stopping": "early_stopping"}
KINDS = ("result query", "result per query", "result", "effective")  # of a log's entries that a line may be of


Figures = dict[str, Any]  # by name, a dot between a field and its part
TIMES = ("latency_ms", "ttft_ms", "tpot_ms")
NANOSECOND = 1e-6  # milliseconds: LoadGen cuts its times off to whole ones, of a mean of TPOT twice
ENERGY = (
    0.05  # by which a sum of power, read once a second, may differ from the counter of energy: 2.2 % of 45 s on an H200
)
NEAR = 0.005  # ratio within which a rate is that of the configuration, a count that of every answer
COUNTED = (128, 129)  # tokens of each answer, where a system counts what it may write and not what it wrote
LARGEST = 2**30  # bytes of a file that has a digest
CONFIG, PAGES = "config.json", "summary.json"


class Claim(NamedTuple):
    """A figure as the run claims it, and as a source of it gives it; None for a figure that no source has."""

    name: str
    said: object
    source: str = ""
    found: object = None

    @property
    def verdict(self) -> Literal["equal", "differs", "cannot be recomputed"]:
        if self.found is None:
            return "cannot be recomputed"
        if not isinstance(self.said, int | float) or not isinstance(self.found, int | float):
            return "equal" if self.said == self.found else "differs"
        most = 2.5 * NANOSECOND if "_ms." in self.name else ENERGY * self.found if "joules" in self.name else 0.0
        return "equal" if isclose(self.said, self.found, rel_tol=1e-9, abs_tol=most) else "differs"

    def __str__(self) -> str:
        found = (
            f"; {self.source}: {self.found}" if self.verdict == "differs" else f" ({self.source})" * bool(self.source)
        )
        return f"{self.verdict:<20}  {self.name}: {self.said}{found}"


def report(folder: Path) -> tuple[list[str], bool]:
    """What a run's claims come to, a line each, or of LoadGen's bare logs what a reader should know; and whether all
    agree. Raises LogError, UsageError."""
    if not (folder / PAGES).is_file():
        return list(remarks(folder)), True
    found, wrong = verify(folder)
    counts = Counter(claim.verdict for claim in found)
    total = ", ".join(f"{count:,} {verdict}" for verdict, count in sorted(counts.items()))
    return [*map(str, found), *(f"{'differs':<20}  {each}" for each in wrong), total], not (wrong or counts["differs"])


def verify(folder: Path) -> tuple[list[Claim], list[str]]:
    """The claims of a run, of its probes and of its files; and in words where the files of one test differ."""
    summary, config = (parse(folder / name) for name in (PAGES, CONFIG))
    probes = [each for each in (*config.get("probes", ()), *config.get("attempts", ())) if "unit" in each]
    tests = [(each["folder"], each, f"{each['folder']} ") for each in probes]
    if whole := summary["run"].get("performance"):
        loads = {ClosedLoop.unit: whole.get("concurrency"), Sequential.unit: whole.get("samples_per_query")}
        own = (each["folder"] for each in probes if each["load"] == loads.get(each["unit"]))  # it is one of a curve
        tests.append((next(own, "Performance"), whole, ""))
    claims = [
        claim._replace(name=f"{label}{claim.name}")
        for name, said, label in tests
        if (folder / name / DETAIL).is_file()
        for claim in test_claims(folder / name, said, config)
    ]
    for name, said in (summary.get("digests") or {}).items():
        claims.append(Claim(name, said, "SHA-256", digest(folder / name) or "not there"))
    places = sorted({path.parent for path in folder.rglob(DETAIL)})
    return claims, [each for place in places for each in disagreements(place)]


def parse(path: Path) -> Any:
    """Raises UsageError for what is no run's."""
    try:
        found = json.loads(reading.read_text(path))
        found["run" if path.name == PAGES else "plan"].keys()
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        raise UsageError(f"{path}: not there, or not as a run leaves it.") from None
    return found


def digest(path: Path) -> str:
    """Empty for what is no file, or larger than any that is read."""
    if not path.is_file() or path.stat().st_size > LARGEST:
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digests(folder: Path, but: Collection[str]) -> dict[str, str]:
    """SHA-256 of each file of a run, but for those at its top that these names begin a path to."""
    names = (Path(place) / name for place, _, names in os.walk(folder, followlinks=True) for name in names)
    paths = {str(path.relative_to(folder)): path for path in sorted(names)}
    found = {name: digest(path) for name, path in paths.items() if Path(name).parts[0] not in but}
    return {name: value for name, value in found.items() if value}


def test_claims(folder: Path, said: Mapping[str, Any], config: Mapping[str, Any]) -> Iterator[Claim]:
    """The figures that are claimed of a test, each with every source that gives it."""
    claimed = dict(leaves(said))
    sources = {"LoadGen's log": by_log, "requests.csv": by_requests, "machine.csv": by_machine}
    limits = said.get("limits_ms") or config["plan"]["config"].get("limits_ms")
    level = said.get("concurrency") or (said.get("load") if said.get("unit") == ClosedLoop.unit else None)
    requests, is_probe = read_requests(folder), "unit" in said
    result = mend(log.read(folder), requests, Limits(**limits) if limits else None, expected=False)
    test = LoggedTest(folder, result, requests, int(level) if level else None, is_probe)
    given = {name: {key: value for key, value in of(test).items() if value is not None} for name, of in sources.items()}
    for key, value in claimed.items():
        found = [Claim(key, value, name, figures[key]) for name, figures in given.items() if key in figures]
        if isinstance(value, int | float):
            yield from found or [Claim(key, value)]


class LoggedTest(NamedTuple):
    """A test as its files have it; of a probe at a level the claims are of the part without ramps."""

    folder: Path
    result: TestResult
    requests: Sequence[Request]
    level: int | None
    is_probe: bool


def by_log(test: LoggedTest) -> Figures:
    """What LoadGen's detail log says, mended."""
    result = test.result
    if test.is_probe and test.level:
        return {"valid": bool(result.valid)}
    found: Figures = {"valid": bool(result.valid)} | times(vars(result))
    found |= {name: getattr(result, name) for name in ("tokens_per_sec", "samples_per_sec")}
    if test.is_probe:
        return found
    rate = result.target_qps if result.scenario == "Server" else None
    found |= {"duration_s": result.duration_s, "samples": result.samples, "target_qps": rate}
    return found | dict(leaves({"seeds": result.seeds, "early_stopping": result.early_stopping}))


def by_requests(test: LoggedTest) -> Figures:
    """What the requests of a test come to; latencies of single requests are not claimed where LoadGen's are those of
    whole queries."""
    whole, seconds = without_failures(test.requests), test.result.duration_s
    part, steady = steady_part(test.requests, test.level) if test.level else None, Figures()
    if part and part.requests:
        steady = times(times_of(part.requests))
        steady |= {name: getattr(part, name) for name in ("tokens_per_sec", "samples_per_sec", "trend")}
    found = {} if test.result.scenario == "MultiStream" else times(times_of(whole))
    if test.is_probe:
        return steady if test.level else found
    counts = {name: [getattr(each, name) for each in whole] for name in ("prompt_tokens", "output_tokens")}
    read, written = counts.values()
    lengths = {"input_lengths": spread(map(float, read)), "output_lengths": spread(map(float, written))}
    found |= leaves({name: vars(each) for name, each in lengths.items() if each})
    found |= {f"steady.{name}": value for name, value in steady.items()}
    found |= {"total_new_tokens": sum(written) or None, "total_input_tokens": sum(read) or None}
    return found | {"input_tokens_per_sec": sum(read) / seconds if seconds and read else None}


def times(spreads: Mapping[str, Any]) -> Figures:
    """Latency, TTFT and TPOT by percentile, as far as they are known."""
    return dict(leaves({kind: vars(spreads[kind]) for kind in TIMES if spreads[kind]}))


def by_machine(test: LoggedTest) -> Figures:
    """Energy by the power that was recorded."""
    joules = joules_by_power(Recording.read(test.folder / recording.FILE))
    tokens = sum(each.output_tokens for each in without_failures(test.requests))
    return {"gpu_joules": joules, "joules_per_output_token": joules / tokens if joules and tokens else None}


def leaves(data: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every value in nested data, with the path to it."""
    if not isinstance(data, Mapping | list):
        yield name, data
        return
    for key, value in data.items() if isinstance(data, Mapping) else enumerate(data):
        yield from leaves(value, f"{name}.{key}".lstrip("."))


def remarks(folder: Path) -> Iterator[str]:
    """What a reader of LoadGen's bare logs should know of their result."""
    result = log.read(folder)
    verdict = {True: "VALID", False: "INVALID", None: "no verdict"}[result.valid]
    yield f"LoadGen {result.loadgen_version}, {result.scenario}, {result.mode}: {verdict}, {len(result.errors)} errors"
    for name in ("samples", "duration_s", "samples_per_sec", "tokens_per_sec", "target_qps"):
        if (value := getattr(result, name)) is not None:
            yield f"{name}: {number(value)}"
    for kind in TIMES:
        if found := getattr(result, kind):
            yield f"{kind}: p50 {number(found.p50)}, p97 {number(found.p97)}, p99 {number(found.p99)}"
    rate, target, tokens, first = result.samples_per_sec, result.target_qps, result.tokens_per_sec, result.ttft_ms
    if rate and target and result.scenario == "Server" and abs(rate / target - 1) <= NEAR:
        yield "note: the result is the configured rate; what the system can do at most is not known from it"
    if first and first.p50 == first.p97:
        yield "note: TTFT p50 = p97: first tokens were reported together, not as they came"
    for count in COUNTED if rate and tokens else ():
        if abs(tokens / rate / count - 1) <= NEAR / 10:  # type: ignore[operator]
            yield f"note: every sample counts as {count} tokens: the rate is not of the tokens that were written"
    yield from (f"differs: {each}" for each in disagreements(folder))


def disagreements(folder: Path) -> Iterator[str]:
    """Where LoadGen's summary for people, or the number of requests, is another than its detail log says."""
    result = log.read(folder)
    yield from summary_differences(folder, result)
    if (folder / FILE).is_file():
        yield from count_differences(folder, result)


def count_differences(folder: Path, result: TestResult) -> Iterator[str]:
    """Where requests.csv has more or fewer requests than the detail log counts samples."""
    requests = read_requests(folder)
    by_client = any(request.clock == "client" for request in requests)
    if result.samples is not None and not by_client and len(requests) != result.samples:
        yield f"{folder.name}: {DETAIL} counts {result.samples:,} samples, requests.csv has {len(requests):,} requests"


def summary_differences(folder: Path, result: TestResult) -> Iterator[str]:
    """Where LoadGen's summary for people says something else than its detail log."""
    path = folder / SUMMARY
    text = reading.read_text(path, errors="replace") if path.is_file() else ""
    if not text.strip():
        yield f"{path.name} of {folder.name} is empty"
    if result.valid is None:  # of an accuracy test it has only warnings and errors to tell
        if "Result is" in text:
            yield f"{path.name} of {folder.name} is of a performance test"
        return
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
        names = (log.ENTRY.get(check, ""), *(f"{kind} {label}" for kind in KINDS))  # type: ignore[call-overload]
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
    return isclose(number, value, rel_tol=1e-5, abs_tol=printed)
