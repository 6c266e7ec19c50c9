"""The rows of a file of requests: JSON lines, a JSON list, a table, or a prompt a line."""

import csv
import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from harness.core import reading
from harness.core.errors import UsageError
from harness.core.plain_numbers import decimal_number, whole_number
from harness.workloads.request_keys import SYSTEM_KEYS

TEXT_SUFFIXES = (".txt", ".text", ".prompts")  # suffixes of files with a prompt a line
TABLE_SUFFIXES = (".csv", ".tsv")
DELIMITERS = (",", ";", "\t", "|")  # spreadsheets use another delimiter in each country
LARGEST_CELL = 2**22  # characters of a table's cell, as many as a prompt may have


class RequestRow(NamedTuple):
    """A row of a file: its number, counted from 1, and what it holds; `text` where it is JSON that was not parsed."""

    number: int
    value: object
    is_text: bool = False


class RequestRows(NamedTuple):
    """The rows of a file; `unit` is what they are called in messages."""

    rows: list[RequestRow]
    unit: str


def parse_text(text: str, where: str) -> object:
    try:
        return reading.parse_json(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {' '.join(str(error).split())}.") from None


def rows_of(path: Path, text: str, names: tuple[str, ...]) -> RequestRows:
    """Return the rows of a file's text.

    `names` are columns of which a table must have at least one. If the text is JSON, it is read as JSON whatever the
    file's name says. Raises UsageError.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TEXT_SUFFIXES and not is_json(text):
        return RequestRows([RequestRow(*row) for row in enumerate(text.split("\n"), start=1) if row[1].strip()], "line")
    if suffix in TABLE_SUFFIXES and not is_json(text):
        return RequestRows([*table_rows(path, text, names)], "line")
    if text.lstrip().startswith("["):
        records = parse_text(text, str(path))
        assert isinstance(records, list)  # JSON that begins with a bracket is a list
        return RequestRows([RequestRow(*row) for row in enumerate(records, start=1)], "record")
    lines = enumerate(text.split("\n"), start=1)
    return RequestRows([RequestRow(number, line, is_text=True) for number, line in lines if line.strip()], "line")


def is_json(text: str) -> bool:
    """Return whether a text, or its first line, is JSON."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    for part in (text.lstrip().partition("\n")[0], text):
        try:
            json.loads(part)
        except (ValueError, RecursionError):
            continue
        return True
    return False


def delimiter_of(first_line: str, names: Collection[str]) -> str | None:
    """Return the delimiter of a table's columns, at least one of which has one of these names.

    None if no delimiter fits.
    """
    for delimiter in DELIMITERS:
        head = next(csv.reader([first_line], delimiter=delimiter), [])
        if not {*names}.isdisjoint(map(str.strip, head)):
            return delimiter
    return None


def table_rows(path: Path, text: str, names: tuple[str, ...]) -> Iterator[RequestRow]:
    """Yield the rows of a table as objects, with the names of its first line and without empty cells.

    Raises UsageError.
    """
    csv.field_size_limit(LARGEST_CELL)
    first_line = text.lstrip("\n").partition("\n")[0]
    delimiter = delimiter_of(first_line, names)
    if delimiter is None:
        raise UsageError(
            f"{path}: no column {' or '.join(names)}; its first line is {first_line[:200]!r}; --prompt-column names "
            "the one with the prompt."
        )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        head = [name.strip() for name in next(reader)]
        for cells in reader:
            if not any(cells):
                continue
            if len(cells) != len(head):
                raise UsageError(f"{path}: line {reader.line_num}: {len(cells)} cells in place of {len(head)}.")
            filled = {name: cell for name, cell in zip(head, cells, strict=True) if cell != ""}
            yield RequestRow(reader.line_num, {name: cell_value(name, cell, names) for name, cell in filled.items()})
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num}: {error}.") from None


def cell_value(name: str, cell: str, text_names: tuple[str, ...]) -> object:
    """Return a table cell as a number, a JSON value or text. A prompt is always kept as text."""
    if name in text_names[:1] or name in SYSTEM_KEYS:
        return cell
    if (number := whole_number(cell)) is not None:
        return number
    if (decimal := decimal_number(cell)) is not None:
        return decimal
    if cell.lstrip().startswith(("[", "{")):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell
