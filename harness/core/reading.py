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
from shlex import quote
from typing import TYPE_CHECKING, BinaryIO, TextIO

from harness.core.file_limits import LARGEST_RUN_FILE, size_text
from harness.core.stored_text import NoTextError, TooLongError, text_stream

if TYPE_CHECKING:
    from yaml import Node

MOST_YAML_VALUES = 100_000  # values in a YAML file, with its aliases expanded
LINE_SUFFIXES = (".csv", ".jsonl", ".txt", ".tsv")  # files of lines, of which a part can be used, too


# Errors that may be raised if data of a file or of a server are damaged.
DAMAGED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, RecursionError)


class NotRegularError(OSError):
    """A device, a FIFO, a folder; or a file too large to be what it is taken for."""


class TooLargeError(ValueError):
    """YAML whose aliases make it endless, or huge."""


def check_regular(status: os.stat_result, path: Path, most: int) -> None:
    """Raise OSError unless a file is a regular file of at most `most` bytes.

    `status` is what the operating system reports of the file at `path`.
    """
    if stat.S_ISDIR(status.st_mode):
        raise NotRegularError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise NotRegularError(errno.EINVAL, "not a regular file", str(path))
    if status.st_size > most:
        raise too_large_error(path, most)


def too_large_error(path: Path, most: int) -> NotRegularError:
    """Return the error for a file of more than `most` bytes, the limit of its kind.

    A file of lines can also be used in part, so the message tells how to cut such a file.
    """
    remedy = ""
    if path.suffix in LINE_SUFFIXES:
        remedy = f": take a part of it, such as `head -n 100000 {quote(path.name)} > part`"
    return NotRegularError(errno.EFBIG, f"larger than {size_text(most)}{remedy}", str(path))


@contextmanager
def open_bytes(path: Path, most: int = LARGEST_RUN_FILE) -> Iterator[BinaryIO]:
    """Open a regular file of at most `most` bytes for reading.

    Raises OSError, with the file's name, for a pipe, a device, a file that is too large, or a failure to read.
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
    """Open the text of a regular file for reading, in UTF-8 or UTF-16, or compressed by gzip.

    Line ends are not changed. Raises OSError, also if the file is no text, or is only a pointer that Git LFS left.
    """
    with open_bytes(path, most) as file:
        try:
            with text_stream(file, most, errors) as text:
                yield text
        except NoTextError as error:
            raise NotRegularError(errno.EILSEQ, str(error), str(path)) from None
        except TooLongError:
            raise too_large_error(path, most) from None


def read_text(path: Path, most: int = LARGEST_RUN_FILE, errors: str = "strict") -> str:
    """Return the text of a file with the line ends of Unix, read by `open_regular`. Raises OSError."""
    with open_regular(path, most, errors) as file:
        text = file.read().replace("\r\n", "\n")
    # An old Mac ended lines by a carriage return alone.
    return text if "\n" in text else text.replace("\r", "\n")


def read_bytes(path: Path) -> bytes:
    """Return the content of a file, read by `open_bytes`. Raises OSError."""
    with open_bytes(path) as file:
        return file.read()


def parse_json(text: str) -> object:
    """Return the value of a JSON document.

    Raises ValueError, whose message says whether the text is empty, is cut off or is damaged. Raises RecursionError if
    values are nested too deeply.
    """
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        content = text.rstrip()
        if not content:
            raise ValueError("the file is empty") from None
        # The parser came to the end of the text while it expected more.
        is_cut_off = error.pos >= len(content) or error.msg.startswith("Unterminated string")
        if is_cut_off:
            raise ValueError(f"it ends in the middle of its data, in line {error.lineno:,} ({error.msg})") from None
        raise


def load_yaml(text: str) -> object:
    """Return the value of a YAML document.

    Raises yaml.YAMLError for what is no YAML or has a key twice, ValueError for an impossible value such as the 31st of
    June, and TooLargeError for more than MOST_YAML_VALUES values with all aliases expanded.
    """
    import yaml

    root = yaml.compose(text, Loader=yaml.SafeLoader)
    # Counting the nodes also checks each of them, for example for a key that is given twice.
    if root is not None and node_count(root, {}) > MOST_YAML_VALUES:
        raise TooLargeError(f"more than {MOST_YAML_VALUES:,} values, with what its aliases stand for")
    return yaml.safe_load(text)


def yaml_value(text: str) -> object:
    """Return the value that a text of the command line has as YAML, such as the number 8 for "8"; else the text itself.

    Raises TooLargeError if aliases make the value too large.
    """
    import yaml

    try:
        value = load_yaml(text)
    except TooLargeError:  # a ValueError, but the text must not be returned
        raise
    except (yaml.YAMLError, ValueError, RecursionError):
        return text
    if isinstance(value, date):  # No argument takes a date, so a text that looks like a date is meant as a text.
        return text
    return value


def setting_text(value: object) -> str:
    """Return a value as the text that stands in KEY=VALUE. `yaml_value` reads the text back."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def node_count(node: "Node", sizes: dict[int, int | None]) -> int:
    """Return the number of values that a YAML node stands for, with its aliases expanded.

    `sizes` has the known numbers by the id of the node. Raises YAMLError for a mistake such as a key that is given
    twice, and TooLargeError for a node that contains itself.
    """
    if id(node) in sizes:
        known_size = sizes[id(node)]
        if known_size is None:  # The node is still being counted, so it is a part of itself.
            raise TooLargeError("unsupported YAML: anchors must not be recursive")
        return known_size
    sizes[id(node)] = None  # The node is being counted from now on.
    check_node(node)
    total = 1
    for child in child_nodes(node):
        total += node_count(child, sizes)
    sizes[id(node)] = total
    return total


def child_nodes(node: "Node") -> Iterator["Node"]:
    """Yield the items of a list, or the keys and values of a mapping. A scalar has no children."""
    if not isinstance(node.value, list):  # a scalar, whose value is text
        return
    for child in node.value:
        if isinstance(child, tuple):  # a key of a mapping, with its value
            yield from child
        else:
            yield child


def check_node(node: "Node") -> None:
    """Raise YAMLError for a control character, a number to base 60, or a key that is given twice.

    YAML allows these, but they are mistakes: PyYAML reads 1:30 as 90, and takes the last value of a key.
    """
    import yaml

    if isinstance(node, yaml.ScalarNode):
        is_quoted = bool(node.style)  # PyYAML has the quote as the style, and None for plain text.
        problem = scalar_problem(node.value, is_quoted)
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
    if isinstance(node, yaml.MappingNode):
        keys = set[str]()
        for key, _ in node.value:
            if str(key.value) in keys:
                raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
            keys.add(str(key.value))


def scalar_problem(text: str, is_quoted: bool) -> str:
    """Return what is wrong with a value of a YAML file. Empty if nothing is wrong.

    Wrong are a control character, and a number to base 60 without quotes, such as 1:30, which people mean as a text.
    """
    if re.search("[\x00-\x08\x0b-\x1f\x7f]", text):
        return "a control character, such as NUL, in a value"
    if not is_quoted and re.fullmatch(r"[-+]?[1-9][\d_]*(?::[0-5]?\d)+(?:\.\d*)?", text):
        return f"{text} would be a number to base 60: quote it"
    return ""
