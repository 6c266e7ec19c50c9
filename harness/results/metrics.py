"""Every metric of a run, declared once, and the change of one between runs.

A new one is a line in metrics.csv, and a field of the summary where it has none yet. Reports, tables, the history,
sweeps, comparisons and MLflow go through this list.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from harness.config.patterns import ClosedLoop, Poisson, Sequential
from harness.core.data_tables import table_beside
from harness.core.formatting import Measured, number
from harness.core.given_values import spelling_hint
from harness.results.outcome import Doubt, Figure, Outcome
from harness.results.summary import Summary
from harness.results.telemetry import QUANTITIES
from harness.results.test_details import TestDetails

# Places of a metric: tables of runs, the table of the tests at each load by its unit, and a line for each test.
MetricPlace = Literal[
    "report",
    "index",
    "sweep",
    "compare",
    "mlflow",
    "levels",
    "rates",
    "batches",
    "row",
    "batch row",
    "beside",
    "matrix",
    "batch matrix",
    "sweep row",
    "panel",
]


TEST_PATH = "run.performance."  # the begin of the path of a metric of the run's own test
ESTIMATE = "estimate"  # the estimate of --quick, in a file of that name


class Metric(NamedTuple):
    """A metric as metrics.csv declares it: where its value is in a Summary, and how and where it is shown."""

    name: str
    label: str  # with its unit
    path: str  # attribute names from a Summary to the value, with dots between them
    better: str | None  # "higher" or "lower"; None: neither
    places: tuple[str, ...]  # the reports and tables that show it
    digits: int = 4  # significant digits
    rate_flag: str = ""  # if given, only scenarios whose load this flag sets have the metric
    in_process: bool = False  # whether only an engine in this process has it
    coarse: bool = False  # whether large numbers, too, are rounded to `digits`

    @property
    def steps(self) -> list[str]:
        """The names of the attributes that lead from a test to the metric."""
        return self.path.removeprefix(TEST_PATH).split(".")

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """The kinds of doubt that can apply to this metric, such as few requests to a p99 only."""
        field, *further_steps = self.steps  # for a latency such as ("ttft_ms", "p99")
        is_p99 = further_steps == ["p99"]
        doubts = list[Doubt]()
        if self.path.startswith(TEST_PATH):
            doubts += [Doubt.INVALID, Doubt.DISPUTED, Doubt.BUSY]
        if is_p99:
            doubts.append(Doubt.FEW)
        if field in ("ttft_ms", "tpot_ms"):
            doubts.append(Doubt.BUFFERED)
        return tuple(doubts)

    def figure(self, source: Summary | Outcome) -> Figure:
        """Return the metric's value of a run (a Summary) or of a single test, with the doubts that apply to it.

        The value is None if there is no test or the metric does not apply to the run.
        """
        is_of_test = self.path.startswith(TEST_PATH)
        if not is_of_test:  # This is a score or the like, about which there are no doubts.
            return Figure(number_at(source, self.path.split(".")))
        if isinstance(source, Outcome):
            outcome: Outcome | None = source
        else:
            outcome = source.result if self.applies_to(source) else None
        if outcome is None:
            return Figure(None)
        value = outcome_value(outcome, self.steps)
        return Figure(value, tuple(doubt for doubt in outcome.doubts if doubt in self.doubts))

    def applies_to(self, summary: Summary) -> bool:
        """Tell whether a run can have this metric: some belong to an engine in this process, or to a kind of load.

        `rate_flag` is the flag that sets such a load.
        """
        if self.in_process and summary.meta.endpoints:
            return False
        return self.rate_flag in ("", summary.scenario.pattern.rate_flag)

    def of(self, source: Summary | Outcome) -> Measured:
        """Return the value that counts, of a run or a test.

        None if there is none, or if it is a p99 of so few requests that it is only the slowest of them.
        """
        return self.figure(source).counted

    def text(self, value: Measured) -> str:
        """Return a value as text; a coarse metric is rounded to its significant digits even if it is large."""
        if self.coarse and value is not None:
            value = float(f"{value:.{self.digits}g}")
        return number(value, self.digits)

    def shown(self, source: Summary | Outcome) -> str:
        """Return the value as text, marked if it is only a bound."""
        return self.show(self.figure(source))

    def show(self, figure: Figure) -> str:
        return f"{figure.mark}{self.text(figure.value)}"

    @property
    def is_time(self) -> bool:
        """Tell whether the metric is a time, so that a lower value is faster."""
        return self.name.endswith("_ms")

    @property
    def is_decided_by_rate(self) -> bool:
        """Tell whether the rate of the load decides on the value: that of a speed, or of a share of the hardware.

        If a user gave the rate, such a value says nothing about the server.
        """
        return self.name.endswith(("_per_sec", "_percent"))

    def with_unit(self, value: Measured) -> str:
        """Return a value with its label, which has the unit.

        Of a time, the name comes first, as in "TTFT p99 20 ms".
        """
        return self.labeled(self.text(value))

    def labeled(self, figures: str) -> str:
        """Return figures as text with the label, before its unit."""
        if self.is_time:
            return f"{self.label.removesuffix(', ms')} {figures} ms"
        return f"{figures} {self.label}"

    def against(self, value: Measured, other: Measured) -> str:
        """Return two values with the label, as in "914 against 988 output tokens/s" or "TTFT p99 20 against 25 ms"."""
        return self.labeled(f"{self.text(value)} against {self.text(other)}")

    @property
    def words(self) -> tuple[str, str, str]:
        """The words for more, for less, and for as much of this metric.

        A speed and a time have words of speed. Any other metric has words of size.
        """
        if self.is_time or self.name.endswith("_per_sec"):
            return "faster", "slower", "as fast"
        return "higher", "lower", "as high"

    @property
    def short(self) -> str:
        """The label without its unit, for a row that says the unit elsewhere."""
        return self.label.removeprefix("output ").removesuffix(", ms").replace("tokens/s per", "per")


def outcome_value(outcome: Outcome, steps: Sequence[str]) -> Measured:
    """Return a number of a test's outcome, or None. `steps` is its path in summary.json, below `run.performance`."""
    field, *further_steps = steps
    if field == "steady" and further_steps == ["tokens_per_sec"]:  # A metric of its own, beside the speed that counts.
        return number_at(outcome.details.steady, further_steps)
    if field == "steady":  # Where these metrics are known, the figures of the outcome itself are of its steady part.
        return outcome_value(outcome, further_steps)
    # `run.performance` is one flat object. An outcome has the same values in several objects.
    details = outcome.details
    # The run's own test has all details, a test of its search has only `counted` and `machine`.
    if outcome.is_own and field in TestDetails.model_fields:
        return number_at(details, steps)
    for candidate in (outcome, details.counted, details.machine):
        if hasattr(candidate, field):
            return number_at(candidate, steps)
    return None


