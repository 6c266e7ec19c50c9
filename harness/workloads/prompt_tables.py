"""The rows of a file of requests: JSON lines, a JSON list, a table, or one prompt in each line."""

import csv
import io
import json
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from harness.core import reading
from harness.core.errors import UsageError
from harness.core.formatting import alternatives, plural
from harness.core.plain_numbers import decimal_number, whole_number
from harness.workloads.request_keys import SYSTEM_KEYS

TEXT_SUFFIXES = (".txt", ".text", ".prompts")  # suffixes of files with one prompt in each line
TABLE_SUFFIXES = (".csv", ".tsv")
DELIMITERS = (",", ";", "\t", "|")  # spreadsheets use another delimiter in each country
LARGEST_CELL = 2**22  # characters of a table's cell, as many as a prompt may have


class RequestRow(NamedTuple):
    """A row of a file: its number, counted from 1, and its value. If `is_unparsed`, the value is JSON's text."""

    number: int
    value: object
    is_unparsed: bool = False


class RequestRows(NamedTuple):
    """The rows of a file. `unit` is what messages call a row: a line, a record or a row."""

    rows: list[RequestRow]
    unit: str


def parse_text(text: str, where: str) -> object:
    """Return the value of a JSON text. Raises UsageError, which begins with `where`."""
    try:
        return reading.parse_json(text)
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{where}: not JSON: {reason}.") from None


def numbered_rows(values: Iterable[object]) -> list[RequestRow]:
    return [RequestRow(number, value) for number, value in enumerate(values, start=1)]


def line_rows(text: str, is_unparsed: bool = False) -> list[RequestRow]:
    """Return a row for each line of a text that is not blank, numbered as in the text.

    `is_unparsed` says that each line is JSON, which is parsed only when its row is read.
    """
    rows = []
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            rows.append(RequestRow(number, line, is_unparsed))
    return rows


def rows_of(path: Path, text: str, names: tuple[str, ...]) -> RequestRows:
    """Return the rows of a file's text: the lines of a text file, the rows of a table, or the records of JSON.

    A table must have one of the columns `names`. Raises UsageError if the text cannot be read.
    """
    suffix = Path(path.name.removesuffix(".gz")).suffix.lower()
    if suffix in TEXT_SUFFIXES and not is_json(text):
        return RequestRows(line_rows(text), "line")
    if suffix in TABLE_SUFFIXES and not is_json(text):
        return RequestRows([*table_rows(path, text, names)], "line")
    # JSON is a list of records, or an object in each line.
    if text.lstrip().startswith("["):
        records = parse_text(text, str(path))
        assert isinstance(records, list)  # JSON that begins with a bracket is a list
        return RequestRows(numbered_rows(records), "record")
    return RequestRows(line_rows(text, is_unparsed=True), "line")  # JSON is parsed when its row is read.


def is_json(text: str) -> bool:
    """Return whether a text, or its first line, is a JSON object or list."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    first_line = text.lstrip().partition("\n")[0]
    return is_parsable(first_line) or is_parsable(text)


def is_parsable(text: str) -> bool:
    """Return whether a text is valid JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def delimiter_of(first_line: str, names: Collection[str]) -> str | None:
    """Return the delimiter with which the first line of a table has a column of one of these names.

    None if no known delimiter gives such a column.
    """
    for delimiter in DELIMITERS:
        cells = list[str]()
        with suppress(csv.Error):  # the line cannot be read with this delimiter
            cells = next(csv.reader([first_line], delimiter=delimiter), [])
        if not set(names).isdisjoint(map(str.strip, cells)):
            return delimiter
    return None


def table_rows(path: Path, text: str, names: tuple[str, ...]) -> Iterator[RequestRow]:
    """Yield the rows of a table as objects, with the names of its first line and without empty cells.

    `names` are the columns that may hold the prompt. The first is "prompt", or the one that the user named, and holds
    text. Others may hold lists, such as token ids. Blank lines are left out. Raises UsageError if no column has one of
    `names`, or if a row is damaged.
    """
    prompt_name = names[0]
    csv.field_size_limit(LARGEST_CELL)  # Python's own limit is smaller than a long prompt.
    first_line = text.lstrip("\n").partition("\n")[0]
    delimiter = delimiter_of(first_line, names)
    if delimiter is None:
        raise UsageError(
            f"{path}: no column {alternatives(names)}; its first line is {first_line[:200]!r}; --prompt-column names "
            "the one with the prompt."
        )
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)
    try:
        head = [name.strip() for name in next(filter(any, reader))]  # the first line that is not blank
        for cells in reader:
            if not any(cells):  # a blank line, or one of empty cells
                continue
            if len(cells) != len(head):
                raise UsageError(
                    f"{path}: line {reader.line_num}: {plural(len(cells), 'cell')} in place of {len(head)}."
                )
            values = {}
            for name, cell in zip(head, cells, strict=True):
                if cell != "":
                    values[name] = cell_value(name, cell, prompt_name)
            yield RequestRow(reader.line_num, values)
    except csv.Error as error:
        raise UsageError(f"{path}: line {reader.line_num}: {error}.") from None


def cell_value(name: str, cell: str, prompt_name: str) -> object:
    """Return a cell of a table's column `name` as a number, a JSON list or object, or text.

    `prompt_name` is the column of prompts as text. It and the columns of system prompts always hold text.
    """
    is_text = name == prompt_name or name in SYSTEM_KEYS
    if is_text:  # A text may look like a number.
        return cell
    number = whole_number(cell)
    if number is not None:
        return number
    decimal = decimal_number(cell)
    if decimal is not None:
        return decimal
    if cell.lstrip().startswith(("[", "{")):
        try:
            return json.loads(cell)
        except (ValueError, RecursionError):
            return cell
    return cell
