"""Wraps the running text of Markdown once: `python -m docs.generate.wrapping PAGE.md ...`.

The generators of pages use it, too. Fenced code, tables, headings, pictures and comments stay as they are.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from harness.core.files import write_text

WIDTH = 120  # characters
FENCE = "```"
UNWRAPPED = re.compile(r"\||#|<|!\[|$|\|?-{3}")  # the beginnings of lines that are not running text
QUOTE = "> "
ITEM = re.compile(r"(?:- |\d+\. |> )")  # the beginnings of list items and quotes
CODE_SPAN = re.compile(r"`[^`]+`")
CODE_SPACE = "\x00"  # stands for a space in a span of code while lines are wrapped, so that no span is broken


def wrapped(text: str) -> str:
    """Return a page with each paragraph and each item of a list filled to the width."""
    return "\n".join(wrapped_lines(text.split("\n")))


def wrapped_lines(lines: list[str]) -> Iterator[str]:
    paragraph = list[str]()
    is_in_code = False
    for line in lines:
        is_fence = line.startswith(FENCE)
        is_running_text = not (is_in_code or is_fence or UNWRAPPED.match(line))
        if not is_running_text or begins_paragraph(line, paragraph):
            yield from filled_lines(paragraph)
            paragraph = []
        if is_running_text:
            paragraph.append(line)
        else:
            yield line
        if is_fence:
            is_in_code = not is_in_code
    yield from filled_lines(paragraph)


def begins_paragraph(line: str, paragraph: list[str]) -> bool:
    """Tell whether a line of running text begins an item or a quote, and does not continue the quote before it."""
    item = ITEM.match(line)
    if not item:
        return False
    is_in_quote = bool(paragraph) and paragraph[0].startswith(QUOTE)
    return not (item[0] == QUOTE and is_in_quote)


def filled_lines(paragraph: list[str]) -> list[str]:
    """Return the lines of a paragraph, an item or a quote.

    The further lines of a quote begin with `> `, those of an item are indented to its text.
    """
    if not paragraph:
        return []
    item = ITEM.match(paragraph[0])
    marker = item[0] if item else ""
    indent = marker if marker == QUOTE else " " * len(marker)
    text = " ".join(line.strip().removeprefix(QUOTE) for line in paragraph).removeprefix(marker)
    unbroken_text = CODE_SPAN.sub(lambda span: span[0].replace(" ", CODE_SPACE), text)
    lines = wrap(
        unbroken_text,
        WIDTH,
        initial_indent=marker,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(CODE_SPACE, " ") for line in lines]


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_text(Path(name), wrapped(Path(name).read_text()))
        print(name)
