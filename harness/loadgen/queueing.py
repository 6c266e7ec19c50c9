"""A test's queue, from when its queries came and left: was it steady, what does its server complete at most, and which
rate will a long test keep?

None of this is a result: LoadGen's verdict is. It chooses which rate is worth a test.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from harness.runs.probe import SURE, Queue

BLOCKS = 20  # of the time looked at; their completions tell how even the server's work is
LEAST = 0.1  # of their variance, however one makes up for the other
FEW = 20  # queries in flight at the middle and end together, below which growth is a matter of single queries
SEQUENCES, EACH = 60, 20_000  # simulated arrivals: so many tests of so many points
HOLD = 57  # of the sequences that must keep the limit


def observed(issued: Sequence[float], completed: Sequence[float]) -> Queue | None:
    """The queue of a test, from the times in seconds at which each query was issued and completed.

    None where there are too few to say anything.
    """
    import numpy as np

    came, left = np.asarray(issued), np.asarray(completed)
    if len(came) < 2 * BLOCKS or came.max() <= came.min():
        return None
    middle, end = (came.min() + came.max()) / 2, came.max()
    seconds = float(end - middle)
    counts, _ = np.histogram(left, np.linspace(middle, end, BLOCKS + 1))
    sent, done = int((came > middle).sum()), int(counts.sum())
    variance = float(counts.var(ddof=1)) * lasting(counts)
    error = math.sqrt(variance * BLOCKS) / seconds
    base, each = latency_line(came, left)
    return Queue(
        sent=sent / seconds,
        completed=done / seconds,
        completed_error=error,
        growth=(sent - done) / seconds,
        chance=math.hypot(math.sqrt(max(sent, FEW)) / seconds, error),
        dispersion=BLOCKS * variance / done if done else 0.0,
        base_s=base,
        each_s=each,
    )


def lasting(counts: Any) -> float:
    """The share of the blocks' variance that adds up over time: what one lacks because it came late, the next has."""
    off = counts - counts.mean()
    whole = float((off**2).sum())
    return min(1.0, max(LEAST, 1 + 2 * float((off[1:] * off[:-1]).sum()) / whole)) if whole else 1.0


def latency_line(came: Any, left: Any) -> tuple[float, float]:
    """How long a query takes by what else runs: seconds alone, and for each that is in flight on average meanwhile."""
    import numpy as np

    times = np.concatenate((came, left))
    order = np.argsort(times)
    times, flying = times[order], np.cumsum(np.where(order < len(came), 1, -1))
    area = np.concatenate(([0.0], np.cumsum(flying[:-1] * np.diff(times))))
    whole = left <= came.max()  # not of the drain
    took = (left - came)[whole]
    beside = (np.interp(left[whole], times, area) - np.interp(came[whole], times, area)) / np.maximum(took, 1e-9)
    if len(took) < FEW or np.ptp(beside) == 0:
        return float(np.mean(left - came)), 0.0
    each, base = np.polyfit(beside, took, 1)
    return float(base), float(each)


def telling_s(rate: float, overload: float) -> float:
    """Seconds after which so large an overload, as a share of `rate`, shows beyond chance.

    It adds overload x rate x seconds to the queue; random arrivals add or take about the root of rate x seconds.
    """
    return (SURE / overload) ** 2 / rate


def sustainable(capacity: float, room_s: float, seconds: float, queries: int = 0, dispersion: float = 0.0) -> float:
    """The highest rate, in queries/s, at which nearly every sequence of random arrivals keeps the 99th percentile of
    the wait within `room_s`, in a test of `seconds` or `queries`, whichever is longer; at most the capacity.

    Found by simulating one queue with a server of this capacity. Long tests are simulated in groups of queries.
    """
    import numpy as np

    count = max(queries, math.ceil(capacity * seconds))
    group = math.ceil(count / EACH)
    points = math.ceil(count / group)
    random = np.random.default_rng(0)  # the same for every rate, so that they differ by the rate alone
    gaps = random.gamma(group, size=(SEQUENCES, points))
    work = np.full_like(gaps, group)
    if dispersion > 0:
        work = random.gamma(group / dispersion, dispersion, size=gaps.shape)
    work[:, 0] = 0
    most = passing(count) / count * points

    def holds(load: float) -> bool:
        total = np.cumsum(work - gaps / load, axis=1)
        waits = total - np.minimum(np.minimum.accumulate(total, axis=1), 0)
        late = np.count_nonzero(waits > room_s * capacity, axis=1)
        return int(np.count_nonzero(late <= most)) >= HOLD

    return capacity * most_load(holds)


def shared(base_s: float, each_s: float, limit_s: float, seconds: float, queries: int = 0) -> float:
    """The highest rate, in queries/s, at which nearly every sequence of random arrivals keeps the 99th percentile of a
    query's time within `limit_s`, where it takes `base_s` and `each_s` for each query in flight.

    Found by simulating what is in flight, in sixteenths of an answer: random arrivals pile up, and hold each other up.
    """
    import numpy as np

    if limit_s <= base_s:
        return 0.0
    most = (limit_s - base_s) / each_s / limit_s  # where what is in flight never changes

    def holds(load: float) -> bool:
        random = np.random.default_rng(0)
        rate, parts = load * most, 16
        count = max(queries, math.ceil(rate * seconds))
        begun, took, clock = [], [], np.zeros(SEQUENCES)
        flying = np.full(SEQUENCES, rate * base_s)
        while clock.min() < count / rate:
            took.append((base_s + each_s * flying) / parts)
            begun.append(random.poisson(rate * took[-1]))
            flying = flying + begun[-1] - (begun[-1 - parts] if len(begun) > parts else rate * base_s / parts)
            clock += took[-1]
            if flying.max() > 4 * most * limit_s:
                return False
        total = np.cumsum(np.concatenate((np.zeros((1, SEQUENCES)), took)), axis=0)
        whole = total[parts:] - total[:-parts]
        late = np.where(whole > limit_s, np.array(begun)[: len(whole)], 0).sum(axis=0)
        return int((late <= passing(count)).sum()) >= HOLD

    return most * most_load(holds)


def most_load(holds: Callable[[float], bool]) -> float:
    """The highest share of 1 that holds, to a part in 4,096."""
    low, high = 0.0, 1.0
    if holds(high):
        return high
    for _ in range(12):
        load = (low + high) / 2
        low, high = (load, high) if holds(load) else (low, load)
    return low


def passing(queries: int) -> int:
    """How many queries may be over a 99th-percentile limit before early stopping is not sure, with 99 % confidence."""
    return max(0, math.floor(0.01 * queries - SURE * math.sqrt(0.0099 * queries) + 0.38))
