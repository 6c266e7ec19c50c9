"""The highest rate that a full test will keep: from short tests on the loaded engine, by their limits and its capacity.

LoadGen's verdict on a probe says what it held for its half a minute. An overload of a few percent breaks no limit in
that time and every limit in ten minutes, so the rate is the lowest of what the limits and what the measured capacity
allow (`Evidence.estimate`), and the last candidate is confirmed by a longer probe where a short one cannot tell.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import inf, log, sqrt
from typing import Literal, NamedTuple, Self

from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan
from harness.core.document import number
from harness.loadgen.outcome import PRECISE, SETTLED, Outcome, Queue
from harness.rates.probing import detection_s, rate_by_tpot, rate_by_ttft

# The constants of the search in the words of docs/evidence/rates.md, chosen while watching `benchmarks.search`.
PROBE_S = 30.0  # seconds of a probe, at least
PROBE_QUERIES = 600  # queries of a probe, at least
CONFIRMING_S = 120.0  # seconds of the probe that confirms the last candidate, at most; longer for ...
CONFIRMING_QUERIES = 2400  # ... so many queries
CAPACITY_S = 90.0  # seconds of a probe that measures the capacity again
LONG_S = 54.0  # seconds of a probe from which on its waits are more than chance
MOST_LONGER = 4.0  # times as long, at most, where early stopping alone wants more queries
MOST_PROBES = 8  # probes of a search
MOST_TESTS = 1.4  # length of a search, in full tests
STEP = 1.2  # ratio of rates while one side alone is known; the second is its square, and so on up to 2
LOWEST = 0.1  # share of the first rate; if that fails, the limits are out of reach
OVERLOAD = 1.15  # ratio to a capacity of the rate that measures it again
SURELY = 1.2  # ratio to the seconds after which the capacity should be known
VAGUE = 0.01  # standard error of a capacity, as a share, from which on it is measured again
MARGIN = 0.993  # of an estimate, or of a rate that just failed: a full test sees more than a probe
FEWEST_WAITING = 30.0  # queries within the allowed wait; a simulated queue of fewer tells nothing
SPREAD = 1.15  # ratio of the rates that a line of TPOT is drawn through, at least
ROOM = 0.7  # share of the limits up to which a p99 leaves room for a higher rate
CONFIRMED = 1.02  # ratio of the estimate to a rate that confirms it
BRACKET = 1.04  # ratio of the lowest rate that failed to the highest that held, at the end


class Goal(NamedTuple):
    """What the full test is held to: its length, and the p99 limits in milliseconds."""

    seconds: float
    queries: int
    ttft_ms: float
    tpot_ms: float

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """For scenarios with limits."""
        assert plan.limits is not None
        return cls(plan.min_duration_s, plan.min_queries, plan.limits.ttft, plan.limits.tpot)

    def full_s(self, qps: float) -> float:
        """Seconds of the full test at this rate."""
        return max(self.seconds, max(self.queries, SURE_QUERIES) / qps)

    def probe_s(self, qps: float) -> float:
        """Seconds of a probe at this rate: no longer than the full test."""
        return min(max(PROBE_S, PROBE_QUERIES / qps), self.full_s(qps))


# Three estimates of the highest rate in queries/s that a full test will keep; as text, what each rests on.
LEAST_ALONE = 0.01  # share of TPOT's limit that a token takes alone, whatever a line says


class CapacityEstimate(NamedTuple):
    """What the server completes at most: random arrivals, over a full test, wait no longer than TTFT's limit allows."""

    queue: Queue
    first_token_s: float  # of a query that waits for nothing

    @classmethod
    def of(cls, probes: Sequence[Outcome]) -> Self | None:
        """By the best measurement."""
        queues = [probe.queue for probe in probes if probe.queue and probe.capacity]
        best = min(queues, key=lambda queue: queue.completed_error, default=None)
        return cls(best, min(probe.ttft_ms.min or 0.0 for probe in probes) / 1000) if best else None

    @property
    def qps(self) -> float:
        return self.queue.completed

    def rate(self, goal: Goal) -> float:
        least = self.qps - self.queue.completed_error / 2
        room_s = goal.ttft_ms / 1000 - self.first_token_s
        if least * room_s < FEWEST_WAITING and self.first_token_s * self.qps <= 1 / 2:
            return least
        return rate_by_ttft(least, room_s, goal.seconds, goal.queries, min(self.queue.dispersion, 1.0))

    def __str__(self) -> str:
        return f"the capacity of {number(self.qps)} a second"


