"""Send a finished run to MLflow, if the user asked for it."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from harness.core import locations
from harness.core.errors import DONE, UsageError
from harness.core.processes import command_of
from harness.core.remedies import install_command

MLFLOW_S = 90.0  # a command waits so long for MLflow
NOT_INSTALLED = f"MLflow is not installed: `{install_command('mlflow')}`"


def check_installed(is_wanted: bool) -> None:
    """Raise UsageError if a run shall be sent to MLflow but MLflow is missing, before anything is measured."""
    if is_wanted and find_spec("mlflow") is None:
        raise UsageError(f"{NOT_INSTALLED}; or remove --mlflow.")


def send_to_mlflow(folder: Path, wanted: bool, results_dir: Path, say: Callable[[str], None]) -> None:
    """Send a finished folder to MLflow, if the user asked for it.

    This happens in a separate process, so that no error there can fail the run.
    """
    if not wanted and not os.environ.get("MLFLOW_TRACKING_URI"):
        return
    places = (str(folder.resolve()), "--results-dir", str(results_dir.resolve()))
    elsewhere = "" if results_dir == Path("results") else f" --results-dir {results_dir}"
    again = f"`{command_of('mlflow')} {folder}{elsewhere}` sends it later"
    try:
        done = subprocess.run(
            [sys.executable, "-m", "harness", "mlflow", *places],
            cwd=locations.ROOT,
            capture_output=True,
            text=True,
            timeout=MLFLOW_S,
            check=False,
        )
        is_sent, text = done.returncode == DONE, done.stderr if done.returncode else done.stdout
        last_line = text.strip().rpartition("\n")[2].removeprefix("error: ") or f"exit code {done.returncode}"
    except subprocess.TimeoutExpired:
        is_sent, last_line = False, f"no end after {MLFLOW_S:g} s"
    say(f"MLflow: {last_line}" if is_sent else f"MLflow: not sent: {last_line}; {again}")
