"""The --quick estimate: the likely range of a full test's rate, from a search's first measurements."""

import re
from dataclasses import replace
from math import exp, floor, inf, sqrt
from typing import NamedTuple

from harness.config.mlperf import SCENARIOS
from harness.config.patterns import Poisson
from harness.config.plan import Plan
from harness.core.formatting import Measured, number
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
MOST_ERROR = 0.2  # the largest error of an estimate, as a share of the rate
# Half a minute's chance does not explain a p99 beyond this share of TTFT's limit ("waves", "96 at once").
LATE_SHARE = 1.4
CAPPED_SHARE = 0.95  # The suggested cap on running requests aims TPOT's p99 at this share of its limit.
MOST_SCATTER = 0.15  # If the times of answers scatter more, answers do not share the server evenly.
# The lower end of a range without a probe at the candidate, as a share of the expected rate ("0.3/s", "waves").
UNCONFIRMED_SHARE = 0.48
BURST_PROMPTS = 0.5  # the assumed share of a query's work that is its prompt's, until it is measured
UNSEEN = "for half a minute's load: heat, caches and other tenants that come later are not in it"
Ranges = dict[str, tuple[float, Measured]]


class Estimate(FrozenModel):
    """The estimate of --quick. It is no result: nothing of it is VALID."""

    ttft_alone_ms: float
    """Of a single request."""
    tpot_alone_ms: float
    """Of a single request."""
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

    def __str__(self) -> str:
        """Return the estimate as one line: TPOT of a lone request, the capacity, the rates, and what they are worth."""
        tpot = f"TPOT of a single request {number(self.tpot_alone_ms, 2)} ms"
        capacity = "capacity not reached"
        if self.capacity:
            error = ""
            if self.capacity_error:
                error = f" \N{PLUS-MINUS SIGN} {number(self.capacity_error, 1)}"
            capacity = f"capacity {number(self.capacity, 3)}{error} queries/s"
        findings = [f"{tpot}, {capacity}"]
        if self.full_at:
            findings.append(f"full at {self.full_at:,} in flight")
        findings.append(self.rates_text)
        next_step = f"a full test is needed to say VALID: {self.command}"
        return "; ".join((*findings, UNSEEN, *self.background_load, next_step))

    @property
    def rates_text(self) -> str:
        """The rates within each named set of limits in words, or why no rate can be estimated.

        If the time ended before all measurements were taken (`is_partial`), the rates are called the best so far.
        """
        if not self.ranges:
            return f"the rates within limits cannot be estimated: {', '.join(self.doubts) or 'nothing told them'}"
        if self.is_partial:
            within = [f"{span_text(*ends)} within {name}" for name, ends in self.ranges.items()]
            return f"best so far: {', '.join(within)}"
        return ", ".join(f"within {name} {range_text(*ends)}" for name, ends in self.ranges.items())


def range_text(low: float, high: Measured) -> str:
    """Return a range of rates in words. `high` is None if unbounded, 0 if no rate keeps the limits."""
    if high is None:
        return f"{number(low, 3)} or more"
    if not high:
        return "none: a single request is over them"
    return f"about {number(low, 3)} to {number(high, 3)}"


def span_text(low: float, high: Measured) -> str:
    """Return the best range of rates so far in words. `high` is None if unbounded, 0 if no rate keeps the limits."""
    if high is None:
        return f"at least {number(low, 2)} queries/s"
    if not high:
        return "none"
    return f"between {number(low, 2)} and {number(high, 2)} queries/s"


def goals(plan: Plan) -> dict[str, Goal]:
    """Return the goals for which to estimate a rate, each by the name of its limits.

    If the user gave a limit, the only goal is the run's own. Else there is a goal for each scenario that has limits and
    sends at random times. Each goal is for random arrivals in general, not only for those of LoadGen's seed.
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

    The number is a suggestion for the server's own cap. While one answer is made, each other running request gets as
    many tokens (`each_s` in all), and its prompt is computed once (`prompt_s`). Both make the answer longer. None if
    the times are not known.
    """
    other_s = queue.each_s + queue.prompt_s  # what each other running request adds to an answer
    if not queue.tokens or other_s <= 0:
        return None
    # Answers scatter around their expected time, so that time must be shorter for the p99 to be at the limit.
    longest_answer_s = CAPPED_SHARE * goal.tpot_ms / 1000 * queue.tokens / exp(SURE * queue.scatter)
    lone_answer_s = queue.token_s * queue.tokens
    others = floor((longest_answer_s - lone_answer_s) / other_s)
    return max(1, 1 + others)


def estimate_of(
    measurements: Measurements, held_to: dict[str, Goal], command: str, full_at: int | None = None
) -> Estimate:
    """Return the estimate that follows from the measurements.

    `held_to` has the goals by the names of their limits, `command` is the user's, and `full_at` is the number of
    requests in flight beyond which the server refused others. Without a probe that shows the server's queue, the ranges
    of rates follow from the burst alone; without a burst either, there are no ranges. If the server does not behave as
    the model assumes, the estimate has doubts in place of ranges.
    """
    ranges, doubts = Ranges(), list[str]()
    capacity = capacity_error = expected = running = None
    if measurements.has_queue:
        server = measurements.server
        error = capacity_share_error(measurements)
        capacity = server.capacity if server.capacity < inf else None
        if capacity is not None:
            capacity_error = error * capacity
        for name, goal in held_to.items():
            ends = RateRange.of(replace(measurements, goal=goal), error)
            ranges[name] = ends.low, ends.high
            doubts += ends.doubts
        doubts += doubts_of(measurements)
        goal_of_run = for_any_arrivals(measurements.goal)
        candidate = Measurements(goal_of_run, measurements.lone, measurements.probes).candidate
        if not doubts and not candidate.is_bound:
            expected = candidate.rate
        running = most_running(server.sharing, measurements.goal)
    elif measurements.burst:
        ranges = {name: range_by_burst(measurements, goal) for name, goal in held_to.items()}
    loads = list[str]()
    for probe in measurements.probes:
        loads += probe.background_load
    return Estimate(
        ttft_alone_ms=1000 * measurements.lone.ttft_s,
        tpot_alone_ms=1000 * measurements.lone.tpot_s,
        capacity=capacity,
        capacity_error=capacity_error,
        ranges={} if doubts else ranges,
        rate=expected,
        most_running=running,
        doubts=tuple(dict.fromkeys(doubts)),
        background_load=tuple(dict.fromkeys(loads)),
        is_partial=not measurements.has_confirmed,
        full_at=full_at,
        command=f"{re.sub(f'{QUICK_FLAG}|{MINUTES_FLAG}', '', command)} --server-target-qps max",
    )


