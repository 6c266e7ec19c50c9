"""The last screen of a command: the answer, a labelled sentence for each finding, and one path."""

from collections.abc import Sequence
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from harness.core.document import Document, Line, Tone, block_text
from harness.core.formatting import number
from harness.core.message_text import plain
from harness.core.progress import row_text, safe_markup
from harness.core.secrets import hide_text
from harness.core.tables import Table

# The last screen shows the answer first, then a sentence with a label for each finding, and one path.
SCREEN_COLUMNS, LABEL_COLUMNS = 80, 15  # characters
TONE_STYLES: dict[Tone, str] = {"": "", "good": "green", "careful": "yellow", "bad": "red", "unknown": "dim"}


def show(console: Console, document: Document, path: object = None) -> None:
    """Print a document no wider than a terminal.

    If `path` is given, print the path in place of the document's sections.
    """

    def say(text: str, tone: Tone = "", bold: bool = False) -> None:
        style = f"bold {TONE_STYLES[tone]}" if bold else TONE_STYLES[tone]
        console.print(Text(plain(hide_text(text)), style=style), soft_wrap=True)

    say("")
    for text in wrap(document.title, SCREEN_COLUMNS):
        say(text, document.tone, bold=True)
    widths = [max(map(len, column)) for column in zip(*document.levels, strict=True)]
    for text in wrap(document.subject, SCREEN_COLUMNS):
        say(text)
    for cells in document.levels:
        say(row_text(cells, widths))
    for line in document.lines:
        for text in paragraph(line) if line.text else ():
            say(text, line.tone)
    if path:
        say(f"report: {path}")
        return
    for section in document.sections:
        say(f"\n{section.title}", bold=True)
        for block in section.blocks:
            console.print(grid(block) if isinstance(block, Table) else Text(plain(hide_text(block_text(block)))))


def grid(table: Table, whole_columns: int = 0) -> RichTable:
    """Return a table for the terminal.

    Numbers stand under each other at the right. Long cells are broken into lines, but for those of the first
    `whole_columns` columns.
    """
    columns = []
    for place, head in enumerate(table.columns):
        cells = [row[place] for row in table.rows]
        justify: JustifyMethod = "right" if are_numbers(cells) else "left"
        columns.append(Column(head, overflow="fold", justify=justify, no_wrap=place < whole_columns))
    rich_table = RichTable(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in table.rows:
        rich_table.add_row(*map(cell_markup, row))
    return rich_table


def are_numbers(cells: Sequence[object]) -> bool:
    """Return whether a column holds numbers, and perhaps cells without one."""
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) for cell in known)


def cell_markup(cell: object) -> str:
    return safe_markup(cell if isinstance(cell, str) else number(cell))  # type: ignore[arg-type]


def paragraph(line: Line) -> list[str]:
    """Return the lines of a label and its text. The text is beside the label, or follows a label that is too long."""
    label = f"{line.label:{LABEL_COLUMNS}}" if len(line.label) < LABEL_COLUMNS else f"{line.label}: "
    text = f"{label}{line.text}"
    return [text] if line.is_command else wrap(text, SCREEN_COLUMNS, subsequent_indent=" " * LABEL_COLUMNS)
