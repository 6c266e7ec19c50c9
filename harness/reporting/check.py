"""Whether a run's files say what its logs say: all that is made of them is made again elsewhere, and compared."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from math import isclose
from pathlib import Path

from harness.common import files, reading
from harness.common.errors import BenchmarkError, first_line
from harness.config.checkpoint import load_tokenizer
from harness.evaluation import accuracy
from harness.loadgen import agreement
from harness.loadgen import log as loadgen_log
from harness.loadgen.test_run import TestRun
from harness.rates.points import probe_of
from harness.reporting.report import MADE, build, check_format, history_line
from harness.results.performance import leaves
from harness.results.summary import Summary
from harness.results.verdicts import SCORES_FILE, ScoresFile
from harness.runs import folder as results
from harness.runs.folder import FOLDER
from harness.runs.probe import Probe
from harness.runs.records import RunFacts
from harness.workloads import cnn_dailymail, custom

ACCURACY, HISTORY = FOLDER["accuracy"], "history.jsonl"
SCORED = (SCORES_FILE, "samples.csv", "worst.md")  # of an accuracy log
PRECISION = 1e-5  # of a rate: LoadGen logs six digits


def check(folder: Path) -> tuple[list[str], str]:
    """What a run's files say that its logs do not, and what could not be made again, in words.

    Raises UsageError for a folder that is none, or of another format.
    """
    facts = results.facts_of(folder)
    check_format(folder, facts)
    ended = results.ended_early(folder)
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / folder.resolve().name
        link(folder, copy, but=MADE)
        try:
            found = list(of_tests(folder, facts, is_partial=ended is not None))
            unmade = score_again(folder, copy, facts)
            summary = build(copy)
        except BenchmarkError as error:
            return [str(error).replace(str(copy), str(folder))], ""
        found += of_files(folder, copy)
        return [*found, *(of_history(folder, summary) if ended is None else [])], unmade


def link(folder: Path, copy: Path, but: Iterable[str]) -> None:
    """Makes a folder with what is in another, as links, `but` these."""
    copy.mkdir()
    for path in folder.resolve().iterdir():
        if path.name not in but:
            (copy / path.name).symlink_to(path)


def of_tests(folder: Path, facts: RunFacts, is_partial: bool) -> Iterator[str]:
    """Where the files of a test differ from each other, its time from that of the run, its load from config.json's; one
    that no probe is of may have been cut short in a run that `is_partial`. Raises LogError, UsageError."""
    tested = [*facts.probes, *facts.attempts]
    probes = {probe.folder: probe for probe in tested}
    there = {str(log.parent.relative_to(folder)) for log in folder.rglob(loadgen_log.DETAIL)}
    for probe in tested:
        if probe.folder not in there:
            yield f"config.json has a test at {probe.text}, whose logs are not there"
        elif probe is not probes[probe.folder]:
            yield f"config.json has two tests with the logs in {probe.folder}"
    for name in sorted(there):
        try:
            result = loadgen_log.read(folder / name)
        except loadgen_log.LogError:
            if is_partial and name not in probes:
                continue
            raise
        if not is_partial and name not in (*probes, *FOLDER.values()):
            yield f"{name}: a test that config.json does not have"
        yield from agreement.disagreements(folder / name, result)
        yield from of_time(folder, name, result.started, facts)
        if name in probes:
            yield from of_probe(folder, probes[name], facts, result)


def of_time(folder: Path, name: str, started: str | None, facts: RunFacts) -> Iterator[str]:
    """Where a test's log is of another time than the run."""
    status = results.readable_status(folder)
    times = [time for time in (facts.started, started, status.time if status else None) if time]
    if times != sorted(times, key=datetime.fromisoformat):
        yield f"{name}: a test of {started}, before or after this run, which began at {facts.started}"


def of_probe(folder: Path, kept: Probe, facts: RunFacts, logged: loadgen_log.TestResult) -> Iterator[str]:
    """Where config.json has another point of a curve than the test's logs give; `logged` is LoadGen's part of them."""
    rate = facts.plan.target_qps if kept.qps is None else kept.qps
    plan = replace(facts.plan, concurrency=kept.concurrency, target_qps=rate)
    if logged.scenario == "MultiStream":
        plan = replace(plan, samples_per_query=logged.effective.get("samples_per_query", 1))
    made = probe_of(TestRun.read(folder / kept.folder, plan), plan, folder)
    if kept.qps is not None and not isclose(kept.qps, logged.target_qps or 0.0, rel_tol=PRECISION):
        made = replace(made, qps=logged.target_qps)
    yield from unlike(f"config.json of {kept.folder}", vars(kept), vars(made))


def score_again(folder: Path, copy: Path, facts: RunFacts) -> str:
    """Scores the accuracy log into the copy; why it cannot, in words. Raises BenchmarkError for a damaged log."""
    if not (path := folder / ACCURACY / SCORES_FILE).exists():
        return ""
    made, here = files.read(path, ScoresFile).splitter, accuracy.sentence_splitter()[0]
    if made != here:
        return f"the scores: made with {made} sentences, and here is {here}"
    try:
        tokenizer = load_tokenizer(facts.plan.config)
        library = custom.load(facts.plan.config, tokenizer)
        library = library or cnn_dailymail.load(facts.plan.config, tokenizer, facts.plan.samples)
    except BenchmarkError as error:
        return f"the scores: {first_line(error)}"
    (copy / ACCURACY).unlink()
    link(folder / ACCURACY, copy / ACCURACY, but=SCORED)
    accuracy.evaluate(copy / ACCURACY, facts.plan, library, tokenizer)
    return ""


def of_files(folder: Path, copy: Path) -> Iterator[str]:
    """Where a file that was made again is another."""
    for name in ("summary.json", "report.md", "report.html", *(f"{ACCURACY}/{scored}" for scored in SCORED)):
        if not (copy / name).exists():  # no accuracy test
            continue
        if not (folder / name).exists():
            yield f"{name} is not there"
            continue
        if name.endswith(".json"):
            before, after = (dict(leaves(files.read_json(place / name))) for place in (folder, copy))
            yield from unlike(name, before, after)
            continue
        pairs = zip_longest(*(reading.read_text(place / name).splitlines() for place in (folder, copy)))
        if wrong := [number for number, (before, after) in enumerate(pairs, start=1) if before != after]:
            yield f"{name}: {len(wrong):,} lines are not what the logs give, the first is line {wrong[0]:,}"


def of_history(folder: Path, summary: Summary) -> Iterator[str]:
    """Where the history beside the run, if there is one, has another line of it, none, or more."""
    if not (folder.resolve().parent / HISTORY).exists():
        return
    lines = [line for line in results.history(folder.resolve().parent) if line.pop("run") == summary.meta.run]
    if len(lines) != 1:
        yield f"{HISTORY}: {len(lines)} lines of this run, not 1"
    for line in lines:
        yield from unlike(HISTORY, line, history_line(summary))


def unlike(name: str, kept: Mapping[str, object], made: Mapping[str, object]) -> Iterator[str]:
    for key in dict.fromkeys((*kept, *made)):
        if kept.get(key) != made.get(key):
            yield f"{name}: {key} is {kept.get(key)}; the logs give {made.get(key)}"
