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
from typing import Any, TextIO

LARGEST_RUN_FILE = 2**30  # bytes of a run folder's JSON or CSV, and of the history
MOST_NODES = 100_000  # values in a YAML file, each alias counted as what it stands for


MIB = 2**20


# What is raised where data of a file, or of a server, are not as they should be.
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
        part = f"larger than {most / MIB:,.0f} MiB: take a part of it, such as `head -n 100000 {path.name} > part`"
        raise NotRegularError(errno.EFBIG, part, str(path))


@contextmanager
def open_regular(
    path: Path, most: int = LARGEST_RUN_FILE, encoding: str = "utf-8", errors: str = "strict"
) -> Iterator[TextIO]:
    """A regular file of at most `most` bytes, open for reading, its line ends as they are: the one way in which files
    that may be anything are read. Raises OSError, also for text that is not UTF-8.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would wait for a writer
    with os.fdopen(descriptor, newline="", encoding=encoding, errors=errors) as file:
        check_regular(os.fstat(descriptor), path, most)
        try:
            yield file
        except UnicodeDecodeError:
            raise NotRegularError(errno.EILSEQ, "not text in UTF-8", str(path)) from None
        except OSError as error:
            error.filename = error.filename or str(path)
            raise


def read_text(path: Path, most: int = LARGEST_RUN_FILE, errors: str = "strict") -> str:
    """The text of a file, as `open_regular` has it. Raises OSError."""
    with open_regular(path, most, errors=errors) as file:
        return file.read().replace("\r\n", "\n")


def read_bytes(path: Path) -> bytes:
    """The content of a file, as `open_regular` has it. Raises OSError."""
    with open_regular(path, encoding="latin-1") as file:
        return file.buffer.read()


def load_yaml(text: str) -> Any:
    """A YAML document's value. Raises yaml.YAMLError, ValueError, TooLargeError."""
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None and size(root, {}) > MOST_NODES:
        raise TooLargeError(f"more than {MOST_NODES:,} values, with what its aliases stand for")
    return yaml.safe_load(text)


def from_yaml(text: str) -> Any:
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


def size(node: Any, sizes: dict[int, int | None]) -> int:
    """How many values a YAML node stands for, aliases expanded. Raises YAMLError for what no file of ours holds,
    TooLargeError for a node within itself.
    """
    if id(node) in sizes:
        if (found := sizes[id(node)]) is None:
            raise TooLargeError("unsupported YAML: anchors must not be recursive")
        return found
    sizes[id(node)] = None
    check_node(node)
    children = node.value if isinstance(node.value, list) else []
    parts = [part for child in children for part in (child if isinstance(child, tuple) else (child,))]
    sizes[id(node)] = total = 1 + sum(size(part, sizes) for part in parts)
    return total


def check_node(node: Any) -> None:
    """Raises YAMLError for a control character, a number to base 60, or a key that is given twice."""
    import yaml

    value, problems = node.value, {}  # by where they are
    if isinstance(value, str) and re.search("[\x00-\x08\x0b-\x1f\x7f]", value):
        problems[node] = "a control character, such as NUL, in a value"
    elif isinstance(value, str) and not node.style and re.fullmatch(r"[-+]?[1-9][\d_]*(?::[0-5]?\d)+(?:\.\d*)?", value):
        problems[node] = f"{value} would be a number to base 60: quote it"
    elif isinstance(node, yaml.MappingNode):
        first = {str(key.value): key for key, _ in reversed(value)}
        problems = {key: f"{key.value!r} is given twice" for key, _ in value if first[str(key.value)] is not key}
    for at, problem in problems.items():
        raise yaml.MarkedYAMLError(problem=problem, problem_mark=at.start_mark)
