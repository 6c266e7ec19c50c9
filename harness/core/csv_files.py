"""CSV files of a run: tables that are written whole, and columns of numbers."""

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from harness.core import reading
from harness.core.data_tables import read_table
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_RECORDING
from harness.core.files import write_text
from harness.core.given_values import read_given


def write_table(path: Path, head: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Write a CSV file with one line for each row. The file is written whole or not at all. Raises OSError."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    write_text(path, text.getvalue())


Columns = dict[str, list[float | None]]  # numbers by column


def read_columns(path: Path, names: Sequence[str] = ()) -> Columns:
    """Return the named columns of numbers in a CSV file, or all columns if none is named. An empty cell is None.

    Raises UsageError if the file is no table, a cell is no number, or a named column is missing.
    """
    lines = read_given("", path, "a table", read_table, csv.Error, most=LARGEST_RECORDING)
    first_line = lines[0] if lines else {}
    wanted = names or [name for name in first_line if name]  # A column without a name is left out.
    columns: Columns = {name: [] for name in wanted}
    for number, line in enumerate(lines, start=2):  # Line 1 of the file has the names.
        for name in wanted:
            try:
                columns[name].append(finite_number(line[name]))
            except reading.DAMAGED:  # the text is no number (ValueError), or the column is missing (LookupError)
                raise UsageError(f"{path}:{number}: {name}: not a number: {line.get(name)!r}.", path=path) from None
    return columns


def finite_number(text: str) -> float | None:
    """Return the number in a cell. None for an empty cell. Raises ValueError if the text is no finite number."""
    if not text:
        return None
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(text)
    return value
