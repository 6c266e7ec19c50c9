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
NORMAL = NormalDist().inv_cdf(0.975)  # half the width of an interval of 95 %, in standard errors
RESAMPLES = 1000  # the resamples of a bootstrap
BLOCK_COUNTS = (5, 10, 20)  # numbers of blocks into which a test's requests are cut, in the order of time
FEWEST_BLOCKS_FOR_CORRELATION = 10  # the correlation of fewer neighboring blocks is mostly chance
# With this factor at least 93 % of the intervals of 600 and 2,000 requests hold, in queues (M/M/1) at 0.7 to 0.9 of
# their capacity.
QUEUE_WIDENING = 1.3
LOADGEN_CONFIDENCE = 0.99  # the confidence of early stopping
MOST_QUERIES = 2**40  # a test of more queries shows nothing
# With fewer samples, or fewer samples whose score changed, a paired interval covers less than it claims.
FEWEST_SAMPLES, FEWEST_DIFFERING = 30, 10
FEWEST_P99 = 100  # requests: the p99 of fewer is the slowest of them
RULE_OF_THREE = 3.0  # an event seen in none of n samples is in at most 3/n of all (Hanley and Lippman-Hand 1983)


def tail_name(kind: str, is_few: bool) -> str:
    """Return the name of the p99 of a kind of latency. Of few requests (FEWEST_P99) it is the slowest."""
    return f"slowest {kind}" if is_few else f"{kind} p99"


@cache
def student_quantile(freedom: float, confidence: float = 0.95) -> float:
    """Return half the width of a confidence interval in standard errors, by Student's t distribution.

    That is the t for which the interval from -t to t has the probability `confidence`. `freedom` are the degrees of
    freedom, which may be a fraction. The density is integrated from 0 by the midpoint rule, over x with t = sinh(x).
    With this substitution even the long tail for one degree of freedom ends before x = 60.
    """
    import numpy as np

    edges = np.linspace(0, 60, 20_001)
    middles = (edges[1:] + edges[:-1]) / 2
    slope = np.cosh(middles)  # dt / dx
    density = np.exp(-(freedom + 1) / 2 * np.log1p(np.sinh(middles) ** 2 / freedom)) * slope
    mass = np.concatenate(([0.0], np.cumsum(density)))
    return sinh(np.interp(confidence * mass[-1], mass, edges))


def chi_squared(freedom: float, share: float) -> float:
    """Return the quantile `share` of the chi-squared distribution, by Wilson and Hilferty's approximation (1931)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + NormalDist().inv_cdf(share) * sqrt(spread)) ** 3)


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return the difference of the means and half the width of its interval, by Welch's test (Welch 1947).

    The two sides are the values `before` and `after`. The degrees of freedom are Satterthwaite's. A side with a single
    value shows no scatter. It is assumed to scatter like the other side, whose degrees of freedom then count. The half
    width is 0 if neither side shows any scatter, which means that the interval is not known.
    """
    change = fmean(after) - fmean(before)
    sides = (before, after)
    sides_of_several = [side for side in sides if len(side) > 1]  # one value does not show how much it scatters
    largest_scatter = max(map(variance, sides_of_several), default=0.0)
    error_variance = 0.0
    satterthwaite_terms = []
    for side in sides:
        scatter = variance(side) if len(side) > 1 else largest_scatter
        error_of_side = scatter / len(side)
        error_variance += error_of_side
        if len(side) > 1:
            satterthwaite_terms.append(error_of_side**2 / (len(side) - 1))
    if not error_variance:
        return change, 0.0
    freedom: float = max(map(len, sides)) - 1
    if len(satterthwaite_terms) > 1:
        freedom = error_variance**2 / sum(satterthwaite_terms)
    return change, student_quantile(freedom) * sqrt(error_variance)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return Wilson's 95 % interval of the true share, if `hits` of n values were hits (1927). n must not be 0.

    Unlike the usual interval, it also holds for few values, and for shares near 0 or 1.
    """
    share = hits / n
    spread = NORMAL**2 / n
    middle = share + spread / 2
    reach = NORMAL * sqrt(share * (1 - share) / n + spread / (4 * n))
    low = (middle - reach) / (1 + spread)
    high = (middle + reach) / (1 + spread)
    return max(0.0, low), min(1.0, high)


def percentile(ranked: Sequence[Number], share: float) -> Number:
    """Return the value below which roughly `share` of the values lie, as LoadGen counts (loadgen/results.cc).

    `ranked` are the values in ascending order. The result is one of them.
    """
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

    `values` are those of a test's requests in the order of time. None for fewer than 40 values: each block needs two,
    and there are up to 20 blocks. The upper end is None if the test is too short to have one. The interval says how
    well this test measured the quantile, not how another run would differ. Wide intervals are returned, too: if only
    narrow ones were shown, they would mostly be those of tests that were too short to show how slowly the queue
    changes.

    Requests that wait in one queue are alike, so they say less than as many independent ones. How much less is
    estimated from blocks of time. Of the numbers of blocks in `BLOCK_COUNTS`, the one that gives the widest interval is
    used. A short test at a high load may not show how slowly its queue changes, so the interval is widened by
    `QUEUE_WIDENING`. Source of the order statistics: David and Nagaraja, Order Statistics, 7.1.
    """
    count = len(values)
    if count < 2 * max(BLOCK_COUNTS):
        return None
    ranked = sorted(values)
    quantile = percentile(ranked, share)
    is_below = [value <= quantile for value in values]
    reach = QUEUE_WIDENING * max(quantile_reach(is_below, share, blocks) for blocks in BLOCK_COUNTS)
    low = max(0, floor(count * (share - reach)))
    high = ceil(count * (share + reach))
    if high >= count:
        return ranked[low], None
    return ranked[low], ranked[high]


