"""The last screen of a command: the answer, a labelled sentence for each finding, and one path."""

from collections.abc import Iterable, Sequence
from textwrap import wrap

from rich.box import SIMPLE_HEAD
from rich.console import Console, JustifyMethod
from rich.table import Column
from rich.table import Table as RichTable
from rich.text import Text

from harness.core.document import Block, Document, Line, Section, Tone, block_text
from harness.core.formatting import number
from harness.core.message_text import printable_text
from harness.core.progress import escape_rich, row_text
from harness.core.secrets import hide_text
from harness.core.tables import Table

SCREEN_COLUMNS, LABEL_COLUMNS = 80, 15  # characters
TONE_STYLES: dict[Tone, str] = {"": "", "good": "green", "careful": "yellow", "bad": "red", "unknown": "dim"}


def show(console: Console, document: Document, path: object = None) -> None:
    """Print a document on the terminal: title, subject, a table with a row for each tested load (`levels`), and lines.

    At the end, print the path of the report, or the sections of the document if there is no report (`path` is None).
    """
    print_line(console, "")
    for text in wrap(document.title, SCREEN_COLUMNS):
        print_line(console, text, document.tone, bold=True)
    for text in wrap(document.subject, SCREEN_COLUMNS):
        print_line(console, text)
    widths = [max(map(len, column)) for column in zip(*document.levels, strict=True)]
    for cells in document.levels:
        print_line(console, row_text(cells, widths))
    for line in document.lines:
        for text in paragraph(line):
            print_line(console, text, line.tone)
    if path:
        print_line(console, f"report: {path}")
    else:
        print_sections(console, document.sections)


def print_line(console: Console, text: str, tone: Tone = "", bold: bool = False) -> None:
    """Print text in the color of its tone, without secrets. Long lines are not broken again."""
    style = TONE_STYLES[tone]
    if bold:
        style = f"bold {style}"
    console.print(safe_text(text, style), soft_wrap=True)


def print_sections(console: Console, sections: Iterable[Section]) -> None:
    """Print the sections of a document, each with its title and its blocks."""
    for section in sections:
        print_line(console, f"\n{section.title}", bold=True)
        for block in section.blocks:
            console.print(screen_block(block))


def safe_text(text: str, style: str = "") -> Text:
    """Return text for the terminal, without secrets or characters that a terminal would obey."""
    return Text(printable_text(hide_text(text)), style=style)


def screen_block(block: Block) -> RichTable | Text:
    """Return a block of a document as the terminal shows it."""
    if isinstance(block, Table):
        return grid(block)
    return safe_text(block_text(block))


def grid(table: Table, whole_columns: int = 0) -> RichTable:
    """Return a table for the terminal.

    Columns of numbers are aligned to the right. Long cells are broken into lines, except in columns of numbers and in
    the first `whole_columns` columns.
    """
    columns = []
    for index, head in enumerate(table.columns):
        cells = [row[index] for row in table.rows]
        justify: JustifyMethod = "right" if are_numbers(cells) else "left"
        is_whole = index < whole_columns or justify == "right"
        columns.append(Column(head, overflow="fold", justify=justify, no_wrap=is_whole))
    rich_table = RichTable(*columns, box=SIMPLE_HEAD, pad_edge=False)
    for row in table.rows:
        rich_table.add_row(*map(cell_markup, row))
    return rich_table


def are_numbers(cells: Sequence[object]) -> bool:
    """Return whether a column holds only numbers and None, with at least one number."""
    known = [cell for cell in cells if cell is not None]
    return bool(known) and all(isinstance(cell, int | float) for cell in known)


def cell_markup(cell: object) -> str:
    """Return a cell as rich prints it: a text without markup of its own, or a number, or a dash for None."""
    if isinstance(cell, str):
        return escape_rich(cell)
    return escape_rich(number(cell))  # type: ignore[arg-type]


def paragraph(line: Line) -> list[str]:
    """Return the lines of a label and its text, wrapped unless the text is a command. Empty if there is no text."""
    if not line.text:
        return []
    label = f"{line.label}: "
    if len(line.label) < LABEL_COLUMNS:
        label = line.label.ljust(LABEL_COLUMNS)
    text = label + line.text
    if line.is_command:
        return [text]
    return wrap(text, SCREEN_COLUMNS, subsequent_indent=" " * LABEL_COLUMNS)
