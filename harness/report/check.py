"""Whether a run's files say what its logs say: all that is made of them is made again elsewhere, and compared."""

import gzip
import json
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from math import isclose
from pathlib import Path
from typing import Any

from harness.config import checkpoint, patterns
from harness.core import files, reading
from harness.core.errors import BenchmarkError, first_line
from harness.core.schema import SCHEMA
from harness.loadgen import log, test_run
from harness.loadgen import log as loadgen_log
from harness.loadgen.folder import FOLDER, ended_early, facts_of, history, readable_status
from harness.loadgen.log import DETAIL, Latency, LogError, TestResult, records
from harness.loadgen.outcome import Outcome, RunFacts, at_load
from harness.loadgen.requests import TRACE, Request, decimal, read_requests, read_trace, times_of
from harness.rates.probing import probe_of
from harness.report.report import MADE, build, check_format, history_line
from harness.results import accuracy, performance
from harness.results.accuracy import SCORES_FILE, ScoresFile
from harness.results.summary import Summary
from harness.workloads import cnn_dailymail, custom

# Whether the files of a test agree: LoadGen's summary with its detail log, and both with its trace and requests.csv.
#
# Each of them holds the same measurements, so a digit that was changed in one of them shows in another.
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
    yield from summary_differences(folder, result)
    yield from count_differences(folder, result)
    requests = read_requests(folder)
    if result.mode != "PerformanceOnly" or any(request.clock != "loadgen" for request in requests):
        return
    yield from trace_differences(folder, requests)
    if any(request.failure for request in requests) or result.scenario == "MultiStream":
        return  # LoadGen counts failures as answers, and latencies of whole queries
    is_plain = all(request.output_tokens > 1 for request in requests)
    for name, found in times_of(requests).items():
        logged = getattr(result, name)
        if logged and found and (is_plain or name != "tpot_ms"):
            yield from latency_differences(folder, NAMES[name], logged, found)


def count_differences(folder: Path, result: TestResult) -> Iterator[str]:
    """Where requests.csv has more or fewer requests than the detail log counts samples."""
    if result.samples is not None and (rows := len(read_requests(folder))) != result.samples:
        yield f"{folder.name}: {DETAIL} counts {result.samples:,} samples, requests.csv has {rows:,} requests"


def latency_differences(folder: Path, name: str, logged: Latency, found: Latency) -> Iterator[str]:
    """LoadGen's numbers are whole nanoseconds, cut off; the mean of TPOT twice, since each TPOT is one, too."""
    for point, value in vars(logged).items():
        most = 2 * NANOSECOND if (name, point) == ("TPOT", "mean") else 1.5 * NANOSECOND
        if abs(value - (here := getattr(found, point))) > most:
            yield f"{folder.name}: {name} {point} is {value:.6f} ms in {DETAIL}, and {here:.6f} ms by requests.csv"


def trace_differences(folder: Path, requests: list[Request]) -> Iterator[str]:
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
        mine = (request.issued_s, request.ttft_ms, request.latency_ms, request.first_tokens)
        times = ((sample.scheduled_ms - begin) / 1e3, sample.ttft_ms, sample.latency_ms, 1)
        if (request.sample, *map(decimal, mine)) != (sample.index, *map(decimal, times)):
            yield f"{folder.name}: requests.csv:{line} is another request than LoadGen's trace has"


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


ACCURACY, HISTORY = FOLDER["accuracy"], "history.jsonl"
SCORED = (SCORES_FILE, "samples.csv", "worst.md")  # of an accuracy log
PRECISION = 1e-5  # of a rate: LoadGen logs six digits


def check(folder: Path) -> tuple[list[str], str]:
    """What a run's files say that its logs do not, and what could not be made again, in words.

    Raises UsageError for a folder that is none, or of another format.
    """
    facts = facts_of(folder)
    check_format(folder, facts, SCHEMA, "checks")
    ended = ended_early(folder)
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / folder.resolve().name
        link(folder, copy, but=MADE)
        try:
            found = list(test_differences(folder, facts, is_partial=ended is not None))
            unmade = score_again(folder, copy, facts)
            summary = build(copy)
        except BenchmarkError as error:
            return [str(error).replace(str(copy), str(folder))], ""
        found += file_differences(folder, copy)
        return [*found, *(history_differences(folder, summary) if ended is None else [])], unmade


def link(folder: Path, copy: Path, but: Iterable[str]) -> None:
    """Makes a folder with what is in another, as links, `but` these."""
    copy.mkdir()
    for path in folder.resolve().iterdir():
        if path.name not in but:
            (copy / path.name).symlink_to(path)


