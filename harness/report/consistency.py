"""Check that a run's files say what its logs say."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import files, reading
from harness.core.errors import BenchmarkError, UsageError
from harness.core.message_text import first_line
from harness.core.schema import SCHEMA
from harness.core.stored_text import is_litter
from harness.loadgen.test_run import TestRun
from harness.report.report import build_report, check_format, history_line
from harness.results import accuracy, claims
from harness.results.benchmark_run import facts_of
from harness.results.claims import DERIVED_FILES, SUMMARY_FILE, Claim, compare_data, differing
from harness.results.level import level_of
from harness.results.outcome import Outcome
from harness.results.records import RunFacts
from harness.results.result_test import at_load
from harness.results.summary import Summary
from harness.runs.history import stored_lines
from harness.runs.run_folder import TEST_FOLDERS, ended_early

HISTORY_FILE = "history.jsonl"
MADE_AGAIN = "made again"  # the source of a claim that was checked by making the file again
MOST_DIFFERENCES = 20  # differences of a file that are named
SCORE_FILES = (accuracy.SCORES_FILE, "samples.csv", "worst.md")  # files made from an accuracy log


class CheckResult(NamedTuple):
    """The differences between a run's files and what its logs say."""

    differences: list[str]  # the first differences of each file, in words
    unmade: str  # why the scores could not be computed again, in words; empty if they were, or if there are none
    missing: list[str]  # files that follow from the logs and are not there


def check_run(folder: Path) -> CheckResult:
    """Compare a run's files with its logs: make all files again in a copy of the run, and compare them.

    A file that cannot be read is one of the differences. Raises UsageError if the folder is no run's or has another
    format.
    """
    facts = facts_of(folder)
    ended = ended_early(folder)
    if ended and not (folder / SUMMARY_FILE).exists():
        raise UsageError(f"{folder}: this run has no results to check: {ended}.", path=folder)
    copy = folder  # for errors, in which the copy's path is replaced below, that come before there is a copy
    all_claims, missing = list[Claim](), list[str]()
    why_not_scored = ""  # why the scores could not be made again; empty if they were
    check_format(folder, facts, SCHEMA, "checks")
    with tempfile.TemporaryDirectory() as temporary:
        try:
            all_claims += claims.verify_run(folder)
            stored_summary = files.read(folder / SUMMARY_FILE, Summary)
            # The files name the run, so the copy has its name; only the last part, as the summary may hold any text.
            copy = Path(temporary) / (Path(stored_summary.meta.run).name or "run")
            link_logs(folder, copy, stored_summary.digests)
            all_claims += probe_claims(folder, facts)
            why_not_scored = score_again(copy / TEST_FOLDERS["accuracy"], facts)
            summary = build_report(copy)
            for name in files_made_again(copy):
                is_missing = name.parts[0] in DERIVED_FILES and not (folder / name).exists()
                if is_missing:  # It is reported by itself, not as a difference from an empty file.
                    missing.append(name.parts[0])
                else:
                    all_claims += differences_of_file(name, folder, copy)
            all_claims += history_claims(folder, summary)
        except BenchmarkError as error:
            # A message about the copy is of no use to the reader, so it names the run's own folder.
            message = str(error).replace(str(copy), str(folder))
            all_claims.append(Claim(name=folder.name, stated="a whole run", source="its files", recomputed=message))
    return CheckResult([*map(str, differing(all_claims))], why_not_scored, [*dict.fromkeys(missing)])


def files_made_again(copy: Path) -> Iterator[Path]:
    """Yield the path within `copy` of each file that was made there. Links, which lead to the run, are left out."""
    for path in sorted(copy.rglob("*")):
        if not path.is_dir() and not path.is_symlink():
            yield path.relative_to(copy)


def differences_of_file(name: Path, folder: Path, copy: Path) -> list[Claim]:
    """Return the first differences between a run's file and the same file in the copy, where it was made again."""
    stored, made_again = file_content(folder / name), file_content(copy / name)
    values = compare_data(f"{name}: ", stated=stored, source=MADE_AGAIN, recomputed=made_again)
    return differing(values)[:MOST_DIFFERENCES]


