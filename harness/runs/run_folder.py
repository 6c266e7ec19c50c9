"""The results folder: open a run, keep its status, finish or fail it."""

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
    nearest_existing,
    read_if_any,
    write_text,
)
from harness.core.message_text import system_reason
from harness.core.schema import SCHEMA
from harness.core.system import is_in_container
from harness.runs import run_lock
from harness.runs.status import RunStatus, Status, ending_text

STATUS_BYTES = 1024  # the size of status.json, which is padded
REASON_CHARACTERS = 200  # characters of a reason that fit into STATUS_BYTES
Test = Literal["accuracy", "performance", "test06"]
CONTAINER_USER_REMEDY = (
    'The folder belongs to another user than the container\'s: start it with --user "$(id -u):$(id -g)".'
)
TEST_FOLDERS = {"accuracy": "Accuracy", "performance": "Performance", "test06": "Compliance/TEST06"}


class RunFolder(NamedTuple):
    """The folder of one run in a results folder."""

    results_dir: Path
    name: str

    @property
    def path(self) -> Path:
        return self.results_dir / self.name

    @property
    def shown(self) -> Path:
        """The folder as it is shown to the user: as `latest` if that link leads to it, else by its name."""
        latest = self.results_dir / "latest"
        return latest if latest.is_symlink() and os.readlink(latest) == self.name else self.path

    def set_status(self, status: Status, reason: str = "") -> None:
        """Write the run's status. "running" takes the lock of the folder; any other status releases it.

        `reason` says why the run ended with this status.
        """
        if status == "running":  # While the lock is held, other commands know that the run is alive.
            run_lock.lock_folder(self.path)
        path = self.path / "status.json"
        if path.is_symlink():  # Somebody may have sent the folder, with a link that leads to a file elsewhere.
            path.unlink()
        write_text(path, self.status_json(status, reason))
        if status != "running":
            run_lock.unlock_folder(self.path)

    def status_json(self, status: Status, reason: str) -> str:
        """Return the content of status.json, without secrets.

        It is padded with spaces to STATUS_BYTES, so that a later status fits into these bytes even on a full disk.
        """
        status_record = RunStatus(schema_version=SCHEMA, status=status, reason=reason, time=now())
        text = json.dumps(secrets.hide(status_record.model_dump()), indent=2)
        return f"{text}\n".ljust(STATUS_BYTES)

    def fail(self, status: Status, reason: str = "") -> None:
        """Give a run that ended early this status and reason. A complete run stays complete."""
        before = readable_status(self.path)  # None if it is damaged: it is then replaced.
        if before is not None and before.status == "complete":
            return
        try:
            self.set_status(status, reason)  # This releases the lock as well.
        except OSError:  # The disk is full, or the file cannot be replaced for another reason.
            # The new status is written over the earlier one. Both are padded to the same length, STATUS_BYTES, and the
            # reason is cut to fit.
            content = self.status_json(status, reason[:REASON_CHARACTERS]).encode()
            with (self.path / "status.json").open("r+b") as file:
                file.write(content[:STATUS_BYTES])
            run_lock.unlock_folder(self.path)

    def subfolder(self, name: str) -> Path:
        """Return the folder of this name in the run's folder. It is made if it does not exist."""
        folder = self.path / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def open_run(results_dir: Path, label: str) -> RunFolder:
    """Make a new run folder, `<time>-<label>`, mark it running, and return it.

    Without a label its name is `<time>`. Raises UsageError if the folder cannot be made. If its status cannot be
    written, the folder is removed again and the OSError is raised.
    """
    stem = formatting.joined_text("-", time.strftime("%Y%m%d-%H%M%S"), label)
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
    """Turn an OSError that is raised in the block into a UsageError that names the flag --results-dir.

    If a container may not write there, the error also names Docker's flag for the user: a mounted folder often belongs
    to another user than the container's.
    """
    try:
        yield
    except OSError as error:
        problem = f"{results_dir}: cannot write there: {system_reason(error)}."
        existing_path = nearest_existing(results_dir)
        if existing_path.is_file():
            problem = f"{results_dir}: {existing_path} is a file; name a folder."
        if isinstance(error, PermissionError) and is_in_container():
            problem += f" {CONTAINER_USER_REMEDY}"
        raise UsageError(problem, flag="--results-dir") from None


def check_writable(results_dir: Path) -> None:
    """Raise UsageError if no run folder can be made in `results_dir`, or BenchmarkError if the disk is full.

    Nothing is left behind, and `results_dir` itself need not exist yet.
    """
    existing_folder = nearest_existing(results_dir)
    with writing_to(results_dir), tempfile.TemporaryDirectory(dir=existing_folder, prefix=".try-"):
        check_space(existing_folder)


KILLED_REASON = "it was killed"


def status_of(folder: Path) -> RunStatus | None:
    """Return the status of a run; None if it left none. Raises UsageError if the status cannot be read."""
    status = read_if_any(folder / "status.json", RunStatus)
    if status is None or status.status != "running":
        return status
    is_over = run_lock.life_of(folder) == "over"  # A run that was killed could not write that it ended.
    if not is_over:  # The run is running, or it is not known.
        return status
    run = RunFolder(folder.parent, folder.name)
    with suppress(OSError):  # The folder may be another user's.
        run.set_status("failed", KILLED_REASON)
    corrected_status = run.status_json("failed", KILLED_REASON)  # also if it could not be written
    return RunStatus.model_validate_json(corrected_status)


def readable_status(folder: Path) -> RunStatus | None:
    """Return the status of a run; None if it left none, or if the status cannot be read."""
    with suppress(UsageError):
        return status_of(folder)
    return None


def ended_early(folder: Path, is_writing_report: bool = False) -> str | None:
    """Return why a run is not complete, in words; None if it is complete or has no status that can be read.

    With `is_writing_report`, a run with the status "running" has finished its tests, and counts as complete.
    """
    status = readable_status(folder)
    if status is None or status.status == "complete":
        return None
    if status.status == "running":
        if is_writing_report:
            return None
        if run_lock.life_of(folder) == "running":
            return "it still runs"
        return "it is not known whether it still runs"
    return ending_text(status.status, status.reason)


def new_folder(parent: Path, name: str) -> Path:
    """Make a folder of this name and return it. If the name is taken, a number is added to it, from 2 on."""
    path, number = parent / name, 1
    while True:
        with suppress(FileExistsError):
            path.mkdir()
            return path
        number += 1
        path = parent / f"{name}-{number}"


def now() -> str:
    """Return the local time with its zone, which the variable `TZ` sets."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