class TpotLine(NamedTuple):
    """Queries share the server as a processor is shared: mean TPOT = alone / (1 - rate / capacity), so that 1 / TPOT
    falls on a line over the rate. Random arrivals, over a full test, keep TPOT's limit."""

    alone_s: float  # of a token
    capacity: float  # queries/s
    prompts: float  # share of a query's work for which all answers wait
    tokens: float  # of an answer
    basis: str

    @classmethod
    def of(cls, probes: Sequence[Outcome], goal: Goal) -> Self | None:
        """The line through all that held and settled; where their rates are too near to each other, that of the queries
        within the probe that came nearest to the limit. None where waiting is a good part of a query's time, or what
        runs beside it costs nothing."""
        told = [
            (one, one.queue) for one in probes if one.tpot_ms.p99 and one.tokens and one.queue and not one.has_waited
        ]
        shared = [(one, queue) for one, queue in told if queue.each_s + queue.prompt_s > 0]
        if not shared:
            return None
        held = [(one, queue) for one, queue in shared if one.has_held and one.is_settled]
        nearest, queue = min(held or shared, key=lambda each: abs(log((each[0].tpot_ms.p99 or inf) / goal.tpot_ms)))
        work_s = queue.each_s + queue.prompt_s
        alone_s, capacity = (queue.base_s + queue.each_s) / nearest.tokens, 1 / work_s
        basis = f"by the queries at {number(nearest.load)}"
        if line := line_through([one for one, _ in held if one.tpot_ms.mean]):
            (alone_s, capacity), basis = line, f"by the means of {len(held)} probes that held"
        prompts = min(1.0, max(0.0, queue.prompt_s / work_s))
        return cls(max(alone_s, LEAST_ALONE * goal.tpot_ms / 1000), capacity, prompts, nearest.tokens, basis)

    def rate(self, goal: Goal) -> float:
        alone_s, limit_s = self.alone_s * self.tokens, goal.tpot_ms * self.tokens / 1000
        return rate_by_tpot(alone_s, self.capacity, self.prompts, limit_s, goal.seconds, goal.queries)

    def __str__(self) -> str:
        alone = f"{number(1000 * self.alone_s, 3)} ms alone"
        return f"TPOT, {alone} and without end at {number(self.capacity, 3)} queries/s: {self.basis}"


def line_through(probes: Sequence[Outcome]) -> tuple[float, float] | None:
    """Seconds of a token alone and the capacity, by the mean TPOT of these probes."""
    import numpy as np

    rates = [one.rate for one in probes]
    if not rates or max(rates) < SPREAD * min(rates):
        return None
    speeds = [1000 / (one.tpot_ms.mean or inf) for one in probes]
    slope, alone = np.polyfit(rates, speeds, 1, w=np.sqrt([one.duration_s or 1.0 for one in probes]))
    return (float(1 / alone), float(-alone / slope)) if alone > 0 > slope else None


class LatencyBracket(NamedTuple):
    """The p99 of one latency against its limit in the neighbouring probes: limit over p99 falls about evenly with the
    rate, and to nothing at the capacity."""

    latency: Literal["TTFT", "TPOT"]
    points: tuple[tuple[float, float], ...]  # queries/s, p99 in ms
    capacity: float | None  # queries/s

    def rate(self, goal: Goal) -> float:
        """Infinite where nothing was too fast."""
        limit = goal.ttft_ms if self.latency == "TTFT" else goal.tpot_ms
        ratios = [(rate, limit / ms) for rate, ms in self.points]
        held = max((point for point in ratios if point[1] >= 1), default=None)
        failed = min((point for point in ratios if point[1] < 1), default=None)
        full = (self.capacity, 0.0) if self.capacity else None
        if failed is None:
            return crossing(held, full) if held and full else inf
        if held is None:
            far = crossing(failed, full) if full and full[0] > failed[0] else failed[0] * failed[1]
            return min(max(far, failed[0] / 2), 0.9 * failed[0])
        return crossing(held, failed)

    def __str__(self) -> str:
        return f"{self.latency} p99 in the neighbouring probes"


def crossing(slow: tuple[float, float], fast: tuple[float, float]) -> float:
    """The rate at which the line through two points of (rate, limit over latency) is at 1."""
    (low, more), (high, less) = slow, fast
    if low >= high or more <= less:
        return min(low, high)
    return low + (more - 1) / (more - less) * (high - low)


