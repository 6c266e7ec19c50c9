"""From a measured curve and a day's traffic to machines: how many replicas each hour needs, and what they cost.

Nothing is interpolated. A replica's rate is the highest that was measured within the limits; at a lower rate its
latency is at most that of the next measured point above it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.common.errors import UsageError
from harness.results.summary import Summary
from harness.runs.probe import Probe, deciding

HOURS_A_MONTH = 730.0  # 365 x 24 / 12
BUSY = "machine busy"
ROUNDING_MARGIN = 1.0 + 1e-9


@dataclass(frozen=True)
class CurvePoint:
    """One load of a curve: requests/s that a replica answered, its p99 latencies in ms, whether they kept the limits
    with a steady queue, and why that was not judged."""

    load: str
    rate: float
    ttft_p99: float | None
    tpot_p99: float | None
    kept: bool
    unjudged: str = ""


@dataclass(frozen=True)
class Hour:
    """An hour of traffic: its busiest minute in requests/s, and the replicas for that."""

    hour: int
    peak: float
    replicas: int


@dataclass(frozen=True)
class Fleet:
    """What the traffic needs of replicas that answer `rate` requests/s each within the limits."""

    best: CurvePoint
    rate: float  # of it, after the headroom
    hours: tuple[Hour, ...]
    at_peak: CurvePoint | None  # the measured point whose latencies the busiest minute stays under
    without_one: CurvePoint | None  # the same, with one replica fewer; None: more than was measured within the limits
    month: float | None  # in the currency of --price-per-hour

    @property
    def most(self) -> int:
        return max(hour.replicas for hour in self.hours)

    @property
    def replica_hours(self) -> int:
        return sum(hour.replicas for hour in self.hours)


def points(summary: Summary) -> list[CurvePoint]:
    """The loads of a run that were tested, by rate: its probes and its own test. Raises UsageError where none was."""
    test = summary.run.performance
    fell = test.target_qps if test and not test.valid else None
    found = [
        CurvePoint(
            f"{probe.load:g} {probe.unit}",
            probe.samples_per_sec,
            probe.shown("ttft_p99"),
            probe.shown("tpot_p99"),
            probe.has_kept and not has_fallen_at(probe, fell) and not probe.busy,
            BUSY if probe.busy else "too few queries" if probe.is_short and not has_fallen_at(probe, fell) else "",
        )
        for probe in deciding(summary.run.search or ())
        if probe.samples_per_sec
    ]
    if test and test.samples_per_sec and not test.concurrency:
        tails = [latency.p99 if latency and not test.is_few else None for latency in (test.ttft_ms, test.tpot_ms)]
        busy = BUSY if test.background_load else ""
        kept = test.valid and not busy
        found.append(CurvePoint("the run's own test", test.samples_per_sec, tails[0], tails[1], kept, busy))
    if not found:
        raise UsageError(
            f"{summary.meta.run}: no load was tested: use a run with --server-target-qps 5,10,20 or --concurrency."
        )
    return sorted(found, key=lambda point: point.rate)


def has_fallen_at(probe: Probe, fell: float | None) -> bool:
    """Whether a whole test `fell` at a probe's rate or a lower one, in queries/s."""
    return probe.qps is not None and fell is not None and probe.qps >= fell


def fleet(curve: Sequence[CurvePoint], minutes: Sequence[float], headroom: float, price: float | None) -> Fleet:
    """The replicas for each hour of `minutes`, which are requests/s by minute from the first hour on.

    `headroom` is the share of a replica's rate that is kept free, `price` that of a replica's hour. Raises UsageError
    where no load kept the limits.
    """
    kept = [point for point in curve if point.kept]
    if not kept:
        raise UsageError("no load of this run was within the limits, so there is no rate to plan with.")
    best = kept[-1]
    rate = best.rate * (1 - headroom)
    peaks = [max(minutes[begin : begin + 60]) for begin in range(0, len(minutes), 60)]
    hours = tuple(Hour(n, peak, max(1, math.ceil(peak / rate / ROUNDING_MARGIN))) for n, peak in enumerate(peaks))
    busiest = max(hours, key=lambda hour: hour.peak)
    fewer = busiest.peak / (busiest.replicas - 1) if busiest.replicas > 1 else math.inf
    total = sum(hour.replicas for hour in hours)
    month = None if price is None else price * total / len(hours) * HOURS_A_MONTH
    return Fleet(best, rate, hours, above(kept, busiest.peak / busiest.replicas), above(kept, fewer), month)


def above(kept: Sequence[CurvePoint], rate: float) -> CurvePoint | None:
    """The lowest measured point, within the limits, at this rate or a higher one."""
    return next((point for point in kept if point.rate * ROUNDING_MARGIN >= rate), None)
