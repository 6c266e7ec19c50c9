"""A number in a minute: what the first measurements of a search tell of the rates that a full test would find."""

import re
from math import exp, floor, inf, sqrt

from harness.config.mlperf import SCENARIOS
from harness.config.patterns import Poisson
from harness.config.plan import Plan
from harness.core.formatting import Measured, number
from harness.core.schema import FrozenModel
from harness.rates.law import Goal, error_of
from harness.rates.search import SearchFacts
from harness.results.outcome import SURE, Queue

FILE = "estimate.json"
QUICK = r" --quick([ =][01])?(?= |$)"  # in the words of a command
LEAST = 0.07  # of a rate: its error, however well the probes agree (an H200, Interactive; noise of 10 %)
MOST_UNCERTAINTY = 0.2  # of a rate: with a larger error it is no estimate
LATE = 1.4  # share of TTFT's limit, from which on that is no chance of half a minute (waves; 96 at once)
CAPPED = 0.95  # of TPOT's limit, that a cap on running requests keeps
UNEVEN = 0.15  # scatter of the answers' times, from which on they do not share the server as a processor is shared
Ranges = dict[str, tuple[float, Measured]]


class Estimate(FrozenModel):
    """What --quick found. No result: nothing of it is VALID."""

    ttft_alone_ms: float
    """Of a single request."""
    tpot_alone_ms: float
    """Of a single request."""
    capacity: Measured
    """Queries/s that the server completes; null where nothing told it."""
    capacity_error: Measured
    ranges: Ranges
    """Queries/s within the limits of each name, lowest and highest, null where nothing told that; none where no law
    holds."""
    rate: Measured
    """Queries/s that a full test of this scenario is expected to keep; null where no law holds or nothing told it."""
    most_running: int | None
    """Requests in flight that hold TPOT's p99 at 95 % of this scenario's limit, however many wait; null where nothing
    told it."""
    doubts: tuple[str, ...]
    """Why no rate can be estimated."""
    background_load: tuple[str, ...] = ()
    """What other programs took of the machine meanwhile."""
    command: str
    """That finds a rate which is VALID."""

    def __str__(self) -> str:
        alone = f"TPOT of a single request {number(self.tpot_alone_ms, 2)} ms"
        error = f" \N{PLUS-MINUS SIGN} {number(self.capacity_error, 1)}" if self.capacity_error else ""
        capacity = f"capacity {number(self.capacity, 3)}{error} queries/s" if self.capacity else "capacity not reached"
        within = [f"within {name} {range_text(*ends)}" for name, ends in self.ranges.items()]
        said = ", ".join(within) or f"the rates within limits cannot be estimated: {', '.join(self.doubts)}"
        return (
            f"{alone}, {capacity}; {'; '.join((said, *self.background_load))}; a full test is needed to say VALID: "
            f"{self.command}"
        )


def range_text(low: float, high: Measured) -> str:
    if high is None:
        return f"{number(low, 3)} or more"
    return f"about {number(low, 3)} to {number(high, 3)}" if high else "none: a single request is over them"


def goals(plan: Plan) -> dict[str, Goal]:
    """The limits that a rate is estimated for, by name: the user's own, or those of each scenario that has a rate."""
    if plan.config.ttft_limit or plan.config.tpot_limit:
        return {"your limits": Goal.of(plan)}
    rules = [one for one in SCENARIOS.values() if one.limits and isinstance(one.pattern, Poisson)]
    return {f"{one.name.capitalize()}'s limits": Goal.of(plan, one.limits) for one in rules}


def most_running(queue: Queue, goal: Goal) -> int | None:
    """How many requests may run so that TPOT's p99 is CAPPED of its limit: while one is answered, each of the others is
    given as many tokens, and begins once. None where what answers cost each other is not known.
    """
    if not queue.tokens or (others_s := queue.each_s + queue.prompt_s) <= 0:
        return None
    slowest_s = CAPPED * goal.tpot_ms / 1000 * queue.tokens / exp(SURE * queue.scatter)
    return max(1, 1 + floor((slowest_s - queue.token_s * queue.tokens) / others_s))


def estimate_of(facts: SearchFacts, held_to: dict[str, Goal], command: str) -> Estimate:
    """What follows from the facts. A range is the rate that they imply, give or take the error of the completions, by
    how much the last probe alone would have it otherwise, and what chance makes of a full test's tail.
    """
    found, ranges, doubts = facts.server, Ranges(), list[str]()
    error = min(2 * error_of(found.waited), MOST_UNCERTAINTY) if found.waited else 0.0
    most = (1 + max(LEAST / 2, error)) * found.capacity
    for name, goal in held_to.items():
        each = SearchFacts(goal, facts.alone, facts.probes)
        rate, last = each.candidate.rate, each.implied(facts.last)
        if rate in (0.0, inf) or last == inf:
            ranges[name] = (rate, None if rate else 0.0)
            continue
        off = max(LEAST, error, abs(last / rate - 1)) + SURE / sqrt(rate * goal.full_s(rate))
        if off > MOST_UNCERTAINTY:
            doubts.append("two probes contradict each other")
        if each.is_late(facts.last) and goal.shares(facts.last)[0] > LATE:
            doubts.append("queries wait though it keeps up")
        ranges[name] = ((1 - off) * rate, min((1 + off) * rate, most))
    if any(one.queue.drift for one in facts.probes if one.queue):
        doubts.append("the server's speed changed meanwhile")
    if found.shared.scatter > UNEVEN:
        doubts.append("answers are not slowed down alike")
    capacity, expected = (value if value < inf else None for value in (found.capacity, facts.candidate.rate))
    return Estimate(
        ttft_alone_ms=1000 * facts.alone.ttft_s,
        tpot_alone_ms=1000 * facts.alone.tpot_s,
        capacity=capacity,
        capacity_error=capacity and most - capacity,
        ranges={} if doubts else ranges,
        rate=None if doubts else expected,
        most_running=most_running(found.shared, facts.goal),
        doubts=tuple(dict.fromkeys(doubts)),
        background_load=tuple(dict.fromkeys(load for one in facts.probes for load in one.background_load)),
        command=f"{re.sub(QUICK, '', command)} --server-target-qps max",
    )
