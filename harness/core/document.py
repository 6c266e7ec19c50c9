"""What a command has to say: an answer, what must be known of it, and sections. A terminal, Markdown and HTML have a
writer each."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from harness.core.markdown import Finished, Table, cell, code, harmless

Tone = Literal["", "good", "careful", "bad", "unknown"]
Cells = Sequence[str]


@dataclass(frozen=True)
class Line:
    """A label and the text under it; a command is never broken into lines."""

    label: str
    text: str
    tone: Tone = ""
    is_command: bool = False


class Picture(NamedTuple):
    """A file beside the document; `panels` are what it shows, which a page draws itself."""

    name: str
    title: str
    path: str
    panels: Sequence[Any]


class Code(str):
    """Text that is shown as it is, on lines of its own."""


Block = str | Code | Table | Picture | Sequence[str]  # a paragraph, which may hold marks of Markdown; a list


class Section(NamedTuple):
    """A part with its heading; `outcome` says in a few words what is in it. An open one is never folded."""

    title: str
    outcome: str
    blocks: Sequence[Block]
    is_open: bool = False


@dataclass(frozen=True)
class Document:
    """The answer, its subject, and what must be known of it; `levels` are the rows of a table, the head first."""

    title: str
    subject: str
    lines: Sequence[Line] = ()
    levels: Sequence[Cells] = ()
    tone: Tone = ""
    sections: Sequence[Section] = ()


def to_markdown(document: Document) -> str:
    """The document as a Markdown page."""
    lines = Table(["", ""], [[line.label, cell(Finished(harmless(line.text)))] for line in document.lines])
    head = [
        f"# {harmless(document.title)}",
        harmless(document.subject),
        *(["## Verdict", str(lines)] if document.lines else []),
    ]
    return "\n\n".join([*head, *map(section_text, document.sections)]) + "\n"


def section_text(section: Section) -> str:
    return "\n\n".join([f"## {harmless(section.title)}", *map(block_text, section.blocks)])


def block_text(block: Block) -> str:
    match block:
        case Code():
            return f"```\n{code(block)}\n```"
        case str():
            return str(harmless(block))
        case Table():
            return str(block)
        case Picture(title=title, path=path):
            return f"![{title}]({path})"
    return "\n".join(f"- {harmless(item)}" for item in block)
