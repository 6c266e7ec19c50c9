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
    freedom, which may be a fraction.
    """
    import numpy as np

    # The density is integrated over x, where t = sinh(x): even the long tail of one degree of freedom ends before 60.
    # Constant factors do not matter, since only shares of the whole are compared. By symmetry, x >= 0 is enough.
    edges = np.linspace(0, 60, 20_001)
    middles = (edges[1:] + edges[:-1]) / 2
    density_of_t = np.exp(-(freedom + 1) / 2 * np.log1p(np.sinh(middles) ** 2 / freedom))
    density = density_of_t * np.cosh(middles)  # dt / dx = cosh(x)
    mass = np.concatenate(([0.0], np.cumsum(density)))  # from 0 to each edge
    return sinh(np.interp(confidence * mass[-1], mass, edges))


def chi_squared(freedom: float, share: float) -> float:
    """Return the quantile `share` of the chi-squared distribution, by Wilson and Hilferty's approximation (1931)."""
    spread = 2 / (9 * freedom)
    return float(freedom * (1 - spread + NormalDist().inv_cdf(share) * sqrt(spread)) ** 3)


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return the difference of the means and half the width of its interval, by Welch's test (Welch 1947).

    Half the width is 0 if neither side shows any scatter, which means that the interval is not known.
    """
    change = fmean(after) - fmean(before)
    sides = (before, after)
    sides_of_several = [side for side in sides if len(side) > 1]
    # A single value does not show how much it scatters. It is assumed to scatter like the other side.
    assumed_variance = max(map(variance, sides_of_several), default=0.0)
    variances_of_means = []
    for side in sides:
        variance_of_side = variance(side) if len(side) > 1 else assumed_variance
        variances_of_means.append(variance_of_side / len(side))
    variance_of_change = sum(variances_of_means)
    if not variance_of_change:
        return change, 0.0
    if len(sides_of_several) == 2:  # Both sides show their scatter: the degrees of freedom by Satterthwaite's formula.
        terms = [of_mean**2 / (len(side) - 1) for of_mean, side in zip(variances_of_means, sides, strict=True)]
        freedom = variance_of_change**2 / sum(terms)
    else:
        freedom = max(map(len, sides)) - 1  # that of the side with several values
    return change, student_quantile(freedom) * sqrt(variance_of_change)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the true share, if `hits` of n values were hits. n must not be 0.

    It is the score interval of Wilson (1927), which also holds for few values, and for shares near 0 or 1.
    """
    share = hits / n
    z_squared_by_n = NORMAL**2 / n
    middle = share + z_squared_by_n / 2
    reach = NORMAL * sqrt(share * (1 - share) / n + z_squared_by_n / (4 * n))
    low = (middle - reach) / (1 + z_squared_by_n)
    high = (middle + reach) / (1 + z_squared_by_n)
    return max(0.0, low), min(1.0, high)  # Rounding may lead a little beyond 0 or 1.


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
    """Return the ends of the confidence interval of a quantile, below which `share` of the values lie.

    `values` are those of a test's requests in the order of time. Both ends are among these values (David and Nagaraja,
    Order Statistics, 7.1). None if there are too few values. The upper end is None if the test is too short for it.
    """
    count = len(values)
    if count < 2 * max(BLOCK_COUNTS):  # Each block of time needs two values.
        return None
    ranked = sorted(values)
    quantile = percentile(ranked, share)
    is_below = [value <= quantile for value in values]
    # How alike neighboring requests are shows in blocks of time. The number of blocks with the widest interval counts.
    widest = max(half_width_of_share(is_below, share, block_count) for block_count in BLOCK_COUNTS)
    # A short test at a high load may not show how slowly its queue changes, so the interval is widened.
    half_width = QUEUE_WIDENING * widest
    low_rank = max(0, floor(count * (share - half_width)))
    high_rank = ceil(count * (share + half_width))
    if high_rank >= count:
        return ranked[low_rank], None
    return ranked[low_rank], ranked[high_rank]


