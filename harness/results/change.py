"""The change of a metric from one run to another: its interval, its verdict and its words."""

from collections.abc import Sequence
from math import exp, inf, isfinite, log, sqrt
from typing import Literal, NamedTuple, Self

from harness.core.formatting import number
from harness.core.statistics import NORMAL, welch
from harness.results.metrics import Metric

# Whether B is faster than A: a change with its interval, its verdict and its words, for all that compare.
ERROR_RATE = 0.05  # the chance that a comparison calls any of its changes faster or slower that is none
# The scatter of runs with the same settings, about, as seen on an H200 (docs/evidence/performance.md).
ASSUMED_SCATTER = 0.02
FEWEST_PAIRS = 3  # pairs of runs that show their own scatter
SMALLEST, EQUAL = 0.005, 0.02  # a smaller change is none; an interval within this shows that there is none
ONE_RUN_EACH = "one run of each"
# The basis of a change between finished runs.
METHOD_TEXT = (
    f"of 95 % each; fewer than {FEWEST_PAIRS} runs of each are taken to scatter by {100 * ASSUMED_SCATTER:g} % at least"
)
SMALLEST_VARIANCE = 1e-18  # the smallest variance, for ratios that are all the same
LITTLE_CHANGE, MANIFOLD = 0.05, 1.95  # ratios beyond which, from about twice, the change is said as one
MULTIPLE_WORDS = {"2": "twice", "3": "three times", "4": "four times"}


class Change(NamedTuple):
    """The ratio of B to A: the geometric mean, its interval, and what they rest on, in words and in runs of a side."""

    mean: float
    low: float
    high: float
    basis: str = ONE_RUN_EACH
    runs: int = 1

    @classmethod
    def around(cls, middle: float, half: float, basis: str, runs: int) -> Self:
        """Return the change by the logarithm of its mean and half of its interval."""
        return cls(exp(middle), exp(middle - half), exp(middle + half), basis, runs)

    @classmethod
    def between(cls, before: Sequence[float], after: Sequence[float]) -> Self:
        """Return the change between the runs of two sides, by Welch's interval; fewer runs than FEWEST_PAIRS are taken
        to scatter by ASSUMED_SCATTER at least.
        """
        middle, half = welch([log(value) for value in before], [log(value) for value in after])
        count_before, count_after = len(before), len(after)
        if max(count_before, count_after) < FEWEST_PAIRS:
            half = max(half, NORMAL * ASSUMED_SCATTER * sqrt(1 / count_before + 1 / count_after))
        basis = f"{count_before} and {count_after} runs"
        if count_before == count_after == 1:
            basis = ONE_RUN_EACH
        return cls.around(middle, half, basis, min(count_before, count_after))

    def on_busy_machine(self) -> "Change":
        """Return the change as it is known where other programs used the machine.

        The scatter that they cause differs from machine to machine and from hour to hour. So it is never assumed: with
        fewer than FEWEST_PAIRS runs of a side there is no interval, which makes any verdict unclear.
        """
        return self._replace(low=0.0, high=inf) if self.may_be_chance else self

    @property
    def has_interval(self) -> bool:
        return isfinite(self.high)

    @property
    def may_be_chance(self) -> bool:
        """Tell whether there are too few runs of a side for their own scatter to be known."""
        return self.runs < FEWEST_PAIRS

    def verdict(self, bound: float = 0.0) -> Literal["above", "below", "unclear"]:
        """On which side of a change of `bound` percent the whole interval lies."""
        if 100 * (self.low - 1) - bound > 0:
            return "above"
        if 100 * (self.high - 1) - bound < 0:
            return "below"
        return "unclear"

    @property
    def effect(self) -> Literal["above", "below", "equal", "unclear"]:
        """Tell whether there is a change: of its verdict those that are too small are none."""
        if self.verdict() != "unclear" and abs(self.mean - 1) > SMALLEST:
            return self.verdict()
        return "equal" if self.reach <= EQUAL else "unclear"

    @property
    def reach(self) -> float:
        """Return how large a change may be, at most, by its interval."""
        return max(1 - self.low, self.high - 1)

    def speed_change(self, metric: Metric) -> "Change":
        """The change of the speed: of a time its inverse, as a third of it is three times the speed."""
        if not metric.is_time:
            return self
        low = 1 / self.high  # 0 of a change without an interval
        high = 1 / self.low if self.low else inf
        return Change(1 / self.mean, low, high, self.basis, self.runs)

    @property
    def signed(self) -> str:
        """In percent: +12.1 % (+9.2 to +15.4 %); without an interval, the mean alone."""
        if not self.has_interval:
            return f"{signed_percent(self.mean)} %"
        mean, low, high = map(signed_percent, self[:3])
        if self.low >= self.high:
            return f"{mean} %"
        return f"{mean} % ({low} to {high} %)"

    def describe(self, metric: Metric) -> str:
        """Return the change as people say it, with its interval and what it rests on: 19 % faster (5 to 25 %, 4 of 4
        pairs).
        """
        change, (up, down, as_much) = self.speed_change(metric), metric.words
        if change.effect == "equal":
            return f"equal within {number(round(100 * change.reach, 1) or 0.1, 2)} % ({self.basis})"
        if not change.has_interval:
            return (
                f"not known to be {up} or {down}: {change.signed} on a busy machine, {self.basis}; an interval takes "
                f"{FEWEST_PAIRS}"
            )
        if change.effect == "unclear":
            return f"not clearly {up} or {down}: {change.signed}, {self.basis}"
        if LITTLE_CHANGE < change.mean < MANIFOLD:
            size, low, high = change.sizes_in_percent
            direction = up if change.mean > 1 else down
            unit, comparison = "%", f"{size} % {direction}"
        else:
            size, low, high = (number(ratio, 2) for ratio in change[:3])
            multiple = MULTIPLE_WORDS.get(size, f"{size} times")
            unit, comparison = "times", f"{multiple} {as_much}"
        if low == high:
            return f"{comparison} ({self.basis})"
        return f"{comparison} ({low} to {high} {unit}, {self.basis})"

    @property
    def sizes_in_percent(self) -> tuple[str, str, str]:
        """Return how large the change is, at least and at most, whatever its direction."""
        least, most = sorted(map(size_in_percent, (self.low, self.high)))
        return number(size_in_percent(self.mean), 2), number(least, 2), number(most, 2)


def signed_percent(ratio: float) -> str:
    """Return the change of a ratio in percent, without the sign of percent."""
    return number(100 * (ratio - 1), 3, "+")


def size_in_percent(ratio: float) -> float:
    """Return how large the change of a ratio is, whatever its direction."""
    return 100 * abs(ratio - 1)
