"""Files: written whole or not at all, read with errors of one line."""

import errno
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, BinaryIO, TypeVar, overload

from harness.core import locations, reading
from harness.core.errors import BenchmarkError, UsageError
from harness.core.file_limits import LARGEST_RUN_JSON, MIB
from harness.core.formatting import joined_text
from harness.core.given_values import read_given
from harness.core.message_text import system_reason, warn
from harness.core.secrets import hide, hide_known
from harness.core.value_mistakes import refusal_text

if TYPE_CHECKING:
    from pydantic import JsonValue, ValidationError

# The type that a file of this program should hold.
FileContent = TypeVar("FileContent")


LOCK_NAME = ".lock"  # in a folder that one command at a time may change
LOCK_IS_TAKEN = (errno.EAGAIN, errno.EACCES)  # answers of the kernel while another process has a lock
SPARE_BYTES = 2**23  # a disk with less free space counts as full


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Name the file in an OSError that is raised within. The system does not name it if a write fails."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def append_line(path: Path, text: str) -> None:
    """Append a line to a file, which is made if it does not exist.

    If the file's last line was cut short and so has no line end, a line end is written first.
    """
    last_byte = b""
    if path.exists():
        last_byte = reading.read_bytes(path)[-1:]
    line = text + "\n"
    if last_byte not in (b"", b"\n"):
        line = "\n" + line
    with path.open("a") as file:
        file.write(line)


@contextmanager
def lock_folder(folder: Path, what: str) -> Iterator[int]:
    """Hold the lock of a folder, and yield the lock's file descriptor.

    Raises UsageError if another process holds the lock. Its message says that `what`, such as "the run", is still
    running.
    """
    path = folder / LOCK_NAME
    path.touch()
    reading.check_regular(path.stat(), path, MIB)  # a FIFO would wait for a reader
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in LOCK_IS_TAKEN:
                raise UsageError(f"{folder}: {what} is still running.") from None
            # Some mounts have no locks, such as some of NFS and Lustre.
            problem = f"no lock could be had ({system_reason(error)})"
            warn(f"{folder}: {problem}: start no other command in this folder meanwhile")
        yield file.fileno()


def is_locked(folder: Path) -> bool | None:
    """Return whether a process holds the lock of a folder, so that a command is running in it.

    None if unknown: there is no lock file, the file cannot be read, or the mount has no locks.
    """
    try:
        with reading.open_bytes(folder / LOCK_NAME, MIB) as file:
            return is_taken(file)
    except OSError:
        return None


def is_taken(file: BinaryIO) -> bool | None:
    """Return whether another process holds the exclusive lock of an open file. None if the mount has no locks.

    To find out, this process asks for a shared lock. If the lock is granted, it is held until the file is closed.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in LOCK_IS_TAKEN else None
    return False


def check_space(path: Path) -> None:
    """Raise BenchmarkError if the disk of the run folder `path` is nearly full, or if the folder is gone.

    LoadGen itself would lose its logs without a message.
    """
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise BenchmarkError(
            f"{path}: {system_reason(error)}: the run folder was deleted, and the logs in it."
        ) from None
    if free < SPARE_BYTES:
        raise BenchmarkError(f"the disk of {path} is full: free some space, or choose another --results-dir.")


def nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest folder above it that exists. A link counts even if its target is missing."""
    candidates = iter((path, *path.absolute().parents))
    nearest = next(candidates)
    while not (nearest.exists() or nearest.is_symlink()):
        nearest = next(candidates)
    return nearest


def free_gib(folder: Path) -> float:
    """Return the free space, in GiB, of the disk that the folder is on or will be on."""
    return shutil.disk_usage(nearest_existing(folder)).free / 2**30