def number_at(start: object, steps: Sequence[str]) -> Measured:
    """Return the number at a path of attributes or keys; None if one is missing or the value is no number."""
    value = value_at(start, steps)
    if not isinstance(value, int | float):
        return None
    return value


def value_at(start: object, steps: Sequence[str]) -> object:
    """Return the value at a path of attributes or keys from `start` on; None if one of them is missing."""
    value = start
    for step in steps:
        value = value_of(value, step)
    return value


def value_of(data: object, name: str) -> object:
    """Return the value of a key or attribute; None if it is missing."""
    if isinstance(data, Mapping):
        return data.get(name)
    return getattr(data, name, None)


def declared_metrics() -> Iterator[Metric]:
    """Yield the metrics that metrics.csv declares, a row each. Empty cells have the defaults of Metric."""
    for row in table_beside(__file__, "metrics.csv"):
        yield Metric(
            name=row["name"],
            label=row["label"],
            path=row["path"],
            better=row["better"] or None,
            places=tuple(row["places"].split(";")),
            digits=int(row["digits"] or 4),
            rate_flag=row["rate_flag"],
            in_process=bool(row["in_process"]),
            coarse=bool(row["coarse"]),
        )


def usage_metrics() -> Iterator[Metric]:
    """Yield the mean and the maximum of each quantity of machine.csv as metrics.

    MLflow gets all of them; other places get those that quantities.csv names.
    """
    for quantity in QUANTITIES:
        for statistic, places in quantity.places.items():
            yield Metric(
                name=f"{quantity.name}_{statistic}",
                label=f"{quantity.text}, {statistic}",
                path=f"{TEST_PATH}usage.{quantity.name}.{statistic}",
                better=None,
                places=("mlflow", *places),
            )


METRICS = (*declared_metrics(), *usage_metrics())
METRICS_PAGE = "docs/reference/metrics.md"
COST = "cost_per_million_output_tokens"
METRIC_BY_NAME = {metric.name: metric for metric in METRICS}
METRIC_ALIASES = {"output_tokens_per_sec": "tokens_per_sec"}
METRIC_NAMES = [*METRIC_BY_NAME, *METRIC_ALIASES]


def unknown_metric(name: str, names: Sequence[str]) -> str:
    """Return in words that a metric is none of `names`, and a name like it, or else the page that lists all."""
    hint = spelling_hint(name, names, otherwise=f"; {METRICS_PAGE} lists the names.")
    return f"no metric {name}{hint}"


def metrics_of(place: MetricPlace) -> list[Metric]:
    return [metric for metric in METRICS if place in metric.places]


def values(summary: Summary, place: MetricPlace) -> dict[str, Measured]:
    """Return the metrics of a run that a place shows, by name. A value that does not count is None."""
    return {metric.name: metric.of(summary) for metric in metrics_of(place)}


def report_rows(summary: Summary) -> list[tuple[Metric, str]]:
    """Return the metrics with their texts for the table of a run's report that has a metric in each line.

    Metrics without a value are left out, and those that the report shows elsewhere.
    """
    test = summary.result
    is_streamed = summary.scenario.pattern.is_streamed
    is_speed_of_steady_part = test is not None and not test.details.is_whole
    texts = []
    for metric in metrics_of("report"):
        if is_streamed and metric.name.startswith("latency_"):
            continue  # The table of all latencies shows it.
        if is_speed_of_steady_part and metric.name == "steady_tokens_per_sec":
            continue  # The row of the output tokens/s has the same number then.
        if metric.figure(summary).value is not None:
            texts.append((metric, metric.shown(summary)))
    return texts


# The place of a metric in the table of the tests at each load, by the unit of the load.
TABLE_BY_UNIT: dict[str, MetricPlace] = {
    Poisson.unit: "rates",
    ClosedLoop.unit: "levels",
    Sequential.unit: "batches",
}


def metric_named(name: str) -> Metric | None:
    """Return the metric that a user names, which may end in _per_s for _per_sec or be an alias.

    None if there is none.
    """
    full_name = re.sub(r"_per_s$", "_per_sec", name)
    return METRIC_BY_NAME.get(METRIC_ALIASES.get(full_name, full_name))
