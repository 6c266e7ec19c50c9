"""The highest rate that full tests should keep, by a model of an engine: alone, or as fast as a test showed it."""

from collections.abc import Callable
from functools import cache
from math import inf

from harness.rates.goal import Goal
from harness.rates.simulation import EngineModel, TimeLimits

# Each constant was chosen by the cases of benchmarks.search that it names.
PASS_SHARE = 0.95  # the share of simulated tests that must keep the limits, as for the truth in benchmarks.search
KNOWN_PASS_SHARE = 0.9  # the same share with LoadGen's own arrivals, when only the server varies by chance
MOST_SIMULATED_RATES = 10  # the most simulations to find a rate
FIRST_CAPACITY_SHARE = 0.95  # the first rate to simulate, as a share of the capacity
CLOSE_SHARE = 0.02  # A p99 within this share of its limit ends the simulations.
LEAST_RATIO = 0.5  # A single test leads to no less than this share of its rate.
# A p99 makes the model faster by no more than this: means of many queries are surer ("capacity, 60/s").
MOST_SPEED_RATIO = 1.01
MOST_OVERLOAD_RATIO = 1.3  # No test is explained by more than this ratio of a rate to the model's capacity.


def share_of_limits(model: EngineModel, rate: float, goal: Goal, limits: TimeLimits) -> float:
    """Return how near a full test at `rate` comes to its limits: the p99 as a share of its limit, by simulation.

    Waits and answers each have a limit; the higher share is returned, 0 if both limits are infinite.
    """
    waits, answers = model.simulate(rate, goal, limits)
    # Nearly all simulated tests must pass, so the p99 is the one that `pass_share` of them stay below. With known
    # arrivals only the server varies by chance, so a smaller share is enough.
    pass_share = PASS_SHARE if goal.simulated_seed is None else KNOWN_PASS_SHARE
    highest_share = 0.0
    for times, limit_s in ((waits, limits.wait_s), (answers, limits.answer_s)):
        if limit_s < inf:  # Infinity stands for no limit.
            highest_share = max(highest_share, times.judged_p99_s(pass_share) / limit_s)
    return highest_share


@cache
def rate_within(model: EngineModel, limits: TimeLimits, goal: Goal) -> float:
    """Return the highest rate at which nearly every simulated full test keeps the limits.

    Results are cached, as a simulation takes long and is asked for again with the same arguments.
    """
    if limits.answer_s <= model.lone_s:  # No rate keeps the limit of answers.
        return 0.0
    first_rate = FIRST_CAPACITY_SHARE * model.capped_capacity
    if limits.answer_s < inf:
        # A rough guess. The mean time of answers is lone_s / (1 - rate / capacity). Their p99 is guessed at this time,
        # multiplied by the factor 1 + rate / capacity, which is between one and two. Solved for the rate, with p99 at
        # its limit:
        lone_share = model.lone_s / limits.answer_s
        first_rate = min(first_rate, model.capacity * (1 - lone_share) / (1 + lone_share))

    def share_at(rate: float) -> float:
        return share_of_limits(model, rate, goal, limits)

    return rate_at_limit(share_at, model.capped_capacity, first_rate)


def rate_at_limit(share_of: Callable[[float], float], capacity: float, rate: float) -> float:
    """Return the rate below `capacity` at which a p99 is at its limit. `rate` is the first rate to try.

    `share_of` returns the p99 at a rate as a share of its limit, by a simulation.
    """
    low, high = 0.0, capacity  # the highest rate within the limit so far, and the lowest beyond it
    for _ in range(MOST_SIMULATED_RATES):
        share = share_of(rate)
        if share <= 1:
            low = rate
        else:
            high = rate
        next_rate = rate_toward_limit(capacity, rate, share)
        is_near_limit = abs(share - 1) < CLOSE_SHARE
        is_range_narrow = high < (1 + CLOSE_SHARE) * low  # never while no rate is within the limit, and `low` is 0
        if is_near_limit or is_range_narrow:  # So near to the rates that were tried, `next_rate` needs no simulation.
            return next_rate
        rate = next_rate
        if not low < next_rate < high:  # This rate contradicts the simulations so far, so the middle is tried.
            rate = (low + high) / 2
    return low or rate  # the highest rate within the limit; if there was none, the rate to try next


def rate_toward_limit(capacity: float, rate: float, share: float) -> float:
    """Return the rate at which a p99 would be at its limit, given its `share` of the limit at `rate`.

    1 / share is taken to fall linearly with the rate, and to reach 0 at the capacity. This holds only near `rate`, so
    the result is at least half of `rate`.
    """
    return max(capacity - (capacity - rate) * share, LEAST_RATIO * rate)


@cache
def speed_after_test(model: EngineModel, rate: float, p99: TimeLimits, limits: TimeLimits, test: Goal) -> float:
    """Return the speed of the server relative to the model, from the p99 times that a test measured at `rate`.

    A server of speed s does everything s times as fast: its p99 at `rate` is the model's p99 at `rate` / s, divided by
    s. Wanted is the speed with which that is the measured p99. An infinite time in `p99` is ignored. `test` has the
    length of that test.
    """

    def share_of(modelled_rate: float) -> float:
        """Return the p99 of a server with the speed `rate` / `modelled_rate`, as a share of the measured p99.

        Of the shares for waits and for answers, the lower counts. It reaches 1 only at a higher modelled rate, which
        means a slower server.
        """
        speed = rate / modelled_rate
        simulated_and_measured = zip(model.simulate(modelled_rate, test, limits), p99, strict=True)
        shares = []
        for simulated, measured_s in simulated_and_measured:
            if measured_s < inf:
                shares.append(simulated.p99_of_test_s / speed / measured_s)
        return min(shares)

    # Search for the modelled rate at which the share is 1, which gives the speed. If the server is slower than the
    # model, this rate may be beyond the model's capacity.
    highest_modelled_rate = MOST_OVERLOAD_RATIO * model.capped_capacity
    first_modelled_rate = min(rate, model.capped_capacity)
    return rate / rate_at_limit(share_of, highest_modelled_rate, first_modelled_rate)


def rate_after_test(
    model: EngineModel, rate: float, p99: TimeLimits, limits: TimeLimits, test: Goal, goal: Goal
) -> float:
    """Return the highest rate that a full test should keep, by the model, corrected by what a test at `rate` showed.

    The test measured the `p99` times, which show the server's speed relative to the model. `test` is the goal with that
    test's length.
    """
    measured_speed = speed_after_test(model, rate, p99, limits, test)
    speed = min(measured_speed, MOST_SPEED_RATIO)  # A low p99 may be chance, so it counts for little.
    # A server of speed s does everything s times as fast as the model. So it keeps its limits at s times the rate at
    # which the model keeps limits that are s times as long.
    limits_of_model = TimeLimits(speed * limits.wait_s, speed * limits.answer_s)
    return speed * rate_within(model, limits_of_model, goal)
