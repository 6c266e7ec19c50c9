"""Wraps the running text of Markdown once: `python -m docs.generate.wrapping PAGE.md ...`.

The generators of pages use it, too. Fenced code, tables, headings, pictures and comments stay as they are.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from textwrap import wrap

from harness.core.files import write_text

WIDTH = 120
FENCE = "```"
AS_IT_IS = re.compile(r"\||#|<|!\[|$|\|?-{3}")  # how lines begin that are not running text
QUOTE = "> "
CODE, KEPT = re.compile(r"`[^`]+`"), "\x00"  # a span of code is not broken: its spaces are these meanwhile
ITEM = re.compile(r"(?:- |\d+\. |> )")


def wrapped(text: str) -> str:
    """The page, each paragraph and each item of a list filled to the width."""
    return "\n".join(lines(text.split("\n")))


def lines(source: list[str]) -> Iterator[str]:
    is_code, taken = False, list[str]()
    for line in source:
        begins = bool(AS_IT_IS.match(line)) or line.startswith(FENCE) or is_code
        item = ITEM.match(line)
        if begins or (item and not (item[0] == QUOTE and taken and taken[0].startswith(QUOTE))):
            yield from filled(taken)
            taken = []
        if line.startswith(FENCE):
            is_code = not is_code
        if begins:
            yield line
        else:
            taken.append(line)
    yield from filled(taken)


def filled(paragraph: list[str]) -> Iterator[str]:
    """The lines of a paragraph; those after the first of an item begin below its text, or with its `>`."""
    if not paragraph:
        return
    item = ITEM.match(paragraph[0])
    mark = item[0] if item else ""
    indent = mark if mark == QUOTE else " " * len(mark)
    words = " ".join(line.strip().removeprefix(QUOTE) for line in paragraph).removeprefix(mark)
    whole = CODE.sub(lambda code: code[0].replace(" ", KEPT), words)
    found = wrap(
        whole, WIDTH, initial_indent=mark, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    yield from (line.replace(KEPT, " ") for line in found)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        write_text(Path(name), wrapped(Path(name).read_text()))
        print(name)
