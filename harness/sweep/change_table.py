"""Each metric of each experiment and its change against the baseline, as the rows of changes.csv."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.config.mlperf import SCORES
from harness.core.csv_files import write_table
from harness.core.formatting import Measured
from harness.results.change import Change
from harness.results.metrics import metrics_of
from harness.sweep.file import BASELINE
from harness.sweep.findings import SweepReport

CHANGES_FILE = "changes.csv"


class ChangeRow(NamedTuple):
    """A metric of an experiment. Figures are means over its tests; changes are in percent of the baseline's figure.

    A change is None if it is not judged; `note` then says why. The change of a score has no interval, as it is not a
    matter of speed.
    """

    experiment: str
    metric: str
    tests: int
    baseline: Measured
    value: float
    change_percent: Measured = None
    low_percent: Measured = None
    high_percent: Measured = None
    note: str = ""


def change_rows(report: SweepReport) -> Iterator[ChangeRow]:
    """Yield a row for each metric that an experiment has.

    A row has the change against the baseline, or a note on why there is none. The baseline's own rows have neither.
    """
    base_numbers = report.baseline.numbers if report.baseline else {}
    for metric in metrics_of("sweep"):
        changes = report.changes(metric)
        for result in report.rows:
            value = result.numbers.get(metric.name)
            if value is None:
                continue
            row = ChangeRow(result.name, metric.name, len(result.runs), base_numbers.get(metric.name), value)
            if result.name == BASELINE:
                yield row
            elif metric.name in SCORES:  # Scores are compared answer by answer, not by the scatter of rounds.
                yield row._replace(change_percent=percent_between(row.baseline, value))
            elif result.name in changes:
                yield with_change(row, changes[result.name])
            else:
                yield row._replace(note=report.reason_not_to_judge(result, metric))


def with_change(row: ChangeRow, change: Change) -> ChangeRow:
    """Return the row with a change, and with the ends of its interval if it has one."""
    row = row._replace(change_percent=percent_of(change.mean))
    if not change.has_interval:
        return row._replace(note="too few tests for an interval on a busy machine")
    return row._replace(low_percent=percent_of(change.low), high_percent=percent_of(change.high))


def percent_of(ratio: float) -> float:
    """Return a ratio to the baseline as a change in percent."""
    return 100 * (ratio - 1)


def percent_between(before: Measured, after: float) -> Measured:
    """Return the change from one figure to another in percent; None if the first is not known or 0."""
    if not before:
        return None
    return percent_of(after / before)


def write_changes(folder: Path, report: SweepReport) -> None:
    """Write changes.csv into a sweep's folder. A figure that is not known is an empty cell."""
    write_table(folder / CHANGES_FILE, ChangeRow._fields, change_rows(report))
