"""What a server keeps in a full test, from two facts: a request alone, and what it completes under load.

Queries share an engine as programs share a processor (M. Harchol-Balter, Performance Modeling and Design of Computer
Systems, 2013, chapter 30): mean TPOT = TPOT alone / (1 - rate / C). A full test is simulated by it, and by a queue that
completes what the server completed while some queries always waited: the tail of ten minutes is longer than a probe's.
"""

from collections.abc import Callable, Sequence
from functools import cache
from math import floor, inf, sqrt
from typing import Any, NamedTuple, Self

import numpy as np

from harness.config.mlperf import LatencyLimits
from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan
from harness.results.outcome import SURE, Outcome, Queue

POINTS = 1_200_000  # queries that are simulated, in all
FEWEST, MOST_TESTS = 60, 100  # tests that are simulated
HOLD = 0.95  # of them must keep the limit
PARTS = 16  # of an answer, in a simulation; with 48 an H200's p99 is 3 % higher (docs/evidence/rates.md)
FINE, LONGEST = 25, 24_000  # steps of a wait at its limit, at least, and of a whole test, at most: an H200's
ROUNDS, CLOSE_ENOUGH = 10, 0.02  # of simulations for a rate; of its p99 to the limit, as a share, where they end
FARTHEST = 2.0  # ratio of a rate to the last, where one test alone leads to it
VAGUE = 0.25  # standard error of completions, as a share, from which on they tell nothing


class Goal(NamedTuple):
    """What a full test is held to: its length, and the p99 limits in milliseconds."""

    seconds: float
    queries: int
    ttft_ms: float
    tpot_ms: float

    @classmethod
    def of(cls, plan: Plan, limits: LatencyLimits | None = None) -> Self:
        """For scenarios with limits."""
        held = limits or plan.limits
        return cls(plan.min_duration_s, plan.min_queries, held.ttft, held.tpot)

    def full_s(self, qps: float) -> float:
        """Seconds of the full test at this rate."""
        return max(self.seconds, max(self.queries, SURE_QUERIES) / qps)

    def shares(self, test: Outcome) -> tuple[float, float]:
        """The p99 of TTFT and of TPOT as shares of their limits."""
        return (test.ttft_ms.p99 or 0.0) / self.ttft_ms, (test.tpot_ms.p99 or 0.0) / self.tpot_ms


class Alone(NamedTuple):
    """Requests one after the other, without company: seconds until the first token, for each that follows, and in
    all.
    """

    ttft_s: float
    tpot_s: float
    latency_s: float = 0.0


