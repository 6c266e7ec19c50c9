"""A finished folder to MLflow, again if need be: `python -m harness mlflow RUN_DIR`."""

from pathlib import Path
from typing import Annotated

from harness.common.errors import DONE
from harness.terminal.command import argument, make_command, option
from harness.tracking.send import send


def mlflow(
    folder: Annotated[Path, argument("RUN_DIR", "The folder of a run, an evaluation or a sweep.")],
    results_dir: Annotated[Path, option("PATH", "Folder of mlflow.db, where no server is set.")] = Path("results"),
) -> int:
    """Log a finished run, MMLU evaluation or sweep to MLflow: MLFLOW_TRACKING_URI, or a file in the results."""
    print(send(folder, results_dir))
    return DONE


command = make_command(mlflow)
