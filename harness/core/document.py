"""What a command has to say, as a document and as Markdown: answer, sections, tables, pictures; pages of templates/."""

import math
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

from harness.core.errors import plain
from harness.core.reading import ROOT

Measured = float | None  # None: not measured


def jinja_environment(*folders: Path, **options: Any) -> Any:
    """Of the templates in these folders; a name that one asks for and does not get is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(folders), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options
    )


def render(template: str, **values: Any) -> str:
    """The template filled in, as Markdown."""
    made = jinja_environment(ROOT / "templates", ROOT / "docs", finalize=harmless, keep_trailing_newline=True)
    filters = (number, percent, cell, code, quoted)
    made.filters |= {each.__name__: each for each in filters} | {"gpus": gpu_names}
    return str(made.get_template(template).render(**values)).removesuffix("\n")


class Finished(str):
    """Text that a page takes as it is."""


def harmless(value: Any) -> Any:
    """What a page shows of a value."""
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


Column = str | tuple[str, int] | Callable[[Any], object]  # an attribute, also with its digits; what is made of an item


def value_of(item: object, column: Column) -> object:
    match column:
        case str():
            return getattr(item, column)
        case (name, digits):
            return number(getattr(item, name), digits)
    return column(item)


class Table(NamedTuple):
    """A table of a page, as Markdown where it is written out: numbers as `number` has them. A page may have its own in
    place of a named one."""

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    name: str = ""

    @classmethod
    def of(cls, items: Iterable[Any], columns: Mapping[str, Column], name: str = "") -> Self:
        return cls(list(columns), [[value_of(item, column) for column in columns.values()] for item in items], name)

    def __str__(self) -> str:
        under = "|".join("-" * (len(head) + 2) for head in self.columns)
        return "\n".join((line(self.columns), f"|{under}|", *map(line, self.rows)))


def line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(each if isinstance(each, Finished) else shown(each) for each in cells)} |"


def shown(value: object) -> str:
    """A cell: text on one line, a number as people read it."""
    if isinstance(value, str):
        return escape(value.replace("|", "\\|"))
    return number(value)  # type: ignore[arg-type]


def percent(share: Measured, digits: int = 2) -> str:
    """A share of 1 as percent, without the sign; a dash for none."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def number(value: Measured, digits: int = 4, sign: str = "") -> str:
    """A number as people read it: thousands separated, at most `digits` significant ones, never an exponent; a dash for
    none. `sign`: "+" shows it always."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"  # also where a line of the history was edited by hand
    if isinstance(value, int) or value == 0:
        return f"{value:{sign},.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:{sign},.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def joined(between: str, *parts: str | None) -> str:
    """The parts that say something."""
    return between.join(filter(None, parts))


def listed(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def plural(count: float, noun: str) -> str:
    """So many of a thing: 1 probe, 1,200 probes."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def sentence(said: object) -> str:
    """Text with a capital letter at its beginning, and nothing else changed: `capitalize` makes "2 cpu cores"."""
    text = str(said)
    return text[:1].upper() + text[1:]


def cell(text: str | None) -> str:
    """Text that may stand in a Markdown table; a dash for none."""
    found = " ".join((text or "–").split()).replace("|", "\\|")
    return Finished(found) if isinstance(text, Finished) else found


def gpu_names(gpus: Sequence[str] | None) -> str:
    """GPUs as people name them: 8x NVIDIA H200; none; unknown for None."""
    if gpus is None:
        return "unknown"
    return ", ".join(f"{count}x {name}" if count > 1 else name for name, count in Counter(gpus).items()) or "none"


# What must be said of a run or a test: typed where the fact is known, put into words once.
class Kind(StrEnum):
    REASON = "reason"  # why a result is none, or would be none
    BOUND = "bound"  # what set the speed
    DEVIATION = "deviation"  # why a result cannot stand beside MLPerf's


@dataclass(frozen=True)
class Statement:
    """One fact. Programs read `kind` and `name`, which may be empty where nothing depends on it; `what` and `remedy`
    are for people."""

    what: str
    remedy: str = ""
    name: str = ""
    kind: Kind = Kind.REASON

    def __str__(self) -> str:
        return f"{self.what}: {self.remedy}" if self.remedy else self.what


def merge_by_remedy(statements: Iterable[Statement]) -> str:
    """Statements in one line, those with the same remedy as one, so that it is given once."""
    by_remedy = defaultdict(list)
    for each in statements:
        by_remedy[each.remedy].append(each.what)
    return "; ".join(
        f"{', and '.join(whats)}: {remedy}" if remedy else "; ".join(whats) for remedy, whats in by_remedy.items()
    )


def names_of(statements: Iterable[Statement], known: Iterable[str]) -> list[str]:
    """The known names, in their own order, of which there is a statement."""
    there = {each.name for each in statements}
    return [name for name in known if name in there]


# A document: a terminal, Markdown and HTML have a writer each.
Tone = Literal["", "good", "careful", "bad", "unknown"]
Cells = Sequence[str]


class Line(NamedTuple):
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


class Document(NamedTuple):
    """The answer, its subject, and what must be known of it, without the lines that have no text; `levels` are the rows
    of a table, the head first."""

    title: str
    subject: str
    lines: Sequence[Line] = ()
    levels: Sequence[Cells] = ()
    tone: Tone = ""
    sections: Sequence[Section] = ()


def to_markdown(document: Document) -> str:
    """The document as a Markdown page."""
    lines = Table(["", ""], [[line.label, cell(Finished(harmless(line.text)))] for line in document.lines if line.text])
    parts = [f"# {harmless(document.title)}", harmless(document.subject)]
    if document.lines:
        parts += ["## Verdict", str(lines)]
    for section in document.sections:
        parts += [f"## {harmless(section.title)}", *map(block_text, section.blocks)]
    return "\n\n".join(parts) + "\n"


def block_text(block: Block) -> str:
    match block:
        case Code():
            text = one_line(block)
            fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
            return f"{fence}\n{text}\n{fence}"
        case str():
            return str(harmless(block))
        case Table():
            return str(block)
        case Picture(title=title, path=path):
            return f"![{title}]({path})"
    return "\n".join(f"- {harmless(item)}" for item in block)