def history_claims(folder: Path, summary: Summary) -> list[Claim]:
    """Claim that history.jsonl has exactly the line that follows from the run's summary.

    No claims if there is no history, or if the run ended early and so has no line.
    """
    results_dir = folder.resolve().parent
    if not (results_dir / HISTORY_FILE).exists() or ended_early(folder) is not None:
        return []
    lines_of_run = []
    for _text, line in stored_lines(results_dir):
        name = line.pop("run")  # The name is taken out, since `history_line` returns a line without it.
        if name == summary.meta.run:
            lines_of_run.append(line)
    expected_lines = [history_line(summary)]
    return list(compare_data(f"{HISTORY_FILE}: ", stated=lines_of_run, source=MADE_AGAIN, recomputed=expected_lines))


def link_logs(folder: Path, copy: Path, digests: Mapping[str, str]) -> None:
    """Link the files from which a report is made into the folder `copy`. Files that a report itself makes are left out.

    `digests` has the SHA-256 of each file as the run wrote it, by its path in the folder.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or name.parts[0] in DERIVED_FILES or is_litter(path):
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        original = claims.as_written(path, digests.get(str(name)))
        if original is None:  # The file is as the run wrote it, or the run's text cannot be restored from it.
            (copy / name).symlink_to(path.resolve())
        else:  # The stored text has other line ends, for example.
            (copy / name).write_bytes(original)


# Fields that do not follow from a test's logs: what a probe records of the server and of the GPUs' clock while it runs,
# and the details, which config.json does not have.
NOT_IN_LOGS = ("refused", "full_at", "clock_fall", "details")


def probe_claims(folder: Path, facts: RunFacts) -> Iterator[Claim]:
    """Claim that each probe and each attempt in config.json is as its own logs give it.

    Raises LogError or UsageError if logs cannot be trusted or a file is damaged.
    """
    for recorded in (*facts.probes, *facts.attempts):
        plan = at_load(facts.plan, recorded)
        # A load that was tested several times has the folders of all its tests in `repeats`.
        tests = [TestRun.read(folder / name, plan) for name in recorded.repeats or [recorded.folder]]
        recomputed = level_of(tests, plan, folder)
        yield from compare_data(
            f"config.json of {recorded.folder}: ",
            stated=fields_of_logs(recorded),
            source=MADE_AGAIN,
            recomputed=fields_of_logs(recomputed),
        )


def fields_of_logs(outcome: Outcome) -> dict[str, object]:
    """Return the fields of an outcome that follow from its test's logs, so that they can be computed again.

    Left out are NOT_IN_LOGS and the reason that the server refused requests, which only the running probe could see.
    """
    fields = {name: value for name, value in outcome if name not in NOT_IN_LOGS}
    reasons = [reason for reason in outcome.reasons if reason.name != "refused"]
    return {**fields, "reasons": reasons}


def score_again(folder: Path, facts: RunFacts) -> str:
    """Score the answers of an accuracy test in a copy of the run again, and replace the scores in its `folder`.

    Return why the answers cannot be scored here, or else an empty text. Raises BenchmarkError for a damaged log.
    """
    scores = files.read_if_any(folder / accuracy.SCORES_FILE, accuracy.ScoresFile)
    if not scores:
        return ""
    try:
        library, tokenizer = accuracy.load_again(facts.plan, scores)
    except BenchmarkError as error:
        return f"the scores: {first_line(error)}"
    for name in SCORE_FILES:
        (folder / name).unlink(missing_ok=True)
    accuracy.evaluate_answers(folder, facts.plan, library, tokenizer)
    return ""


def file_content(path: Path) -> Any:
    """Return the content of a file, to be compared.

    Empty for a missing file and for a picture, whose bytes need not be the same. JSON is returned as data, any other
    text as lines.
    """
    if not path.exists() or path.suffix == ".png":
        return []
    if path.suffix == ".json":
        return files.read_json(path)
    return ["", *reading.read_text(path).splitlines()]  # An empty line comes first, so that places count from 1.
