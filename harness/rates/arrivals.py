"""The arrivals of a LoadGen test in its Server scenario, which follow from the seed of its schedule.

LoadGen draws the time between two queries from std::exponential_distribution over std::mt19937 (loadgen/loadgen.cc). So
a longer test begins as a shorter one does, and another rate only scales the times. What a full test will be sent is
known before it runs.
"""

from functools import lru_cache
from typing import Any

import numpy as np

WORD = 2**32  # One draw of the generator has so many values.


@lru_cache(maxsize=16)
def arrival_times(seed: int, queries: int) -> Any:
    """Return the time of each query at a rate of one query a second: in seconds, the first at 0."""
    generator = np.random.RandomState(seed % WORD)  # std::mt19937 takes 32 bits of a seed
    draws = generator.randint(0, WORD, size=2 * (queries - 1), dtype=np.uint32).astype(float)
    # A double takes two draws; the first has its lower bits (std::generate_canonical).
    uniform = (draws[0::2] + WORD * draws[1::2]) / WORD**2
    return np.concatenate(([0.0], np.cumsum(-np.log(1 - uniform))))


def sent_share(seed: int, queries: int) -> float:
    """Return the rate that is sent over the rate that was asked for: random gaps add up to a rate of their own."""
    return float((queries - 1) / arrival_times(seed, queries)[-1])
