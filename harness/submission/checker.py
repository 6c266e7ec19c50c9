"""MLPerf's own submission checker, from the submodule, on a submission."""

import re
import subprocess
import sys
from pathlib import Path

import util_logs
from harness import rules
from harness.errors import UsageError
from harness.rules import ROOT

TOOLS = ROOT / "third_party" / "inference" / "tools" / "submission"
SUMMARY = "summary.csv"


def check(tree: Path, version: str) -> tuple[bool, str]:
    """Whether the checker accepts the submission without an error, and all it says. Leaves summary.csv in it.

    Raises UsageError where the submodule is not there.
    """
    if not (TOOLS / "submission_checker" / "main.py").exists():
        raise UsageError("third_party/inference is empty: `git submodule update --init third_party/inference` first.")
    command = [sys.executable, "-m", "submission_checker.main"]
    command += ["--input", str(tree.resolve()), "--version", f"v{version}", "--csv", str(tree.resolve() / SUMMARY)]
    ended = subprocess.run(command, cwd=TOOLS, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = ended.stdout.replace(str(tree.resolve()), str(tree))
    return ended.returncode == 0 and not errors(said), said


def errors(said: str) -> list[str]:
    """The lines of the checker's log that are errors."""
    return [line for line in said.splitlines() if re.search(r"\bERROR\b", line)]


def version_of(tree: Path) -> str:
    """The MLPerf round whose seeds the submission's logs have. Raises UsageError."""
    logs = sorted(tree.glob(f"*/*/results/*/*/*/performance/run_1/{util_logs.DETAIL}"))
    if not logs:
        raise UsageError(f"{tree}: no performance logs in it; not a submission.")
    seeds = util_logs.read(logs[0].parent).seeds
    for version, known in rules.SEEDS.items():
        if seeds == vars(known):
            return version
    raise UsageError(f"{logs[0]}: its seeds are of no round this program knows; name one with --version.")
