"""Files: written whole or not at all, read with errors of one line; names and values that a user gave."""

import csv
import fcntl
import io
import json
import math
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from harness.core import reading
from harness.core.errors import BenchmarkError, UsageError, why
from harness.core.secrets import arguments, hide, hide_known, hide_word

# Control characters but the tab, which no value has, and bytes of the command line that are not UTF-8.
UNPRINTABLE = "[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]"
ADDRESS = r"(?!hf:)\w[\w+.-]+:/"  # as a path, with one slash, too
# Older names of settings, which are still taken.
RENAMED = {"version": "round", "total_limit": "total_sample_count", "data": "dataset_path"}


def read_given(
    flag: str,
    path: Path,
    kind: str,
    parse: Callable[[str], Any],
    wrong: type[Exception] = ValueError,
    most: int = 2**32,
) -> Any:
    """The content of a file, which the user may have named with `flag`. Raises UsageError when it cannot be read or
    parsed.

    Only regular files of at most `most` bytes are read: a device has no end.
    """
    where = f"{flag} {path}".lstrip()
    try:
        return parse(reading.read_text(path, most))
    except OSError as error:
        raise UsageError(f"{where}: {why(error)}.") from None
    except (wrong, ValueError, RecursionError) as error:  # also deep nesting, or a date that is none
        raise UsageError(f"{where}: not {kind}: {' '.join(str(error).split()).removesuffix('.')}.") from None


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """`; did you mean ...?` for a misspelt name, or a full stop."""
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else "."


def unknown_setting(key: str, names: Sequence[str]) -> str:
    """What to say of a key of a file that is none of these settings."""
    flag = as_flag(key)
    if (own := key.removeprefix("no_")) in arguments():
        return f"unknown setting {key!r}: vLLM's own arguments are lines such as engine_arg: {own}=VALUE."
    return f"{key} {MOVED[flag]}." if flag in MOVED else f"unknown setting {key!r}{did_you_mean(key, names)}"


def unknown_file_error(flag: str, name: str, names: Sequence[str]) -> UsageError:
    """What to say of a value that is neither a file nor one of `names`."""
    return UsageError(f"{flag} {name}: not a file, and not one of {', '.join(names)}{did_you_mean(name, names)}")


def as_flag(name: str) -> str:
    """max_num_seqs -> --max-num-seqs"""
    return "--" + name.replace("_", "-")


def require(ok: bool, name: str, wanted: str, got: str) -> None:
    if not ok:
        raise UsageError(f"{name} takes {wanted}; got {hide_word(got)!r}.")


def check_printable(name: str, text: str) -> None:
    """Raises UsageError for a value, which may be a secret, with control characters or bytes that are not UTF-8."""
    if re.search(UNPRINTABLE, text):
        raise UsageError(f"{name}: control characters, or invalid UTF-8, in a value.")


def check_path(name: str, value: object) -> None:
    """Raises UsageError for an address where a path may stand: it is not shown, for it may hold a secret."""
    if re.match(ADDRESS, str(value)):
        raise UsageError(f"{name} takes no address, but a path: download the file first if it is to be read.")


# Files of this program: written whole or not at all, secrets left out; read as what they should hold.
Kind = TypeVar("Kind")


SPARE_BYTES = 2**23  # of a disk, below which it counts as full


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """What fails within names the file, which the system leaves out where a write fails."""
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
    """Holds the lock of a folder, and yields its file descriptor. Raises UsageError where somebody has it: `what`."""
    path = folder / ".lock"
    path.touch()
    reading.check_regular(path.stat(), path, reading.MIB)  # a FIFO would wait for a reader
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{folder}: {what} is still running.") from None
        yield file.fileno()


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
    return next(each for each in (path, *path.absolute().parents) if each.exists() or each.is_symlink())


def free_gib(folder: Path) -> float:
    """Of the disk that the folder is on, or will be."""
    return shutil.disk_usage(existing(folder)).free / 2**30


def check_folder_name(what: str, name: object) -> None:
    """Raises UsageError for a text that cannot be the name of a folder: from a file it may lead anywhere else."""
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.+-]{0,99}", name)):
        raise UsageError(f"{what} {name!r} is not a folder name: use at most 100 letters, digits, '.', '+', '-', '_'.")


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


def write_json(path: Path, data: Any) -> None:
    """Writes a whole file or none: readers never meet half of one. Secrets are left out."""
    write_text(path, json.dumps(hide(data), indent=2, allow_nan=False) + "\n")


