"""The schedule of a LoadGen test in its Server scenario: when its queries come, and how many there are.

Both follow from the seed of its schedule, so that they are known before the test. LoadGen draws the time between two
queries from std::exponential_distribution over std::mt19937 (loadgen/loadgen.cc), and another rate only scales them.
"""

from functools import lru_cache
from math import ceil, sqrt
from typing import Any

WORD = 2**32  # the number of values that one draw of the generator can have
NANOSECOND = 1e-9  # in seconds
CHANCE = 6.0  # standard deviations by which the number of arrivals in a time may differ from its mean


def arrival_times(seed: int, queries: int) -> Any:
    """Return the arrival times of LoadGen's queries for a seed, as an array of seconds, at a mean rate of one query/s.

    The first time is 0.
    """
    # With the same seed, a longer test begins with the times of a shorter one. So times are drawn for the next power of
    # 2, and are still in the cache of `drawn_times` for other numbers of queries up to that.
    next_power_of_2 = 1 << (queries - 1).bit_length()
    return drawn_times(seed, next_power_of_2)[:queries]


@lru_cache(maxsize=16)
def drawn_times(seed: int, queries: int) -> Any:
    """Return the arrival times of this number of queries in seconds, as an array, at one query/s on average.

    The first time is 0. The times are drawn with LoadGen's generator and seed, so they are those of LoadGen's test.
    """
    import numpy as np  # only where a schedule is needed, since it takes a tenth of a second

    generator = np.random.RandomState(seed % WORD)  # std::mt19937 takes 32 bits of a seed
    gap_count = queries - 1
    # C++ (std::generate_canonical) makes a random double from two draws. The first of them has the lower bits.
    draws = generator.randint(0, WORD, size=2 * gap_count, dtype=np.uint32).astype(float)
    uniform = (draws[0::2] + WORD * draws[1::2]) / WORD**2  # from 0 to 1
    gaps = -np.log(1 - uniform)  # exponentially distributed, as between random arrivals
    return np.concatenate(([0.0], np.cumsum(gaps)))


def queries_until(seed: int | None, qps: float, seconds: float) -> int:
    """Return the number of queries of a test of this length, at the mean rate `qps`.

    LoadGen ends the test with the first query that comes after `seconds`. If the seed is not known (None), the mean
    number is returned.
    """
    mean_count = qps * seconds
    if seed is None:
        return max(ceil(mean_count), 1)
    # The times are for 1 query/s, at which the test takes `mean_count` seconds. So many times are drawn that the last
    # one is surely after that, however unlikely the gaps are.
    enough = ceil(mean_count + CHANCE * sqrt(mean_count)) + 2
    times = arrival_times(seed, enough)
    queries_before_end = int(times.searchsorted(mean_count))
    return queries_before_end + 1


def queries_of_test(seed: int | None, qps: float, least_s: float, least_queries: int, pass_queries: int = 1) -> int:
    """Return the number of queries in a test, given the fewest seconds and queries that it must have.

    LoadGen sends whole passes of `pass_queries` queries, so the number is rounded up to passes.
    """
    needed = max(queries_until(seed, qps, least_s), least_queries)
    return ceil(needed / pass_queries) * pass_queries


def highest_rate_of(seed: int | None, queries: int, least_s: float) -> float:
    """Return the highest rate in queries/s at which so many queries last for `least_s` seconds.

    If the seed of LoadGen's schedule is not known (None), the queries are taken to come at even times.
    """
    if seed is None:
        return queries / least_s
    last_s = float(arrival_times(seed, queries)[-1])  # At 1 query/s, the last query comes at this time.
    # LoadGen cuts each time between two queries to whole nanoseconds, so its last query comes a little earlier. If that
    # is before `least_s`, it sends the whole samples once more.
    lost_s = queries * NANOSECOND
    return last_s / (least_s + lost_s)
