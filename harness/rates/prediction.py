"""The highest rate that full tests should keep, by a model of an engine: alone, or as fast as a test showed it."""

from collections.abc import Callable
from functools import cache
from math import inf

from harness.rates.goal import Goal
from harness.rates.simulation import EngineModel, TimeLimits

# Each constant was chosen by the cases of benchmarks.search that it names.
PASS_SHARE = 0.95  # the share of simulated tests that must keep the limits, as for the truth in benchmarks.search
KNOWN_PASS_SHARE = 0.9  # the same share with LoadGen's own arrivals, when only the server varies by chance
MOST_ROUNDS = 10  # the most simulations to find a rate
CLOSE_SHARE = 0.02  # A p99 within this share of its limit ends the simulations.
LEAST_RATIO = 0.5  # A single test leads to no less than this share of its rate.
# A p99 makes the model faster by no more than this: means of many queries are surer ("capacity, 60/s").
MOST_SPEED_RATIO = 1.01
SMALLEST_LOW = 1 / 3  # stands, as a share of the rate, for the lower end of the range before it is known
MOST_OVERLOAD_RATIO = 1.3  # No test is explained by more than this ratio of a rate to the model's capacity.


def share_of_limits(model: EngineModel, rate: float, goal: Goal, limits: TimeLimits) -> float:
    """Return how near a full test at `rate` comes to its limits: the p99 as a share of its limit, by simulation.

    There is a p99 of the queries' waits and one of the answers' times; the higher share counts. Each p99 is so high
    that nearly all simulated tests stay below it. A p99 without a limit (infinite) does not count; the share is 0 if
    neither has one.
    """
    waits, answers = model.simulate(rate, goal, limits)
    pass_share = PASS_SHARE if goal.simulated_seed is None else KNOWN_PASS_SHARE
    share = 0.0
    for times, limit_s in ((waits, limits.wait_s), (answers, limits.answer_s)):
        if limit_s < inf:
            share = max(share, times.judged_p99_s(pass_share) / limit_s)
    return share


@cache
def rate_within(model: EngineModel, limits: TimeLimits, goal: Goal) -> float:
    """Return the highest rate at which nearly every simulated full test keeps the limits; 0 if a lone answer is over
    its limit.

    The first rate to simulate is just below the capacity. If answers have a limit, it is at most a guess by their mean
    time, lone_s / (1 - rate / capacity).
    """
    if limits.answer_s <= model.lone_s:
        return 0.0
    start = 0.95 * model.capped_capacity
    if limits.answer_s < inf:  # A p99 is about twice the mean, so this rate has a p99 near its limit.
        lone_share = model.lone_s / limits.answer_s
        start = min(start, model.capacity * (1 - lone_share) / (1 + lone_share))

    def share_at(rate: float) -> float:
        return share_of_limits(model, rate, goal, limits)

    return rate_at_limit(share_at, model.capped_capacity, start)


def rate_at_limit(share_of: Callable[[float], float], capacity: float, rate: float) -> float:
    """Return the rate below `capacity` at which a p99 is at its limit, beginning with `rate`.

    `share_of` simulates the p99 at a rate, as a share of its limit. Each simulation leads to the next rate, or to the
    middle of the range if that rate is outside the range. If the p99 is close to its limit, or the range is narrow,
    returns that next rate, which is then near to those that were tried. After MOST_ROUNDS, returns the highest rate
    within the limit or, if none was within it, the rate that would be tried next.
    """
    low, high = 0.0, capacity  # the highest rate within the limit so far, and the lowest beyond it
    for _ in range(MOST_ROUNDS):
        share = share_of(rate)
        if share <= 1:
            low = rate
        else:
            high = rate
        next_rate = rate_toward_limit(capacity, rate, share)
        # While no rate is within the limit, `low` is 0, by which nothing can be divided: a fraction of the rate stands
        # for it. Such a range is never narrow.
        is_narrow = high / max(low, SMALLEST_LOW * rate) < 1 + CLOSE_SHARE
        if abs(share - 1) < CLOSE_SHARE or is_narrow:
            return next_rate
        rate = next_rate if low < next_rate < high else (low + high) / 2
    return low or rate


def rate_toward_limit(capacity: float, rate: float, share: float) -> float:
    """Return the rate at which a p99 would be at its limit, given its `share` of the limit at `rate`.

    The ratio of limit to p99 is taken to fall linearly with the rate and to reach 0 at the capacity. This holds only
    near `rate`, so the result is at least half of `rate`.
    """
    return max(capacity - (capacity - rate) * share, LEAST_RATIO * rate)


@cache
def speed_after_test(model: EngineModel, rate: float, p99: TimeLimits, limits: TimeLimits, test: Goal) -> float:
    """Return the speed of the server relative to the model, from the p99 times that a test measured at `rate`.

    A server of speed s has all times divided by s, so its p99 at `rate` is the model's p99 at rate / s, divided by s.
    The modelled rate, rate / s, is found by simulation: there the model's p99, divided by s, is the measured p99. The
    modelled rate may be up to MOST_OVERLOAD_RATIO times the model's capacity, since the server may be slower than the
    model. `p99` are the measured times, of which an infinite one is ignored. `test` has the length of that test.
    """

    def share_of(modelled_rate: float) -> float:
        """Return the model's p99, divided by the speed, as a share of the measured p99: the lower share of the two."""
        scale = modelled_rate / rate  # one over the speed
        simulated = zip(model.simulate(modelled_rate, test, limits), p99, strict=True)
        return min(scale * times.measured_p99_s / p99_s for times, p99_s in simulated if p99_s < inf)

    return rate / rate_at_limit(share_of, MOST_OVERLOAD_RATIO * model.capped_capacity, min(rate, model.capped_capacity))


def rate_after_test(
    model: EngineModel, rate: float, p99: TimeLimits, limits: TimeLimits, test: Goal, goal: Goal
) -> float:
    """Return the highest rate that a full test should keep, by the model, corrected by what a test at `rate` showed.

    The test measured the `p99` times, which show the server's speed relative to the model. A server of speed s has all
    times divided by s. So it keeps the limits at s times the rate at which the model keeps limits that are multiplied
    by s. The speed is at most MOST_SPEED_RATIO, because one p99 is subject to chance. `test` is the goal with that
    test's length.
    """
    speed = min(speed_after_test(model, rate, p99, limits, test), MOST_SPEED_RATIO)
    return speed * rate_within(model, TimeLimits(speed * limits.wait_s, speed * limits.answer_s), goal)
