"""The last screen of a command: the answer first, then a labelled sentence each, and one path."""

from collections.abc import Sequence
from dataclasses import dataclass
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

from harness.common.errors import plain
from harness.common.secrets import hide_text
from harness.terminal.progress import row_text

if TYPE_CHECKING:
    from rich.console import Console

WIDTH, LABEL = 80, 15  # characters
Tone = Literal["", "good", "careful", "bad", "unknown"]
STYLES: dict[Tone, str] = {"": "", "good": "green", "careful": "yellow", "bad": "red", "unknown": "dim"}
Cells = Sequence[str]


@dataclass(frozen=True)
class Line:
    """A label and the text under it; a command is never broken into lines."""

    label: str
    text: str
    tone: Tone = ""
    is_command: bool = False


@dataclass(frozen=True)
class LastScreen:
    """The answer, its subject, and what must be known of it; `levels` are the rows of a table, the head first."""

    title: str
    subject: str
    lines: Sequence[Line] = ()
    levels: Sequence[Cells] = ()
    tone: Tone = ""


def show(console: "Console", screen: LastScreen, path: object = None) -> None:
    """Prints a last screen, in at most the width of a terminal; `path` is where all of it stands, if in a file."""
    from rich.text import Text

    def say(text: str, tone: Tone = "", bold: bool = False) -> None:
        style = f"{'bold ' if bold else ''}{STYLES[tone]}".strip()
        console.print(Text(plain(hide_text(text)), style=style), soft_wrap=True)

    say("")
    for text in wrap(screen.title, WIDTH):
        say(text, screen.tone, bold=True)
    for text in wrap(screen.subject, WIDTH):
        say(text)
    for text in table(screen.levels):
        say(text)
    for line in screen.lines:
        for text in paragraph(line):
            say(text, line.tone)
    if path:
        say(f"report: {path}")


def paragraph(line: Line) -> list[str]:
    """A label and its text, wrapped beside it; a label that is too long begins the text."""
    if line.is_command:
        return [f"{line.label:{LABEL}}{line.text}"]
    if len(line.label) >= LABEL:
        return wrap(f"{line.label}: {line.text}", WIDTH, subsequent_indent=" " * LABEL)
    return wrap(f"{line.label:{LABEL}}{line.text}", WIDTH, subsequent_indent=" " * LABEL)


def table(rows: Sequence[Cells]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [row_text(cells, widths) for cells in rows]
