"""The schedule of a LoadGen test in its Server scenario: when its queries come, and how many there are.

Both follow from the seed of its schedule, so that they are known before the test. LoadGen draws the time between two
queries from std::exponential_distribution over std::mt19937 (loadgen/loadgen.cc), and another rate only scales them.
"""

from functools import lru_cache
from math import ceil, sqrt
from typing import Any

WORD = 2**32  # the number of values that one draw of the generator can have
CHANCE = 6.0  # standard deviations by which the number of arrivals in a time may differ from its mean


def arrival_times(seed: int, queries: int) -> Any:
    """Return the arrival times of LoadGen's queries for a seed, in seconds, at a mean rate of one query/s.

    The first is 0. With the same seed, a longer test begins with the times of a shorter one. So the times are drawn for
    the next power of 2, and kept for calls with other numbers of queries.
    """
    return drawn_times(seed, 1 << (queries - 1).bit_length())[:queries]


@lru_cache(maxsize=16)
def drawn_times(seed: int, queries: int) -> Any:
    """Return the arrival times of this number of queries, from 0 on, at one query/s on average.

    They are drawn with LoadGen's generator and seed, and so are the same as in LoadGen's test.
    """
    import numpy as np  # only where a schedule is needed, since it takes a tenth of a second

    generator = np.random.RandomState(seed % WORD)  # std::mt19937 takes 32 bits of a seed
    draws = generator.randint(0, WORD, size=2 * (queries - 1), dtype=np.uint32).astype(float)
    # A double takes two draws; the first has its lower bits (std::generate_canonical).
    uniform = (draws[0::2] + WORD * draws[1::2]) / WORD**2
    return np.concatenate(([0.0], np.cumsum(-np.log(1 - uniform))))


def queries_until(seed: int | None, qps: float, seconds: float) -> int:
    """Return the number of queries up to the first that comes `seconds` after the first query, or later.

    This is when LoadGen may end a test of this length. If the seed is not known (None), return the mean number.
    """
    mean = qps * seconds
    if seed is None:
        return max(ceil(mean), 1)
    # The times are at 1 query/s, where the first `mean` seconds are those of the test. They surely reach as far.
    times = arrival_times(seed, ceil(mean + CHANCE * sqrt(mean)) + 2)
    return int(times.searchsorted(mean)) + 1


def queries_of_test(seed: int | None, qps: float, least_s: float, least_queries: int, pass_queries: int = 1) -> int:
    """Return the number of queries in a test, given the fewest seconds and queries that it must have.

    LoadGen sends whole passes of `pass_queries` queries, so the number is rounded up to passes.
    """
    needed = max(queries_until(seed, qps, least_s), least_queries)
    return ceil(needed / pass_queries) * pass_queries


def highest_rate_of(seed: int | None, queries: int, least_s: float) -> float:
    """Return the highest rate in queries/s at which so many queries last for `least_s` seconds.

    By LoadGen's own times if the seed is known, else by the mean time between queries.
    """
    if seed is None:
        return queries / least_s
    return float(arrival_times(seed, queries)[-1]) / least_s