@contextmanager
def atomic_update(folder: Path) -> Iterator[Path]:
    """Yield an empty folder in which to write new files of `folder`.

    At the end of the block, all of them are moved into `folder`, where they replace files of the same names. If the
    block raises an error, none is moved.
    """
    fresh = folder / ".new"
    fresh.mkdir()
    try:
        yield fresh
        for path in fresh.iterdir():
            path.replace(folder / path.name)
    finally:  # After an error, the files that were written so far are removed with the folder.
        shutil.rmtree(fresh, ignore_errors=True)


def write_json(path: Path, data: object) -> None:
    """Write data as a JSON file, with secrets masked. The file is written whole or not at all.

    Raises OSError, which names the file, and ValueError for NaN or infinity, which JSON does not have.
    """
    write_text(path, json.dumps(hide(data), indent=2, allow_nan=False) + "\n")


@overload
def json_value(data: Mapping[str, object]) -> dict[str, "JsonValue"]: ...
@overload
def json_value(data: object) -> object: ...
def json_value(data: object) -> object:
    """Return the data as they are after a round trip through JSON. A value that JSON does not know becomes text."""
    return json.loads(json.dumps(data, default=str))


def write_text(path: Path, text: str) -> None:
    """Write a text file whole or not at all, with known secrets masked.

    If the path is a link, the file that it leads to is written. Raises OSError, which names the file.
    """
    write_bytes(path, hide_known(text).encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file whole or not at all; a pipe or a device is written into, not replaced.

    The file that a link leads to is written. Raises OSError, which names the file, also for a pipe that nobody reads.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        # Opened without O_NONBLOCK, a pipe that nobody reads would wait. Once it is open, a write may wait for space.
        with name_in_errors(path), os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as pipe:
            os.set_blocking(pipe.fileno(), True)
            pipe.write(content)
        return
    fresh = path.with_name(f".{path.name}-{os.getpid()}-{token_hex(4)}")
    with name_in_errors(path), fresh.open("xb") as file:  # the umask decides the new file's mode
        try:
            file.write(content)
            file.close()  # so that an error of the last write comes before the old file is replaced
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


def read_json(path: Path, most: int = LARGEST_RUN_JSON) -> object:
    """Return the value in a JSON file. Raises UsageError, which names the file, if it cannot be read or is no JSON."""
    return read_given("", path, "JSON", reading.parse_json, most=most)


def read(path: Path, kind: type[FileContent]) -> FileContent:
    """Return the content of a JSON file as `kind`. Raises UsageError, which names the file and what is wrong in it."""
    return parse_as(path, read_json(path), kind)


def read_if_any(path: Path, kind: type[FileContent]) -> FileContent | None:
    """Return the content of a JSON file as `kind`, as `read` does. None if there is no such file."""
    return read(path, kind) if path.exists() else None


def parse_as(path: Path, data: object, kind: type[FileContent]) -> FileContent:
    """Return the data of a file as `kind`. Raises UsageError, which names the file and the first fault."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        raise UsageError(f"{path}: {fault_text(error)}.", path=path) from None
    except UsageError as error:  # a setting that this version refuses
        raise UsageError(f"{path}: {error}", path=path) from None


def fault_text(error: "ValidationError") -> str:
    """Return where the first fault of a file is, as far as that is known, and what it is.

    A format that is too new (`schema_version`) comes before all other faults, since it explains them.
    """
    faults = error.errors(include_url=False)
    first = faults[0]
    for fault in faults:
        if fault["loc"] == ("schema_version",):
            first = fault
            break
    place = ".".join(map(str, first["loc"]))
    if first["type"] in ("model_type", "dataclass_type", "dict_type"):
        return joined_text(": ", place, "not an object")
    return refusal_text(place or "the file", first)


def submodule_path(path: Path) -> Path:
    """Return a path within the submodule of MLPerf's repository unchanged.

    Raises UsageError, which tells how to fetch the submodule, if the path does not exist.
    """
    if not path.exists():
        shown_path = path
        if path.is_relative_to(locations.ROOT):
            shown_path = path.relative_to(locations.ROOT)
        raise UsageError(f"{shown_path} is missing: `git submodule update --init third_party/inference`.")
    return path
