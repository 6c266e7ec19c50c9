"""Three estimates of the highest rate in queries/s that a full test will keep; as text, what each rests on."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

from harness.common.markdown import number
from harness.rates.queueing import rate_by_tpot, rate_by_ttft
from harness.rates.rules import Goal
from harness.runs.probe import Probe, Queue

LEAST_ALONE = 0.01  # share of TPOT's limit that a token takes alone, whatever a line says


@dataclass(frozen=True)
class Capacity:
    """What the server completes at most: random arrivals, over a full test, wait no longer than TTFT's limit allows."""

    queue: Queue
    first_token_s: float  # of a query that waits for nothing

    @classmethod
    def of(cls, probes: Sequence[Probe]) -> Self | None:
        """By the best measurement."""
        queues = [probe.queue for probe in probes if probe.queue and probe.capacity]
        best = min(queues, key=lambda queue: queue.completed_error, default=None)
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
        return f"the capacity of {number(self.qps)} a second"


@dataclass(frozen=True)
class TpotLine:
    """Queries share the server as a processor is shared: mean TPOT = alone / (1 - rate / capacity), so that 1 / TPOT
    falls on a line over the rate. Random arrivals, over a full test, keep TPOT's limit."""

    alone_s: float  # of a token
    capacity: float  # queries/s
    prompts: float  # share of a query's work for which all answers wait
    tokens: float  # of an answer
    basis: str

    @classmethod
    def of(cls, probes: Sequence[Probe], goal: Goal) -> Self | None:
        """The line through all that held and settled; where their rates are too near to each other, that of the queries
        within the probe that came nearest to the limit. None where waiting is a good part of a query's time, or what
        runs beside it costs nothing."""
        told = [(one, one.queue) for one in probes if one.tpot_p99 and one.tokens and one.queue and not one.has_waited]
        shared = [(one, queue) for one, queue in told if queue.each_s + queue.prompt_s > 0]
        if not shared:
            return None
        held = [(one, queue) for one, queue in shared if one.has_held and one.is_settled]
        nearest, queue = min(
            held or shared, key=lambda each: abs(math.log((each[0].tpot_p99 or math.inf) / goal.tpot_ms))
        )
        work_s = queue.each_s + queue.prompt_s
        alone_s, capacity = (queue.base_s + queue.each_s) / nearest.tokens, 1 / work_s
        basis = f"by the queries at {number(nearest.load)}"
        if line := line_through([one for one, _ in held if one.tpot_mean], goal.rules.spread):
            (alone_s, capacity), basis = line, f"by the means of {len(held)} probes that held"
        prompts = min(1.0, max(0.0, queue.prompt_s / work_s))
        return cls(max(alone_s, LEAST_ALONE * goal.tpot_ms / 1000), capacity, prompts, nearest.tokens, basis)

    def rate(self, goal: Goal) -> float:
        alone_s, limit_s = self.alone_s * self.tokens, goal.tpot_ms * self.tokens / 1000
        return rate_by_tpot(alone_s, self.capacity, self.prompts, limit_s, goal.seconds, goal.queries)

    def __str__(self) -> str:
        alone = f"{number(1000 * self.alone_s, 3)} ms alone"
        return f"TPOT, {alone} and without end at {number(self.capacity, 3)} queries/s: {self.basis}"


def line_through(probes: Sequence[Probe], spread: float) -> tuple[float, float] | None:
    """Seconds of a token alone and the capacity, by the mean TPOT of these probes."""
    import numpy as np

    rates = [one.rate for one in probes]
    if not rates or max(rates) < spread * min(rates):
        return None
    speeds = [1000 / (one.tpot_mean or math.inf) for one in probes]
    slope, alone = np.polyfit(rates, speeds, 1, w=np.sqrt([one.seconds or 1.0 for one in probes]))
    return (float(1 / alone), float(-alone / slope)) if alone > 0 > slope else None


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
