"""Every metric of a run, declared once, and the change of one between runs.

A new one is a line in metrics.csv, and a field of the summary where it has none yet. Reports, tables, the history,
sweeps, comparisons and MLflow go through this list.
"""

from collections.abc import Mapping, Sequence
from math import exp, log, sqrt
from statistics import NormalDist, fmean
from typing import Any, Literal, NamedTuple, Self

from harness.config.patterns import ClosedLoop, Poisson, Sequential
from harness.core.document import Column, Measured, number
from harness.core.files import table_beside
from harness.core.statistics import NORMAL, student, welch
from harness.loadgen.outcome import Doubt, Figure, Outcome
from harness.results.summary import Summary
from harness.results.telemetry import QUANTITIES

# Where a metric is shown: of runs, in the table of the tests at each load by its unit, and in a line for each test.
Place = Literal[
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


TEST = "run.performance."
ESTIMATE = "estimate"  # what --quick found, in a file of that name


class Metric(NamedTuple):
    """`path` leads to the value in a Summary."""

    name: str
    label: str  # with its unit
    path: str
    better: str | None  # higher or lower
    places: tuple[str, ...]
    digits: int = 4
    rate_flag: str = ""  # only of scenarios whose load this flag gives
    in_process: bool = False  # only of an engine in this process
    coarse: bool = False  # not more digits than these, also of large numbers

    @property
    def steps(self) -> list[str]:
        """The names that lead to it from a test."""
        return self.path.removeprefix(TEST).split(".")

    @property
    def doubts(self) -> tuple[Doubt, ...]:
        """What makes it doubtful, where it holds of the test."""
        kind, *point = self.steps  # a latency and its percentile
        return (
            *[Doubt.INVALID, Doubt.DISPUTED, Doubt.BUSY] * self.path.startswith(TEST),
            *[Doubt.FEW] * (point == ["p99"]),
            *[Doubt.BUFFERED] * (kind in ("ttft_ms", "tpot_ms")),
        )

    def figure(self, source: Summary | Outcome) -> Figure:
        """The value with the doubts that it has, of a run or of one test."""
        outcome = source if isinstance(source, Outcome) else source.result
        if isinstance(source, Outcome):
            value = value_at(source, [step for step in self.steps if step != "steady"])
        elif (source.meta.endpoints and self.in_process) or self.rate_flag not in (
            "",
            source.scenario.pattern.rate_flag,
        ):
            return Figure(None)  # such a run has no such metric
        else:
            test, level = source.performance, source.result
            part: Any = test.counted if test and self.path.startswith(TEST) else None
            if level and level.repeats and self.path.startswith(TEST):
                steps = [step for step in self.steps if step != "steady"]
                repeated = level.cost(source.price) if self.name == COST and source.price else value_at(level, steps)
                if repeated is not None:  # of all tests of the level
                    return Figure(repeated, tuple(doubt for doubt in level.doubts if doubt in self.doubts))
            is_of_part = hasattr(part, self.steps[0])
            value = value_at(part, self.steps) if is_of_part else value_at(source, self.path.split("."))
        return Figure(value, tuple(doubt for doubt in (outcome.doubts if outcome else ()) if doubt in self.doubts))

    def of(self, source: Summary | Outcome) -> Measured:
        """The value as far as it counts; None where there is none."""
        return self.figure(source).counted

    def text(self, value: Measured) -> str:
        coarse = self.coarse and value is not None
        return number(float(f"{value:.{self.digits}g}") if coarse else value, self.digits)

    def shown(self, source: Summary | Outcome) -> str:
        """The value with the mark of what it is not."""
        return self.show(self.figure(source))

    def show(self, figure: Figure) -> str:
        return f"{figure.mark}{self.text(figure.value)}"

    @property
    def is_time(self) -> bool:
        """Whether less of it is faster."""
        return self.name.endswith("_ms")

    @property
    def is_of_rate(self) -> bool:
        """Whether it follows from the rate, where that is given."""
        return self.name.endswith(("_per_sec", "_percent"))

    def with_unit(self, value: Measured) -> str:
        if self.is_time:
            return f"{self.label.removesuffix(', ms')} {self.text(value)} ms"
        return f"{self.text(value)} {self.label}"

    @property
    def words(self) -> tuple[str, str, str]:
        """What more and less speed of it are called, or more and less of it where it is none; and as much of it."""
        is_speed = self.is_time or self.name.endswith("_per_sec")
        return ("faster", "slower", "as fast") if is_speed else ("higher", "lower", "as high")

    @property
    def short(self) -> str:
        """The label in a row that says its unit elsewhere."""
        return self.label.removeprefix("output ").removesuffix(", ms").replace("tokens/s per", "per")


def value_at(start: object, steps: Sequence[str]) -> Any:
    """What attributes and keys of these names lead to; None where one is missing."""
    found: Any = start
    for step in steps:
        found = found.get(step) if isinstance(found, Mapping) else getattr(found, step, None)
    return found


METRICS = (
    *(
        Metric(
            row["name"],
            row["label"],
            row["path"],
            row["better"] or None,
            tuple(row["places"].split(";")),
            int(row["digits"] or 4),
            row["rate_flag"],
            bool(row["in_process"]),
            bool(row["coarse"]),
        )
        for row in table_beside(__file__, "metrics.csv")
    ),
    *(
        Metric(f"{item.name}_{how}", f"{item.text}, {how}", f"{TEST}usage.{item.name}.{how}", None, ("mlflow", *places))
        for item in QUANTITIES
        for how, places in item.places.items()
    ),
)
COST = "cost_per_million_output_tokens"
BY_NAME = {metric.name: metric for metric in METRICS}


def metrics_of(place: Place) -> list[Metric]:
    return [metric for metric in METRICS if place in metric.places]


def values(summary: Summary, place: Place) -> dict[str, Measured]:
    """What a place has of a run, as far as it counts: name -> value."""
    return {metric.name: metric.of(summary) for metric in metrics_of(place)}


def rows(summary: Summary) -> list[tuple[Metric, str]]:
    """The metrics that a run has, for its report's table with one a line."""
    test, told = summary.performance, metrics_of("report")
    if summary.scenario.pattern.is_streamed:  # they stand in the table of all latencies
        told = [metric for metric in told if not metric.name.startswith("latency_")]
    is_twice = test and test.counted is not test  # the same as the output tokens/s above it
    return [
        (metric, metric.shown(summary))
        for metric in told
        if metric.figure(summary).value is not None and not (is_twice and metric.name == "steady_tokens_per_sec")
    ]


TABLES: dict[str, Place] = {Poisson.unit: "rates", ClosedLoop.unit: "levels", Sequential.unit: "batches"}  # by the unit


# A line for each test of a load: what METRICS has for that place, and what came of it.
def told(place: Place, tests: Sequence[Outcome]) -> list[Metric]:
    """What a place shows of tests, as far as one of them has it."""
    return [metric for metric in metrics_of(place) if any(metric.figure(one).value is not None for one in tests)]


def columns(place: Place, tests: Sequence[Outcome], head: str, load: str) -> dict[str, Column]:
    """The columns of a table of tests: under a head of its own this attribute, which is the load."""
    found: dict[str, Column] = {head: load, "verdict": lambda outcome: outcome.verdict.word}
    return found | {metric.label: metric.shown for metric in told(place, tests)}


def head(outcome: Outcome) -> tuple[str, ...]:
    """What stands above the `cells` of a test: its load, the rest of their place, and what the last cell says."""
    last = "(ms)" if row_of(outcome) == "row" else "LoadGen"
    return (outcome.unit, *(metric.short for metric in metrics_of(row_of(outcome))), last)


def cells(outcome: Outcome) -> tuple[str, ...]:
    """Load, speed, latencies in milliseconds, and the verdict."""
    found = (metric.shown(outcome) for metric in metrics_of(row_of(outcome)))
    return (number(outcome.load), *found, outcome.verdict.word)


def row_of(outcome: Outcome) -> Place:
    return "batch row" if outcome.unit == Sequential.unit else "row"


# Whether B is faster than A: a change with its interval, its verdict and its words, for all that compare.
ERROR = 0.05  # the chance that a comparison calls any of its changes faster or slower that is none
SCATTER = 0.02  # of runs with the same settings, about, as seen of an H200 (docs/evidence/performance.md)
FEWEST = 3  # pairs of runs that show their own scatter
SMALLEST, EQUAL = 0.005, 0.02  # a smaller change is none; an interval within this shows that there is none
ALONE = "one run of each"
# Of finished runs.
METHOD = f"of 95 % each; fewer than {FEWEST} runs of each are taken to scatter by {100 * SCATTER:g} % at least"
LEAST = 1e-18  # of a variance, for ratios that are all the same
LITTLE, MANIFOLD = 0.05, 1.95  # ratios beyond which, from about twice, the change is said as one
TIMES = {"2": "twice", "3": "three times", "4": "four times"}


class Change(NamedTuple):
    """The ratio of B to A: the geometric mean, its interval, and in words what they rest on."""

    mean: float
    low: float
    high: float
    basis: str = ALONE

    @classmethod
    def around(cls, middle: float, half: float, basis: str) -> Self:
        """By the logarithm of the mean, and half of its interval."""
        return cls(exp(middle), exp(middle - half), exp(middle + half), basis)

    @classmethod
    def between(cls, before: Sequence[float], after: Sequence[float]) -> Self:
        """Of runs of either side, by Welch's interval; fewer than FEWEST are taken to scatter by SCATTER at least."""
        middle, half = welch(*([log(value) for value in side] for side in (before, after)))
        counts = len(before), len(after)
        if max(counts) < FEWEST:
            half = max(half, NORMAL * SCATTER * sqrt(sum(1 / count for count in counts)))
        return cls.around(middle, half, ALONE if counts == (1, 1) else f"{counts[0]} and {counts[1]} runs")

    def verdict(self, bound: float = 0.0) -> Literal["above", "below", "unclear"]:
        """On which side of a change of `bound` percent the whole interval lies."""
        low, high = (100 * (ratio - 1) - bound for ratio in (self.low, self.high))
        return "above" if low > 0 else "below" if high < 0 else "unclear"

    @property
    def effect(self) -> Literal["above", "below", "equal", "unclear"]:
        """Whether there is a change: of its verdict those that are too small are none."""
        if self.verdict() != "unclear" and abs(self.mean - 1) > SMALLEST:
            return self.verdict()
        return "equal" if self.reach <= EQUAL else "unclear"

    @property
    def reach(self) -> float:
        """How large a change may be, at most, by its interval."""
        return max(1 - self.low, self.high - 1)

    def speed_change(self, metric: Metric) -> "Change":
        """The change of the speed: of a time its inverse, as a third of it is three times the speed."""
        return Change(1 / self.mean, 1 / self.high, 1 / self.low, self.basis) if metric.is_time else self

    @property
    def signed(self) -> str:
        """In percent: +12.1 % (+9.2 to +15.4 %)."""
        mean, low, high = (number(100 * (ratio - 1), 3, "+") for ratio in self[:3])
        return f"{mean} % ({low} to {high} %)" if self.low < self.high else f"{mean} %"

    def describe(self, metric: Metric) -> str:
        """As people say it, with its interval and what it rests on: 19 % faster (5 to 25 %, 4 of 4 pairs)."""
        change, (up, down, as_much) = self.speed_change(metric), metric.words
        if change.effect == "equal":
            return f"equal within {number(round(100 * change.reach, 1) or 0.1, 2)} % ({self.basis})"
        if change.effect == "unclear":
            return f"not clearly {up} or {down}: {change.signed}, {self.basis}"
        is_share = LITTLE < change.mean < MANIFOLD
        mean, *ends = (100 * abs(ratio - 1) if is_share else ratio for ratio in change[:3])
        size, low, high = (number(value, 2) for value in (mean, *sorted(ends)))
        faster = f"{size} % {up if change.mean > 1 else down}"
        said = faster if is_share else f"{TIMES.get(size, f'{size} times')} {as_much}"
        between = f"{low} to {high} {'%' if is_share else 'times'}, " * (low != high)
        return f"{said} ({between}{self.basis})"


def paired(ratios: Mapping[str, Sequence[float]], error: float = ERROR) -> dict[str, Change]:
    """The change of each experiment, by its ratios to the baseline of the same round.

    The verdicts together are wrong in at most `error` of such comparisons: Holm's procedure (1979) on Student's t of
    the logarithms; an interval is of the level at which its verdict is given. All experiments are taken to scatter
    alike, but one that scatters more as it does itself. Ratios to one baseline are correlated by 1/2, so that their
    pooled variance has (1 + (k - 1) / 4) / k of the variance of one experiment's, and degrees of freedom by that.
    """
    logs = {name: [log(ratio) for ratio in found] for name, found in ratios.items()}
    means = {name: fmean(found) for name, found in logs.items()}
    squares = {name: sum((value - means[name]) ** 2 for value in found) for name, found in logs.items()}
    free = sum(len(found) - 1 for found in logs.values())
    pooled, errors = sum(squares.values()) / max(free, 1), dict[str, float]()
    for name, found in logs.items():
        known, own = 2 * SCATTER**2 if len(found) < FEWEST else LEAST, squares[name] / max(len(found) - 1, 1)
        errors[name] = sqrt(max(known, pooled, own) / len(found))
    changes, left = dict[str, Change](), len(logs)
    for name in sorted(logs, key=lambda name: -abs(means[name]) / errors[name]):
        share, count = 1 - error / left, len(logs[name])
        freedom = free / (1 + (len(logs) - 1) / 4)
        quantile = NormalDist().inv_cdf((1 + share) / 2) if count < FEWEST else student(freedom, share)
        agreeing = sum(value * means[name] > 0 for value in logs[name])
        basis = ALONE if count == 1 else f"{agreeing} of {count} pairs"
        changes[name] = Change.around(means[name], quantile * errors[name], basis)
        left -= changes[name].verdict() != "unclear"
    return {name: changes[name] for name in logs}