class SharedServer(NamedTuple):
    """What is known of a server: an answer alone, the queue of the test that tells how answers hold each other up, and
    that of the test in which some queries always waited; None where none ever did.
    """

    alone: Alone
    shared: Queue
    waited: Queue | None
    is_bounded: bool  # whether TPOT keeps its limit however many wait

    @classmethod
    def of(cls, alone: Alone, tests: Sequence[Outcome], goal: Goal) -> Self:
        """By the last test, and by the best measurement of those that always had some waiting. `tests` have queues."""
        queues = [one.queue for one in tests if one.queue]
        shared = next((queue for queue in reversed(queues) if queue.tokens), queues[-1])
        full = [one for one in tests if error_of(one.queue) < VAGUE and is_full(one, goal)]
        best = min(full, key=lambda one: error_of(one.queue), default=None)
        bounded = best is not None and (best.tpot_ms.p99 or inf) <= goal.tpot_ms
        return cls(alone, shared, best.queue if best else None, bounded)

    @property
    def capacity(self) -> float:
        """Queries/s without end: what it completes, or where answers would take without end; infinite where neither
        is known.
        """
        return min(self.shared_qps, self.served_qps)

    @property
    def shared_qps(self) -> float:
        return self.shared.shared_capacity(self.alone.tpot_s)

    @property
    def served_qps(self) -> float:
        """Queries/s that it completes with as many running as when some always waited; infinite where none ever did.

        Answers of a full queue begin and end together, which is quicker (3 to 9 % on an H200, Interactive): what they
        cost each other in the last test decides.
        """
        seen = self.shared
        if not self.waited:
            return inf
        alike_s = seen.token_s * seen.tokens + (self.running - 1) * (seen.each_s + seen.prompt_s)
        return min(self.waited.completed, self.running / alike_s if alike_s > 0 else inf)

    @property
    def running(self) -> float:
        """How many were answered at once while some always waited, on average."""
        return max(self.waited.completed * self.waited.answer_s, 1.0) if self.waited else inf

    def rate(self, goal: Goal) -> float:
        """The highest rate in queries/s that a full test should keep: by how long queries wait, where TPOT keeps its
        limit however many wait, and else by how answers hold each other up, since TPOT is over its limit before any
        query waits. Infinite where nothing tells, 0 where a request alone is over a limit.
        """
        if self.alone.tpot_s * 1000 > goal.tpot_ms or self.alone.ttft_s * 1000 > goal.ttft_ms:
            return 0.0
        seen, tokens = self.shared, self.shared.tokens
        alone_s = self.alone.tpot_s * tokens
        if self.is_bounded and (waited := self.waited):
            room_s = goal.ttft_ms / 1000 - self.alone.ttft_s
            # No evener than the work of its prompts, which a short probe may not show, nor less even than chance.
            uneven = min(max(waited.dispersion, waited.prompts**2 * waited.spread), 1.0)
            return rate_by_waits(self.served_qps, uneven, self.running, alone_s, room_s, goal)
        if not tokens or self.shared_qps == inf:
            return inf
        # Answers that take longer and longer are off the fit for that alone.
        unlike = (seen.prompts, min(seen.spread, 4.0), 0.0 if seen.has_grown else seen.scatter)
        return rate_by_company(alone_s, self.shared_qps, *unlike, goal.tpot_ms * tokens / 1000, goal)


def is_full(test: Outcome, goal: Goal) -> bool:
    """Whether queries always waited, and more came than were completed: beyond chance, or for longer than the limit."""
    queue, is_late = test.queue, goal.shares(test)[0] > 1
    return bool(queue and test.has_waited and (queue.has_grown or (is_late and queue.growth > queue.chance)))


def error_of(queue: Queue | None) -> float:
    """The standard error of the completions, as a share."""
    return queue.completed_error / queue.completed if queue and queue.completed else inf


def allowed_late(queries: int) -> int:
    """How many queries may be over a 99th-percentile limit before early stopping is not sure, with 99 % confidence."""
    return max(0, floor(0.01 * queries - SURE * sqrt(0.0099 * queries) + 0.38))


@cache
def rate_by_waits(
    capacity: float, dispersion: float, running: float, alone_s: float, limit_s: float, goal: Goal
) -> float:
    """The highest rate, in queries/s, at which nearly every sequence of random arrivals keeps the 99th percentile of
    the wait within `limit_s`, where `running` are answered at once, at `capacity`, and others wait. Fewer take less
    time each, down to `alone_s`. Completions vary by `dispersion`, their variance over their mean.
    """
    longer_s = (running / capacity - alone_s) / max(running - 1, 1.0)  # by each other that runs

    def p99_s(rate: float, seconds: float, random: Any) -> float:
        step_s = max(limit_s / FINE, seconds / LONGEST)
        shape = (round(seconds / step_s), tests_of(rate * seconds))
        came, served = random.poisson(rate * step_s, shape), capacity * step_s
        off = np.sqrt(dispersion * served) * random.standard_normal(shape)
        flying, waits = np.zeros(shape[1]), np.empty(shape)
        for n in range(shape[0]):
            at_once = np.minimum(flying, running)
            answer_s = np.maximum(alone_s + longer_s * np.maximum(at_once - 1, 0.0), 1e-9)
            share = np.minimum(at_once / answer_s / capacity, 1.0)
            flying = np.maximum(flying + came[n] - share * served - np.sqrt(share) * off[n], 0.0)
            waits[n] = np.maximum(flying - running, 0.0) / capacity
        return slowest(waits, came)

    return rate_at(limit_s, p99_s, capacity, 0.95 * capacity, goal)


