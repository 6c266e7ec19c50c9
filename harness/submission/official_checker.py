"""Run MLPerf's own submission checker, from the submodule, on a submission, and judge its output."""

import re
import subprocess
import sys
from pathlib import Path

from harness.config import mlperf
from harness.core.errors import UsageError
from harness.core.files import submodule_path
from harness.core.formatting import plural
from harness.core.locations import INFERENCE
from harness.core.statements import merge_by_remedy
from harness.loadgen import log as loadgen_log
from harness.loadgen import log_entries

TOOLS = INFERENCE / "tools" / "submission"
CHECKER_SUMMARY_FILE = "summary.csv"


def check(tree: Path, version: str) -> tuple[str, str]:
    """Run the official checker. Return why the submission is not accepted (empty if it is), and the checker's output.

    The checker leaves summary.csv in `tree`. Raises UsageError if the checker's submodule is missing.
    """
    submodule_path(TOOLS / "submission_checker" / "main.py")
    place = tree.resolve()
    command = [sys.executable, "-m", "submission_checker.main", "--input", str(place)]
    command += ["--version", f"v{version}", "--csv", str(place / CHECKER_SUMMARY_FILE)]
    process = subprocess.run(
        command, cwd=TOOLS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    output = process.stdout.replace(str(place), str(tree))  # with paths as the user gave them
    expected, checked = len(performance_logs(tree)), checked_results(output)
    error_count = len(error_lines(output))
    if process.returncode or error_count:
        return f"{plural(error_count, 'error')}, exit code {process.returncode}", output
    if checked < expected or not expected:  # The checker does not report folders that it does not look into.
        layout = "it looks into DIVISION/SUBMITTER/results/SYSTEM/BENCHMARK/SCENARIO, with DIVISION open or closed"
        return f"the checker checked {checked} of {plural(expected, 'result')} in it: {layout}", output
    return first_invalid(tree), output  # The checker itself accepts an INVALID result.


def checked_results(output: str) -> int:
    """Return the number of results that the checker looked into, accepted or not, by its output; 0 if it names none."""
    counts = re.search(r"\bResults=(\d+), NoResults=(\d+)", output)
    if not counts:
        return 0
    return int(counts[1]) + int(counts[2])


def first_invalid(tree: Path) -> str:
    """Return why LoadGen calls the first INVALID result of the closed division so; empty if there is no such result."""
    for log in performance_logs(tree):
        result = loadgen_log.read(log.parent)
        division = log.relative_to(tree).parts[0]
        if division == "closed" and not result.valid:
            return f"{log}: LoadGen calls it INVALID: {merge_by_remedy(result.invalid_reasons)}"
    return ""


def error_lines(output: str) -> list[str]:
    """Return the lines of the checker's output with an error."""
    return [line for line in output.splitlines() if re.search(r"\bERROR\b", line)]


def performance_logs(tree: Path) -> list[Path]:
    """Return the detail logs of the performance tests anywhere in a submission, without those of compliance tests."""
    logs = sorted(tree.rglob(f"performance/run_1/{log_entries.DETAIL}"))
    # The logs of a compliance test are below a folder such as TEST06.
    return [log for log in logs if not re.fullmatch(r"TEST\d+", log.parents[2].name)]


def version_of(tree: Path) -> str:
    """Return the MLPerf round whose seeds the submission's first log has.

    Raises UsageError if there are no logs, or if the seeds are of no known round.
    """
    logs = performance_logs(tree)
    if not logs:
        raise UsageError(f"{tree}: no performance logs in it; not a submission.")
    seeds = loadgen_log.read(logs[0].parent).seeds
    for version, official in mlperf.SEEDS_BY_ROUND.items():
        if seeds == vars(official):
            return version
    raise UsageError(f"{logs[0]}: its seeds are of no round this program knows; name one with --version.")
