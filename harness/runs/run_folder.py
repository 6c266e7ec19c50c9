"""The results folder: open a run, keep its status, finish or fail it; latest, history, index, retention."""

import json
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from shutil import rmtree
from typing import Literal, NamedTuple

from harness.core import formatting, secrets
from harness.core.errors import UsageError
from harness.core.files import (
    check_space,
    existing,
    read_if_any,
    write_text,
)
from harness.core.message_text import why
from harness.core.schema import SCHEMA
from harness.core.system import is_in_container
from harness.runs import run_lock
from harness.runs.status import RunStatus, Status

STATUS_BYTES, SHORT_REASON = 1024, 200  # bytes of status.json; characters of a reason that fit into it
Test = Literal["accuracy", "performance", "test06"]
CONTAINER_USER_REMEDY = (
    'The folder belongs to another user than the container\'s: start it with --user "$(id -u):$(id -g)".'
)
TEST_FOLDERS = {"accuracy": "Accuracy", "performance": "Performance", "test06": "Compliance/TEST06"}


class RunFolder(NamedTuple):
    results_dir: Path
    name: str

    @property
    def path(self) -> Path:
        return self.results_dir / self.name

    @property
    def shown(self) -> Path:
        """The folder as it is shown: `latest`, where that leads to it."""
        latest = self.results_dir / "latest"
        return latest if latest.is_symlink() and os.readlink(latest) == self.name else self.path

    def set_status(self, status: Status, reason: str = "") -> None:
        """Write the status. A run that begins takes the lock of its folder, one that has ended gives it up."""
        if status == "running":
            run_lock.hold(self.path)
        path = self.path / "status.json"
        if path.is_symlink():  # the folder may have been sent by somebody else
            path.unlink()
        write_text(path, self.status_json(status, reason))
        if status != "running":
            run_lock.release(self.path)

    def status_json(self, status: Status, reason: str) -> str:
        """Return what status.json holds, with room for what it may have to hold at the end."""
        status_record = RunStatus(schema_version=SCHEMA, status=status, reason=reason, time=now())
        return (json.dumps(secrets.hide(status_record.model_dump()), indent=2) + "\n").ljust(STATUS_BYTES)

    def fail(self, status: Status, reason: str = "") -> None:
        """Marks a run that ended early; one that is complete stays so, whatever happens to it afterwards."""
        before = readable_status(self.path)  # a damaged one is replaced
        if before is None or before.status != "complete":
            try:
                self.set_status(status, reason)
            except OSError:  # a full disk: the bytes of the status before are there
                with (self.path / "status.json").open("r+b") as file:
                    file.write(self.status_json(status, reason[:SHORT_REASON]).encode()[:STATUS_BYTES])
                run_lock.release(self.path)

    def sub(self, name: str) -> Path:
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def open_run(results_dir: Path, label: str) -> RunFolder:
    """Makes a new run folder, `<time>-<label>`, and marks it running. Raises UsageError where it cannot write.

    Without a label, `<time>`.
    """
    stem = formatting.joined("-", time.strftime("%Y%m%d-%H%M%S"), label)
    with writing_to(results_dir):
        results_dir.mkdir(parents=True, exist_ok=True)
        run = RunFolder(results_dir, new_folder(results_dir, stem).name)
    try:
        run.set_status("running")
    except OSError:
        rmtree(run.path, ignore_errors=True)
        raise
    return run


@contextmanager
def writing_to(results_dir: Path) -> Iterator[None]:
    """Name the flag in an error raised within. Raises UsageError.

    A container's user is often not the owner of a mounted folder: then the error names Docker's flag for that.
    """
    try:
        yield
    except OSError as error:
        is_of_another = isinstance(error, PermissionError) and is_in_container()
        remedy = f" {CONTAINER_USER_REMEDY}" if is_of_another else ""
        raise UsageError(f"{results_dir}: cannot write there: {why(error)}.{remedy}", flag="--results-dir") from None


def check_writable(results_dir: Path) -> None:
    """Raises UsageError where no run folder could be made, BenchmarkError on a full disk; leaves nothing behind."""
    there = existing(results_dir)
    with writing_to(results_dir), tempfile.TemporaryDirectory(dir=there, prefix=".try-"):
        check_space(there)


KILLED = "it was killed"


def status_of(folder: Path) -> RunStatus | None:
    """Return how far a run came; None where it left no status. Raises UsageError for a status that cannot be read.

    A run that was killed could not say so: its status is corrected here, by the lock that nobody holds any more.
    """
    status = read_if_any(folder / "status.json", RunStatus)
    if status is None or status.status != "running" or run_lock.life_of(folder) != "over":
        return status
    run = RunFolder(folder.parent, folder.name)
    with suppress(OSError):  # somebody else's folder is only read
        run.set_status("failed", KILLED)
    return RunStatus.model_validate_json(run.status_json("failed", KILLED))


def readable_status(folder: Path) -> RunStatus | None:
    """Return how far a run came; None also for a status that cannot be read."""
    with suppress(UsageError):
        return status_of(folder)
    return None


def ended_early(folder: Path, reported: bool = False) -> str | None:
    """Return why a run ended before its end, in words; None for one that is complete, or about to be (`reported`)."""
    status = readable_status(folder)
    if status is None or status.status == "complete":
        return None
    if status.status == "running":
        if reported:
            return None
        is_running = run_lock.life_of(folder) == "running"
        return "it still runs" if is_running else "it is not known whether it still runs"
    return status.status if status.reason in ("", status.status) else f"{status.status}: {status.reason}"


def new_folder(parent: Path, name: str) -> Path:
    """A new folder of this name; with a number, too, where there is one."""
    path, number = parent / name, 1
    while True:
        with suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1
        path = parent / f"{name}-{number}"


def now() -> str:
    """The time here, with its zone (`TZ` decides)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
