"""Sends a finished folder to MLflow in its own process, so that nothing in it can fail a run."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from harness.common.errors import DONE
from harness.common.paths import ROOT
from harness.common.secrets import hide_text

LIMIT_S = 90.0


def after(folder: Path, wanted: bool, results_dir: Path, say: Callable[[str], None]) -> None:
    """Sends a finished folder if MLflow is asked for; in its own process, so that nothing here can fail a run."""
    if not wanted and not os.environ.get("MLFLOW_TRACKING_URI"):
        return
    places = [str(folder.resolve()), "--results-dir", str(results_dir.resolve())]
    command = [sys.executable, "-m", "harness", "mlflow", *places]
    elsewhere = "" if results_dir == Path("results") else f" --results-dir {results_dir}"
    again = f"`python -m harness mlflow {folder}{elsewhere}` sends it later"
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        say(f"MLflow: not sent, no end after {LIMIT_S:g} s; {again}")
        return
    last = (done.stdout if done.returncode == DONE else done.stderr).strip().splitlines()[-1:]
    said = hide_text(last[0]).removeprefix("error: ") if last else f"exit code {done.returncode}"
    say(f"MLflow: {said}" if done.returncode == DONE else f"MLflow: not sent: {said}; {again}")
