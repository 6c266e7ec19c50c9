"""The measurements of a search, and the rate that follows from them for a full test."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import inf
from statistics import linear_regression
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
    is_limit_unknown: bool = False  # No measurement shows a limit, so the highest rate may be higher.


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
    is_candidate_probed: bool = False  # True as well where --quick needs no probe at its candidate.

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
        """Return the rate that a full test should keep, judged by one probe.

        If the probe shows no limit, the rate is that of the model, which is infinity if no other probe shows one.
        """
        # The model takes from its last test how much answers slow each other down, so the probe to judge comes last,
        # even if it is among the others already.
        server = ServerModel.fit(self.lone, [*self.probes, probe], self.goal)
        rate_by_model = server.highest_rate(self.goal)
        if not rate_by_model:  # No rate keeps the limits.
            return 0.0
        p99_shares = self.goal.shares(probe)  # of TTFT and TPOT, as shares of their limits
        is_far_over_limit = max(p99_shares) > FAR_OVER_SHARE
        # An overload, or a p99 far over its limit, shows only the server's capacity, which the model knows already.
        if is_overloaded(probe, self.goal) or is_far_over_limit:
            return rate_by_model
        rate_by_p99 = server.rate_by_p99_of(probe, p99_shares, test_goal=self.goal.of_test(probe), goal=self.goal)
        is_limit_shown = rate_by_p99 < inf
        rate = rate_by_p99 if is_limit_shown else rate_by_model
        # The probe may have been too short to exceed a limit, although more queries came than the server completed.
        return min(rate, rate_by_growth(probe))

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

        The rate is 0 if no rate keeps the limits.
        """
        if self.lone.is_over(self.goal):
            return Candidate(0.0, "a lone request is over a limit")
        rate = self.computed_rate
        held = [probe for probe in self.probes if probe.has_held]
        if rate == inf:  # Nothing shows a limit.
            fastest = max((probe.load for probe in held), default=self.last.load)
            return Candidate(fastest, "the fastest that was tried: no limit shows", is_limit_unknown=True)
        # A computed rate must not be below a rate that was measured to keep both limits by far.
        rates_with_room = [probe.load for probe in held if max(self.goal.shares(probe)) < ROOM_SHARE]
        if rate < max(rates_with_room, default=0.0):
            return Candidate(max(rates_with_room), "the fastest that held with room")
        server = self.server
        if server.is_capped:  # Queries wait for a place at the server, while TPOT keeps its limit.
            return Candidate(rate, f"by the capacity of {number(server.capped_capacity)} a second")
        lone_ms = number(1000 * server.lone.tpot_s, 3)
        return Candidate(
            rate,
            f"by TPOT, {lone_ms} ms alone and growing without bound at {number(server.sharing_capacity, 3)} queries/s",
        )

    @property
    def computed_rate(self) -> float:
        """The rate that a full test should keep; infinity if no limit shows.

        It is read from the curve of the probes' p99 over their rates, or follows from the model of the server.
        """
        rate_by_curve = self.rate_by_curve
        if rate_by_curve is not None and not self.shows_overloads_alone:
            return rate_by_curve
        # The rate that a probe implies depends on the probe's own rate. Wanted is the rate that would imply itself.
        # A probe with too few queries to show a queue says nothing about the server.
        points = [(probe.rate, self.implied_rate(probe)) for probe in self.probes if probe.queue]
        rate_by_model = self_implying_rate(points)
        # From overloads alone, the curve gives too low a rate on some servers, and the model on others. So the higher
        # of the two counts (the case "a neighbor of 3 in 90 s" of benchmarks.search).
        return max(rate_by_model, rate_by_curve or 0.0)

    @property
    def rate_by_curve(self) -> float | None:
        """The rate at which a p99 reaches its limit, by a line through the probes; None while the model is trusted.

        None also if p99 does not rise along the line.
        """
        points = self.steady_points  # pairs (rate, p99 as a share of its limit), by ascending rate
        over_limit = [(rate, share) for rate, share in points if share > 1]
        if not over_limit:
            return None
        lowest_over_limit = over_limit[0]
        lowest_rate, highest_rate = lowest_over_limit[0], over_limit[-1][0]  # of those over a limit
        # The model chose the probes' rates. It is wrong if probes at two clearly different rates were over a limit.
        if not is_clearly_higher(highest_rate, lowest_rate):
            return None
        points_below = [(rate, share) for rate, share in points if is_clearly_higher(lowest_rate, rate)]
        if points_below:  # A point within the limits and one over a limit have the result between them.
            return rate_on_line(points_below[-1], lowest_over_limit)
        return rate_on_fitted_line(points)  # Beyond the points, chance in any two of them would mislead.

    @property
    def steady_points(self) -> list[tuple[float, float]]:
        """The probes in which the server kept up, as pairs by ascending rate.

        A pair has the rate, and the larger of the p99 of TTFT and that of TPOT, each as a share of its limit.
        """
        points = []
        for probe in self.probes:
            has_kept_up = not is_overloaded(probe, self.goal) and not probe.has_grown
            if probe.queue is not None and has_kept_up:  # Short tests have no record of their queue.
                points.append((probe.load, max(self.goal.shares(probe))))
        return sorted(points)

    @property
    def shows_overloads_alone(self) -> bool:
        """Tell whether each steady probe was far over a limit, so that none shows at which rate the limit is reached.

        True also if no probe was steady.
        """
        return all(share > FAR_OVER_SHARE for _, share in self.steady_points)

    def confirming_s(self, rate: float) -> float:
        """Return the length in seconds of a probe at `rate`, the rate that all measurements imply for a full test.

        The probe is long enough for the number of running queries to settle, which takes several times an answer's
        latency.
        """
        # The last probe shows the latency. If it was an overload, answers at `rate` take less time: they keep the
        # limits of TTFT and TPOT.
        tokens_of_answer = self.server.sharing.tokens
        longest_latency_ms = self.goal.ttft_ms + self.goal.tpot_ms * tokens_of_answer
        latency_s = min(self.last.latency_ms.p50 or 0.0, longest_latency_ms) / 1000
        settled_s = max(CONFIRMING_S, SETTLED * latency_s)
        # A probe must have the queries that early stopping needs, but takes no longer than the full test itself.
        return max(probe_s(rate, self.goal), min(settled_s, self.goal.full_s(rate)))


