"""Room on the disk, without which LoadGen loses its logs."""

import shutil
from pathlib import Path

from harness.common.errors import BenchmarkError, why

SPARE_BYTES = 2**23


def check_space(path: Path) -> None:
    """Raises BenchmarkError when the disk is about full, or away: LoadGen would lose its logs without a word."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise BenchmarkError(f"{path}: {why(error)}: the run's own folder is gone, and its logs with it.") from None
    if free < SPARE_BYTES:
        raise BenchmarkError(f"the disk of {path} is full: free some space, or choose another --results-dir.")
