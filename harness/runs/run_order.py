"""The order of runs, by the time at which each began. A run's own files say when, whatever its folder is called."""

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.files import read_json

# The time stamp in a folder's name. Runs of the same second also have a number.
STAMP = re.compile(r"(?P<time>\d{8}-\d{6})(?:-.*?)??(?:-(?P<number>\d{1,3}))?")


class RunStart(NamedTuple):
    """The time at which a run began."""

    time_s: float  # seconds since 1970
    number: int  # its number among the runs of the same second and label


def start_of(folder: Path) -> RunStart:
    """Return when a run began: by its config.json, else by its folder's name, else by when the folder was changed.

    Runs of the same second are told apart by the number at the end of the folder's name.
    """
    stamp = STAMP.fullmatch(folder.name)
    number = int(stamp["number"]) if stamp and stamp["number"] else 1
    began_s = None
    with suppress(UsageError):
        config = read_json(folder / "config.json")
        if isinstance(config, dict):
            began_s = seconds_of(config)
    if began_s is None and stamp:
        with suppress(ValueError, OverflowError):
            began_s = time.mktime(time.strptime(stamp["time"], "%Y%m%d-%H%M%S"))
    if began_s is None:
        with suppress(OSError):
            began_s = folder.stat().st_mtime
    return RunStart(began_s or 0.0, number)


def seconds_of(record: Mapping[str, object]) -> float | None:
    """Return when the run of a record began, in seconds since 1970; None if the record does not say."""
    with suppress(LookupError, ValueError, TypeError, OverflowError):
        return datetime.fromisoformat(str(record["started"])).timestamp()
    return None
