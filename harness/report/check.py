"""Whether a run's files say what its logs say: all that is made of them is made again elsewhere, and compared."""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from itertools import zip_longest
from math import isclose
from pathlib import Path

from harness.config import checkpoint, patterns
from harness.core import files, reading
from harness.core.errors import BenchmarkError, first_line
from harness.core.schema import SCHEMA
from harness.loadgen import log
from harness.loadgen.folder import FOLDER, ended_early, facts_of, history, readable_status
from harness.loadgen.log import DETAIL
from harness.loadgen.outcome import RunFacts, at_load
from harness.loadgen.test_run import TestRun
from harness.rates.probing import probe_of
from harness.report.report import MADE, build, check_format, history_line
from harness.results import accuracy, claims
from harness.results.accuracy import SCORES_FILE, ScoresFile
from harness.results.summary import Summary
from harness.workloads import cnn_dailymail, custom

ACCURACY, HISTORY = FOLDER["accuracy"], "history.jsonl"
PRECISION = 1e-5  # of a rate: LoadGen logs six digits
SCORED = (SCORES_FILE, "samples.csv", "worst.md")  # of an accuracy log


def check(folder: Path) -> tuple[list[str], str]:
    """What a run's files say that its logs do not, and what could not be made again, in words.

    Raises UsageError for a folder that is none, or of another format.
    """
    facts = facts_of(folder)
    check_format(folder, facts, SCHEMA, "checks")
    ended = ended_early(folder)
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / claimed_name(folder)
        link(folder, copy, but=MADE)
        try:
            claimed, wrong = claims.verify(folder)
            found = [*wrong, *(str(claim) for claim in claimed if claim.verdict == "differs")]
            found += (*clock_differences(folder, facts), *probe_differences(folder, facts))
            unmade = score_again(folder, copy, facts)
            summary = build(copy)
        except BenchmarkError as error:
            return [str(error).replace(str(copy), str(folder))], ""
        found += file_differences(folder, copy)
        return [*found, *(history_differences(folder, summary) if ended is None else [])], unmade


def claimed_name(folder: Path) -> str:
    """The run's name, as its summary has it: a folder may have been renamed since."""
    name = claims.parse(folder / claims.PAGES).get("meta", {}).get("run")
    return Path(str(name or folder.resolve().name)).name


def link(folder: Path, copy: Path, but: Iterable[str]) -> None:
    """Makes a folder with what is in another, as links, `but` these."""
    copy.mkdir()
    for path in folder.resolve().iterdir():
        if path.name not in but:
            (copy / path.name).symlink_to(path)


def clock_differences(folder: Path, facts: RunFacts) -> Iterator[str]:
    """Which test's log is of another time than the run. Raises LogError."""
    status = readable_status(folder)
    for path in folder.rglob(DETAIL):
        started = log.read(path.parent).started
        times = [time for time in (facts.started, started, status.time if status else None) if time]
        if times != sorted(times, key=datetime.fromisoformat):
            yield f"{path.parent.name}: a test of {started}, before or after this run, which began at {facts.started}"


def probe_differences(folder: Path, facts: RunFacts) -> Iterator[str]:
    """Where config.json has another test at one of several loads than its logs give. Raises LogError, UsageError."""
    for kept in (*facts.probes, *facts.attempts):
        if not (folder / kept.folder / DETAIL).is_file():
            yield f"config.json has a test at {kept.text}, whose logs are not there"
            continue
        logged, plan = log.read(folder / kept.folder), at_load(facts.plan, kept)
        if logged.scenario == "MultiStream":
            plan = replace(plan, samples_per_query=logged.effective.get("samples_per_query", 1))
        made = probe_of(TestRun.read(folder / kept.folder, plan), plan, folder)
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
            before, after = (dict(claims.leaves(files.read_json(place / name))) for place in (folder, copy))
            older = not any(key.startswith("digests.") for key in before)
            after = {key: value for key, value in after.items() if not (older and key.startswith("digests."))}
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
