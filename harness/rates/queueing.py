"""A test's queue, from when its queries came and left: was it steady, what does its server complete at most, and which
rate will a long test keep?

None of this is a result: LoadGen's verdict is. It chooses which rate is worth a test.
"""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from functools import cache
from math import ceil, floor, hypot, sqrt
from typing import Any

from harness.runs.outcome import SURE, Queue

BLOCKS = 20  # of the time looked at; their completions tell how even the server's work is
LEAST = 0.1  # of their variance, however one makes up for the other
FEW = 20  # queries in flight at the middle and end together, below which growth is a matter of single queries
POINTS, EACH = 1_200_000, 20_000  # of simulated arrivals: in all, and at most in one test
FEWEST, MOST = 60, 480  # tests that are simulated; of one with few queries more, since chance decides more of it
HOLD = 0.95  # of them must keep the limit
ROUNDS, SLIGHT = 4, 0.1  # of fitting a plane; of the time alone, the least that a query is taken for
PARTS = 12  # of an answer, in the simulation of queries that share a server
STEPS = 4096  # of a share that is looked for
LAGS = 6  # blocks over which completions that were late come in after all


def queue_of(issued: Sequence[float], completed: Sequence[float]) -> Queue | None:
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
    variance = float(counts.var(ddof=1)) * lasting_share(counts)
    error = sqrt(variance * BLOCKS) / seconds
    base, each, prompt = latency_plane(came, left)
    return Queue(
        sent=sent / seconds,
        completed=done / seconds,
        completed_error=error,
        growth=(sent - done) / seconds,
        chance=hypot(sqrt(max(sent, FEW)) / seconds, error),
        dispersion=BLOCKS * variance / done if done else 0.0,
        base_s=base,
        each_s=each,
        prompt_s=prompt,
    )


def lasting_share(counts: Any) -> float:
    """The share of the blocks' variance that adds up over time: what one lacks because it came late, a later one has.

    Autocorrelations by Bartlett's weights, each a little too low by chance, as its mean is that of the same blocks.
    """
    off = counts - counts.mean()
    whole = float((off**2).sum())
    if not whole:
        return 1.0
    sums = (
        (1 - lag / (LAGS + 1)) * (float((off[lag:] * off[:-lag]).sum()) / whole + 1 / len(off))
        for lag in range(1, LAGS + 1)
    )
    return min(1.0, max(LEAST, 1 + 2 * sum(sums)))


