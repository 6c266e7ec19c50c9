"""The arrivals of a LoadGen test in its Server scenario, which follow from the seed of its schedule.

LoadGen draws the time between two queries from std::exponential_distribution over std::mt19937 (loadgen/loadgen.cc). So
a longer test begins as a shorter one does, and another rate only scales the times. What a full test will be sent is
known before it runs.
"""

from functools import lru_cache
from typing import Any

import numpy as np

WORD = 2**32  # the number of values that one draw of the generator can have


@lru_cache(maxsize=16)
def arrival_times(seed: int, queries: int) -> Any:
    """Return the arrival times of LoadGen's queries for a seed, in seconds, at a mean rate of one query/s.

    The first is 0.
    """
    generator = np.random.RandomState(seed % WORD)  # std::mt19937 takes 32 bits of a seed
    draws = generator.randint(0, WORD, size=2 * (queries - 1), dtype=np.uint32).astype(float)
    # A double takes two draws; the first has its lower bits (std::generate_canonical).
    uniform = (draws[0::2] + WORD * draws[1::2]) / WORD**2
    return np.concatenate(([0.0], np.cumsum(-np.log(1 - uniform))))


def sent_share(seed: int, queries: int) -> float:
    """Return the rate that is really sent, as a share of the configured rate.

    Random gaps do not average out exactly.
    """
    return float((queries - 1) / arrival_times(seed, queries)[-1])
