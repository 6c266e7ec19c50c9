"""The statistics by which verdicts are given, each with its source; intervals are of 95 %."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from math import ceil, exp, floor, lgamma, log, sinh, sqrt
from statistics import NormalDist, fmean, variance
from typing import Any, NamedTuple, Self, TypeVar

Number = TypeVar("Number", int, float)
NORMAL = NormalDist().inv_cdf(0.975)
RESAMPLES = 1000  # of a bootstrap
BLOCK_COUNTS = (5, 10, 20)  # of a test's time
FEWEST_INDEPENDENT = 50  # requests, of an interval
LOADGEN_CONFIDENCE = 0.99  # of early stopping
MOST_QUERIES = 2**40  # of a test, for it to show anything
FEWEST_SAMPLES, FEWEST_DIFFERING = 30, 10  # of a paired interval: with fewer it covers less than it claims
FEWEST_P99 = 100  # requests: the p99 of fewer is the slowest of them
RULE_OF_THREE = 3.0  # what was seen in none of n samples is in at most 3/n of all (Hanley and Lippman-Hand 1983)


def tail_name(kind: str, is_few: bool) -> str:
    return f"slowest {kind}" if is_few else f"{kind} p99"


@cache
def student(freedom: float, share: float = 0.95) -> float:
    """Half the width of an interval of that share in standard errors: Student's t, by degrees of freedom, also
    fractional.

    The distribution is summed up over t = sinh(x), which reaches far enough for one degree of freedom.
    """
    import numpy as np

    edges = np.linspace(0, 60, 20_001)
    middles = (edges[1:] + edges[:-1]) / 2
    density = np.exp(-(freedom + 1) / 2 * np.log1p(np.sinh(middles) ** 2 / freedom)) * np.cosh(middles)
    mass = np.concatenate(([0.0], np.cumsum(density)))
    return sinh(np.interp(share * mass[-1], mass, edges))


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The difference of the means and half its interval, by Welch's test with Satterthwaite's degrees of freedom
    (Welch 1947). A side of one value is taken to scatter as the other; of one and one the half is 0: it is not known.
    """
    sides = (before, after)
    scatter = [variance(side) if len(side) > 1 else None for side in sides]
    alike = max((each for each in scatter if each is not None), default=0.0)
    terms = [(alike if each is None else each) / len(side) for each, side in zip(scatter, sides, strict=True)]
    if not (total := sum(terms)):
        return fmean(after) - fmean(before), 0.0
    shares = [term**2 / (len(side) - 1) for term, side in zip(terms, sides, strict=True) if len(side) > 1]
    freedom = total**2 / sum(shares) if len(shares) > 1 else max(map(len, sides)) - 1
    return fmean(after) - fmean(before), student(freedom) * sqrt(total)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's interval of a share (1927): honest for few of them, and never outside 0 to 1."""
    share, spread = hits / n, NORMAL**2 / n
    middle = share + spread / 2
    reach = NORMAL * sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, (middle - reach) / (1 + spread)), min(1.0, (middle + reach) / (1 + spread))


def percentile(ranked: Sequence[Number], share: float) -> Number:
    """One of the ranked values, the one at its share of their number, as LoadGen counts (loadgen/results.cc)."""
    return ranked[min(int(share * len(ranked)), len(ranked) - 1)]


@dataclass(frozen=True)
class Spread:
    """Lengths in tokens; each percentile is one of the lengths."""

    min: int
    mean: float
    p50: int
    p99: int
    max: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self | None:
        """None where there are none."""
        if not lengths:
            return None
        ranked = sorted(lengths)
        return cls(ranked[0], fmean(ranked), percentile(ranked, 0.5), percentile(ranked, 0.99), ranked[-1])