def as_json(data: Any) -> Any:
    """The data as JSON gives them back; what it does not know as text."""
    return json.loads(json.dumps(data, default=str))


def write_text(path: Path, text: str) -> None:
    """Writes a whole file or none; of a link, what it leads to. Raises OSError, which names it."""
    path = path.resolve()
    if path.exists() and not path.is_file():  # a pipe or a device is written into, not replaced
        with naming(path), os.fdopen(os.open(path, os.O_WRONLY | os.O_NONBLOCK), "w") as file:  # ENXIO: nobody reads
            os.set_blocking(file.fileno(), True)
            file.write(hide_known(text))
        return
    fresh = path.with_name(f".{path.name}-{os.getpid()}-{token_hex(4)}")
    with naming(path), fresh.open("x") as file:  # with the modes that the umask leaves
        try:
            file.write(hide_known(text))
            file.close()
            os.replace(fresh, path)
        except BaseException:
            fresh.unlink(missing_ok=True)
            raise


def write_table(path: Path, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Writes a whole CSV file or none: a line a row. Raises OSError."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    write_text(path, text.getvalue())


def read_json(path: Path) -> Any:
    """The file's content. Raises UsageError, naming the file, where there is none or it is no JSON."""
    return read_given("", path, "JSON", json.loads, most=reading.LARGEST_FILE)


def read(path: Path, kind: type[Kind]) -> Kind:
    """The file as what it should hold. Raises UsageError, naming the file and what is wrong in it."""
    return parse_as(path, read_json(path), kind)


def read_if_any(path: Path, kind: type[Kind]) -> Kind | None:
    """The same; None where there is no such file."""
    return read(path, kind) if path.exists() else None


def parse_as(path: Path, data: Any, kind: type[Kind]) -> Kind:
    """Data of a file as what it should hold. Raises UsageError, naming the file and the first fault."""
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        faults = sorted(error.errors(include_url=False), key=lambda fault: fault["loc"] != ("schema_version",))
        where = ".".join(map(str, faults[0]["loc"]))
        said = "not an object" if faults[0]["type"] in ("model_type", "dataclass_type") else faults[0]["msg"]
        raise UsageError(f"{path}: {f'{where}: ' if where else ''}{said}.") from None
    except UsageError as error:  # a setting that this version refuses
        raise UsageError(f"{path}: {error}") from None


Columns = dict[str, list[float | None]]  # of numbers, by name


def read_columns(path: Path, names: Sequence[str] = ()) -> Columns:
    """The columns of numbers in a CSV file, all or those named; an empty cell is None.

    Raises UsageError, naming the line, where a column is missing or a cell is no number.
    """
    lines = read_given("", path, "a table", read_table, csv.Error, reading.LARGEST_FILE)
    wanted = names or [name for name in (lines[0] if lines else {}) if name]
    columns: Columns = {name: [] for name in wanted}
    for number, line in enumerate(lines, start=2):
        for name in wanted:
            try:
                columns[name].append(finite(line[name]))
            except reading.DAMAGED:
                raise UsageError(f"{path}:{number}: {name}: not a number: {line.get(name)!r}.") from None
    return columns


def read_table(text: str) -> list[dict[str, str]]:
    """The lines of a CSV file by column. Raises csv.Error."""
    return list(csv.DictReader(io.StringIO(text, newline=""), restkey="", restval=""))


def table_beside(module: str, name: str) -> list[dict[str, str]]:
    """The lines of a CSV file that lies beside a module, by column."""
    return read_table(reading.read_text(Path(module).with_name(name)))


# Commands and flags that earlier versions had, with what serves now: each ends in one line that names it.
MOVED = {row["name"]: row["now"] for row in table_beside(__file__, "moved.csv")}


def finite(text: str) -> float | None:
    """A cell's number; None for an empty one. Raises ValueError, also for infinities."""
    value = float(text) if text else None
    if value is not None and not math.isfinite(value):
        raise ValueError(text)
    return value


def submodule_path(path: Path) -> Path:
    """A path in it. Raises UsageError where the submodule is empty."""
    if not path.exists():
        shown = path.relative_to(reading.ROOT) if path.is_relative_to(reading.ROOT) else path
        raise UsageError(f"{shown} is missing: `git submodule update --init third_party/inference`.")
    return path
