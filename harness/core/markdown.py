"""Markdown pages from templates/."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from harness.core.errors import plain
from harness.core.reading import ROOT
from harness.core.statistics import tail_name


def render(template: str, **values: Any) -> str:
    """The template filled in; a name it asks for and does not get is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from harness.core.schema import gpu_names
    from harness.core.statements import together

    environment = Environment(
        loader=FileSystemLoader([ROOT / "templates", ROOT / "docs"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,  # of the sections that a page is made of
        finalize=harmless,
    )
    filters = (number, percent, cell, code, quoted, sentence, together, tail_name)
    environment.filters.update({each.__name__: each for each in filters} | {"gpus": gpu_names})
    return environment.get_template(template).render(**values).removesuffix("\n")


class Finished(str):
    """Text that a page takes as it is."""


def harmless(value: Any) -> Any:
    """What a page shows of a value."""
    if not isinstance(value, str) or isinstance(value, Finished):
        return value
    return escape(value)


def escape(text: str) -> str:
    """Text on one line without any HTML, links or pictures in it."""
    text = " ".join(text.splitlines())
    return plain(re.sub(r"<(?=[\w/!?])", "&lt;", text)).replace("](", "]\\(")


def code(text: object) -> str:
    """Text within backticks or a code fence, which shows everything as it is: on one line, without backticks."""
    return Finished(plain(" ".join(str(text).splitlines())).replace("`", "'"))


def literal(text: str) -> str:
    """Text on one line that shows every mark as it is."""
    return Finished(re.sub(r"([\\`*_~<>\[\]])", r"\\\1", plain(" ".join(text.splitlines()))))


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


@dataclass(frozen=True)
class Table:
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


def percent(share: float | None, digits: int = 2) -> str:
    """A share of 1 as percent, without the sign; a dash for none."""
    return "–" if share is None else f"{100 * share:.{digits}f}"


def number(value: float | None, digits: int = 4, sign: str = "") -> str:
    """A number as people read it: thousands separated, at most `digits` significant ones, never an exponent; a dash for
    none. `sign`: "+" shows it always."""
    if not isinstance(value, int | float) or not math.isfinite(value):
        return "–"  # also where a line of the history was edited by hand
    if isinstance(value, int) or value == 0:
        return f"{value:{sign},.0f}"
    decimals = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    text = f"{value:{sign},.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def sentence(said: object) -> str:
    """Text with a capital letter at its beginning, and nothing else changed: `capitalize` makes "2 cpu cores"."""
    text = str(said)
    return text[:1].upper() + text[1:]


def cell(text: str | None) -> str:
    """Text that may stand in a Markdown table; a dash for none."""
    found = " ".join((text or "–").split()).replace("|", "\\|")
    return Finished(found) if isinstance(text, Finished) else found