def quantile_interval(values: Sequence[float], share: float) -> tuple[float, float | None] | None:
    """The values of a test between which a quantile of such requests lies, by order statistics (David and Nagaraja,
    Order Statistics, 7.1); the upper one is None where the test is too short to have it.

    `values` are in the order of time. Requests that wait in one queue are alike, so that there is less in them than
    their number says: by the variance of the share below the quantile among blocks of time over that of as many
    independent values, in that number of `BLOCKS` which says most. None where fewer than `FEWEST_INDEPENDENT` are
    left, or a quarter of a few. Wrong are 1 to 9 % of simulated queues (M/M/1, 600 to 13,368 requests, at half and at
    0.9 of their capacity); none is given of 600 at 0.9, nor of four in five of 2,000. It tells of this test's
    requests, not of another run.
    """
    count = len(values)
    if count < 2 * max(BLOCK_COUNTS):
        return None
    ranked = sorted(values)
    middle = percentile(ranked, share)
    chance, found = share * (1 - share), list[tuple[float, float]]()
    for blocks in BLOCK_COUNTS:
        size = count // blocks
        below = [sum(value <= middle for value in values[n * size : (n + 1) * size]) / size for n in range(blocks)]
        inflation = max(1.0, variance(below) * size / chance)
        found.append((student(blocks - 1) * sqrt(chance * inflation / count), count / inflation))
    reach, independent = max(found)
    if independent < min(FEWEST_INDEPENDENT, count / 4):
        return None
    low, high = floor(count * (share - reach)), ceil(count * (share + reach))
    return ranked[max(0, low)], ranked[high] if high < count else None


@cache
def fewest_queries(percentile: float, over: int = 0) -> int:
    """The fewest queries that show a percentile (0.99) to be within its limit, when `over` of them were not.

    By LoadGen's early stopping (loadgen/early_stopping.cc): the first n with
    sum over i <= over of C(n, i) (1 - percentile)^i percentile^(n - i) <= 1 - 0.99.
    """
    return bisect_left(
        range(MOST_QUERIES),
        True,
        key=lambda count: count > over and chance_of_at_most(count, over, percentile) <= 1 - LOADGEN_CONFIDENCE,
    )


def chance_of_at_most(n: int, over: int, percentile: float) -> float:
    """The probability of at most `over` of n queries over a limit that `percentile` of all keep."""
    return sum(
        exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(1 - percentile) + (n - i) * log(percentile))
        for i in range(min(over, n) + 1)
    )


def intervals(values: Any) -> Any:
    """Bootstrap interval of each column's mean; `values` has shape [samples, scores], the result [scores, 2].

    A resample is n draws with replacement, so each sample's count is multinomial. The percentiles are expanded for the
    k values that are not 0: by sqrt(k / (k - 1)), and Student's over the normal quantile (Hesterberg, The
    American Statistician 69, 2015).
    """
    import numpy as np

    values = np.asarray(values, dtype=float)
    count = len(values)
    weights = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
    means, ends = values.mean(axis=0), np.percentile(weights @ values, [2.5, 97.5], axis=0)
    telling = np.maximum(np.count_nonzero(values, axis=0), 2)
    wider = [sqrt(k / (k - 1)) * student(k - 1) / NORMAL for k in telling.tolist()]
    return (means + (ends - means) * wider).T


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


def paired_changes(before: Any, after: Any) -> list[PairedChange]:
    """The change of each score; both have shape [samples, scores]."""
    import numpy as np

    sides = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
    changes, (loss, gain) = sides[1] - sides[0], (side.max(axis=0) for side in sides)
    few = (len(changes) < FEWEST_SAMPLES) | (np.count_nonzero(changes, axis=0) < FEWEST_DIFFERING)
    low, high = intervals(changes).T + few * RULE_OF_THREE / len(changes) * np.array([-loss, gain])
    columns = (column.tolist() for column in (sides[0].mean(axis=0), sides[1].mean(axis=0), low, high, few))
    return [PairedChange(*score) for score in zip(*columns, strict=True)]
