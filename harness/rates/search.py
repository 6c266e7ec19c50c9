"""The highest rate that a full test will keep: two facts, a candidate by what follows from them, a probe, full tests.

The facts are a request alone and one saturated probe (`measure`), which are also all that `--quick` takes. What follows
from them for a full test is simulated (`law`). A probe at the candidate measures the same again where it counts, and
the full test itself corrects what is left (`rate_after`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any, NamedTuple

from harness.config.patterns import SURE_QUERIES
from harness.config.plan import minutes
from harness.core.formatting import number
from harness.rates.law import FARTHEST, Alone, Goal, SharedServer, approached, error_of, is_full
from harness.results.load import LASTING_DRIFT
from harness.results.outcome import SETTLED, Outcome

# Constants that a simulation chose name its case of benchmarks.search.
PROBE_S = 30.0  # seconds of a probe at a rate that was given, at least, and of as many queries as early stopping takes
SATURATED_S = 30.0  # seconds of the saturated probe, at least: in 20 the ramp is not over (an H200, Server)
CONFIRMING_S = 60.0  # seconds of the probe at the candidate, at least
OVERLOAD = 1.3  # ratio of the saturated probe's rate to what the server seems to complete
FASTER = 2.0  # ratio of the next where that did not saturate it
MOST_PROBES = 8  # probes of a search
CAUTION = 0.98  # of a candidate: in ten minutes an H200 was 2 to 4 % slower than in its probes
PRECISE = 0.08  # standard error of a saturated server's completions, as a share; with a larger one it is asked again
REPEATS, LONGER = 2, 3.0  # of a probe in which the server changed; ratio of the next one's length (an H200, Server)
AGREED = 0.04  # of a probe's rate: a candidate nearer to it than that is not probed again
ROOM = 0.8  # share of the limits up to which a p99 leaves room for a higher rate
WORTH = 1.02  # ratio of a higher rate that is worth a full test
HIGHER = 1.4  # ratio of a next rate to one that held, at most: farther, a law is a guess (faster over ten minutes)
ONWARD = 1.75  # of a drift in a full test, in which the server became faster: to the next one (faster over ten minutes)
LOWER, NEAR = 0.97, 0.9  # of a rate that did not hold a full test: at most, and where its latencies do not tell
CHANCE = 0.2  # of a test's queries: where early stopping lacks more, chance decided (0.3/s)
MARGIN = 0.99  # of a rate by a full test: the next has other luck


class Candidate(NamedTuple):
    """A rate in queries/s that is worth a probe, why, and how many seconds of it."""

    rate: float
    reason: str
    seconds: float = 0.0


def probe_s(rate: float, goal: Goal, least: float = PROBE_S) -> float:
    """Seconds of a probe at this rate, at `least` so many where the full test is no shorter."""
    return min(max(least, SURE_QUERIES / rate), goal.full_s(rate))


@dataclass
class SearchFacts:
    """What is known of a server while it is searched."""

    goal: Goal
    alone: Alone
    probes: list[Outcome] = field(default_factory=list)

    @property
    def server(self) -> SharedServer:
        return SharedServer.of(self.alone, self.probes, self.goal)

    @property
    def last(self) -> Outcome:
        return self.probes[-1]

    def implied(self, probe: Outcome) -> float:
        """The rate that a full test should keep by what one probe measured; infinite where it tells no limit."""
        found, goal = SharedServer.of(self.alone, [*self.probes, probe], self.goal), self.goal
        rate, (share, _) = found.rate(goal), goal.shares(probe)
        if rate and probe.rate < found.capacity < inf:
            rate = min(rate, approached(found.capacity, probe.rate, share))
            if share > 1 and any(self.is_late(one) and one.load > probe.load for one in self.probes):
                rate = min(rate, probe.rate / share)  # lowered once by the law, which does not hold
        return rate

    def is_late(self, probe: Outcome) -> bool:
        """Whether queries waited for too long though the queue was steady."""
        return self.goal.shares(probe)[0] > 1 and not (probe.queue and probe.queue.has_grown)

    @property
    def candidate(self) -> Candidate:
        """The rate that a full test should keep by all that is known, and why."""
        found = self.server
        rate = crossing([(one.rate, self.implied(one)) for one in self.probes if one.queue])
        held = [one for one in self.probes if one.has_held]
        if rate == inf:
            fastest = max((one.load for one in held), default=self.last.load)
            return Candidate(fastest, "the fastest that was tried: nothing tells a limit")
        with_room = max((one.load for one in held if max(self.goal.shares(one)) < ROOM), default=0.0)
        if rate < with_room:
            return Candidate(with_room, "the fastest that held with room")
        if found.is_bounded:
            return Candidate(rate, f"by the capacity of {number(found.served_qps)} a second")
        return Candidate(
            rate,
            f"by TPOT, {number(1000 * found.alone.tpot_s, 3)} ms alone and without end at "
            f"{number(found.shared_qps, 3)} queries/s",
        )

    @property
    def chosen(self) -> Candidate:
        """The rate of the full test."""
        found = self.candidate
        return found._replace(rate=CAUTION * found.rate)

    def confirming_s(self, rate: float) -> float:
        """Seconds of the probe at a candidate."""
        within_ms = self.goal.ttft_ms + self.goal.tpot_ms * self.server.shared.tokens
        latency_s = min(self.last.latency_ms.p50 or 0.0, within_ms) / 1000
        return max(probe_s(rate, self.goal), min(max(CONFIRMING_S, SETTLED * latency_s), self.goal.full_s(rate)))


def crossing(points: Sequence[tuple[float, float]]) -> float:
    """The rate that implies itself, from rates and those that their tests imply, in the order of the tests: on the line
    through its neighbours; what the last test implies where it has one alone, or they are too near to each other or
    contradict each other.
    """
    (rate, implied), others = points[-1], points[:-1]
    if not others or implied in (0.0, inf):
        return implied
    low = max((point for point in points if point[1] >= point[0]), default=None)
    high = min((point for point in points if point[1] < point[0]), default=None)
    if low is None or high is None:
        low, high = sorted((min(others, key=lambda point: abs(point[0] - rate)), points[-1]))
    if high[0] <= (1 + AGREED) * low[0] or low[1] == inf:
        return implied
    before, after = low[1] - low[0], high[1] - high[0]
    if before <= after:
        return implied
    found = low[0] + before / (before - after) * (high[0] - low[0])
    return min(max(found, rate / FARTHEST), FARTHEST * rate)


def measure(bench: Any) -> SearchFacts:
    """The two facts: a request alone, and a probe that saturates the server; both again where a request alone takes
    another time after it. `bench`, a `probing.Bench`, is idle again before each measurement begins.
    """
    alone = bench.alone()
    for _ in range(REPEATS):
        facts = SearchFacts(bench.goal, alone)
        saturate(bench, facts)
        facts.alone = bench.alone()
        if abs(alone.latency_s / facts.alone.latency_s - 1) <= LASTING_DRIFT:
            break
        alone = facts.alone
    return facts


def saturate(bench: Any, facts: SearchFacts) -> None:
    """A probe that saturates the server; faster ones where it does not, longer ones where it is uneven."""
    goal, most = facts.goal, OVERLOAD * bench.at_once / facts.alone.latency_s
    rate = min(OVERLOAD * bench.burst(facts.alone), most)
    seconds, reason, longer = probe_s(rate, goal, SATURATED_S), "saturates the server: what it completes", 0
    while len(facts.probes) < MOST_PROBES:
        facts.probes.append(bench.probe(Candidate(rate, reason, seconds)))
        last, queue = facts.last, facts.last.queue
        if queue is None or not (is_full(last, goal) or last.rate >= facts.server.shared_qps):
            if rate == most:
                break
            rate = min(FASTER * rate, most)
            seconds, reason = probe_s(rate, goal, SATURATED_S), "the server kept up: a faster one"
        elif (  # another speed at its end than at its beginning, or uneven completions
            (queue.drift or (queue.completed and last.has_waited and error_of(queue) > PRECISE))
            and longer < REPEATS
            and seconds < goal.full_s(rate)
        ):
            seconds, longer = min(LONGER * seconds, goal.full_s(rate)), longer + 1
            became = f"{abs(queue.drift):.0%} {'faster' if queue.drift > 0 else 'slower'}"
            reason = (
                f"the server became {became} meanwhile: longer" if queue.drift else "completions are uneven: longer"
            )
        else:
            break


def estimate(bench: Any) -> SearchFacts:
    """The facts, and a short probe at the candidate, where there is one."""
    facts = measure(bench)
    if any(one.queue for one in facts.probes):
        chosen = facts.candidate
        if chosen.rate and abs(chosen.rate / facts.last.load - 1) > AGREED:
            facts.probes.append(bench.probe(chosen._replace(seconds=probe_s(chosen.rate, facts.goal, SATURATED_S))))
    return facts


def search(bench: Any) -> SearchFacts:
    """The facts, and probes at the candidate until it agrees with what it was probed at."""
    facts, repeats = measure(bench), 0
    if not any(one.queue for one in facts.probes):
        return facts
    while len(facts.probes) < MOST_PROBES:
        chosen = facts.candidate
        seconds = facts.confirming_s(chosen.rate) if chosen.rate else inf
        if 2 * seconds > facts.goal.full_s(chosen.rate or 1.0):  # the full test tells it as well
            break
        queue = facts.last.queue
        is_changed = bool(queue and queue.drift and repeats < REPEATS)
        if abs(chosen.rate / facts.last.load - 1) <= AGREED and not is_changed and not facts.is_late(facts.last):
            break
        repeats += is_changed
        facts.probes.append(bench.probe(chosen._replace(seconds=seconds)))
    return facts


def rate_after(tests: Sequence[Outcome], goal: Goal) -> float | None:
    """The next rate after a full test, the last of `tests`, by its own latencies and by the capacity: lower where it
    failed; higher where it held with room, None where that is not worth another test.
    """
    last = tests[-1]
    rate, shares = last.rate, goal.shares(last)
    share, near = max(shares), NEAR * rate
    seconds = last.duration_s or inf
    lost = [one for one in tests if not one.has_held and (one.duration_s or 0.0) >= NEAR * seconds]
    has_room = last.has_held and share < ROOM
    if last.has_held and not has_room:
        return None
    by_chance = (last.more or 0) > CHANCE * rate * seconds
    lower = near if len(lost) > 1 or by_chance else LOWER * rate  # the last of three is to hold (waves)
    found, faster = [inf if has_room else lower], 1.0
    if last.queue:
        seen = SharedServer.of(Alone((last.ttft_ms.min or 0.0) / 1000, max(last.queue.token_s, 1e-6)), tests, goal)
        known = [one.queue.free_capacity for one in tests if one.queue and one.rate < one.queue.free_capacity]
        most = last.queue.free_capacity if has_room else max((qps for qps in known if rate < qps < inf), default=inf)
        for one, capacity in zip(shares, (min(seen.served_qps, most), most), strict=True):
            if rate < capacity < inf:
                told = MARGIN * approached(capacity, rate, one)
                # Waits in a queue that grows tell nothing; one test alone leads no farther than NEAR.
                found.append(near if last.queue.has_grown else max(told, near * (len(lost) == 1)))
        if has_room:
            # The more room, the less the law counts; where it holds less than this test, it does not hold.
            found.append((1 - share) * min(found) + share * max(seen.rate(goal), rate))
            faster += ONWARD * max(last.queue.drift, 0.0)
        elif len(found) == 1 and seen.is_bounded and shares[0] > 1:  # above what it completes
            found.append(MARGIN * seen.rate(goal))
    if len(found) == 1 and share > 1:
        found.append(near)
    if min(found) == inf:  # nothing tells a limit
        return None
    following = min(faster * min(found), HIGHER * rate) * last.load / rate
    return None if has_room and following <= WORTH * last.load else following


def rate_by_waits(tests: Sequence[Outcome], goal: Goal) -> float:
    """The highest rate at which queries wait no longer than TTFT's limit in a full test; infinite where no test told
    the capacity.
    """
    if not (known := [one for one in tests if one.queue]):
        return inf
    alone_s = (min(one.at(kind, "min") or 0.0 for one in known) / 1000 for kind in ("ttft", "tpot"))
    server = SharedServer.of(Alone(*alone_s), known, goal)
    return server.rate(goal) if server.is_bounded else inf


def bracket(best: Outcome, tests: Sequence[Outcome], goal: Goal) -> str:
    """What is known of the highest rate, in words: `best` held a full test."""
    above = [one for one in tests if one.load > best.load and not one.has_held]
    failed = min(above, key=lambda one: one.load, default=None)
    said = f"VALID at {number(best.load)} queries/s for {minutes(best.duration_s or 0.0)}"
    if failed:
        said += f", INVALID at {number(failed.load)} for {minutes(failed.duration_s or 0.0)} ({failed.why})"
    if max(goal.shares(best)) < ROOM and (more := rate_after([best], goal)) and not (failed and failed.load <= more):
        said += f"; VALID with margin: up to {number(more)} queries/s may be VALID"
    return said
