"""Send a finished run to MLflow, if the user asked for it."""

import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from harness.core import locations
from harness.core.errors import DONE, UsageError
from harness.core.processes import command_to_type
from harness.core.remedies import install_command

MLFLOW_S = 90.0  # the longest time that a command waits for MLflow
NOT_INSTALLED = f"MLflow is not installed: `{install_command('mlflow')}`"


def check_installed(is_wanted: bool) -> None:
    """Raise UsageError if a run is to be sent to MLflow but MLflow is missing. Called before anything is measured."""
    if is_wanted and find_spec("mlflow") is None:
        raise UsageError(f"{NOT_INSTALLED}; or remove --mlflow.")


def send_to_mlflow(folder: Path, wanted: bool, results_dir: Path, say: Callable[[str], None]) -> None:
    """Send a finished folder to MLflow, if the user asked for it by a flag (`wanted`) or by MLflow's own variable.

    A separate process sends it, so that no error there can fail the run. `say` prints how that ended.
    """
    if not wanted and not os.environ.get("MLFLOW_TRACKING_URI"):
        return
    paths = (str(folder.resolve()), "--results-dir", str(results_dir.resolve()))
    command = [sys.executable, "-m", "harness", "mlflow", *paths]
    try:
        # In the folder of this program (`cwd`), Python finds the module.
        process = subprocess.run(
            command, cwd=locations.ROOT, capture_output=True, text=True, timeout=MLFLOW_S, check=False
        )
    except subprocess.TimeoutExpired:
        say(f"MLflow: not sent: no end after {MLFLOW_S:g} s; {later_command(folder, results_dir)}")
        return
    is_sent = process.returncode == DONE
    output = process.stdout if is_sent else process.stderr
    _, _, last_line = output.strip().rpartition("\n")  # It says where the run was logged, or what went wrong.
    message = last_line.removeprefix("error: ") or f"exit code {process.returncode}"
    if is_sent:
        say(f"MLflow: {message}")
    else:
        say(f"MLflow: not sent: {message}; {later_command(folder, results_dir)}")


def later_command(folder: Path, results_dir: Path) -> str:
    """Return a clause with the command that sends a folder later, for a message."""
    flags = list[object]()
    if results_dir != Path("results"):
        flags += ["--results-dir", results_dir]
    return f"`{command_to_type('mlflow', folder, *flags)}` sends it later"