@cache
def rate_by_company(  # noqa: PLR0913
    alone_s: float,
    capacity: float,
    prompts: float,
    spread: float,
    scatter: float,
    limit_s: float,
    goal: Goal,
) -> float:
    """The same for the time of an answer, where one alone takes `alone_s`, and `capacity` is without end.

    What is in flight is simulated in parts of an answer: random arrivals pile up, and hold each other up. `prompts` is
    the share of a query's work that is done at its beginning, while all answers wait; its variance over its mean
    squared is `spread`. Single answers differ by `scatter`, the standard deviation of the logarithm.
    """

    def p99_s(rate: float, seconds: float, random: Any) -> float:
        seconds = min(seconds, LONGEST * alone_s / PARTS)  # of short answers, so many tell the tail
        clock = np.zeros(tests := tests_of(rate * seconds))
        begun, took, flying, own = list[Any](), [clock + alone_s / PARTS], clock + rate * alone_s, list[Any]()
        while clock.min() < seconds or len(begun) < 2 * PARTS:  # a test may be shorter than an answer
            new = random.poisson(rate * took[-1])
            begun.append(new)
            flying = flying + new - (begun[-1 - PARTS] if len(begun) > PARTS else rate * alone_s / PARTS)
            own.append(prompts / capacity * (new + np.sqrt(spread * new) * random.standard_normal(tests)))
            took.append(
                (alone_s + (1 - prompts) / capacity * np.maximum(flying - 1, 0.0)) / PARTS + np.maximum(own[-1], 0.0)
            )
            clock = clock + took[-1]
        total, count = np.cumsum(took, axis=0), np.array(begun)[: len(took) - PARTS]
        whole = total[PARTS:] - total[:-PARTS] - np.array(own)[: len(count)] / np.maximum(count, 1)  # without its own
        return slowest(whole * np.exp(scatter * random.standard_normal(whole.shape)), count)

    if limit_s <= alone_s:
        return 0.0
    start = capacity * (1 - alone_s / limit_s) / (1 + alone_s / limit_s)  # p99 is some twice the mean
    return rate_at(limit_s, p99_s, capacity, start, goal)


def tests_of(queries: float) -> int:
    """How many tests of so many queries are simulated: the fewer queries, the more chance decides."""
    return min(MOST_TESTS, max(FEWEST, round(POINTS / queries)))


def slowest(times: Any, counts: Any) -> float:
    """The 99th percentile, early stopping's margin included, that nearly every test stays below, from the times of
    groups of so many queries; a row for each time, a column for each test.
    """
    order = np.argsort(-times, axis=0)
    late = np.cumsum(np.take_along_axis(counts, order, axis=0), axis=0)
    first = (late <= [allowed_late(int(count)) for count in late[-1]]).sum(axis=0).clip(max=len(order) - 1)
    tails = np.take_along_axis(times, order, axis=0)[first, np.arange(len(first))]
    return float(np.quantile(tails, HOLD))


def rate_at(limit_s: float, p99_s: Callable[..., float], capacity: float, rate: float, goal: Goal) -> float:
    """The rate at which a p99 is at its limit, by simulated tests: from each to the rate that follows from it."""
    low, high = 0.0, capacity
    for _ in range(ROUNDS):
        share = p99_s(rate, max(goal.seconds, goal.queries / rate), np.random.default_rng(0)) / limit_s
        low, high = (rate, high) if share <= 1 else (low, rate)
        following = approached(capacity, rate, share)
        if abs(share - 1) < CLOSE_ENOUGH or high / max(low, rate / 3) < 1 + CLOSE_ENOUGH:
            return following
        rate = following if low < following < high else (low + high) / 2
    return low or rate


def approached(capacity: float, rate: float, share: float) -> float:
    """The rate at which a latency is at its limit, of which it is a `share` at `rate`: limit over latency falls evenly
    with the rate, and to nothing at the capacity. No less than half of `rate`: so far that does not hold.
    """
    return max(capacity - (capacity - rate) * share, rate / FARTHEST)
