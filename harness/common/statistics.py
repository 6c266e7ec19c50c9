"""The statistics by which verdicts are given, each with its source; all intervals are of 95 %."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist, fmean, variance
from typing import Any

NORMAL = NormalDist().inv_cdf(0.975)
RESAMPLES = 1000  # of a bootstrap
FEWEST_SAMPLES, FEWEST_DIFFERING = 30, 10  # of a paired interval: with fewer it covers less than it claims
RULE_OF_THREE = 3.0  # what was seen in none of n samples is in at most 3/n of all (Hanley and Lippman-Hand 1983)
SCATTER = 0.02  # of the logarithms of runs with the same settings: about what was seen of an H200 (docs/performance.md)
STEPS = 200  # of an integral by Simpson's rule


@cache
def student(freedom: float) -> float:
    """Half the width of an interval in standard errors: Student's t, 97.5 %, by degrees of freedom, also fractional.

    With t = sqrt(f) tan(a), the probability of |t| is twice the integral of cos^(f - 1) from 0 to a over the beta
    function of f/2 and 1/2 (Abramowitz and Stegun, 26.7.1 and 26.5.27).
    """
    norm: float = math.exp(math.lgamma(freedom / 2 + 0.5) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)

    def probability(angle: float) -> float:
        heights = [math.cos(angle * step / STEPS) ** (freedom - 1) for step in range(STEPS + 1)]
        weighted = heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1]
        return float(2 * norm * weighted * angle / STEPS / 3)

    low, high = 0.0, math.atan(13 / math.sqrt(freedom))
    for _ in range(36):
        middle = (low + high) / 2
        low, high = (middle, high) if probability(middle) < 0.95 else (low, middle)
    return math.sqrt(freedom) * math.tan(low)


def mean_interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's interval of the mean of two values or more."""
    middle, half = fmean(values), student(len(values) - 1) * math.sqrt(variance(values) / len(values))
    return middle - half, middle + half


def welch(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The difference of the means and half its interval, by Welch's test with Satterthwaite's degrees of freedom
    (Welch 1947). A side of one value is taken to scatter as the other; of one and one the half is 0: it is not known.
    """
    sides = (before, after)
    scatter = [variance(side) if len(side) > 1 else None for side in sides]
    other = max((each for each in scatter if each is not None), default=0.0)
    terms = [(other if each is None else each) / len(side) for each, side in zip(scatter, sides, strict=True)]
    if not (total := sum(terms)):
        return fmean(after) - fmean(before), 0.0
    shares = [term**2 / (len(side) - 1) for term, side in zip(terms, sides, strict=True) if len(side) > 1]
    freedom = total**2 / sum(shares) if len(shares) > 1 else max(map(len, sides)) - 1
    return fmean(after) - fmean(before), student(freedom) * math.sqrt(total)


def below_by_chance(change: float) -> float:
    """How often one run beside one with the same settings changes by less than so large a share, if runs scatter so."""
    return NormalDist(sigma=SCATTER * math.sqrt(2)).cdf(math.log1p(change) if change > -1 else -math.inf)


def wilson(hits: int, n: int) -> tuple[float, float]:
    """Wilson's interval of a share (1927): honest for few of them, and never outside 0 to 1."""
    share, spread = hits / n, NORMAL**2 / n
    middle = share + spread / 2
    reach = NORMAL * math.sqrt(share * (1 - share) / n + spread / (4 * n))
    return max(0.0, (middle - reach) / (1 + spread)), min(1.0, (middle + reach) / (1 + spread))


def mcnemar(lost: int, gained: int) -> float:
    """McNemar's test, exact: the probability of changes at least this one-sided if each were a coin toss."""
    n = lost + gained
    tail = sum(math.comb(n, i) for i in range(min(lost, gained) + 1))
    return float(min(1.0, 2 * tail / 2**n))


def order_statistic(values: Sequence[float], share: float) -> float:
    """The percentile as LoadGen takes it: the value at its share of their number, of values in order."""
    return values[min(int(len(values) * share), len(values) - 1)]


def intervals(values: Any, seed: int = 0) -> Any:
    """Bootstrap interval of each column's mean; `values` has shape [samples, scores], the result [scores, 2].

    A resample of n samples is n draws with replacement, so each sample's count is multinomial. The percentiles are
    expanded for the k values of a column that are not 0, by sqrt(k / (k - 1)) and Student's over the normal
    distribution's quantile (Hesterberg 2015, "What Teachers Should Know About the Bootstrap").
    """
    import numpy as np

    values = np.asarray(values, dtype=float)
    count = len(values)
    weights = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=RESAMPLES) / count
    means, ends = values.mean(axis=0), np.percentile(weights @ values, [2.5, 97.5], axis=0)
    telling = np.maximum(np.count_nonzero(values, axis=0), 2)
    wider = [math.sqrt(k / (k - 1)) * student(k - 1) / NORMAL for k in telling.tolist()]
    return (means + (ends - means) * wider).T


@dataclass(frozen=True)
class PairedChange:
    """The mean change of a score on the same samples, with its interval. Of `few` that differ the interval is too
    narrow for what was not seen, and is widened by the largest score in 3/n of the samples: a change within a limit
    shows all the same, one beyond it does not."""

    change: float
    low: float
    high: float
    few: bool


def paired_changes(before: Any, after: Any) -> list[PairedChange]:
    """The change of each score; both have shape [samples, scores]."""
    import numpy as np

    changes = np.asarray(after, dtype=float) - np.asarray(before, dtype=float)
    found = []
    for column, (low, high) in enumerate(intervals(changes).tolist()):
        few = len(changes) < FEWEST_SAMPLES or int(np.count_nonzero(changes[:, column])) < FEWEST_DIFFERING
        unseen = RULE_OF_THREE / len(changes) if few else 0.0
        loss, gain = (float(np.max(np.asarray(side)[:, column])) for side in (before, after))
        mean = float(changes[:, column].mean())
        found.append(PairedChange(mean, low - unseen * loss, high + unseen * gain, few))
    return found