def is_clearly_higher(rate: float, other_rate: float) -> bool:
    return rate > (1 + SAME_RATE_SHARE) * other_rate


def rate_by_growth(probe: Outcome) -> float:
    """Return the rate at which the queue of a VALID probe would not have grown.

    If it grew, more queries came than were completed, and the latencies were within their limits only because the probe
    was short. Infinity if the queue did not grow, or if the probe is not VALID, so that its latencies show the limit.
    """
    queue = probe.queue
    if queue is None or not queue.has_grown or not probe.valid:
        return inf
    completed_qps = queue.completed
    # Random gaps make the sent rate (`probe.rate`) differ from the rate that was asked for (`probe.load`). The
    # completed queries belong to the sent rate, but the result is a rate to ask for.
    return completed_qps * probe.load / probe.rate


def rate_on_fitted_line(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the rate at which a p99 reaches its limit, by the line that fits all tests best.

    A point is a test's rate and its p99 as a share of the limit. The rates ascend, and are not all equal. None if p99
    does not rise.
    """
    rates, shares = zip(*points, strict=True)
    # One over the share falls nearly in a straight line over the rate.
    slope, one_over_share_at_zero = linear_regression(rates, [1 / share for share in shares])
    if slope >= 0:
        return None
    rate: float = (1 - one_over_share_at_zero) / slope
    least_rate: float = LEAST_RATIO * rates[0]  # Farther below all tests, the line would be a guess.
    return max(rate, least_rate)


def rate_on_line(low: tuple[float, float], high: tuple[float, float], share: float = 1.0) -> float | None:
    """Return the rate at which a p99 is the given share of its limit, by the line through two tests.

    Each test is a pair of its rate and its p99 as a share of the limit. None if p99 does not rise.
    """
    low_rate, low_share = low
    high_rate, high_share = high
    if high_share <= low_share:
        return None
    # The ratio of limit to p99, which is one over the share, falls nearly in a straight line over the rate.
    fall_per_qps = (1 / low_share - 1 / high_share) / (high_rate - low_rate)
    rate = low_rate + (1 / low_share - 1 / share) / fall_per_qps
    return max(rate, LEAST_RATIO * low_rate)  # Farther below both tests, the line would be a guess.


def points_of_line(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return two of the points, the lower rate first, through which a line leads to the wanted rate.

    A point is a test's rate and the rate that the test implies. At the wanted rate, both are equal. There are two or
    more points.
    """
    too_low = [(rate, implied) for rate, implied in points if implied >= rate]
    too_high = [(rate, implied) for rate, implied in points if implied < rate]
    if too_low and too_high:  # The wanted rate is between the highest that was too low and the lowest too high.
        return max(too_low), min(too_high)
    # All rates were too low, or all too high: the last test counts, and the one with the nearest rate.
    *earlier, last = points
    nearest = min(earlier, key=lambda point: abs(point[0] - last[0]))
    return min(nearest, last), max(nearest, last)


def self_implying_rate(points: Sequence[tuple[float, float]]) -> float:
    """Return the rate at which a test would imply just this rate, by the line through two of the tests.

    `points` are pairs in the order of the tests: the rate of a test, and the rate that it implies, which is the highest
    that a full test should keep by this test alone.
    """
    last_rate, last_implied = points[-1]
    if len(points) == 1 or last_implied in (0.0, inf):
        return last_implied  # One point gives no line. At 0 no rate keeps the limits; at infinity none is exceeded.
    (low_rate, low_implied), (high_rate, high_implied) = points_of_line(points)
    if not is_clearly_higher(high_rate, low_rate):  # Chance would decide the slope between so near rates.
        return last_implied
    if low_implied == inf:  # This is no point of a line.
        return last_implied
    # How far the implied rate is above the test's own: positive at a rate that is too low, negative at one too high.
    excess_low = low_implied - low_rate
    excess_high = high_implied - high_rate
    if excess_low <= excess_high:  # The tests contradict each other: the excess should fall as the rate rises.
        return last_implied
    rate_without_excess = low_rate + excess_low / (excess_low - excess_high) * (high_rate - low_rate)
    # Farther from the last test than by this ratio, the line would be a guess.
    return min(max(rate_without_excess, LEAST_RATIO * last_rate), last_rate / LEAST_RATIO)
