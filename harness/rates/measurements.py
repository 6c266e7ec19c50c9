"""The measurements of a search, and the rate that follows from them for a full test."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from typing import NamedTuple

from harness.config.patterns import SURE_QUERIES
from harness.core.formatting import number
from harness.rates.first_requests import BurstResult
from harness.rates.goal import Goal
from harness.rates.prediction import LEAST_RATIO
from harness.rates.server_model import LoneRequest, ServerModel, is_overloaded
from harness.results.outcome import SETTLED, Outcome

PROBE_S = 30.0  # a probe of --quick or of a curve, in seconds; it also has the queries that early stopping needs
CONFIRMING_S = 60.0  # the shortest probe at a search's candidate, in seconds
ROOM_SHARE = 0.8  # A test with both p99 below this share of their limits has room for a higher rate.
FAR_OVER_SHARE = 2.0  # A p99 beyond this share of its limit shows an overload, from which no rate can be told.
SAME_RATE_SHARE = 0.04  # A candidate that is nearer to a probe's rate than this share of it is not probed again.


class Candidate(NamedTuple):
    """A rate in queries/s that is worth a probe of so many seconds, and why."""

    rate: float
    reason: str
    seconds: float = 0.0
    is_bound: bool = False  # No measurement shows a limit, so the highest rate may be higher.


def probe_s(rate: float, goal: Goal, least_s: float = PROBE_S) -> float:
    """Return the length of a probe at this rate in seconds: at least `least_s`, but no longer than the full test."""
    return min(max(least_s, SURE_QUERIES / rate), goal.full_s(rate))


@dataclass
class Measurements:
    """The measurements of a server so far."""

    goal: Goal
    lone: LoneRequest = LoneRequest()
    probes: list[Outcome] = field(default_factory=list)
    burst: BurstResult | None = None
    has_confirmed: bool = False  # --quick has probed its candidate, or need not.

    @property
    def server(self) -> ServerModel:
        return ServerModel.fit(self.lone, self.probes, self.goal)

    @property
    def last(self) -> Outcome:
        return self.probes[-1]

    @property
    def has_queue(self) -> bool:
        """Tell whether some probe had enough queries to show how the server works."""
        return any(probe.queue for probe in self.probes)

    def implied_rate(self, probe: Outcome) -> float:
        """Return the rate that a full test should keep, judged by one probe; infinity if the probe shows no limit.

        An overload, or a p99 far beyond its limit, tells only the server's capacity: then the model alone decides. Any
        other probe corrects the model by its p99.
        """
        # The model takes from its last test how much answers slow each other down, so the probe to judge comes last.
        tests = [*self.probes, probe]
        server = ServerModel.fit(self.lone, tests, self.goal)
        rate = server.highest_rate(self.goal)
        has_grown = probe.queue is not None and probe.queue.has_grown
        shares = self.goal.shares(probe)
        if not rate or is_overloaded(probe, self.goal) or max(shares) > FAR_OVER_SHARE:
            return rate
        by_probe = server.rate_after(probe, shares, self.goal.of_test(probe), self.goal)
        if by_probe < inf:
            rate = by_probe
        if probe.queue and has_grown and probe.valid:
            # The latencies kept their limits only because the probe was short: more queries came than were completed.
            rate = min(rate, probe.queue.completed * probe.load / probe.rate)
        return rate

    def is_late(self, probe: Outcome) -> bool:
        """Tell whether a probe's TTFT was over its limit although its queue did not grow.

        The server then keeps up with the rate, but each query waits.
        """
        has_grown = probe.queue is not None and probe.queue.has_grown
        ttft_share, _ = self.goal.shares(probe)
        return ttft_share > 1 and not has_grown

    @property
    def candidate(self) -> Candidate:
        """The highest rate at which a full test should keep the limits, by all measurements, with the reason for it.

        It is 0 if a lone request is over a limit, and the fastest rate that was tried if nothing shows a limit. Else
        the server's capacity or TPOT decides, but the rate is never below one that held with both latencies well within
        their limits.
        """
        if self.lone.is_over(self.goal):
            return Candidate(0.0, "a lone request is over a limit")
        server = self.server
        rate = self.rate_by_curve
        if rate is None or self.shows_overloads_alone:
            points = [(probe.rate, self.implied_rate(probe)) for probe in self.probes if probe.queue]
            # If all probes are overloads, the curve gives too low a rate on one server, and the model on another (an
            # H200 that waits for its CPU, "a neighbor of 3 in 90 s"). So the higher of the two counts.
            rate = max(self_implying_rate(points), rate or 0.0)
        held = [probe for probe in self.probes if probe.has_held]
        if rate == inf:
            fastest = max((probe.load for probe in held), default=self.last.load)
            return Candidate(fastest, "the fastest that was tried: nothing tells a limit", is_bound=True)
        with_room = [probe.load for probe in held if max(self.goal.shares(probe)) < ROOM_SHARE]
        if rate < max(with_room, default=0.0):
            return Candidate(max(with_room), "the fastest that held with room")
        if server.is_capped:
            return Candidate(rate, f"by the capacity of {number(server.capped_capacity)} a second")
        lone_ms = number(1000 * server.lone.tpot_s, 3)
        return Candidate(
            rate, f"by TPOT, {lone_ms} ms alone and without end at {number(server.sharing_capacity, 3)} queries/s"
        )

    @property
    def rate_by_curve(self) -> float | None:
        """The rate at which a p99 reaches its limit, by a line through two probes; None while the model is trusted.

        The model chose the probes' rates. If probes at two clearly different rates were over a limit, the model is
        wrong, and the line decides: the ratio of limit to p99 is nearly a straight line over the rate. It goes through
        the lowest rate over a limit and a second rate: one clearly below it, if there is one, else one clearly above
        it. None also if p99 does not rise between the two.
        """
        points = self.steady_points  # by ascending rate
        late = [(rate, share) for rate, share in points if share > 1]
        if not late:
            return None
        lowest_rate, _ = late[0]
        far = [(rate, share) for rate, share in late if rate > (1 + SAME_RATE_SHARE) * lowest_rate]
        if not far:
            return None
        below = [(rate, share) for rate, share in points if (1 + SAME_RATE_SHARE) * rate < lowest_rate]
        if below:
            return rate_on_line(below[-1], late[0])
        return rate_on_line(late[0], far[0])

    @property
    def steady_points(self) -> list[tuple[float, float]]:
        """The probes with a steady load, as pairs by ascending rate.

        A pair has the rate, and the larger of the p99 of TTFT and that of TPOT, each as a share of its limit. The load
        was steady if the queue was measured, did not grow, and is not likely to have grown (`is_overloaded`).
        """
        points = []
        for probe in self.probes:
            if probe.queue and not is_overloaded(probe, self.goal) and not probe.has_grown:
                points.append((probe.load, max(self.goal.shares(probe))))
        return sorted(points)

    @property
    def shows_overloads_alone(self) -> bool:
        """Tell whether each steady probe was far over a limit, so that none shows at which rate the limit is reached.

        True also if no probe was steady.
        """
        return all(share > FAR_OVER_SHARE for _, share in self.steady_points)

    def confirming_s(self, rate: float) -> float:
        """Return the length in seconds of a probe at the candidate rate.

        It is long enough for the number of running queries to settle, which takes several times an answer's latency,
        but no longer than the full test. The latency is the last probe's. That may have been an overload, so no more
        than an answer's latency at both limits is taken.
        """
        limit_ms = self.goal.ttft_ms + self.goal.tpot_ms * self.server.sharing.tokens
        latency_s = min(self.last.latency_ms.p50 or 0.0, limit_ms) / 1000
        settled_s = min(max(CONFIRMING_S, SETTLED * latency_s), self.goal.full_s(rate))
        return max(probe_s(rate, self.goal), settled_s)


def rate_on_line(low: tuple[float, float], high: tuple[float, float], share: float = 1.0) -> float | None:
    """Return the rate at which a p99 is the given share of its limit, from two tests.

    `low` and `high` are pairs of a test's rate and its p99 as a share of the limit. The ratio of limit to p99 (one over
    the share) is taken as a straight line over the rate. The line is not followed below half the lower rate, where it
    would be a guess. None if the share does not rise from `low` to `high`.
    """
    low_rate, low_share = low
    high_rate, high_share = high
    if high_share <= low_share:
        return None
    slope = (1 / low_share - 1 / high_share) / (high_rate - low_rate)
    return max(low_rate + (1 / low_share - 1 / share) / slope, LEAST_RATIO * low_rate)


def self_implying_rate(points: Sequence[tuple[float, float]]) -> float:
    """Return the rate at which a test would imply that same rate, from pairs (rate of a test, rate that it implies).

    `points` are in the order of the tests. The result lies on the line between two tests: the fastest that implies a
    higher rate than its own, and the slowest that implies a lower one. If all tests imply the same direction, the last
    test and the test nearest to it are taken instead. If there is only one test, or the two are too close or contradict
    each other, the rate implied by the last test counts. A point on the line is kept within a factor of two of the last
    test's rate.
    """
    (rate, implied), earlier = points[-1], points[:-1]
    if not earlier or implied in (0.0, inf):
        return implied  # One point gives no line. At 0 no rate keeps the limits; at infinity none is exceeded.

    def distance(point: tuple[float, float]) -> float:
        """Return how far a test's rate is from that of the last test."""
        return abs(point[0] - rate)

    # The highest rate that is too low, and the lowest that is too high, by the rate that each test implies.
    low = max((point for point in points if point[1] >= point[0]), default=None)
    high = min((point for point in points if point[1] < point[0]), default=None)
    if low is None or high is None:
        low, high = sorted((min(earlier, key=distance), points[-1]))
    (low_rate, low_implied), (high_rate, high_implied) = low, high
    if high_rate <= (1 + SAME_RATE_SHARE) * low_rate or low_implied == inf:
        return implied
    # How far the implied rate is above the test's own: positive at a rate that is too low, negative at one too high.
    excess_low = low_implied - low_rate
    excess_high = high_implied - high_rate
    if excess_low <= excess_high:
        return implied
    crossing = low_rate + excess_low / (excess_low - excess_high) * (high_rate - low_rate)
    return min(max(crossing, LEAST_RATIO * rate), rate / LEAST_RATIO)
