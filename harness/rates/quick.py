"""The --quick estimate: the likely range of a full test's rate, from a search's first measurements."""

import re
from dataclasses import replace
from math import exp, floor, inf, sqrt
from typing import NamedTuple

from harness.config.mlperf import SCENARIOS
from harness.config.patterns import Poisson
from harness.config.plan import Plan
from harness.core.formatting import Measured
from harness.core.schema import FrozenModel
from harness.rates.goal import Goal
from harness.rates.measurements import Measurements
from harness.rates.prediction import rate_within
from harness.rates.server_model import completed_error
from harness.rates.simulation import EngineModel, TimeLimits
from harness.results.outcome import SURE, Queue

FILE = "estimate.json"
# These patterns find the flags in the words of a command.
QUICK_FLAG = r" --quick([ =][01])?(?= |$)"
MINUTES_FLAG = r" --minutes[ =]\S+"
CEILING_S = 120.0  # the longest time for a quick estimate, in seconds
# A rate has this error, as a share, however well the probes agree ("an H200, Interactive", "noise of 10 %").
LEAST_ERROR = 0.07
LEAST_CAPACITY_ERROR = LEAST_ERROR / 2  # the smallest error of a capacity, as a share of it
MOST_ERROR = 0.2  # the largest error of an estimate, as a share of the rate
# Half a minute's chance does not explain a p99 beyond this share of TTFT's limit ("waves", "96 at once").
LATE_SHARE = 1.4
CAPPED_SHARE = 0.95  # The suggested cap on running requests aims TPOT's p99 at this share of its limit.
MOST_SCATTER = 0.15  # If the times of answers scatter more, answers do not share the server evenly.
# The lower end of a range without a probe at the candidate, as a share of the expected rate ("0.3/s", "waves").
UNCONFIRMED_SHARE = 0.48
BURST_PROMPTS = 0.5  # the assumed share of a query's work that is its prompt's, until it is measured
Ranges = dict[str, tuple[float, Measured]]


class Estimate(FrozenModel):
    """The estimate of --quick. It is no result: nothing of it is VALID."""

    ttft_alone_ms: Measured
    """Of a single request."""
    tpot_alone_ms: Measured
    """Of a single request; null where answers came in one message."""
    capacity: Measured
    """Queries/s that the server completes; null where nothing told it."""
    capacity_error: Measured
    ranges: Ranges
    """Queries/s within the limits of each name, lowest and highest, null where nothing told that; none where the server
    does not behave as the model assumes."""
    rate: Measured
    """Queries/s that a full test of this scenario is expected to keep; null where nothing told it."""
    most_running: int | None
    """Requests in flight that hold TPOT's p99 at 95 % of this scenario's limit, however many wait; null where nothing
    told it."""
    doubts: tuple[str, ...]
    """Why no rate can be estimated."""
    background_load: tuple[str, ...] = ()
    """What other programs took of the machine meanwhile."""
    is_partial: bool = False
    """Whether the time was over before the measurements were: the ranges are the best so far."""
    full_at: int | None = None
    """Requests in flight beyond which the server refused others; null where it refused none."""
    command: str
    """The command that finds a VALID rate."""


def goals(plan: Plan) -> dict[str, Goal]:
    """Return the goals for which to estimate a rate, each by the name of its limits.

    Each goal is for random arrivals in general, not only for those of LoadGen's seed.
    """
    if plan.config.ttft_limit or plan.config.tpot_limit:
        return {"your limits": for_any_arrivals(Goal.of(plan))}
    goals_by_name = {}
    for scenario in SCENARIOS.values():
        if scenario.limits and isinstance(scenario.pattern, Poisson):
            name = f"{scenario.name.capitalize()}'s limits"
            goals_by_name[name] = for_any_arrivals(Goal.of(plan, scenario.limits))
    return goals_by_name


def for_any_arrivals(goal: Goal) -> Goal:
    """Return the goal to hold with nearly all arrivals, not only with those of its seed."""
    return goal._replace(holds_for_any_arrivals=True)


def most_running(queue: Queue, goal: Goal) -> int | None:
    """Return how many requests may run at once so that TPOT's p99 is at CAPPED_SHARE of its limit.

    The number is a suggestion for the server's own cap. None if the times are not known.
    """
    # Each other running request makes an answer longer by `each_s` for its tokens and by `prompt_s` for its prompt.
    added_s = queue.each_s + queue.prompt_s
    if not queue.tokens or added_s <= 0:
        return None
    p99_answer_s = CAPPED_SHARE * goal.tpot_ms / 1000 * queue.tokens
    # The logarithm of answers' times has the standard deviation `scatter`, so the p99 is this ratio above the expected
    # time.
    p99_ratio = exp(SURE * queue.scatter)
    expected_answer_s = p99_answer_s / p99_ratio
    lone_answer_s = queue.token_s * queue.tokens
    others = floor((expected_answer_s - lone_answer_s) / added_s)
    return max(1, 1 + others)  # the others beside the answer itself; at least that one must run