def quantile_reach(is_below: Sequence[bool], share: float, blocks: int) -> float:
    """Return half the width of the interval of the share of values below a quantile.

    `is_below` says of each value, in the order of time, whether it is below the quantile, and `share` is the share of
    values that should be. The width follows from how the share scatters among `blocks` blocks of time. The variance of
    the blocks' shares, divided by the variance of independent values, says how alike neighboring requests are. The
    correlation r of neighboring blocks says how much of this likeness lasts longer than a block: it multiplies the
    variance of a mean by (1 + r) / (1 - r), as in an AR(1) process. If the blocks are too few to show r, it is not
    used.
    """
    size = len(is_below) // blocks
    shares = []
    for start in range(0, blocks * size, size):
        block = is_below[start : start + size]
        shares.append(sum(block) / size)
    independent_variance = share * (1 - share)
    inflation = max(1.0, variance(shares) * size / independent_variance)
    if blocks >= FEWEST_BLOCKS_FOR_CORRELATION:
        correlation = lag_correlation(shares)
        inflation *= (1 + correlation) / (1 - correlation)
    return student_quantile(blocks - 1) * sqrt(independent_variance * inflation / len(is_below))


def lag_correlation(series: Sequence[float]) -> float:
    """Return the correlation of each value with the next, limited to 0 to 0.9, or 0 if all values are equal.

    In a short series, the plain estimate of the correlation is too low. It is corrected after Marriott and Pope (1954).
    """
    mean = fmean(series)
    offsets = [value - mean for value in series]
    sum_of_squares = sum(offset**2 for offset in offsets)
    if not sum_of_squares:
        return 0.0
    sum_of_products = sum(first * second for first, second in pairwise(offsets))
    raw = sum_of_products / sum_of_squares
    corrected = raw + (1 + 3 * raw) / len(series)
    return min(max(corrected, 0.0), 0.9)


@cache
def fewest_queries(percentile: float, over: int = 0) -> int:
    """Return the fewest queries that show a percentile, such as 0.99, to be within its limit, if `over` of the queries
    exceed the limit.

    By LoadGen's early stopping (loadgen/early_stopping.cc): the smallest n for which at most `over` of n queries would
    exceed the limit with a probability of at most 1 - LOADGEN_CONFIDENCE, if the percentile were just at the limit.
    """

    def is_enough(count: int) -> bool:
        """Tell whether so many queries suffice. If a number does, any larger number does, so bisection is possible."""
        return count > over and chance_of_at_most(count, over, percentile) <= 1 - LOADGEN_CONFIDENCE

    return bisect_left(range(MOST_QUERIES), True, key=is_enough)


def chance_of_at_most(n: int, over: int, percentile: float) -> float:
    """Return the probability that at most `over` of n queries exceed a limit that a share `percentile` of all keeps.

    It is the sum over i up to `over` of C(n, i) (1 - percentile)^i percentile^(n - i), by logarithms, since C(n, i) is
    too large for a float.
    """
    probability = 0.0
    for i in range(min(over, n) + 1):
        log_of_ways = lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1)
        log_of_each = i * log(1 - percentile) + (n - i) * log(percentile)
        probability += exp(log_of_ways + log_of_each)
    return probability


def intervals(values: "ArrayLike") -> "NDArray[np.float64]":
    """Return the 95 % bootstrap interval of each column's mean: the low and the high end.

    `values` has shape [samples, scores], the result [scores, 2]. A resample is as many draws with replacement as there
    are samples, so the samples' counts are multinomial. Bootstrap intervals of few values are too narrow. They are
    widened by sqrt(k / (k - 1)) and by Student's quantile over the normal one (Hesterberg, The American Statistician
    69, 2015), where k is the number of values other than 0, since zeros do not scatter.
    """
    import numpy as np

    scores = np.asarray(values, dtype=float)
    count = len(scores)
    draws = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    means = scores.mean(axis=0)
    ends = np.percentile((draws / count) @ scores, [2.5, 97.5], axis=0)
    widening = []
    for nonzero in np.count_nonzero(scores, axis=0).tolist():
        k = max(nonzero, 2)  # For 1 the factor would be infinite, and for 0 there is nothing to widen.
        widening.append(sqrt(k / (k - 1)) * student_quantile(k - 1) / NORMAL)
    widened: NDArray[np.float64] = (means + (ends - means) * widening).T
    return widened


class PairedChange(NamedTuple):
    """The mean of a score before and after on the same samples, with the interval of its change.

    If the samples, or those with another score, are `few`, the interval is widened for changes too rare to be seen. It
    may then show that a limit is kept, but no loss.
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
    """Return the change of each score. `before` and `after` have shape [samples, scores], of the same samples.

    If there are few samples, or few whose score changed, rare changes may exist that no sample shows. The interval is
    widened by what they could add: a share of up to RULE_OF_THREE / n of all samples may lose, or gain, the largest
    score.
    """
    import numpy as np

    scores_before = np.asarray(before, dtype=float)
    scores_after = np.asarray(after, dtype=float)
    changes = scores_after - scores_before
    largest_loss = scores_before.max(axis=0)
    largest_gain = scores_after.max(axis=0)
    few = (len(changes) < FEWEST_SAMPLES) | (np.count_nonzero(changes, axis=0) < FEWEST_DIFFERING)
    unseen_changes = few * RULE_OF_THREE / len(changes) * np.array([-largest_loss, largest_gain])
    low, high = intervals(changes).T + unseen_changes
    columns = (scores_before.mean(axis=0), scores_after.mean(axis=0), low, high, few)
    rows = zip(*map(np.ndarray.tolist, columns), strict=True)
    return [PairedChange(*row) for row in rows]
