"""Check that a run's files say what its logs say."""

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import files, reading
from harness.core.errors import BenchmarkError
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

HISTORY, AGAIN = "history.jsonl", "made again"
MOST_DIFFERENCES = 20  # differences of a file that are named
SCORED = (accuracy.SCORES_FILE, "samples.csv", "worst.md")  # files made from an accuracy log


class CheckResult(NamedTuple):
    """The statements of a run's files that its logs do not make, of each file the first."""

    differences: list[str]
    unmade: str  # why the scores could not be made again, in words
    missing: list[str]  # files that are made of the logs alone, and are not there


def check_run(folder: Path) -> CheckResult:
    """Compare a run's files with its logs. Raises UsageError if the folder is no run's or has another format."""
    facts, copy = facts_of(folder), folder
    claims_found, unmade, missing = list[Claim](), "", list[str]()
    check_format(folder, facts, SCHEMA, "checks")
    with tempfile.TemporaryDirectory() as place:
        try:
            claims_found += claims.verify_run(folder)
            kept_summary = files.read(folder / SUMMARY_FILE, Summary)
            copy = Path(place) / (Path(kept_summary.meta.run).name or "run")
            copy_logs(folder, copy, kept_summary.digests)
            claims_found += probe_claims(folder, facts)
            unmade = score_again(copy / TEST_FOLDERS["accuracy"], facts)
            summary = build_report(copy)
            for path in sorted(copy.rglob("*")):
                if path.is_dir() or path.is_symlink():
                    continue
                name = path.relative_to(copy)
                if name.parts[0] in DERIVED_FILES and not (folder / name).exists():
                    missing.append(name.parts[0])
                    continue
                differences = differing(
                    compare_data(f"{name}: ", file_content(folder / name), AGAIN, file_content(path))
                )
                claims_found += differences[:MOST_DIFFERENCES]
            claims_found += history_claims(folder, summary)
        except BenchmarkError as error:
            claims_found.append(Claim(folder.name, "", "its files", str(error).replace(str(copy), str(folder))))
    return CheckResult([*map(str, differing(claims_found))], unmade, [*dict.fromkeys(missing)])


def history_claims(folder: Path, summary: Summary) -> list[Claim]:
    """Claim that the history has the line that the run's summary gives.

    Empty if there is no history or the run ended early.
    """
    results_dir = folder.resolve().parent
    if not (results_dir / HISTORY).exists() or ended_early(folder) is not None:
        return []
    lines_of_run = [line for _, line in stored_lines(results_dir) if line.pop("run") == summary.meta.run]
    return list(compare_data(f"{HISTORY}: ", lines_of_run, AGAIN, [history_line(summary)]))


def copy_logs(folder: Path, copy: Path, digests: Mapping[str, str]) -> None:
    """Link the files from which a report is made into a new folder.

    A text that was stored in another way is written as it was.
    """
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if not path.is_file() or name.parts[0] in DERIVED_FILES or is_litter(path):
            continue
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        original = claims.as_written(path, digests.get(str(name)))
        if original is None:
            (copy / name).symlink_to(path.resolve())
        else:
            (copy / name).write_bytes(original)


# Facts that a probe notes of the server and of the GPUs' clock while it runs; its logs do not have them.
NOT_IN_LOGS = ("refused", "full_at", "clock_fall", "details")


def probe_claims(folder: Path, facts: RunFacts) -> Iterator[Claim]:
    """Claim that each test in config.json is as its logs give it. Raises LogError, UsageError."""
    for recorded in (*facts.probes, *facts.attempts):
        plan = at_load(facts.plan, recorded)
        tests = [TestRun.read(folder / name, plan) for name in recorded.repeats or [recorded.folder]]
        recomputed = level_of(tests, plan, folder)
        yield from compare_data(
            f"config.json of {recorded.folder}: ", fields_of_logs(recorded), AGAIN, fields_of_logs(recomputed)
        )


def fields_of_logs(outcome: Outcome) -> dict[str, object]:
    """Return the fields of an outcome that its logs determine."""
    fields = {name: value for name, value in outcome if name not in NOT_IN_LOGS}
    reasons = [reason for reason in outcome.reasons if reason.name != "refused"]
    return {**fields, "reasons": reasons}


def score_again(folder: Path, facts: RunFacts) -> str:
    """Score the accuracy log in a copy of a run. Returns why it cannot be scored, else an empty text.

    Raises BenchmarkError for a damaged log.
    """
    if not (scores := files.read_if_any(folder / accuracy.SCORES_FILE, accuracy.ScoresFile)):
        return ""
    try:
        library, tokenizer = accuracy.load_again(facts.plan, scores)
    except BenchmarkError as error:
        return f"the scores: {first_line(error)}"
    for name in SCORED:
        (folder / name).unlink(missing_ok=True)
    accuracy.evaluate_answers(folder, facts.plan, library, tokenizer)
    return ""


def file_content(path: Path) -> Any:
    """Return the content of a file, a text as lines; empty for a picture or a missing file."""
    if not path.exists() or path.suffix == ".png":
        return []
    if path.suffix == ".json":
        return files.read_json(path)
    return ["", *reading.read_text(path).splitlines()]
