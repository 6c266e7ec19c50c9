"""Full tests, simulated: the p99 that ten minutes of arrivals bring, of which a probe of a minute sees little.

Queries share an engine as programs share a processor (M. Harchol-Balter, Performance Modeling and Design of Computer
Systems, 2013, chapter 30): mean TPOT = TPOT of a lone request / (1 - rate / capacity). Where no more than some run at
once, others wait. Times are in seconds, rates in queries/s.
"""

from collections.abc import Callable
from functools import cache
from math import floor, inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from harness.loadgen.outcome import SURE
from harness.rates.arrivals import arrival_times
from harness.rates.goal import Goal

SIMULATED_QUERIES = 1_200_000  # in all tests together
FEWEST_TESTS, MOST_TESTS = 60, 100  # with random arrivals
KNOWN_TESTS = 20  # with LoadGen's own arrivals: the server alone is left to chance
PASS_SHARE = 0.95  # of the simulated tests must keep the limits
KNOWN_PASS_SHARE = 0.9  # the same with LoadGen's own arrivals
LEAST_PARTS, MOST_PARTS = 48, 96  # steps of an answer
LIMIT_STEPS = 8  # steps within a wait at its limit, with as many running as ever do
MOST_STEPS = 24_000  # steps of a test
SHORTEST_STEPS = 4  # times as many steps, of a server whose answers take next to no time
MOST_ROUNDS = 10  # simulations for one rate
CLOSE_SHARE = 0.02  # of a limit: a p99 so near to it ends the simulations
LEAST_RATIO = 0.5  # of a rate to the last one, where one test alone leads to it
MOST_SPEED = 1.01  # of a model's, by a p99: means of many queries tell more of a fast server ("capacity, 60/s")
MOST_OVERLOAD = 1.3  # of a model's capacity, beyond which no test is explained


class Times(NamedTuple):
    """The times of groups of queries in simulated tests, and how many queries each group has. A row for each group, a
    column for each test."""

    seconds: Any
    queries: Any

    def judged_p99_s(self, pass_share: float) -> float:
        """Return the p99 that such a share of the tests stays below, with early stopping's margin."""
        allowed = [allowed_late(int(queries)) for queries in self.queries.sum(axis=0)]
        return float(np.quantile(self.tails(allowed), pass_share))

    @property
    def measured_p99_s(self) -> float:
        """The p99 that half of the tests measure, or a lower one."""
        return float(np.median(self.tails([int(0.01 * queries) for queries in self.queries.sum(axis=0)])))

    def tails(self, allowed: list[int]) -> Any:
        """Return the time of each test that only so many of its queries exceed."""
        order = np.argsort(-self.seconds, axis=0)
        late = np.cumsum(np.take_along_axis(self.queries, order, axis=0), axis=0)
        first = (late <= allowed).sum(axis=0).clip(max=len(order) - 1)
        return np.take_along_axis(self.seconds, order, axis=0)[first, np.arange(len(first))]


class Simulated(NamedTuple):
    """How long queries wait until their prompt is computed, beyond the median, and how long their answers take after
    the first token."""

    waits: Times
    answers: Times


class Limits(NamedTuple):
    """What the p99 of waits and of answers may be, in seconds; infinite where it is not judged."""

    wait_s: float
    answer_s: float


