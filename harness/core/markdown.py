"""Text as Markdown: HTML, links and pictures in it are made harmless."""

import re
from typing import overload

from harness.core.message_text import printable_text


class MarkdownText(str):
    """Text that a page takes as it is."""


@overload
def escape_markdown(value: str) -> str: ...
@overload
def escape_markdown(value: object) -> object: ...
def escape_markdown(value: object) -> object:
    """Return a value as a page may show it: HTML, links and pictures in a text are made harmless."""
    if not isinstance(value, str) or isinstance(value, MarkdownText):
        return value
    return escape_text(value)


def one_line(text: str) -> str:
    """Return text on one line, without characters that a terminal would obey."""
    return printable_text(" ".join(text.splitlines()))


def escape_text(text: str) -> str:
    """Return text on one line in which HTML, links and pictures have no effect."""
    return re.sub(r"<(?=[a-zA-Z/!?])", "&lt;", one_line(text)).replace("](", "]\\(")


def code_text(text: object) -> str:
    """Return text on one line for use within backticks or a code fence. Its own backticks become single quotes."""
    return MarkdownText(one_line(str(text)).replace("`", "'"))


def block_quote(text: str) -> str:
    """Return the lines of a text, made harmless, as a block quote. The first "> " stands in the template."""
    return MarkdownText("\n> ".join(map(escape_text, text.splitlines())))
