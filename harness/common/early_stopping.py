"""How many queries a percentile takes: LoadGen's early stopping, by its own definition (loadgen/early_stopping.cc)."""

from functools import cache
from math import exp, lgamma, log

CONFIDENCE = 0.99


@cache
def least_queries(percentile: float, over: int = 0) -> int:
    """The fewest queries that show a percentile (0.99) to be within its limit, when `over` of them were not.

    The first n with sum over i <= over of C(n, i) (1 - percentile)^i percentile^(n - i) <= 1 - 0.99.
    """
    low, high = over, over + 1
    while by_chance(high, over, percentile) > 1 - CONFIDENCE:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if by_chance(middle, over, percentile) > 1 - CONFIDENCE else (low, middle)
    return high


def by_chance(n: int, over: int, percentile: float) -> float:
    """The probability of at most `over` of n queries over a limit that `percentile` of all keep."""
    return sum(
        exp(lgamma(n + 1) - lgamma(i + 1) - lgamma(n - i + 1) + i * log(1 - percentile) + (n - i) * log(percentile))
        for i in range(min(over, n) + 1)
    )
