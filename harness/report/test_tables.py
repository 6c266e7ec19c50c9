"""The tables of a run's tests: its loads, the latencies of the result, and their intervals."""

from dataclasses import fields

from harness.config.patterns import ClosedLoop, Poisson
from harness.core.document import Cells
from harness.core.formatting import number
from harness.core.tables import Table
from harness.loadgen.log import LATENCY_KINDS, Latency
from harness.results import metrics, test_table
from harness.results.outcome import AT_MOST_SIGN, Outcome
from harness.results.summary import Summary

LATENCY_POINTS = (*(field.name for field in fields(Latency) if field.name != "max"), "max")


def table_of_loads(summary: Summary) -> Table:
    """Return the table of the tests of a search or a curve, a row for each test, with the reason if it failed."""
    unit, price = summary.tests[0].unit, summary.price
    columns = test_table.columns(metrics.TABLE_BY_UNIT[unit], summary.tests, head=unit, load="load")
    if price and unit == ClosedLoop.unit:
        columns["per million tokens"] = lambda outcome: number(outcome.cost(price), 3)
    if any(test.speed_range for test in summary.tests):  # A load was tested several times.
        columns["tests, tokens/s"] = repeats_text
    columns["why"] = reason_text
    return Table.from_items(summary.tests, columns, name="loads")


def repeats_text(outcome: Outcome) -> str:
    """Return how many tests of a load the outcome's figures are of and, if there are
    several, the range of their speeds.
    """
    if not outcome.repeats or not outcome.speed_range:
        return "1"
    slowest, fastest = outcome.speed_range
    return f"{len(outcome.repeats)}, {number(slowest)} to {number(fastest)}"


def reason_text(outcome: Outcome) -> str:
    """Return why a test is over its limits or INVALID, or that it was not judged; empty for any other test."""
    is_not_judged = outcome.verdict.tone == "careful"
    if is_not_judged and not outcome.why:
        return "; ".join(outcome.background_load) or outcome.verdict.word
    return outcome.why


def rows_of_levels(summary: Summary) -> list[Cells]:
    """Return the levels of a curve as rows of a table, the head first.

    Empty if no load was tested, or if the title already gives the result and there is nothing to compare it with.
    """
    curve = summary.curve
    if not curve:
        return []
    # A search tests rates only to find its result. A curve tests levels of concurrency, or batch sizes.
    is_search = curve[0].unit == Poisson.unit
    if summary.result and (is_search or len(curve) < 2):
        return []
    return [test_table.head(curve[0]), *map(test_table.cells, curve)]


def table_of_latencies(summary: Summary) -> Table:
    """Return each kind of latency with its percentiles and its limit. The run must have a result.

    At fixed concurrency, the percentiles are of the steady part. A kind that was not measured has no row.
    """
    test = summary.result
    assert test
    details = test.details
    rows = []
    for kind in LATENCY_KINDS:
        latency: Latency | None = getattr(details.counted, f"{kind}_ms")
        if latency:
            limit = getattr(details.limits_ms, kind, None)
            rows.append([name_of_kind(kind, test), *percentile_cells(latency, test.is_few), limit])
    heads = [point.replace("_", ".") for point in LATENCY_POINTS]  # p99_9 becomes p99.9
    unit = "ms" if details.is_whole else "ms of the steady part"
    return Table([unit, *heads, "limit at p99"], rows)


def name_of_kind(kind: str, test: Outcome) -> str:
    """Return the label of a kind of latency.

    If a buffer delivered the tokens, the label says that TTFT and TPOT are the buffer's, not the engine's.
    """
    if kind == "latency":
        return kind
    name = kind.upper()
    if test.is_buffered:
        name += " of the buffering"
    return name


def percentile_cells(latency: Latency, is_few: bool) -> list[str]:
    """Return the percentiles of a latency as texts.

    Of few requests, p99 and p99.9 are only the time of the slowest, and have the sign of "at most" before it.
    """
    cells = []
    for point in LATENCY_POINTS:
        text = number(getattr(latency, point))
        if is_few and point.startswith("p99"):  # p99 or p99.9
            text = f"{AT_MOST_SIGN} {text}"
        cells.append(text)
    return cells


def interval_texts(test: Outcome) -> list[str]:
    """Return the 95 % intervals of a test's percentiles: for each kind of latency a text with p50, p90 and p99.

    A kind without intervals has no text.
    """
    texts = []
    for kind, intervals in test.details.intervals.items():
        points = []
        for point, interval in intervals.items():
            points.append(f"{point} {number(test.at(kind, point))} ({interval_text(interval)})")
        if points:
            name = kind
            if kind != "latency":  # TTFT and TPOT are in capitals.
                name = kind.upper()
            texts.append(f"{name} {', '.join(points)}")
    return texts


def interval_text(interval: tuple[float, float | None] | None) -> str:
    """Return an interval as text.

    `interval` is None if there are too few requests for one; its upper end is None if they are too few for that end.
    """
    if interval is None:
        return "not known: too few requests"
    low, high = interval
    if high is None:
        return f"{number(low)} or more"
    return f"{number(low)} to {number(high)}"
