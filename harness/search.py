"""The highest rate at which LoadGen still says VALID: short tests on the loaded engine, closing in from both sides."""

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.rules import SURE_QUERIES

STEP = 1.15  # while only one side is known; the second is this squared, and so on up to 2
LOWEST = 0.1  # of the first rate; where that does not hold either, the limits are out of reach
CLOSE = 1.04  # ratio of the lowest INVALID to the highest VALID rate at which the search ends
MOST = 12
# A probe sees less than a full run: an overload too small to break a limit within the probe adds up over ten minutes.
MARGIN = 0.97
PROBE_S = 30.0  # five of them, with what is between, in three minutes
PROBE_QUERIES = 600
FLOOR, CEILING = 0.5, 1.06  # of the Offline rate: less is rarely lost; more no engine answers for long


@dataclass(frozen=True)
class Probe:
    """One short test of a load: a rate (queries/s), or samples per query; LoadGen's verdict, percentiles in
    milliseconds, output speed."""

    qps: float | None
    valid: bool
    ttft_p99: float | None
    tpot_p99: float | None
    ttft_p50: float | None = None
    tpot_p50: float | None = None
    tokens_per_sec: float | None = None  # output
    samples_per_sec: float | None = None
    samples_per_query: int = 1
    latency_p50: float | None = None  # of a query
    latency_p90: float | None = None

    @property
    def load(self) -> float:
        """What differs between the probes of a run."""
        return self.samples_per_query if self.qps is None else self.qps


def seconds(qps: float) -> float:
    """How long a probe at this rate must last."""
    return max(PROBE_S, PROBE_QUERIES / qps)


def search(start: float, probe: Callable[[float], Probe], floor: float = 0.0, ceiling: float = math.inf) -> list[Probe]:
    """Probes at rising or falling rates from `start` until the limit is bracketed closely; all of them, in order.

    The limit is expected between `floor` and `ceiling` queries/s; a rate of `ceiling` is taken as lost without a probe.
    """
    done: list[Probe] = []
    rate, low, high, step = start, 0.0, ceiling, STEP
    while len(done) < MOST:
        done.append(probe(rate))
        if done[-1].valid:
            low = rate
        else:
            high = rate
        if low and high < math.inf:
            if high / low <= CLOSE:
                break
            rate = math.sqrt(low * high)
        elif high < math.inf and high > CLOSE * floor > 0:
            rate = math.sqrt(floor * high)
        elif high <= LOWEST * start:
            break
        else:
            rate = low * step if low else max(high / step, LOWEST * start)
            step = min(step * step, 2.0)
    return done


def highest(probes: list[Probe]) -> Probe | None:
    """The best of the VALID ones."""
    return max((probe for probe in probes if probe.valid), key=lambda probe: probe.load, default=None)


__all__ = ["CLOSE", "MARGIN", "MOST", "PROBE_S", "SURE_QUERIES", "Probe", "highest", "search", "seconds"]