def estimate_of(
    measurements: Measurements, goals_by_name: dict[str, Goal], command: str, full_at: int | None = None
) -> Estimate:
    """Return the estimate that follows from the measurements, with a range of rates for each of `goals_by_name`.

    `command` is the user's. `full_at` is the number of requests in flight beyond which the server refused others.
    """
    ranges, doubts = ranges_of(measurements, goals_by_name)
    capacity = capacity_error = rate = suggested_cap = None
    if measurements.has_queue:  # A probe had enough queries to show how the server works.
        server = measurements.server
        if server.capacity < inf:  # Infinity stands for an unknown capacity.
            capacity = server.capacity
            capacity_error = capacity_share_error(measurements) * capacity
        if not doubts:
            rate = expected_rate(measurements)
        # `sharing` has the statistics of the probe that shows how much running answers slow each other down.
        suggested_cap = most_running(server.sharing, measurements.goal)
    loads = list[str]()
    for probe in measurements.probes:
        loads += probe.background_load
    command_of_search = re.sub(f"{QUICK_FLAG}|{MINUTES_FLAG}", "", command)  # These flags are for an estimate alone.
    return Estimate(
        # A lone request's time is 0 if it was not measured.
        ttft_alone_ms=1000 * measurements.lone.ttft_s or None,
        tpot_alone_ms=1000 * measurements.lone.tpot_s or None,
        capacity=capacity,
        capacity_error=capacity_error,
        ranges={} if doubts else ranges,  # The ranges are wrong if the server does not behave as the model assumes.
        rate=rate,
        most_running=suggested_cap,
        doubts=tuple(dict.fromkeys(doubts)),
        background_load=tuple(dict.fromkeys(loads)),
        is_partial=not measurements.is_candidate_probed,
        full_at=full_at,
        command=f"{command_of_search} --server-target-qps max",
    )


def ranges_of(measurements: Measurements, goals_by_name: dict[str, Goal]) -> tuple[Ranges, list[str]]:
    """Return the range of rates for each goal, by the goal's name, and the doubts about the ranges.

    If no probe showed the server's queue, the burst alone gives the ranges. Without a burst, there are none.
    """
    ranges, doubts = Ranges(), list[str]()
    if measurements.has_queue:
        share_error = capacity_share_error(measurements)
        for name, goal in goals_by_name.items():
            rate_range = RateRange.of(replace(measurements, goal=goal), share_error)
            ranges[name] = rate_range.low, rate_range.high
            doubts += rate_range.doubts
        doubts += doubts_of(measurements)
    elif measurements.burst:
        ranges = {name: range_by_burst(measurements, goal) for name, goal in goals_by_name.items()}
    return ranges, doubts


def expected_rate(measurements: Measurements) -> Measured:
    """Return the rate that a full test with the run's own goal should keep; None if nothing shows a limit."""
    # The measurements' goal may be for the arrivals of one seed. The expected rate is for any random arrivals.
    goal_of_run = for_any_arrivals(measurements.goal)
    candidate = replace(measurements, goal=goal_of_run).candidate
    if candidate.is_limit_unknown:  # The rate is only the fastest that was tried.
        return None
    return candidate.rate


def capacity_share_error(measurements: Measurements) -> float:
    """Return the error of the capacity as a share of the capacity.

    The error is about twice the standard error of the rate at which the saturated server completed queries, but at
    least LEAST_CAPACITY_ERROR and at most MOST_ERROR.
    """
    saturated = measurements.server.saturated
    if saturated is None:  # No probe measured the capacity, so it does not add to the error of the estimate.
        return LEAST_CAPACITY_ERROR
    return max(LEAST_CAPACITY_ERROR, min(2 * completed_error(saturated), MOST_ERROR))


def doubts_of(measurements: Measurements) -> list[str]:
    """Return the ways in which the server does not behave as the model assumes; empty if it does."""
    doubts = list[str]()
    if any(probe.queue.drift for probe in measurements.probes if probe.queue):
        doubts.append("the server's speed changed meanwhile")
    if measurements.server.sharing.scatter > MOST_SCATTER:
        doubts.append("answers are not slowed down alike")
    return doubts


