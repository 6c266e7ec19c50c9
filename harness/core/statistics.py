"""The statistics by which verdicts are given, each with its source; intervals are of 95 %."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import ceil, exp, floor, lgamma, log, sinh, sqrt
from statistics import NormalDist, fmean, variance
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

Number = TypeVar("Number", int, float)
NORMAL = NormalDist().inv_cdf(0.975)
RESAMPLES = 1000  # the resamples of a bootstrap
BLOCK_COUNTS = (5, 10, 20)  # numbers of blocks into which a test's time is cut
FEWEST_BLOCKS_FOR_CORRELATION = 10
# With this factor at least 93 % of the intervals of 600 and 2,000 requests hold, in queues (M/M/1) at 0.7 to 0.9 of
# their capacity.
QUEUE_WIDENING = 1.3
LOADGEN_CONFIDENCE = 0.99  # the confidence of early stopping
MOST_QUERIES = 2**40  # a test of more queries shows nothing
FEWEST_SAMPLES, FEWEST_DIFFERING = 30, 10  # a paired interval of fewer covers less than it claims
FEWEST_P99 = 100  # requests: the p99 of fewer is the slowest of them
RULE_OF_THREE = 3.0  # an event seen in none of n samples is in at most 3/n of all (Hanley and Lippman-Hand 1983)


def tail_name(kind: str, is_few: bool) -> str:
    return f"slowest {kind}" if is_few else f"{kind} p99"


@cache
def student(freedom: float, share: float = 0.95) -> float:
    """Return half the width of a confidence interval in standard errors: the quantile of Student's t distribution.

    `freedom` are the degrees of freedom, which may be a fraction. `share` is the confidence. The density is summed up
    over t = sinh(x), which reaches far enough for one degree of freedom.
    """
    import numpy as np

    edges = np.linspace(0, 60, 20_001)
    middles = (edges[1:] + edges[:-1]) / 2
    density = np.exp(-(freedom + 1) / 2 * np.log1p(np.sinh(middles) ** 2 / freedom)) * np.cosh(middles)
    mass = np.concatenate(([0.0], np.cumsum(density)))
    return sinh(np.interp(share * mass[-1], mass, edges))


def chi_squared(freedom: float, share: float) -> float:
    """Return the quantile of the chi-squared distribution, by Wilson and Hilferty's approximation (1931)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + NormalDist().inv_cdf(share) * sqrt(spread)) ** 3)


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return the difference of the means and half the width of its interval, by Welch's test (Welch 1947).

    The degrees of freedom are Satterthwaite's. A side of one value is taken to scatter as the other side does. If both
    sides have one value, the half width is 0, which here means unknown.
    """
    change = fmean(after) - fmean(before)
    sides = (before, after)
    several = [side for side in sides if len(side) > 1]  # the sides that show how much they scatter
    shared_scatter = max(map(variance, several), default=0.0)
    error_variance = 0.0
    shares = []
    for side in sides:
        scatter = variance(side) if len(side) > 1 else shared_scatter
        term = scatter / len(side)
        error_variance += term
        if len(side) > 1:
            shares.append(term**2 / (len(side) - 1))
    if not error_variance:
        return change, 0.0
    freedom: float = max(map(len, sides)) - 1
    if len(shares) > 1:
        freedom = error_variance**2 / sum(shares)
    return change, student(freedom) * sqrt(error_variance)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return Wilson's interval of a share (1927). It is sound for few values, and never outside 0 to 1."""
    share = hits / n
    spread = NORMAL**2 / n
    middle = share + spread / 2
    reach = NORMAL * sqrt(share * (1 - share) / n + spread / (4 * n))
    low = (middle - reach) / (1 + spread)
    high = (middle + reach) / (1 + spread)
    return max(0.0, low), min(1.0, high)


def percentile(ranked: Sequence[Number], share: float) -> Number:
    """Return the ranked value at a share of the values' number, as LoadGen counts (loadgen/results.cc)."""
    last = len(ranked) - 1
    return ranked[min(int(share * len(ranked)), last)]


@dataclass(frozen=True)
class Spread:
    """Lengths in tokens; each percentile is one of the lengths."""

    min: int
    mean: float
    p50: int
    p99: int
    max: int

    @classmethod
    def from_lengths(cls, lengths: Sequence[int]) -> Self | None:
        """Return the spread of lengths. None if there are no lengths."""
        if not lengths:
            return None
        ranked = sorted(lengths)
        return cls(ranked[0], fmean(ranked), percentile(ranked, 0.5), percentile(ranked, 0.99), ranked[-1])


def quantile_interval(values: Sequence[float], share: float) -> tuple[float, float | None] | None:
    """Return the ends of the confidence interval of a quantile, as two values of the test, by order statistics.

    `values` are in the order of time. There is no interval (None) for fewer than 40 requests. The upper end is None if
    the test is too short to have one. The interval is about the requests of this test, not about another run. Wide
    intervals are returned, too. Narrow ones alone would be those of tests that missed how slowly the queue changes.

    Requests that wait in one queue are alike, so they tell less than their number says. How much less is estimated from
    blocks of time. Of the numbers of blocks in `BLOCK_COUNTS`, the one that gives the widest interval is used. A short
    test at a high load may not show how slowly its queue changes, so the interval is widened by `QUEUE_WIDENING`.
    Source of the order statistics: David and Nagaraja, Order Statistics, 7.1.
    """
    count = len(values)
    if count < 2 * max(BLOCK_COUNTS):
        return None
    ranked = sorted(values)
    middle = percentile(ranked, share)
    is_below = [value <= middle for value in values]
    reach = QUEUE_WIDENING * max(quantile_reach(is_below, share, blocks) for blocks in BLOCK_COUNTS)
    low = max(0, floor(count * (share - reach)))
    high = ceil(count * (share + reach))
    if high >= count:
        return ranked[low], None
    return ranked[low], ranked[high]


