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
    """Return what a page shows of a value."""
    if not isinstance(value, str) or isinstance(value, Finished):
        return value
    return escape(value)


def one_line(text: str) -> str:
    """Text on one line, without what a terminal would obey."""
    return plain(" ".join(text.splitlines()))


def escape(text: str) -> str:
    """Text on one line without any HTML, links or pictures in it."""
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", one_line(text)).replace("](", "]\\(")


def code(text: object) -> str:
    """Text within backticks or a code fence, which shows everything as it is: on one line, without backticks."""
    return Finished(one_line(str(text)).replace("`", "'"))


def quoted(text: str) -> str:
    return Finished("\n> ".join(map(escape, text.splitlines())))
