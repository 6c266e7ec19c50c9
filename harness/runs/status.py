"""The status of a run, as status.json holds it."""

from typing import Literal

from harness.core.formatting import joined_text
from harness.core.schema import File

Status = Literal["running", "complete", "failed", "interrupted"]


class RunStatus(File):
    """status.json."""

    status: Status
    reason: str = ""
    time: str | None = None


def ending_text(status: str, reason: str) -> str:
    """Return how a run ended, and why if the reason says more than the status, as in "failed: no disk space"."""
    if reason == status:  # such as "interrupted"
        return status
    return joined_text(": ", status, reason)
