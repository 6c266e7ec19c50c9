"""Tables that come with the code: CSV files beside the modules that read them."""

import csv
import io
from pathlib import Path

from harness.core import reading


def read_table(text: str) -> list[dict[str, str]]:
    """Return the lines of a CSV file, each a dict by column. A missing cell is empty. Raises csv.Error."""
    return list(csv.DictReader(io.StringIO(text, newline=""), restkey="", restval=""))


def table_beside(module: str, name: str) -> list[dict[str, str]]:
    """Return the lines of a CSV file that lies beside a module, each a dict by column."""
    return read_table(reading.read_text(Path(module).with_name(name)))
