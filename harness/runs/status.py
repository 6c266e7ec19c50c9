"""The status of a run, as status.json holds it."""

from typing import Literal

from harness.core.schema import File

# A run's knowledge of itself, typed: config.json and status.json; and what all files of a run folder have in common.
Status = Literal["running", "complete", "failed", "interrupted"]


class RunStatus(File):
    """status.json."""

    status: Status
    reason: str = ""
    time: str | None = None
