"""Text as Markdown: HTML, links and pictures in it are made harmless."""

import re
from typing import overload

from harness.core.message_text import plain


class Finished(str):
    """Text that a page takes as it is."""


@overload
def harmless(value: str) -> str: ...
@overload
def harmless(value: object) -> object: ...
def harmless(value: object) -> object:
    """Return a value as a page may show it: HTML, links and pictures in a text are made harmless."""
    if not isinstance(value, str) or isinstance(value, Finished):
        return value
    return escape(value)


def one_line(text: str) -> str:
    """Return text on one line, without characters that a terminal would obey."""
    return plain(" ".join(text.splitlines()))


def escape(text: str) -> str:
    """Return text on one line in which HTML, links and pictures have no effect."""
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", one_line(text)).replace("](", "]\\(")


def code(text: object) -> str:
    """Return text on one line for use within backticks or a code fence. Its own backticks become single quotes."""
    return Finished(one_line(str(text)).replace("`", "'"))


def quoted(text: str) -> str:
    return Finished("\n> ".join(map(escape, text.splitlines())))