class EngineModel(NamedTuple):
    """An engine that runs at most `running` queries at once. A lone answer takes `lone_s`; each other query that runs
    makes it longer, so that without end run at `capacity`.

    `prompts` is the share of a query's work that is done at its beginning, while all answers wait; its variance over
    its mean squared is `prompt_spread`. Answers differ by `scatter`, the standard deviation of the logarithm.
    """

    lone_s: float
    capacity: float
    running: float
    prompts: float
    prompt_spread: float
    scatter: float

    @property
    def full_s(self) -> float:
        """Seconds of an answer with as many running as ever do; of a lone one where that has no end."""
        others = self.running - 1 if self.running < inf else 0.0
        return self.lone_s + max(others, 0.0) / self.capacity

    @property
    def full_capacity(self) -> float:
        """Queries/s that it completes at most."""
        return min(self.running / self.full_s, self.capacity) if self.running < inf else self.capacity

    def parts(self, seconds: float, limits: Limits) -> int:
        """Return the steps of an answer in the simulation of a test: fine enough for the limit of a wait, no more than
        a test has room for."""
        fine = max(LEAST_PARTS, int(self.full_s * LIMIT_STEPS / limits.wait_s) if limits.wait_s < inf else 0)
        return max(1, min(fine, MOST_PARTS, int(MOST_STEPS * self.full_s / seconds)))

    def simulate(self, rate: float, goal: Goal, limits: Limits) -> Simulated:
        """Simulate full tests at a rate."""
        random = np.random.default_rng(0)
        seconds = goal.full_s(rate)
        parts = self.parts(seconds, limits)
        source = Arrivals(rate, goal, random)
        begun = [np.full(source.tests, min(rate * self.lone_s, self.running) / parts)] * parts  # queries, by step
        came, clocks, prompt_times = list[Any](), [np.zeros(source.tests)], list[Any]()
        running = sum(begun)
        waiting = np.zeros(source.tests)
        step_s = np.full(source.tests, self.lone_s / parts)
        least_step_s = seconds / (SHORTEST_STEPS * MOST_STEPS)
        lone_part_s, prompt_work_s = self.lone_s / parts, self.prompts / self.capacity
        other_part_s = (1 - self.prompts) / self.capacity / parts
        while clocks[-1].min() < seconds or len(came) < 2 * parts:  # a test may be shorter than an answer
            clock = clocks[-1] + step_s
            arrived = source.until(clock, step_s)
            running = running - begun[-parts]
            admitted = arrived
            if self.running < inf:
                waiting = waiting + arrived
                admitted = np.minimum(waiting, self.running - running)
                waiting = waiting - admitted
            running = running + admitted
            prompt_s = prompt_work_s * admitted
            if self.prompt_spread:
                uneven = np.sqrt(self.prompt_spread * admitted) * random.standard_normal(source.tests)
                prompt_s = np.maximum(prompt_s + prompt_work_s * uneven, 0.0)
            step_s = prompt_s + lone_part_s + other_part_s * np.maximum(running - 1, 0.0)
            step_s = np.maximum(step_s, least_step_s)
            came.append(arrived)
            clocks.append(clock)
            begun.append(admitted)
            prompt_times.append(prompt_s)
        clock, admitted = np.array(clocks), np.array(begun[parts:])
        return Simulated(
            self.waits(clock, np.array(came), admitted, np.array(prompt_times)),
            self.answers(clock, np.array(prompt_times), admitted, parts, random),
        )

    def waits(self, clock: Any, came: Any, admitted: Any, prompt_s: Any) -> Times:
        """Return how long queries wait that came in each step: until the last of them begins, and its prompt is
        computed with all that begin in the same step."""
        if self.running == inf:
            return Times(np.zeros(came.shape), came)
        seconds = np.zeros(came.shape)
        arrived, begun = np.cumsum(came, axis=0), np.cumsum(admitted, axis=0) + 1e-6
        for test in range(came.shape[1]):
            step = np.searchsorted(begun[:, test], arrived[:, test]).clip(max=len(came) - 1)
            waited_s = (clock[step + 1, test] - clock[1:, test]).clip(min=0.0)
            seconds[:, test] = waited_s + prompt_s[step, test]
            seconds[:, test] -= np.median(np.repeat(seconds[:, test], came[:, test].astype(int)))
        return Times(seconds, came)

    def answers(self, clock: Any, prompt_s: Any, admitted: Any, parts: int, random: Any) -> Times:
        """Return how long answers take that began in each step, without their own prompts."""
        whole = len(admitted) - parts
        seconds = clock[1 + parts : 1 + parts + whole] - clock[1 : 1 + whole]
        own_s = prompt_s[:whole] / np.maximum(admitted[:whole], 1)
        scattered = (seconds - own_s) * np.exp(self.scatter * random.standard_normal(seconds.shape))
        return Times(scattered, admitted[:whole])

    def share(self, rate: float, goal: Goal, limits: Limits) -> float:
        """Return the p99 that is nearer to its limit, as a share of it, that nearly every full test stays below."""
        found = self.simulate(rate, goal, limits)
        pass_share = PASS_SHARE if goal.known_seed is None else KNOWN_PASS_SHARE
        wait_share = found.waits.judged_p99_s(pass_share) / limits.wait_s if limits.wait_s < inf else 0.0
        answer_share = found.answers.judged_p99_s(pass_share) / limits.answer_s if limits.answer_s < inf else 0.0
        return max(wait_share, answer_share)


