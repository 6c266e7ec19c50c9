"""Three estimates of the highest rate in queries/s that a full test will keep; as text, what each rests on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from harness.rates.queueing import detection_s, rate_by_tpot, rate_by_ttft
from harness.rates.rules import Goal
from harness.runs.probe import Probe, Queue


@dataclass(frozen=True)
class Capacity:
    """What the server completes at most: random arrivals, over a full test, wait no longer than TTFT's limit allows."""

    queue: Queue
    first_token_s: float  # of a query that waits for nothing

    @classmethod
    def of(cls, probes: Sequence[Probe]) -> Self | None:
        """The best measurement, but none of a slow start, which kept up with more."""
        queues = [probe.queue for probe in probes if probe.queue and probe.capacity]
        kept = [queue for queue in queues if not any(contradicts(probe, queue.completed) for probe in probes)]
        best = min(kept, key=lambda queue: queue.completed_error, default=None)
        return cls(best, min(probe.ttft_min or 0.0 for probe in probes) / 1000) if best else None

    @property
    def qps(self) -> float:
        return self.queue.completed

    def rate(self, goal: Goal) -> float:
        least = self.qps - self.queue.completed_error / 2
        room_s = goal.ttft_ms / 1000 - self.first_token_s
        if least * room_s < goal.rules.fewest_waiting and self.first_token_s * self.qps <= 1 / 2:
            return least
        return rate_by_ttft(least, room_s, goal.seconds, goal.queries, min(self.queue.dispersion, 1.0))

    def __str__(self) -> str:
        return f"the capacity of {self.qps:.4g} a second"


def contradicts(probe: Probe, capacity: float) -> bool:
    """Whether a probe kept up with more than was taken for the capacity, for so long that it would have shown."""
    if not (probe.has_held and probe.is_settled and probe.seconds and probe.rate > capacity):
        return False
    if probe.queue and probe.queue.completed - probe.queue.completed_error <= capacity:
        return False
    return probe.seconds >= detection_s(probe.rate, 1 - capacity / probe.rate)


@dataclass(frozen=True)
class TpotLine:
    """What a query takes by what runs beside it, up to TPOT's limit over a whole query."""

    probe: Probe  # the one that came nearest to the limit
    queue: Queue
    limit_s: float

    @classmethod
    def of(cls, probes: Sequence[Probe], goal: Goal) -> Self | None:
        """None where waiting is a good part of a query's time, or what runs beside it costs nothing."""
        lines = [
            (abs(math.log(one.tpot_p99 / goal.tpot_ms)), cls(one, one.queue, goal.tpot_ms * tokens / 1000))
            for one in probes
            if one.queue and one.queue.each_s > 0 and one.tpot_p99 and one.tpot_p50 and not one.has_waited
            if (tokens := (one.latency_p50 or 0.0) / one.tpot_p50)
        ]
        best = min(lines, key=lambda line: line[0])[1] if lines else None
        return best if best and best.limit_s > best.queue.base_s else None

    def rate(self, goal: Goal) -> float:
        return rate_by_tpot(self.queue.base_s, self.queue.each_s, self.limit_s, goal.seconds, goal.queries)

    def __str__(self) -> str:
        return f"TPOT under load at {self.probe.load:.4g}"


@dataclass(frozen=True)
class LatencyBracket:
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
            return crossing(held, full) if held and full else math.inf
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