def has_unexplained_waits(measurements: Measurements) -> bool:
    """Tell whether the last probe's TTFT was clearly over its limit although its queue did not grow.

    No model here explains that.
    """
    last_probe = measurements.last
    ttft_share, _tpot_share = measurements.goal.shares(last_probe)
    is_late_without_growth = measurements.is_late(last_probe)
    return is_late_without_growth and ttft_share > LATE_SHARE


def range_by_burst(measurements: Measurements, goal: Goal) -> tuple[float, Measured]:
    """Return the lowest and the highest rate at which the limits may be reached, from the burst alone.

    Both rates are 0 if no rate keeps the limits. The upper rate is None if the burst shows no limit of the server.
    """
    lone, burst = measurements.lone, measurements.burst
    if lone.is_over(goal):
        return 0.0, 0.0
    if burst is None or not burst.has_limit(lone):
        # The server completes at least as much as requests that run one after the other. Without a lone request's time,
        # not even that is known, and the lowest rate is 0.
        low = UNCONFIRMED_SHARE / lone.latency_s if lone.latency_s else 0.0
        return low, None
    capacity = burst.qps(lone)
    answer_s = lone.latency_s - lone.ttft_s  # of a lone answer, after its first token
    answer_limit_s = inf  # If TPOT is not known, answers have no limit.
    if lone.tpot_s:
        tokens = answer_s / lone.tpot_s
        answer_limit_s = goal.tpot_ms / 1000 * tokens
    # A burst does not show how requests wait, how prompts differ, how answers scatter, or what prompts cost: a share of
    # the work is assumed for them.
    simple_model = EngineModel(
        lone_s=answer_s,
        capacity=capacity,
        most_running=inf,
        prompt_share=BURST_PROMPTS,
        prompt_spread=0.0,
        scatter=0.0,
    )
    rate = rate_within(simple_model, TimeLimits(wait_s=inf, answer_s=answer_limit_s), goal)
    return UNCONFIRMED_SHARE * min(rate, capacity), capacity


class RateRange(NamedTuple):
    """The rates within some limits, in queries/s; `high` is 0 where a lone request is over them, None where nothing
    tells a limit.
    """

    low: float
    high: Measured
    doubts: tuple[str, ...] = ()

    @classmethod
    def of(cls, measurements: Measurements, capacity_error: float) -> "RateRange":
        """Return the range in which the highest rate that keeps the limits should lie, with doubts about it.

        `capacity_error` is the error of the server's capacity, as a share of the capacity.
        """
        candidate, last_probe = measurements.candidate, measurements.last
        rate = candidate.rate
        if not rate:  # No rate keeps the limits.
            return cls(0.0, 0.0)
        rate_by_last_probe = measurements.implied_rate(last_probe)
        if candidate.is_limit_unknown or rate_by_last_probe == inf:  # The range has no upper end.
            return cls(rate, None)
        if not measurements.is_candidate_probed:  # There is no probe at the candidate.
            return cls.by_overload(measurements, rate)
        disagreement = abs(rate_by_last_probe / rate - 1)  # of the last probe with all measurements together
        error_by_chance = SURE / sqrt(measurements.goal.full_queries(rate))  # how much a full test's p99 differs
        half_width = max(LEAST_ERROR, capacity_error, disagreement) + error_by_chance
        doubts = list[str]()
        # The range is too wide to be of use. The doubt names the largest error.
        if half_width > MOST_ERROR:
            errors_by_reason = {
                "the last probe contradicts those before it": disagreement,
                "the server completes requests too unevenly": capacity_error,
                "a test has so few queries that chance decides": error_by_chance,
            }
            doubts.append(max(errors_by_reason, key=errors_by_reason.__getitem__))
        if has_unexplained_waits(measurements):
            doubts.append("queries wait though it keeps up")
        # No rate above the server's capacity can be kept, so the range ends there at the latest.
        highest_capacity = (1 + capacity_error) * measurements.server.capacity
        high = min((1 + half_width) * rate, highest_capacity)
        return cls((1 - half_width) * rate, high, tuple(doubts))

    @classmethod
    def by_overload(cls, measurements: Measurements, rate: float) -> "RateRange":
        """Return the range for a `rate` that saturated probes imply, and at which no probe was run.

        The upper end is the server's capacity, or None if the capacity is not known.
        """
        queue = measurements.last.queue
        if queue and queue.completed and measurements.last.has_waited:
            measured_capacity = queue.completed  # Queries waited, so the server completed as many as it can.
            share_error = 2 * completed_error(queue)  # with a probability of about 95 %
            return cls(UNCONFIRMED_SHARE * min(rate, measured_capacity), (1 + share_error) * measured_capacity)
        capacity = measurements.server.capacity
        return cls(UNCONFIRMED_SHARE * rate, capacity if capacity < inf else None)
