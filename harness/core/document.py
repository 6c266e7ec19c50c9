"""A document, which a command shows, also as Markdown: answer, sections, tables, pictures; pages of templates/."""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, Protocol

from harness.core.formatting import cell
from harness.core.markdown import MarkdownText, escape_markdown, one_line
from harness.core.tables import Table

# A document is written by one of three writers: for a terminal, for Markdown, or for HTML.
Tone = Literal["", "good", "careful", "bad", "unknown"]
Cells = Sequence[str]


class Line(NamedTuple):
    """A label and its text. A command is never broken into lines. A caution is always among the first lines."""

    label: str
    text: str
    tone: Tone = ""
    is_command: bool = False
    is_caution: bool = False


def caution_line(text: str) -> Line:
    """Return a line with something that a reader must know before he passes a number on."""
    return Line("caution", text, "careful", is_caution=True)


class DrawnPanel(Protocol):
    """A panel of a picture: one set of axes, with its title and its height."""

    @property
    def title(self) -> str: ...

    @property
    def inches(self) -> float: ...


class Picture(NamedTuple):
    """A picture in a file beside the document. An HTML page draws the `panels` itself instead of showing the file."""

    name: str
    title: str
    path: str
    panels: Sequence[DrawnPanel]


class Code(str):
    """Text that is shown as it is, on lines of its own."""


# A block of a document: a paragraph, which may hold marks of Markdown, a code block, a table, a picture, or a list.
Block = str | Code | Table | Picture | Sequence[str]


class Section(NamedTuple):
    """A part of a document with its heading. `outcome` says in a few words what is in it. An open part is never
    folded.
    """

    title: str
    outcome: str
    blocks: Sequence[Block]
    is_open: bool = False


class Document(NamedTuple):
    """An answer (`title`), what it is about, and lines with what must be known about it; lines without a text are not
    shown. `levels` are the rows of a table, the head first.
    """

    title: str
    subject: str
    lines: Sequence[Line] = ()
    levels: Sequence[Cells] = ()
    tone: Tone = ""
    sections: Sequence[Section] = ()


def to_markdown(document: Document) -> str:
    """Return the document as a Markdown page: title, subject, a table of the lines if there are any, and sections."""
    blocks = [f"# {escape_markdown(document.title)}", escape_markdown(document.subject)]
    if document.lines:
        blocks.append("## Verdict")
        blocks.append(str(verdict_table(document.lines)))
    for section in document.sections:
        blocks.append(f"## {escape_markdown(section.title)}")
        blocks += map(block_text, section.blocks)
    return "\n\n".join(blocks) + "\n"


def verdict_table(lines: Sequence[Line]) -> Table:
    """Return the lines that have a text as a table without a head."""
    rows = []
    for line in lines:
        if line.text:
            rows.append([line.label, cell(MarkdownText(escape_markdown(line.text)))])
    return Table(["", ""], rows)


def block_text(block: Block) -> str:
    """Return a block of a document as Markdown: code, a paragraph, a table, a picture, or else a list of texts."""
    match block:
        case Code():
            text = one_line(block)  # Each block of code is one command or one value.
            # A fence must be longer than any run of backticks in the text.
            longest_ticks = max(map(len, re.findall("`+", text)), default=0)
            fence = "`" * max(3, 1 + longest_ticks)
            return f"{fence}\n{text}\n{fence}"
        case str():
            return escape_markdown(block)
        case Table():
            return str(block)
        case Picture(title=title, path=path):
            return f"![{title}]({path})"
    return "\n".join(f"- {escape_markdown(item)}" for item in block)
