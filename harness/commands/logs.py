"""What a LoadGen log says, as JSON. `python util_logs.py LOG_DIR`; for programs, `harness.loadgen.log`."""

from pathlib import Path

from harness.core.command import argument, make_command
from harness.loadgen.log import as_json


def logs(folder: Path = argument(..., "A folder with mlperf_log_detail.txt.", "LOG_DIR")) -> None:
    """Print a LoadGen log as JSON."""
    print(as_json(folder))


command = make_command(logs)
