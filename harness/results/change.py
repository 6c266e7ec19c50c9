"""The change of a metric from one run to another: its interval, its verdict and its words."""

from collections.abc import Sequence
from math import exp, inf, isfinite, log, sqrt
from typing import Literal, NamedTuple, Self

from harness.core.formatting import number
from harness.core.statistics import NORMAL, welch
from harness.results.metrics import Metric

# All comparisons of runs use this module: whether B is faster than A, with an interval, a verdict and words.
ERROR_RATE = 0.05  # the chance that a comparison calls any equal pair faster or slower
# The scatter of runs with the same settings, about, as seen on an H200 (docs/evidence/performance.md).
ASSUMED_SCATTER = 0.02
FEWEST_PAIRS = 3  # pairs of runs that show their own scatter
SMALLEST_CHANGE = 0.005  # a smaller change does not count, however clear it is
EQUAL_WITHIN = 0.02  # two sides are equal if the interval allows no larger change
LARGEST_OTHERS_SHARE = 0.99  # Other programs count with at most this share of the processors; 1 would divide by zero.
ONE_RUN_EACH = "one run of each"
# What is assumed where too few runs show how much a figure differs from run to run.
ASSUMPTION_TEXT = f"a standard deviation of at least {100 * ASSUMED_SCATTER:g} % from run to run is assumed"
# The intervals of changes between finished runs.
METHOD_TEXT = f"95 % for each metric; if neither side has {FEWEST_PAIRS} runs, {ASSUMPTION_TEXT}"
INTERVAL_OF_RUNS = "95 % interval"  # the name of such an interval
SMALLEST_VARIANCE = 1e-18  # the smallest variance, for ratios that are all the same
# Ratios between these two are written in percent, any other ratio as a multiple ("3 times as fast").
LOWEST_PERCENT_RATIO, HIGHEST_PERCENT_RATIO = 0.05, 1.95
MULTIPLE_WORDS = {"2": "twice", "3": "three times", "4": "four times"}


