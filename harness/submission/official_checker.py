"""MLPerf's own submission checker on a tree, and what it found."""

import re
import subprocess
import sys
from pathlib import Path

from harness.config import mlperf
from harness.core.errors import UsageError
from harness.core.files import submodule_path
from harness.core.locations import INFERENCE
from harness.core.statements import merge_by_remedy
from harness.loadgen import log as loadgen_log
from harness.loadgen import log_entries

# Entries -> the folders of a submission, as MLPerf v5.1, v6.0 and v6.1 lay them out.
# MLPerf's own submission checker, from the submodule, on a submission.
TOOLS = INFERENCE / "tools" / "submission"
CHECKER_SUMMARY_FILE = "summary.csv"


def check(tree: Path, version: str) -> tuple[str, str]:
    """Run the official checker. Returns why it does not accept the submission (empty if it does), and its whole output.

    The checker is silent on folders that it does not look into, so the number of checked results is compared with those
    in the tree. Leaves summary.csv in the tree. Raises UsageError if the submodule is missing.
    """
    submodule_path(TOOLS / "submission_checker" / "main.py")
    place = tree.resolve()
    command = [sys.executable, "-m", "submission_checker.main", "--input", str(place)]
    command += ["--version", f"v{version}", "--csv", str(place / CHECKER_SUMMARY_FILE)]
    ended = subprocess.run(command, cwd=TOOLS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    checker_output = ended.stdout.replace(str(place), str(tree))
    counts = re.search(r"\bResults=(\d+), NoResults=(\d+)", checker_output)  # numbers of results that it looked at
    expected, counted = len(results_in(tree)), sum(map(int, counts.groups())) if counts else 0
    if ended.returncode or errors(checker_output):
        return f"{len(errors(checker_output))} errors, exit code {ended.returncode}", checker_output
    if counted < expected or not expected:
        layout = "it looks into DIVISION/SUBMITTER/results/SYSTEM/BENCHMARK/SCENARIO, with DIVISION open or closed"
        return f"the checker checked {counted} of the {expected} results in it: {layout}", checker_output
    return first_invalid(tree), checker_output


def first_invalid(tree: Path) -> str:
    """Return the first closed result that LoadGen calls INVALID, because the checker accepts those; empty if there is
    none.
    """
    for log in results_in(tree):
        result = loadgen_log.read(log.parent)
        if log.relative_to(tree).parts[0] == "closed" and not result.valid:
            return f"{log}: LoadGen calls it INVALID: {merge_by_remedy(result.invalid_reasons)}"
    return ""


def errors(said: str) -> list[str]:
    return [line for line in said.splitlines() if re.search(r"\bERROR\b", line)]


def results_in(tree: Path) -> list[Path]:
    """Return the performance logs anywhere in a submission, without those of compliance tests."""
    logs = sorted(tree.rglob(f"performance/run_1/{log_entries.DETAIL}"))
    return [log for log in logs if not re.fullmatch(r"TEST\d+", log.parents[2].name)]


def version_of(tree: Path) -> str:
    """Return the MLPerf round whose seeds the submission's logs have. Raises UsageError."""
    logs = results_in(tree)
    if not logs:
        raise UsageError(f"{tree}: no performance logs in it; not a submission.")
    seeds = loadgen_log.read(logs[0].parent).seeds
    for version, official in mlperf.SEEDS_BY_ROUND.items():
        if seeds == vars(official):
            return version
    raise UsageError(f"{logs[0]}: its seeds are of no round this program knows; name one with --version.")