def quantile_reach(is_below: Sequence[bool], share: float, blocks: int) -> float:
    """Return half the width of the interval of the share of values below a quantile.

    It follows from how the share scatters among blocks of time. The variance of the blocks' shares, divided by the
    variance of independent values, says how alike neighboring requests are. The correlation of neighboring blocks,
    corrected for its bias (Marriott and Pope 1954), says how much of this likeness lasts longer than a block.
    """
    size = len(is_below) // blocks
    shares = []
    for start in range(0, blocks * size, size):
        block = is_below[start : start + size]
        shares.append(sum(block) / size)
    independent = share * (1 - share)
    inflation = max(1.0, variance(shares) * size / independent)
    if blocks >= FEWEST_BLOCKS_FOR_CORRELATION:
        correlation = lag_correlation(shares)
        inflation *= (1 + correlation) / (1 - correlation)
    return student(blocks - 1) * sqrt(independent * inflation / len(is_below))


def lag_correlation(series: Sequence[float]) -> float:
    """Return the correlation of each value with the next, limited to 0 to 0.9.

    The bias in a short series is corrected.
    """
    middle = fmean(series)
    offsets = [value - middle for value in series]
    total = sum(offset**2 for offset in offsets)
    if not total:
        return 0.0
    neighbours = sum(first * second for first, second in pairwise(offsets))
    raw = neighbours / total
    corrected = raw + (1 + 3 * raw) / len(series)
    return min(max(corrected, 0.0), 0.9)


@cache
def fewest_queries(percentile: float, over: int = 0) -> int:
    """Return the fewest queries that show a percentile (0.99) to be within its limit, if `over` of them exceed it.

    By LoadGen's early stopping (loadgen/early_stopping.cc): the first n with sum over i <= over of C(n, i) (1 -
    percentile)^i percentile^(n - i) <= 1 - 0.99.
    """

    def is_enough(count: int) -> bool:
        return count > over and chance_of_at_most(count, over, percentile) <= 1 - LOADGEN_CONFIDENCE

    return bisect_left(range(MOST_QUERIES), True, key=is_enough)


def chance_of_at_most(n: int, over: int, percentile: float) -> float:
    """Return the probability that at most `over` of n queries exceed a limit.

    A share `percentile` of all queries keeps the limit.
    """
    probability = 0.0
    for i in range(min(over, n) + 1):
        log_of_ways = lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1)
        log_of_each = i * log(1 - percentile) + (n - i) * log(percentile)
        probability += exp(log_of_ways + log_of_each)
    return probability


def intervals(values: "ArrayLike") -> "NDArray[np.float64]":
    """Return the bootstrap interval of each column's mean.

    `values` has shape [samples, scores], the result [scores, 2]. A resample is n draws with replacement, so each
    sample's count is multinomial. The percentiles are expanded for the k values that are not 0: by sqrt(k / (k - 1)),
    and by Student's over the normal quantile (Hesterberg, The American Statistician 69, 2015).
    """
    import numpy as np

    scores = np.asarray(values, dtype=float)
    count = len(scores)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    means = scores.mean(axis=0)
    ends = np.percentile((draws / count) @ scores, [2.5, 97.5], axis=0)
    widening = []
    for nonzero in np.count_nonzero(scores, axis=0).tolist():
        k = max(nonzero, 2)
        widening.append(sqrt(k / (k - 1)) * student(k - 1) / NORMAL)
    widened: NDArray[np.float64] = (means + (ends - means) * widening).T
    return widened


class PairedChange(NamedTuple):
    """The mean of a score before and after on the same samples, with the interval of its change. Of `few` that differ
    it is widened by 3/n of the largest score, for what was not seen: it may show that a limit is kept, never a loss.
    """

    before: float
    after: float
    low: float
    high: float
    few: bool

    @property
    def change(self) -> float:
        return self.after - self.before


def paired_changes(before: "ArrayLike", after: "ArrayLike") -> list[PairedChange]:
    """Return the change of each score. `before` and `after` both have shape [samples, scores]."""
    import numpy as np

    scores_before = np.asarray(before, dtype=float)
    scores_after = np.asarray(after, dtype=float)
    changes = scores_after - scores_before
    largest_loss = scores_before.max(axis=0)
    largest_gain = scores_after.max(axis=0)
    few = (len(changes) < FEWEST_SAMPLES) | (np.count_nonzero(changes, axis=0) < FEWEST_DIFFERING)
    unseen = few * RULE_OF_THREE / len(changes) * np.array([-largest_loss, largest_gain])
    low, high = intervals(changes).T + unseen
    columns = (scores_before.mean(axis=0), scores_after.mean(axis=0), low, high, few)
    rows = zip(*map(np.ndarray.tolist, columns), strict=True)
    return [PairedChange(*row) for row in rows]