class Candidate(NamedTuple):
    """A rate in queries/s that is worth a probe, why, and how many seconds of it."""

    rate: float
    reason: str
    seconds: float = 0.0


def search(start: float, probe: Callable[[Candidate], Outcome], goal: Goal) -> list[Outcome]:
    """Probes, until the best rate is known closely, or as long as a search may take: a share of the full test, but
    always as many short probes as it may have; all of them, in order."""
    done = list[Outcome]()
    following: Candidate | None = Candidate(start, "a share of the Offline rate", goal.probe_s(start))
    while following and len(done) < MOST_PROBES:
        done.append(probe(following))
        following = next_probe(Evidence(goal, tuple(done)))
        spent = sum(one.duration_s or 0.0 for one in done)
        if following is None:
            break
        most_s = max(MOST_TESTS * goal.full_s(following.rate), MOST_PROBES * PROBE_S)
        if spent + following.seconds > most_s:
            break
    return done


@dataclass(frozen=True)
class Evidence:
    """What the probes of a search, in their order and at least one, tell together of what a full test will keep."""

    goal: Goal
    probes: Sequence[Outcome]

    @property
    def last(self) -> Outcome:
        return self.probes[-1]

    @property
    def fastest(self) -> Outcome:
        return max(self.probes, key=lambda probe: (probe.load, probe.duration_s or 0.0))

    @cached_property
    def consistent_probes(self) -> list[Outcome]:
        """All but those that something else disturbed: a higher rate held for about as long."""
        held = [(probe.load, (probe.duration_s or 0) / 0.9) for probe in self.probes if probe.has_held]
        return [
            one
            for one in self.probes
            if one.has_held or not any(load > one.load and seconds >= (one.duration_s or 0) for load, seconds in held)
        ]

    @cached_property
    def high(self) -> Outcome | None:
        """The lowest that was too fast."""
        failed = (one for one in self.consistent_probes if not (one.has_held or longer_s(one, self.goal)))
        return min(failed, key=lambda probe: probe.load, default=None)

    @cached_property
    def low(self) -> Outcome | None:
        """The highest that held, below the lowest that was too fast."""
        return highest_held([one for one in self.probes if self.high is None or one.load < self.high.load])

    @cached_property
    def capacity(self) -> CapacityEstimate | None:
        return CapacityEstimate.of(self.probes)

    @cached_property
    def growing_queues(self) -> list[tuple[Queue, float]]:
        """The queues that grew beyond chance, each with the seconds of its probe."""
        return [(one.queue, one.duration_s or 0.0) for one in self.probes if one.queue and one.queue.has_grown]

    @cached_property
    def tpot_line(self) -> TpotLine | None:
        return TpotLine.of(self.consistent_probes, self.goal)

    @cached_property
    def estimate(self) -> Candidate:
        """The highest rate that a full test is expected to keep, infinite where nothing was too fast, and why."""
        most = self.capacity.qps if self.capacity else None
        # If the capacity is known, waiting follows from it: only a long probe with a steady queue knows better.
        steady = [one for one in self.consistent_probes if not most or (self.is_long(one) and not one.has_grown)]
        ttft = tuple((one.served_rate, one.ttft_ms.p99) for one in steady if one.ttft_ms.p99)
        tpot = tuple((one.served_rate, one.tpot_ms.p99) for one in self.consistent_probes if one.tpot_ms.p99)
        estimators = LatencyBracket("TTFT", ttft, most), self.tpot_line or LatencyBracket("TPOT", tpot, most)
        best = min(Candidate(MARGIN * one.rate(self.goal), f"by {one}") for one in estimators)
        if self.low and self.middle and best.rate < self.low.rate * CONFIRMED and self.has_room(self.low):
            best = self.middle  # an estimate below a rate that held with room is not believed
        if self.capacity:
            by_capacity = Candidate(MARGIN * self.capacity.rate(self.goal), f"by {self.capacity}")
            best = min(best, by_capacity)
        return best

    @property
    def middle(self) -> Candidate | None:
        """Between the highest that held and the lowest that did not, where these are far apart."""
        low, high = self.low, self.high
        if not (low and high and high.load > BRACKET * low.load):
            return None
        held, lost = number(low.load), number(high.load)
        between = f"between the highest that held ({held}) and the lowest that did not ({lost})"
        return Candidate(sqrt(low.load * high.load), between)

    def has_room(self, probe: Outcome) -> bool:
        """Whether a probe settled, and kept both limits by so much that a higher rate may, too."""
        pairs = (probe.ttft_ms.p99, self.goal.ttft_ms), (probe.tpot_ms.p99, self.goal.tpot_ms)
        return probe.is_settled and all((ms or 0.0) <= ROOM * limit for ms, limit in pairs)

    @cached_property
    def candidate(self) -> Candidate:
        """The rate that is worth a full test by all that is known: the estimate, below what was too fast; and why."""
        low, high, margin = self.low, self.high, MARGIN
        failed = min(high.rate, high.load) if high else inf  # random gaps add up to their own rate
        if high is None or self.estimate.rate <= margin * failed:
            return self.estimate
        if low is None:
            return Candidate(high.rate / self.step(sum(not one.has_held for one in self.probes)), "no rate held so far")
        below = f"just below the lowest that did not hold ({number(high.load)})"
        return self.middle or Candidate(min(low.load, margin * high.load), below)

    def step(self, count: int) -> float:
        """The ratio of the next rate to this one while only one side is known, after so many probes."""
        return float(min(STEP**2 ** min(count - 1, 9), 2.0))

    def is_long(self, probe: Outcome) -> bool:
        """Whether a probe lasted for so long that its waits are more than chance."""
        return (probe.duration_s or inf) >= LONG_S

    def confirming_s(self, rate: float) -> float:
        """Seconds of the probe that confirms a rate: until an overload as large as its distance to the capacity
        shows."""
        needed = CONFIRMING_S
        if self.capacity:
            needed = detection_s(rate, max(1 - rate / self.capacity.qps, 0.001))
        longest = max(CONFIRMING_S, CONFIRMING_QUERIES / rate)
        return max(self.goal.probe_s(rate), min(needed, longest, self.goal.full_s(rate)))