def test_differences(folder: Path, facts: RunFacts, is_partial: bool) -> Iterator[str]:
    """Where the files of a test differ from each other, its time from that of the run, its load from config.json's; one
    that no probe is of may have been cut short in a run that `is_partial`. Raises LogError, UsageError."""
    tested = [*facts.probes, *facts.attempts]
    probes = {probe.folder: probe for probe in tested}
    there = {str(log.parent.relative_to(folder)) for log in folder.rglob(DETAIL)}
    for probe in tested:
        if probe.folder not in there:
            yield f"config.json has a test at {probe.text}, whose logs are not there"
        elif probe is not probes[probe.folder]:
            yield f"config.json has two tests with the logs in {probe.folder}"
    for name in sorted(there):
        try:
            result = loadgen_log.read(folder / name)
        except LogError:
            if is_partial and name not in probes:
                continue
            raise
        if not is_partial and name not in (*probes, *FOLDER.values()):
            yield f"{name}: a test that config.json does not have"
        yield from disagreements(folder / name, result)
        yield from clock_differences(folder, name, result.started, facts)
        if name in probes:
            yield from probe_differences(folder, probes[name], facts, result)


def clock_differences(folder: Path, name: str, started: str | None, facts: RunFacts) -> Iterator[str]:
    """Where a test's log is of another time than the run."""
    status = readable_status(folder)
    times = [time for time in (facts.started, started, status.time if status else None) if time]
    if times != sorted(times, key=datetime.fromisoformat):
        yield f"{name}: a test of {started}, before or after this run, which began at {facts.started}"


def probe_differences(folder: Path, kept: Outcome, facts: RunFacts, logged: TestResult) -> Iterator[str]:
    """Where config.json has another point of a curve than the test's logs give; `logged` is LoadGen's part of them."""
    plan = at_load(facts.plan, kept)
    if logged.scenario == "MultiStream":
        plan = replace(plan, samples_per_query=logged.effective.get("samples_per_query", 1))
    made = probe_of(test_run.TestRun.read(folder / kept.folder, plan), plan, folder)
    if kept.unit == patterns.Poisson.unit and not isclose(kept.load, logged.target_qps or 0.0, rel_tol=PRECISION):
        made = made.model_copy(update={"load": logged.target_qps})
    yield from value_differences(f"config.json of {kept.folder}", dict(kept), dict(made))


def score_again(folder: Path, copy: Path, facts: RunFacts) -> str:
    """Scores the accuracy log into the copy; why it cannot, in words. Raises BenchmarkError for a damaged log."""
    if not (path := folder / ACCURACY / SCORES_FILE).exists():
        return ""
    made, here = files.read(path, ScoresFile).splitter, accuracy.sentence_splitter()[0]
    if made != here:
        return f"the scores: made with {made} sentences, and here is {here}"
    try:
        tokenizer = checkpoint.load_tokenizer(facts.config)
        library = custom.load(facts.config, tokenizer)
        library = library or cnn_dailymail.load(facts.config, tokenizer, facts.plan.samples)
    except BenchmarkError as error:
        return f"the scores: {first_line(error)}"
    (copy / ACCURACY).unlink()
    link(folder / ACCURACY, copy / ACCURACY, but=SCORED)
    accuracy.evaluate(copy / ACCURACY, facts.plan, library, tokenizer)
    return ""


def file_differences(folder: Path, copy: Path) -> Iterator[str]:
    """Where a file that was made again is another."""
    for name in ("summary.json", "report.md", "report.html", *(f"{ACCURACY}/{scored}" for scored in SCORED)):
        if not (copy / name).exists():  # no accuracy test
            continue
        if not (folder / name).exists():
            yield f"{name} is not there"
            continue
        if name.endswith(".json"):
            before, after = (dict(performance.leaves(files.read_json(place / name))) for place in (folder, copy))
            yield from value_differences(name, before, after)
            continue
        pairs = zip_longest(*(reading.read_text(place / name).splitlines() for place in (folder, copy)))
        if wrong := [number for number, (before, after) in enumerate(pairs, start=1) if before != after]:
            yield f"{name}: {len(wrong):,} lines are not what the logs give, the first is line {wrong[0]:,}"


def history_differences(folder: Path, summary: Summary) -> Iterator[str]:
    """Where the history beside the run, if there is one, has another line of it, none, or more."""
    if not (folder.resolve().parent / HISTORY).exists():
        return
    lines = [line for line in history(folder.resolve().parent) if line.pop("run") == summary.meta.run]
    if len(lines) != 1:
        yield f"{HISTORY}: {len(lines)} lines of this run, not 1"
    for line in lines:
        yield from value_differences(HISTORY, line, history_line(summary))


def value_differences(name: str, kept: Mapping[str, object], made: Mapping[str, object]) -> Iterator[str]:
    for key in dict.fromkeys((*kept, *made)):
        if kept.get(key) != made.get(key):
            yield f"{name}: {key} is {kept.get(key)}; the logs give {made.get(key)}"