class Arrivals:
    """The arrivals of several tests at a rate: LoadGen's own in each test where its seed is known, else random."""

    def __init__(self, rate: float, goal: Goal, random: Any) -> None:
        self.rate, self.random = rate, random
        self.times: Any = None
        self.came: Any = 0
        self.tests = KNOWN_TESTS
        if goal.known_seed is None:
            self.tests = round(min(MOST_TESTS, max(FEWEST_TESTS, SIMULATED_QUERIES / (rate * goal.full_s(rate)))))
        else:
            self.times = arrival_times(goal.known_seed, goal.full_queries(rate)) / rate

    def until(self, end_s: Any, step_s: Any) -> Any:
        """Return how many queries come in each test until a time of it, in a step that began so many seconds before."""
        if self.times is None:
            return self.random.poisson(self.rate * step_s)
        count = np.searchsorted(self.times, end_s)
        came, self.came = count - self.came, count
        return came


def allowed_late(queries: int) -> int:
    """Return how many queries may be over a p99 limit before early stopping is no longer sure at 99 % confidence."""
    return max(0, floor(0.01 * queries - SURE * sqrt(0.0099 * queries) + 0.38))


@cache
def rate_within(model: EngineModel, limits: Limits, goal: Goal) -> float:
    """Return the highest rate at which nearly every full test keeps the limits."""
    if limits.answer_s <= model.lone_s:
        return 0.0
    start = 0.95 * model.full_capacity
    if limits.answer_s < inf:  # a p99 is some twice the mean
        lone_share = model.lone_s / limits.answer_s
        start = min(start, model.capacity * (1 - lone_share) / (1 + lone_share))
    return rate_at(lambda rate: model.share(rate, goal, limits), model.full_capacity, start)


def rate_at(share_of: Callable[[float], float], capacity: float, rate: float) -> float:
    """Return the rate at which a p99 is at its limit, by its share of that: each simulation leads to the next rate."""
    low, high = 0.0, capacity
    for _ in range(MOST_ROUNDS):
        share = share_of(rate)
        if share <= 1:
            low = rate
        else:
            high = rate
        following = rate_toward_limit(capacity, rate, share)
        is_narrow = high / max(low, rate / 3) < 1 + CLOSE_SHARE
        if abs(share - 1) < CLOSE_SHARE or is_narrow:
            return following
        rate = following if low < following < high else (low + high) / 2
    return low or rate


def rate_toward_limit(capacity: float, rate: float, share: float) -> float:
    """Return the rate at which a p99 is at its limit, of which it is a `share` at `rate`.

    Limit over p99 falls evenly with the rate, and to nothing at the capacity. The result is no less than half of
    `rate`: so far that does not hold.
    """
    return max(capacity - (capacity - rate) * share, LEAST_RATIO * rate)


@cache
def speed_after_test(model: EngineModel, rate: float, p99: Limits, limits: Limits, test: Goal) -> float:
    """Return the speed of a server, 1 as the model has it, by a `test` that measured these p99 at `rate`.

    A server of speed s has all times divided by s: its p99 at `rate` is the model's at rate / s, divided by s. Of two
    p99 the one that tells the lower speed counts. An infinite one tells nothing.
    """

    def share_of(modelled_rate: float) -> float:
        found = model.simulate(modelled_rate, test, limits)
        pairs = zip(found, p99, strict=True)
        return min(modelled_rate / rate * times.measured_p99_s / p99_s for times, p99_s in pairs if p99_s < inf)

    return rate / rate_at(share_of, MOST_OVERLOAD * model.full_capacity, min(rate, model.full_capacity))


def rate_after_test(model: EngineModel, rate: float, p99: Limits, limits: Limits, test: Goal, goal: Goal) -> float:
    """Return the highest rate that a full test should keep, once the model is as fast as a test showed."""
    speed = min(speed_after_test(model, rate, p99, limits, test), MOST_SPEED)
    return speed * rate_within(model, Limits(speed * limits.wait_s, speed * limits.answer_s), goal)