def half_width_of_share(is_below: Sequence[bool], share: float, block_count: int) -> float:
    """Return by how much the share of values below a quantile may be off: half the width of its interval.

    `is_below` says of each value, in the order of time, whether the value is below the quantile. `share` is the share
    that should be below.
    """
    size = len(is_below) // block_count
    shares = []
    for start in range(0, block_count * size, size):
        block = is_below[start : start + size]
        shares.append(sum(block) / size)
    variance_of_value = share * (1 - share)
    # Of independent values, the share of a block has the variance `variance_of_value` / size. But requests that wait in
    # one queue are alike, so the shares of blocks differ more.
    inflation = max(1.0, variance(shares) * size / variance_of_value)
    if block_count >= FEWEST_BLOCKS_FOR_CORRELATION:
        # Neighboring blocks may be alike as well. So the variance of the mean grows further, as in an AR(1) process.
        correlation = lag_correlation(shares)
        inflation *= (1 + correlation) / (1 - correlation)
    return student_quantile(block_count - 1) * sqrt(variance_of_value * inflation / len(is_below))


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
    return min(max(corrected, 0.0), 0.9)  # `half_width_of_share` divides by 1 - correlation, so it must not be near 1.


@cache
def fewest_queries(percentile: float, over: int = 0) -> int:
    """Return the fewest queries that show a percentile, such as 0.99, to keep its limit, if `over` queries exceed it.

    By LoadGen's rule of early stopping (loadgen/early_stopping.cc), with the confidence LOADGEN_CONFIDENCE.
    """

    def is_enough(count: int) -> bool:
        """Tell whether so many queries suffice. If a number does, any larger number does, so bisection is possible."""
        return count > over and chance_of_at_most(count, over, percentile) <= 1 - LOADGEN_CONFIDENCE

    return bisect_left(range(MOST_QUERIES), True, key=is_enough)


def chance_of_at_most(n: int, over: int, percentile: float) -> float:
    """Return the probability that at most `over` of n queries are longer than the latency at `percentile` (as 0.99).

    The probability is the sum over i up to `over` of C(n, i) (1 - percentile)^i percentile^(n - i).
    """
    probability = 0.0
    for i in range(min(over, n) + 1):
        # Logarithms, since C(n, i) is too large for a float.
        log_of_ways = lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1)
        log_of_each = i * log(1 - percentile) + (n - i) * log(percentile)
        probability += exp(log_of_ways + log_of_each)
    return probability


def bootstrap_intervals(values: "ArrayLike") -> "NDArray[np.float64]":
    """Return the 95 % bootstrap interval of each column's mean: the low and the high end.

    `values` has shape [samples, scores], the result [scores, 2].
    """
    import numpy as np

    scores = np.asarray(values, dtype=float)
    count = len(scores)
    # A resample draws as many samples as there are, with replacement. So the numbers of draws are multinomial.
    draw_counts = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    means_of_resamples = (draw_counts / count) @ scores
    ends = np.percentile(means_of_resamples, [2.5, 97.5], axis=0)
    # Bootstrap intervals of few values are too narrow, so they are widened (Hesterberg, The American Statistician 69,
    # 2015). Zeros do not count as values, since they do not scatter.
    widening = []
    for nonzero in np.count_nonzero(scores, axis=0).tolist():
        value_count = max(nonzero, 2)  # For 1 the factor would be infinite, and for 0 there is nothing to widen.
        factor = sqrt(value_count / (value_count - 1)) * student_quantile(value_count - 1) / NORMAL
        widening.append(factor)
    means = scores.mean(axis=0)
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
    widened by what these could add.
    """
    import numpy as np

    scores_before = np.asarray(before, dtype=float)
    scores_after = np.asarray(after, dtype=float)
    changes = scores_after - scores_before
    is_few = (len(changes) < FEWEST_SAMPLES) | (np.count_nonzero(changes, axis=0) < FEWEST_DIFFERING)
    # By the rule of three, up to this share of all samples may change in a way that no sample shows. Scores are not
    # negative, so at worst each of them loses the largest score before, or gains the largest score after.
    unseen_share = is_few * RULE_OF_THREE / len(changes)  # 0 for a score with enough samples
    largest_loss, largest_gain = scores_before.max(axis=0), scores_after.max(axis=0)
    low, high = bootstrap_intervals(changes).T
    low, high = low - unseen_share * largest_loss, high + unseen_share * largest_gain
    columns = (scores_before.mean(axis=0), scores_after.mean(axis=0), low, high, is_few)
    rows = zip(*map(np.ndarray.tolist, columns), strict=True)
    return [PairedChange(*row) for row in rows]
