"""Tests at different loads as rows of a table. metrics.csv says which metrics the table has."""

from collections.abc import Sequence
from operator import attrgetter

from harness.config.patterns import Sequential
from harness.core.formatting import number
from harness.core.tables import TableColumn
from harness.results.metrics import Metric, MetricPlace, metrics_of
from harness.results.outcome import Outcome


def measured_metrics(place: MetricPlace, tests: Sequence[Outcome]) -> list[Metric]:
    """Return the metrics that at least one test has, of those that metrics.csv lists for `place`, such as a table."""
    metrics = []
    for metric in metrics_of(place):
        if any(metric.figure(outcome).value is not None for outcome in tests):
            metrics.append(metric)
    return metrics


def columns(place: MetricPlace, tests: Sequence[Outcome], head: str, load: str) -> dict[str, TableColumn[Outcome]]:
    """Return the columns of a table of tests: the load, the verdict, and the metrics that at least one test has.

    metrics.csv lists the metrics of the table (`place`). `head` is the title of the column of `load`, an attribute of a
    test.
    """
    columns_by_head: dict[str, TableColumn[Outcome]] = {head: load, "verdict": attrgetter("verdict.word")}
    for metric in measured_metrics(place, tests):
        columns_by_head[metric.label] = metric.shown
    return columns_by_head


def head(outcome: Outcome) -> tuple[str, ...]:
    """Return the titles of the row that `cells` makes of a test: the unit of its load, its metrics, and the last title.

    The last cell of a row has the verdict, and its title is that of the verdict, LoadGen's. Where latencies are in the
    row, the title is their unit instead, for which there is no other place.
    """
    place = row_of(outcome)
    last_title = "(ms)" if place == "row" else "LoadGen"
    return (outcome.unit, *(metric.short for metric in metrics_of(place)), last_title)


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Return the row of a test as texts: its load, its metrics, and its verdict."""
    shown_values = (metric.shown(outcome) for metric in metrics_of(row_of(outcome)))
    return (number(outcome.load), *shown_values, outcome.verdict.word)


def row_of(outcome: Outcome) -> MetricPlace:
    """Return the kind of a test's row, by which metrics.csv says which metrics the row shows."""
    sends_batches = outcome.unit == Sequential.unit  # MultiStream: a query has several samples
    if sends_batches:
        return "batch row"
    return "row"
