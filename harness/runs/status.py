"""The status of a run, as status.json holds it."""

from typing import Literal

from harness.core.schema import File

Status = Literal["running", "complete", "failed", "interrupted"]


class RunStatus(File):
    """status.json."""

    status: Status
    reason: str = ""
    time: str | None = None