def longer_s(probe: Outcome, goal: Goal) -> float | None:
    """Seconds for which to repeat a probe that early stopping alone calls INVALID: it kept both limits, and was short.

    None for any other, and where a full test has too few queries, too.
    """
    queries = probe.rate * (probe.duration_s or 0)
    if probe.has_held or probe.has_grown or not probe.more or not queries:
        return None
    times = 1.2 * (1 + probe.more / queries)
    longer = times * (probe.duration_s or 0)
    return longer if times <= MOST_LONGER and longer <= goal.full_s(probe.rate) else None


def has_waited_unmeasured(evidence: Evidence) -> bool:
    """Whether the fastest probe fell because queries waited, though for too short to tell the server's capacity."""
    probe, goal = evidence.fastest, evidence.goal
    is_late = (probe.ttft_ms.p99 or 0.0) > goal.ttft_ms and (probe.tpot_ms.p99 or 0.0) <= goal.tpot_ms
    return evidence.capacity is None and is_late and not probe.has_grown


def has_vague_capacity(evidence: Evidence) -> bool:
    """Whether the capacity has a large error, and no long probe above it was made."""
    if not (most := evidence.capacity):
        return False
    is_vague = most.queue.completed_error > VAGUE * most.qps
    return is_vague and not any(evidence.is_long(one) and one.load > most.qps for one in evidence.probes)


def is_confirmed(evidence: Evidence) -> bool:
    """Whether a probe held about the candidate, for long enough."""
    rate = evidence.candidate.rate
    least_s, least = 0.9 * evidence.confirming_s(rate), rate / CONFIRMED
    return any(
        one.has_held and (one.duration_s or inf) >= least_s and max(one.load, one.rate) >= least
        for one in evidence.probes
    )


Choice = tuple[float, float] | None  # queries/s and, at least, seconds of the next probe; None ends the search


def remeasure_capacity(evidence: Evidence) -> Choice:
    most = evidence.capacity.qps if evidence.capacity else evidence.fastest.load
    return OVERLOAD * most, max(CAPACITY_S, evidence.goal.probe_s(most))


def longer_probe(evidence: Evidence) -> Choice:
    """A little above what was completed while the queue grew beyond chance, for so long that the capacity follows, or
    as long as a full test; None where the queue never grew so, or that was done."""
    if not (grown := evidence.growing_queues):
        return None
    error, rate, took_s = min((one.completed_error / one.completed, one.completed, seconds) for one, seconds in grown)
    seconds = min(SURELY * took_s * (error / PRECISE) ** 2, evidence.goal.full_s(rate))
    is_done = any(one.load > rate and (one.duration_s or 0.0) >= 0.9 * seconds for one in evidence.probes)
    return None if is_done else (OVERLOAD * rate, seconds)