def simulated_tests(points: int) -> int:
    """How many tests of so many simulated points tell the share that holds."""
    return min(MOST, max(FEWEST, POINTS // points))


def is_enough(held: Any) -> bool:
    """Whether the tests that held are as many as must hold."""
    return bool(held.mean() >= HOLD)


def latency_plane(came: Any, left: Any) -> tuple[float, float, float]:
    """How long a query takes by what else runs: its own seconds, those for each that is in flight on average meanwhile,
    and for each that begins meanwhile, for whose prompt all others wait.

    The average is over what a query gets done, not over time: more of that passes while much is in flight. How fast it
    gets on follows from the plane itself, so the plane is fitted again, `ROUNDS` times.
    """
    import numpy as np

    times = np.concatenate((came, left))
    order = np.argsort(times)
    times, flying = times[order], np.cumsum(np.where(order < len(came), 1, -1))[:-1]
    whole = left <= came.max()  # not of the drain
    begin, end, took = came[whole], left[whole], (left - came)[whole]
    begun = np.searchsorted(np.sort(came), end) - np.searchsorted(np.sort(came), begin)
    base, prompt, each = float(np.mean(left - came)), 0.0, 0.0
    for _ in range(ROUNDS if len(took) >= FEW else 0):
        work = np.diff(times) / np.maximum(base + each * flying, SLIGHT * base)
        done = np.maximum(amount_between(begin, end, times, work), 1e-9)
        inflight = amount_between(begin, end, times, work * flying) / done
        terms = np.column_stack((np.ones(len(took)), begun, inflight))
        base, prompt, each = (float(value) for value in np.linalg.lstsq(terms, took, rcond=None)[0])
    return base, each, prompt


def amount_between(begin: Any, end: Any, times: Any, amounts: Any) -> Any:
    """The part of the amounts that falls between each begin and its end; an amount is spread evenly over the time from
    one of `times` to the next."""
    import numpy as np

    total = np.concatenate(([0.0], np.cumsum(amounts)))
    return np.interp(end, times, total) - np.interp(begin, times, total)


def detection_s(rate: float, overload: float) -> float:
    """Seconds after which so large an overload, as a share of `rate`, shows beyond chance.

    It adds overload x rate x seconds to the queue; random arrivals add or take about the root of rate x seconds.
    """
    return (SURE / overload) ** 2 / rate


@cache
def rate_by_ttft(capacity: float, room_s: float, seconds: float, queries: int = 0, dispersion: float = 0.0) -> float:
    """The highest rate, in queries/s, at which nearly every sequence of random arrivals keeps the 99th percentile of
    the wait within `room_s`, in a test of `seconds` or `queries`, whichever is longer; at most the capacity.

    Found by simulating one queue with a server of this capacity: first at its own number of queries, then at that of
    the rate found, since fewer leave less to chance. Long tests are simulated in groups of queries.
    """
    rate = capacity
    for _ in range(2):
        rate = capacity * utilization(max(queries, ceil(rate * seconds)), room_s * capacity, dispersion)
    return rate


def utilization(queries: int, room: float, dispersion: float) -> float:
    """The highest share of its capacity at which nearly every sequence of so many random arrivals keeps the 99th
    percentile of the wait within the time of `room` queries."""
    import numpy as np

    group = ceil(queries / EACH)
    points = ceil(queries / group)
    random = np.random.default_rng(0)  # the same for every rate, so that they differ by the rate alone
    gaps = random.gamma(group, size=(simulated_tests(points), points))
    work = np.full_like(gaps, group)
    if dispersion > 0:
        work = random.gamma(group / dispersion, dispersion, size=gaps.shape)
    work[:, 0] = 0
    most = allowed_late(queries) / queries * points

    total, least = np.empty_like(gaps), np.empty_like(gaps)  # millions of numbers: made once, used for every load

    def is_held(load: float) -> bool:
        np.add(work, np.divide(gaps, -load, out=total), out=total)
        np.cumsum(total, axis=1, out=total)
        np.minimum(np.minimum.accumulate(total, axis=1, out=least), 0, out=least)
        waits = np.subtract(total, least, out=total)
        return is_enough(np.count_nonzero(waits > room, axis=1) <= most)

    return highest_share(is_held)


@cache
def rate_by_tpot(
    alone_s: float, capacity: float, prompts: float, limit_s: float, seconds: float, queries: int = 0
) -> float:
    """The highest rate, in queries/s, at which nearly every sequence of random arrivals keeps the 99th percentile of an
    answer's time within `limit_s`, where it takes `alone_s` / (1 - rate / `capacity`) on average.

    Found by simulating what is in flight, in parts of an answer: random arrivals pile up, and hold each other up.
    `prompts` is the share of a query's work that is done at its beginning, while all answers wait.
    """
    import numpy as np

    if limit_s <= alone_s:
        return 0.0
    most = capacity * (1 - alone_s / limit_s)  # where what is in flight never changes
    each_s = (1 - prompts) / capacity

    def is_held(load: float) -> bool:
        random = np.random.default_rng(0)
        rate = load * most
        count = max(queries, ceil(rate * seconds))
        begun, clock = [], np.zeros(simulated_tests(count))
        took, flying = [clock + alone_s / PARTS], clock + rate * alone_s
        while clock.min() < count / rate:
            begun.append(random.poisson(rate * took[-1]))
            flying = flying + begun[-1] - (begun[-1 - PARTS] if len(begun) > PARTS else rate * alone_s / PARTS)
            took.append((alone_s + each_s * (flying - 1)) / PARTS + prompts / capacity * begun[-1])
            clock = clock + took[-1]
            if flying.max() > 4 * most * limit_s:
                return False
        total = np.cumsum(took, axis=0)
        whole = total[PARTS:] - total[:-PARTS]
        late = np.where(whole - prompts / capacity > limit_s, np.array(begun)[: len(whole)], 0).sum(
            axis=0
        )  # its own off
        return is_enough(late <= allowed_late(count))

    return most * highest_share(is_held)


def highest_share(is_held: Callable[[float], bool]) -> float:
    """The highest share of 1 that holds, to one of STEPS."""
    return bisect_left(range(1, STEPS + 1), True, key=lambda step: not is_held(step / STEPS)) / STEPS


def allowed_late(queries: int) -> int:
    """How many queries may be over a 99th-percentile limit before early stopping is not sure, with 99 % confidence."""
    return max(0, floor(0.01 * queries - SURE * sqrt(0.0099 * queries) + 0.38))
