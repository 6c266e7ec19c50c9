"""Files that the user named, or that lie where the user may have put anything: regular ones, of a size, are read.

A device has no end, a FIFO may never begin, and a kilobyte of YAML may stand for gigabytes.
"""

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TextIO

from harness.core.file_limits import LARGEST_RUN_FILE, size_text
from harness.core.stored_text import NoTextError, TooLongError, decoded

if TYPE_CHECKING:
    from yaml import Node

MOST_NODES = 100_000  # values in a YAML file, each alias counted as what it stands for
LINE_SUFFIXES = (".csv", ".jsonl", ".txt", ".tsv")  # suffixes of files of which a part is as good as the whole


# Errors that are raised for data of a file, or of a server, that are not as they should be.
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, RecursionError)


class NotRegularError(OSError):
    """A device, a FIFO, a folder; or a file too large to be what it is taken for."""


class TooLargeError(ValueError):
    """YAML whose aliases make it endless, or huge."""


def check_regular(found: os.stat_result, path: Path, most: int) -> None:
    """Raises OSError for anything but a regular file of at most `most` bytes."""
    if stat.S_ISDIR(found.st_mode):
        raise NotRegularError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(found.st_mode):
        raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    if found.st_size > most:
        raise too_large(path, most)


def too_large(path: Path, most: int) -> NotRegularError:
    """The error of a file that is larger than any of its kind; where its lines are its data, some of them will do."""
    remedy = ""
    if path.suffix in LINE_SUFFIXES:
        remedy = f": take a part of it, such as `head -n 100000 {path.name} > part`"
    return NotRegularError(errno.EFBIG, f"larger than {size_text(most)}{remedy}", str(path))


@contextmanager
def open_bytes(path: Path, most: int = LARGEST_RUN_FILE) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most` bytes for reading: the one way in which files that may be anything are
    opened. Raises OSError.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
    with os.fdopen(descriptor, "rb") as file:
        check_regular(os.fstat(descriptor), path, most)
        try:
            yield file
        except OSError as error:
            error.filename = error.filename or str(path)
            raise


@contextmanager
def open_regular(path: Path, most: int = LARGEST_RUN_FILE, errors: str = "strict") -> Iterator[TextIO]:
    """Open a regular file's text for reading, however it is stored: with a byte order mark, in UTF-16, compressed by
    gzip. Its line ends stay as they are. Raises OSError, also for what is no text, or is a pointer to it.
    """
    with open_bytes(path, most) as file:
        try:
            with decoded(file, most, errors) as text:
                yield text
        except NoTextError as error:
            raise NotRegularError(errno.EILSEQ, str(error), str(path)) from None
        except TooLongError:
            raise too_large(path, most) from None


def read_text(path: Path, most: int = LARGEST_RUN_FILE, errors: str = "strict") -> str:
    """Return the text of a file, as `open_regular` has it, with the line ends of Unix. Raises OSError."""
    with open_regular(path, most, errors) as file:
        text = file.read().replace("\r\n", "\n")
    # An old Mac ended lines by a carriage return alone.
    return text if "\n" in text else text.replace("\r", "\n")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, as `open_bytes` has it. Raises OSError."""
    with open_bytes(path) as file:
        return file.read()


def parse_json(text: str) -> object:
    """Return a JSON document's value. Raises ValueError, whose message says whether the text is empty, ends in the
    middle, or is damaged; RecursionError.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        whole = text.rstrip()
        if not whole:
            raise ValueError("the file is empty") from None
        if not whole.strip("\0"):
            raise ValueError("the file holds zeros alone, as after a crash of the machine") from None
        if error.pos >= len(whole) or error.msg.startswith("Unterminated string"):
            raise ValueError(f"it ends in the middle of its data, in line {error.lineno:,} ({error.msg})") from None
        raise


def load_yaml(text: str) -> object:
    """A YAML document's value. Raises yaml.YAMLError, ValueError, TooLargeError."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and node_count(root, {}) > MOST_NODES:
        raise TooLargeError(f"more than {MOST_NODES:,} values, with what its aliases stand for")
    return yaml.safe_load(text)


def from_yaml(text: str) -> object:
    """A value as YAML has it, or the text itself where it is none, or a date. Raises TooLargeError."""
    import yaml

    try:
        value = load_yaml(text)
    except TooLargeError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    return text if isinstance(value, date) else value


def as_text(value: object) -> str:
    """A value as it stands in KEY=VALUE, and `from_yaml` reads it."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def node_count(node: "Node", sizes: dict[int, int | None]) -> int:
    """Return how many values a YAML node stands for, aliases expanded. Raises YAMLError for what no file of ours holds,
    TooLargeError for a node within itself.
    """
    if id(node) in sizes:
        if (known_size := sizes[id(node)]) is None:
            raise TooLargeError("unsupported YAML: anchors must not be recursive")
        return known_size
    sizes[id(node)] = None
    check_node(node)
    total = 1
    for child in node.value if isinstance(node.value, list) else []:
        parts = child if isinstance(child, tuple) else (child,)  # a mapping's children are pairs of key and value
        total += sum(node_count(part, sizes) for part in parts)
    sizes[id(node)] = total
    return total


def check_node(node: "Node") -> None:
    """Raises YAMLError for a control character, a number to base 60, or a key that is given twice."""
    import yaml

    if isinstance(node, yaml.ScalarNode):
        problem = scalar_problem(node.value, is_quoted=bool(node.style))
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if isinstance(node, yaml.MappingNode):
        keys = set[str]()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            keys.add(str(key.value))


def scalar_problem(text: str, is_quoted: bool) -> str:
    """Return what no value of a YAML file may be; empty for any other."""
    if re.search("[\x00-\x08\x0b-\x1f\x7f]", text):
        return "a control character, such as NUL, in a value"
    if not is_quoted and re.fullmatch(r"[-+]?[1-9][\d_]*(?::[0-5]?\d)+(?:\.\d*)?", text):
        return f"{text} would be a number to base 60: quote it"
    return ""