def capacity_share_error(measurements: Measurements) -> float:
    """Return the error of the capacity as a share of the capacity.

    It is twice the standard error of the completion rate of the saturated server, within a smallest and a largest
    error; the smallest if no probe saturated the server.
    """
    smallest, saturated = LEAST_ERROR / 2, measurements.server.saturated
    if saturated is None:
        return smallest
    return max(smallest, min(2 * completed_error(saturated), MOST_ERROR))


def doubts_of(measurements: Measurements) -> list[str]:
    """Return the ways in which the server does not behave as the model assumes; empty if it does."""
    doubts = list[str]()
    if any(probe.queue.drift for probe in measurements.probes if probe.queue):
        doubts.append("the server's speed changed meanwhile")
    if measurements.server.sharing.scatter > MOST_SCATTER:
        doubts.append("answers are not slowed down alike")
    return doubts


def range_by_burst(measurements: Measurements, goal: Goal) -> tuple[float, Measured]:
    """Return the lowest and the highest rate at which the limits may be reached, from the burst alone.

    It is for an estimate without probes. Both rates are 0 if a lone request is over a limit. If the burst shows no
    limit of the server, the lower end is a share of the rate of requests that run one after the other, and the upper
    end is None, for open. Else the upper end is the capacity that the burst shows, and the lower end a share of what a
    simple model with this capacity allows.
    """
    lone, burst = measurements.lone, measurements.burst
    if lone.is_over(goal):
        return 0.0, 0.0
    if burst is None or not burst.has_limit(lone):
        low = UNCONFIRMED_SHARE / lone.latency_s if lone.latency_s else 0.0
        return low, None
    qps, limit_s = burst.qps(lone), inf
    answer_s = lone.latency_s - lone.ttft_s
    if lone.tpot_s:  # If TPOT is not known, answers have no limit.
        tokens = answer_s / lone.tpot_s
        limit_s = goal.tpot_ms / 1000 * tokens
    model = EngineModel(
        lone_s=answer_s,
        capacity=qps,
        most_running=inf,
        prompt_share=BURST_PROMPTS,
        prompt_spread=0.0,
        scatter=0.0,
    )
    rate = rate_within(model, TimeLimits(inf, limit_s), goal)
    return UNCONFIRMED_SHARE * min(rate, qps), qps


class RateRange(NamedTuple):
    """The rates within some limits, in queries/s; `high` is 0 where a lone request is over them, None where nothing
    tells a limit.
    """

    low: float
    high: Measured
    doubts: tuple[str, ...] = ()

    @classmethod
    def of(cls, measurements: Measurements, error: float) -> "RateRange":
        """Return the range of rates around the candidate, in which the highest rate that keeps the limits should lie.

        The range is 0 to 0 if no rate keeps the limits, and open above if nothing shows a limit. Without a probe at the
        candidate, it follows from the saturated probe. Else its half width is the largest of three errors, plus the
        scatter of a full test's tail. The errors are a fixed least one, that of the capacity (`error`, a share), and
        the difference to what the last probe alone implies. The range ends at the capacity.
        """
        goal, candidate = measurements.goal, measurements.candidate
        rate, implied_rate = candidate.rate, measurements.implied_rate(measurements.last)
        if not rate:
            return cls(0.0, 0.0)
        if candidate.is_bound or implied_rate == inf:
            return cls(rate, None)
        if not measurements.has_confirmed:
            return cls.by_overload(measurements, rate)
        half_width = max(LEAST_ERROR, error, abs(implied_rate / rate - 1)) + SURE / sqrt(goal.full_queries(rate))
        doubts = list[str]()
        if half_width > MOST_ERROR:
            doubts.append("two probes contradict each other")
        ttft_share, _ = goal.shares(measurements.last)
        if measurements.is_late(measurements.last) and ttft_share > LATE_SHARE:
            doubts.append("queries wait though it keeps up")
        highest = (1 + error) * measurements.server.capacity
        return cls((1 - half_width) * rate, min((1 + half_width) * rate, highest), tuple(doubts))

    @classmethod
    def by_overload(cls, measurements: Measurements, rate: float) -> "RateRange":
        """Return the range of rates from a saturated probe alone; `rate` is the rate that the probe implies.

        The rate that the server completed while queries waited is the most that it can do. So the range ends there,
        plus twice that rate's error. If no queries waited, it ends at the model's capacity, or is open if that is not
        known.
        """
        queue = measurements.last.queue
        if queue and queue.completed and measurements.last.has_waited:
            highest = (1 + 2 * completed_error(queue)) * queue.completed
            return cls(UNCONFIRMED_SHARE * min(rate, queue.completed), highest)
        capacity = measurements.server.capacity
        return cls(UNCONFIRMED_SHARE * rate, capacity if capacity < inf else None)