def lower_beginning(evidence: Evidence) -> Choice:
    """None where a small share of the first rate does not hold either."""
    lowest = LOWEST * evidence.probes[0].load
    return (max(evidence.candidate.rate, lowest), 0.0) if evidence.high and evidence.high.load > lowest else None


# The first whose condition is met: the condition, the next probe, and the reason for it, formatted with `evidence`.
DECISIONS: tuple[tuple[Callable[[Evidence], object], Callable[[Evidence], Choice], str], ...] = (
    (
        lambda evidence: longer_s(evidence.last, evidence.goal),
        lambda evidence: (evidence.last.load, longer_s(evidence.last, evidence.goal) or 0.0),
        "early stopping wants {evidence.last.more:,} more queries",
    ),
    (
        lambda evidence: evidence.high is None,
        lambda evidence: (evidence.fastest.load * evidence.step(len(evidence.probes)), 0.0),
        "every rate held so far",
    ),
    (
        lambda evidence: has_waited_unmeasured(evidence) and longer_probe(evidence),
        longer_probe,
        "the queue grew, though for too short to tell the capacity",
    ),
    (
        lambda evidence: has_waited_unmeasured(evidence) and not evidence.growing_queues,
        lambda evidence: (evidence.fastest.load * STEP, 0.0),
        "queries waited at {evidence.fastest.text}, but for too short to tell the capacity",
    ),
    (has_vague_capacity, remeasure_capacity, "measures {evidence.capacity} again"),
    (lambda evidence: evidence.low is None, lower_beginning, "no rate held so far"),
    (is_confirmed, lambda evidence: None, ""),
    (
        lambda evidence: True,
        lambda evidence: (evidence.candidate.rate, evidence.confirming_s(evidence.candidate.rate)),
        "{evidence.candidate.reason}",
    ),
)


def next_probe(evidence: Evidence) -> Candidate | None:
    """What to try next, by the first decision that applies; None where the best is known, or nothing holds."""
    choice, reason = next((choice(evidence), reason) for applies, choice, reason in DECISIONS if applies(evidence))
    if choice is None:
        return None
    rate, seconds = choice
    # As many queries run as ever will after some latencies, of what is not kept waiting.
    settled_ms = SETTLED * min((one.latency_ms.p50 for one in evidence.probes if one.latency_ms.p50), default=0.0)
    seconds = max(seconds, evidence.goal.probe_s(rate), settled_ms / 1000)
    return Candidate(rate, reason.format(evidence=evidence), seconds)


LOWER, NEAR = 0.97, 0.9  # of a rate that did not hold a whole test: at most, and where its latencies do not tell


def rate_below(evidence: Evidence, rate: float) -> float:
    """The next rate after `rate`, which did not hold the last test, a full one: by that test's own latencies and by the
    capacity. Limit over TPOT falls evenly with the rate, and to nothing at the capacity."""
    goal, failed, capacity = evidence.goal, evidence.last, evidence.capacity
    found = [LOWER * rate]
    if (tpot := failed.tpot_ms.p99 or 0.0) > goal.tpot_ms:
        share = goal.tpot_ms / tpot
        room = capacity.qps - rate if capacity else 0.0
        found.append(rate - (1 / share - 1) * room if room > 0 else share * rate)
    if (failed.ttft_ms.p99 or 0.0) > goal.ttft_ms:
        found.append(MARGIN * capacity.rate(goal) if capacity else NEAR * rate)
    return min(found)


def rate_beyond(evidence: Evidence) -> float | None:
    """The rate that measures the capacity, where every given one held and none tells it; else None."""
    return STEP * evidence.low.load if evidence.low and evidence.high is None else None


def highest_held(probes: Sequence[Outcome]) -> Outcome | None:
    return max((probe for probe in probes if probe.has_held), key=lambda probe: probe.load, default=None)


def best_rate(evidence: Evidence) -> float | None:
    """The rate of the full test: what held, or less where the estimate says so; None where nothing held."""
    best = evidence.low
    return None if best is None else min(max(best.load, best.rate), evidence.candidate.rate)
