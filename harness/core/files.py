"""Files: written whole or not at all, read with errors of one line; names and values that a user gave."""

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
from harness.core.given_values import read_given
from harness.core.message_text import warn, why
from harness.core.secrets import hide, hide_known

if TYPE_CHECKING:
    from pydantic import JsonValue

# Files of this program: written whole or not at all, secrets left out; read as what they should hold.
FileContent = TypeVar("FileContent")


LOCK_NAME = ".lock"  # in a folder that one command at a time may change
LOCK_IS_TAKEN = (errno.EAGAIN, errno.EACCES)  # answers of the kernel while another process has a lock
SPARE_BYTES = 2**23  # a disk with less free counts as full


@contextmanager
def name_in_errors(path: Path) -> Iterator[None]:
    """Name the file in an error raised within, which the system leaves out where a write fails."""
    try:
        yield
    except OSError as error:
        error.filename = str(path)
        raise


def append_line(path: Path, text: str) -> None:
    """Adds a separate line, also after one that was cut short."""
    last = reading.read_bytes(path)[-1:] if path.exists() else b""
    with path.open("a") as file:
        file.write(("" if last in (b"", b"\n") else "\n") + text + "\n")


@contextmanager
def lock_folder(folder: Path, what: str) -> Iterator[int]:
    """Hold the lock of a folder, and yield its file descriptor. Raises UsageError where somebody has it: `what`.

    A mount without locks, such as some of NFS and Lustre, proves nothing: the command goes on, and says so.
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
            warn(f"{folder}: no lock could be had ({why(error)}): start no other command in this folder meanwhile")
        yield file.fileno()


def is_locked(folder: Path) -> bool | None:
    """Return whether somebody holds the lock of a folder; None where that cannot be known."""
    try:
        with reading.open_bytes(folder / LOCK_NAME, MIB) as file:
            return is_taken(file)
    except OSError:
        return None


def is_taken(file: BinaryIO) -> bool | None:
    """Return whether another process has the lock of an open file; None where the mount has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        return True if error.errno in LOCK_IS_TAKEN else None
    return False


def check_space(path: Path) -> None:
    """Raises BenchmarkError when the disk is about full, or away: LoadGen would lose its logs without a word."""
    try:
        free = shutil.disk_usage(path).free
    except OSError as error:
        raise BenchmarkError(f"{path}: {why(error)}: the run folder was deleted, and the logs in it.") from None
    if free < SPARE_BYTES:
        raise BenchmarkError(f"the disk of {path} is full: free some space, or choose another --results-dir.")


def existing(path: Path) -> Path:
    """The path, or the nearest folder above it that is there."""
    candidates = iter((path, *path.absolute().parents))
    nearest = next(candidates)
    while not (nearest.exists() or nearest.is_symlink()):
        nearest = next(candidates)
    return nearest


def free_gib(folder: Path) -> float:
    """Return the free space of the disk that the folder is on, or will be."""
    return shutil.disk_usage(existing(folder)).free / 2**30


@contextmanager
def whole_or_nothing(folder: Path) -> Iterator[Path]:
    """A folder to write several files of `folder`; they appear in it once all are written, or none does."""
    fresh = folder / ".new"
    fresh.mkdir()
    try:
        yield fresh
        for path in fresh.iterdir():
            path.replace(folder / path.name)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def write_json(path: Path, data: object) -> None:
    """Writes a whole file or none: readers never meet half of one. Secrets are left out."""
    write_text(path, json.dumps(hide(data), indent=2, allow_nan=False) + "\n")


@overload
def as_json(data: Mapping[str, object]) -> dict[str, "JsonValue"]: ...
@overload
def as_json(data: object) -> object: ...
def as_json(data: object) -> object:
    """The data as JSON gives them back; what it does not know as text."""
    return json.loads(json.dumps(data, default=str))


def write_text(path: Path, text: str) -> None:
    """Write a whole file or none; of a link, what it leads to. Raises OSError, which names it."""
    write_bytes(path, hide_known(text).encode())


def write_bytes(path: Path, content: bytes) -> None:
    """Write a whole file or none; of a link, what it leads to. Raises OSError, which names it.

    A pipe or a device is written into, not replaced; a pipe that nobody reads is an error, since it would wait.
    """
    path = path.resolve()
    if path.exists() and not path.is_file():
        with name_in_errors(path), os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "wb") as pipe:
            os.set_blocking(pipe.fileno(), True)
            pipe.write(content)
        return
    fresh = path.with_name(f".{path.name}-{os.getpid()}-{token_hex(4)}")
    with name_in_errors(path), fresh.open("xb") as file:  # with the modes that the umask leaves
        try:
            file.write(content)
            file.close()
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


def read_json(path: Path, most: int = LARGEST_RUN_JSON) -> object:
    """The file's content. Raises UsageError, naming the file, where there is none or it is no JSON."""
    return read_given("", path, "JSON", reading.parse_json, most=most)


def read(path: Path, kind: type[FileContent]) -> FileContent:
    """The file as what it should hold. Raises UsageError, naming the file and what is wrong in it."""
    return parse_as(path, read_json(path), kind)


def read_if_any(path: Path, kind: type[FileContent]) -> FileContent | None:
    """Return what a file holds; None where there is no such file."""
    return read(path, kind) if path.exists() else None


def parse_as(path: Path, data: object, kind: type[FileContent]) -> FileContent:
    """Data of a file as what it should hold. Raises UsageError, naming the file and the first fault."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        faults = sorted(error.errors(include_url=False), key=lambda fault: fault["loc"] != ("schema_version",))
        place = ".".join(map(str, faults[0]["loc"]))
        text = "not an object" if faults[0]["type"] in ("model_type", "dataclass_type") else faults[0]["msg"]
        if place:
            text = f"{place}: {text}"
        raise UsageError(f"{path}: {text}.", path=path) from None
    except UsageError as error:  # a setting that this version refuses
        raise UsageError(f"{path}: {error}", path=path) from None


def submodule_path(path: Path) -> Path:
    """A path in it. Raises UsageError where the submodule is empty."""
    if not path.exists():
        shown_path = path.relative_to(locations.ROOT) if path.is_relative_to(locations.ROOT) else path
        raise UsageError(f"{shown_path} is missing: `git submodule update --init third_party/inference`.")
    return path
