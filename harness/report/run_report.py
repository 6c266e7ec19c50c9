"""The data from which the sections of a run's report are made."""

from collections.abc import Mapping
from typing import NamedTuple

from harness.core.document import Block, Picture
from harness.core.tables import Table
from harness.report.load_view import LoadPicture
from harness.results.records import RunFacts
from harness.results.summary import Summary


class RunReport(NamedTuple):
    """A run's summary with its settings and its pictures, by name."""

    summary: Summary
    facts: RunFacts
    pictures: Mapping[str, Picture]
    loads: LoadPicture | None  # None if no test has a load and latencies

    def picture(self, name: str) -> list[Block]:
        """Return the picture of this name as a list of one block; an empty list if the run has none."""
        if name not in self.pictures:
            return []
        return [self.pictures[name]]


def facts_table(rows: Mapping[str, str], name: str = "") -> Table:
    """Return a table of two columns: label and value. Rows with an empty value are left out."""
    known = [(label, value) for label, value in rows.items() if value]
    return Table(["", ""], known, name)