class Change(NamedTuple):
    """The ratio of B to A: the geometric mean, its interval, and the basis of both: in words, and as the number of runs
    of the side with fewer runs. `interval_name` is what the interval is called in words.
    """

    mean: float
    low: float
    high: float
    basis: str = ONE_RUN_EACH
    runs: int = 1
    interval_name: str = "interval"

    @classmethod
    def around(cls, middle: float, half: float, basis: str, runs: int, interval_name: str = "interval") -> Self:
        """Return the change whose logarithm has the mean `middle` and an interval of half the width `half`."""
        return cls(exp(middle), exp(middle - half), exp(middle + half), basis, runs, interval_name)

    @classmethod
    def between(cls, before: Sequence[float], after: Sequence[float]) -> Self:
        """Return the change of a figure from the runs of one side to those of the other, as a ratio.

        The interval is that of Welch's test of the logarithms.
        """
        # The mean of the logarithm of the ratio, and half the width of its interval.
        middle, half = welch([log(value) for value in before], [log(value) for value in after])
        count_before, count_after = len(before), len(after)
        # The runs are no pairs, but as many are needed on one side as pairs elsewhere.
        is_scatter_known = max(count_before, count_after) >= FEWEST_PAIRS
        if not is_scatter_known:  # One is assumed: the standard deviation of the logarithm of a run's figure.
            half = max(half, NORMAL * ASSUMED_SCATTER * sqrt(1 / count_before + 1 / count_after))
        basis = f"{count_before} and {count_after} runs"
        if count_before == count_after == 1:
            basis = ONE_RUN_EACH
        return cls.around(middle, half, basis, min(count_before, count_after), INTERVAL_OF_RUNS)

    def on_busy_machine(self, taken_before: float = 0.0, taken_after: float = 0.0) -> "Change":
        """Return this change of a speed, with an interval that allows for other programs on the machine.

        `taken_before` and `taken_after` are the largest shares of the processors that other programs took during a run
        of each side. Shared caches and memory are not allowed for.
        """
        if self.has_too_few_runs:  # They do not show the scatter that other programs cause, even unnoticed ones.
            return self._replace(low=0.0, high=inf)
        # On an idle machine, the runs before may have been faster, which makes the change smaller, and the runs after,
        # which makes it larger. The shares are capped, since a share of 1 would divide by zero.
        # An idle machine would have been up to 1 / (1 - share) times as fast.
        low = self.low * (1 - min(taken_before, LARGEST_OTHERS_SHARE))
        high = self.high / (1 - min(taken_after, LARGEST_OTHERS_SHARE))
        return self._replace(low=low, high=high)

    def of_metric_on_busy_machine(self, metric: Metric, taken_before: float, taken_after: float) -> "Change":
        """Return this change of a metric, with an interval that allows for other programs on the machine.

        `taken_before` and `taken_after` are the largest shares of the processors that these programs took during a run
        of each side.
        """
        # Other programs lower the speed, so the change of a time is converted to a change of speed, and then back.
        speed = self.speed_change(metric).on_busy_machine(taken_before, taken_after)
        return speed.speed_change(metric)

    @property
    def inverse(self) -> "Change":
        """The change in the opposite direction: one over the ratio. It has no interval if this change has none."""
        low = 1 / self.high  # 0 if the change has no interval, because its high end is then infinite
        high = 1 / self.low if self.low else inf
        return self._replace(mean=1 / self.mean, low=low, high=high)

    @property
    def has_interval(self) -> bool:
        """Tell whether the change has an interval. Without one, the high end is infinite."""
        return isfinite(self.high)

    @property
    def has_too_few_runs(self) -> bool:
        """Tell whether a side has too few runs to show its own scatter."""
        return self.runs < FEWEST_PAIRS

    def verdict(self, bound: float = 0.0) -> Literal["above", "below", "unclear"]:
        """Tell whether the whole interval is "above" or "below" a change of `bound` percent; "unclear" if the interval
        has the bound in it.
        """
        if 100 * (self.low - 1) - bound > 0:
            return "above"
        if 100 * (self.high - 1) - bound < 0:
            return "below"
        return "unclear"

    @property
    def effect(self) -> Literal["above", "below", "equal", "unclear"]:
        """Tell in which direction the change goes, if its interval excludes zero and it is larger than SMALLEST_CHANGE.

        Otherwise it is "equal" if the interval allows no change larger than EQUAL_WITHIN, else "unclear".
        """
        direction = self.verdict(bound=0.0)
        if direction != "unclear" and abs(self.mean - 1) > SMALLEST_CHANGE:
            return direction
        return "equal" if self.reach <= EQUAL_WITHIN else "unclear"

    @property
    def reach(self) -> float:
        """Return the largest change that the interval allows, as a share."""
        return max(1 - self.low, self.high - 1)

    def speed_change(self, metric: Metric) -> "Change":
        """Return the change as a change of speed, in which more is better.

        For a metric that is a time, the ratio is inverted: a third of the time is three times the speed. Any other
        metric's change stays as it is.
        """
        return self.inverse if metric.is_time else self

    @property
    def signed(self) -> str:
        """The change in percent, such as "+12.1 % (+9.2 to +15.4 %)".

        Only the mean is given if there is no interval, or if the interval has no width.
        """
        mean, low, high = map(signed_percent, (self.mean, self.low, self.high))
        if not self.has_interval or self.low >= self.high:
            return f"{mean} %"
        return f"{mean} % ({low} to {high} %)"

    def describe(self, metric: Metric, other: str) -> str:
        """Return the change in words with its interval and its basis, as in "19 % faster than A (95 % interval 5 to
        25 %, 2 and 3 runs)". `other` is the name of the side before the change.
        """
        more, less, as_much = metric.words  # such as faster, slower, as fast
        change = self.speed_change(metric)  # A change of a time is turned round: a shorter time is a higher speed.
        if change.effect == "equal":
            reach_percent = round(100 * change.reach, 1) or 0.1  # never "within 0 %"
            return f"equal to {other} within {number(reach_percent, 2)} % ({self.basis})"
        if not change.has_interval:  # With few pairs of tests on a busy machine, an interval would be too narrow.
            return (
                f"not known to be {more} or {less} than {other}: {change.signed} on a busy machine, {self.basis}; "
                f"an interval needs at least {FEWEST_PAIRS}"
            )
        if change.effect == "unclear":
            mean, low, high = map(signed_percent, (change.mean, change.low, change.high))
            interval = f"{self.interval_name} {low} to {high} %"
            return f"not clearly {more} or {less} than {other}: {mean} % ({interval}, {self.basis})"
        is_given_in_percent = LOWEST_PERCENT_RATIO < change.mean < HIGHEST_PERCENT_RATIO
        if is_given_in_percent:
            size, low, high = change.sizes_in_percent
            direction = more if change.mean > 1 else less
            unit, comparison = "%", f"{size} % {direction} than {other}"
        else:
            size, low, high = (number(ratio, 2) for ratio in (change.mean, change.low, change.high))
            # such as "twice as fast"
            multiple = MULTIPLE_WORDS.get(size, f"{size} times")
            unit, comparison = "times", f"{multiple} {as_much} as {other}"
        if low == high:  # Rounded, the ends of the interval are the same text.
            return f"{comparison} ({self.basis})"
        return f"{comparison} ({self.interval_name} {low} to {high} {unit}, {self.basis})"

    @property
    def sizes_in_percent(self) -> tuple[str, str, str]:
        """The mean, the smallest and the largest size of the change in percent, as texts without a direction."""
        least, most = sorted(map(size_in_percent, (self.low, self.high)))
        return number(size_in_percent(self.mean), 2), number(least, 2), number(most, 2)


def signed_percent(ratio: float) -> str:
    """Return the change of a ratio in percent, with its sign and without a unit."""
    return number(100 * (ratio - 1), 3, "+")


def size_in_percent(ratio: float) -> float:
    """Return the size of the change of a ratio in percent, without its direction."""
    return 100 * abs(ratio - 1)
