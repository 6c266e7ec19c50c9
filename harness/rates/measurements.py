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
        """Return the rate that a full test should keep, judged by one probe; infinity if the probe shows no limit."""
        tests = [*self.probes, probe]  # The last one's cost of sharing counts.
        server = ServerModel.fit(self.lone, tests, self.goal)
        rate = server.highest_rate(self.goal)
        has_grown = probe.queue is not None and probe.queue.has_grown
        shares = self.goal.shares(probe)
        if not rate or is_overloaded(probe, self.goal) or max(shares) > FAR_OVER_SHARE:
            return rate
        by_probe = server.rate_after(probe, shares, self.goal.of_test(probe), self.goal)
        if by_probe < inf:
            rate = by_probe
        if probe.queue and has_grown and probe.valid:  # While the limits held, more came than it completed.
            rate = min(rate, probe.queue.completed * probe.load / probe.rate)
        return rate

    def is_late(self, probe: Outcome) -> bool:
        """Tell whether queries waited too long although the queue did not grow."""
        has_grown = probe.queue is not None and probe.queue.has_grown
        return self.goal.shares(probe)[0] > 1 and not has_grown

    @property
    def candidate(self) -> Candidate:
        """The rate that a full test should keep by all measurements, with the reason for it."""
        if self.lone.is_over(self.goal):
            return Candidate(0.0, "a lone request is over a limit")
        server = self.server
        rate = self.rate_by_curve
        if rate is None or self.shows_overloads_alone:
            points = [(probe.rate, self.implied_rate(probe)) for probe in self.probes if probe.queue]
            # A line through overloads leads too low on one server, and the model on another (an H200 that waits for its
            # CPU, "a neighbor of 3 in 90 s").
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
        """The rate at which the limits hold, by the probes without the model.

        If two probes at clearly different rates, both of which the model gave, were over a limit, the model is wrong.
        Then the rate is read from limit over p99, which is nearly a straight line over the rate. None if nothing
        contradicts the model, or if p99 does not rise with the rate.
        """
        points = self.steady_points
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
        """The rate of each probe whose queue did not grow, with its p99 as a share of the limit, by ascending rate."""
        points = []
        for probe in self.probes:
            if probe.queue and not is_overloaded(probe, self.goal) and not probe.has_grown:
                points.append((probe.load, max(self.goal.shares(probe))))
        return sorted(points)

    @property
    def shows_overloads_alone(self) -> bool:
        """Tell whether each probe was far over a limit, so that none shows how near the limit is."""
        return all(share > FAR_OVER_SHARE for _, share in self.steady_points)

    def confirming_s(self, rate: float) -> float:
        """Return the length of a probe at the candidate in seconds: long enough for the number of running queries to
        settle.
        """
        limit_ms = self.goal.ttft_ms + self.goal.tpot_ms * self.server.sharing.tokens
        latency_s = min(self.last.latency_ms.p50 or 0.0, limit_ms) / 1000
        settled_s = min(max(CONFIRMING_S, SETTLED * latency_s), self.goal.full_s(rate))
        return max(probe_s(rate, self.goal), settled_s)


def rate_on_line(low: tuple[float, float], high: tuple[float, float], share: float = 1.0) -> float | None:
    """Return the rate at which a p99 is the given share of its limit, from two pairs (rate, share).

    Limit over p99 is taken as a straight line over the rate. None if the share does not rise with the rate.
    """
    if high[1] <= low[1]:
        return None
    slope = (1 / low[1] - 1 / high[1]) / (high[0] - low[0])
    return max(low[0] + (1 / low[1] - 1 / share) / slope, LEAST_RATIO * low[0])


def self_implying_rate(points: Sequence[tuple[float, float]]) -> float:
    """Return the rate at which a test would imply that same rate, from pairs (rate of a test, rate that it implies).

    `points` are in the order of the tests. The result is interpolated between the nearest test that implies a higher
    rate than its own and the nearest that implies a lower one. If there is only one test, or the two are too close or
    contradict each other, the rate implied by the last test counts.
    """
    (rate, implied), earlier = points[-1], points[:-1]
    if not earlier or implied in (0.0, inf):
        return implied

    def distance(point: tuple[float, float]) -> float:
        return abs(point[0] - rate)

    low = max((point for point in points if point[1] >= point[0]), default=None)
    high = min((point for point in points if point[1] < point[0]), default=None)
    if low is None or high is None:
        low, high = sorted((min(earlier, key=distance), points[-1]))
    if high[0] <= (1 + SAME_RATE_SHARE) * low[0] or low[1] == inf:
        return implied
    above_low = low[1] - low[0]
    above_high = high[1] - high[0]
    if above_low <= above_high:
        return implied
    crossing = low[0] + above_low / (above_low - above_high) * (high[0] - low[0])
    return min(max(crossing, LEAST_RATIO * rate), rate / LEAST_RATIO)
