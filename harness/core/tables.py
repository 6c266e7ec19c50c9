"""Tables of a page, as Markdown."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, Self, TypeVar

from harness.core.formatting import number
from harness.core.markdown import MarkdownText, escape_text

RowItem = TypeVar("RowItem")
# A column is an attribute of the items, an attribute with its number of digits, or a function of an item.
TableColumn = str | tuple[str, int] | Callable[[RowItem], object]


def value_of(item: RowItem, column: TableColumn[RowItem]) -> object:
    """Return the cell of an item in a column.

    A column is the name of the item's attribute, such a name with the number of digits to show, or a function that
    returns the cell for the item.
    """
    match column:
        case str():
            return getattr(item, column)
        case (name, digits):
            return number(getattr(item, name), digits)
    return column(item)


class Table(NamedTuple):
    """A table of a page, which `str` writes as Markdown. An HTML page may show a table of its own in place of one that
    has a `name`.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    name: str = ""

    @classmethod
    def from_items(cls, items: Iterable[RowItem], columns: Mapping[str, TableColumn[RowItem]], name: str = "") -> Self:
        """Return a table with a row for each item. `columns` are by their heads; each says what an item's cell is."""
        rows = []
        for item in items:
            rows.append([value_of(item, column) for column in columns.values()])
        return cls(list(columns), rows, name)

    def __str__(self) -> str:
        """Return the table as Markdown."""
        rule = "|".join("-" * (len(head) + 2) for head in self.columns)
        return "\n".join((table_row(self.columns), f"|{rule}|", *map(table_row, self.rows)))


def table_row(cells: Sequence[object]) -> str:
    return f"| {' | '.join(map(cell_text, cells))} |"


def cell_text(value: object) -> str:
    """Return a cell of a Markdown table: text on one line, or a number as people read it."""
    if isinstance(value, MarkdownText):
        return value
    if isinstance(value, str):
        return escape_text(value.replace("|", "\\|"))
    return number(value)  # type: ignore[arg-type]
