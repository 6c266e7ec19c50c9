"""The steady state of a test at fixed concurrency, as MLPerf Endpoints finds it: endpoints_rules.md, section 4.4, and
the constants of the official detector (metrics/steady_state_diagnostics.py in mlcommons/endpoints, 2026-09).

Requests in the order of issue fall into super-passes, one pass of the data set each. After the ramp, a window of them
is steady if time per output token is a plateau over it, at p50 and at p90: little scatter, and no large trend. The
window is one of issue time, so the drain is not in it. TTFT decides nothing, since its spread follows the prompts.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean, linear_regression, median, pstdev
from typing import Any, Literal

import numpy as np

from harness.common.statistics import NORMAL
from harness.loadgen.requests import Request, without_failures

LEAST = 4  # super-passes of a window: MIN_TREND_N of the rules, below which a trend means nothing
MOST = 64  # super-passes of a test: more tell no more, and a small set would have thousands
RAMP_BAND = 0.05  # of the steady TPOT p50; super-passes at the start that are further off are the ramp
SCATTER = 0.08  # standard deviation over mean that a plateau may have
LARGE_DRIFT = 0.05  # of the level, end to end: a significant trend that ends a plateau
STEP = 0.05  # of the level: a later plateau that is further off is another level
PRECISION = 0.05  # half the interval of the window's mean, as a share of it
RELAXATION = 5  # times p90 of latency, which a window has to last
ALPHA = 0.05  # of a change point
TINY = 1e-9  # ms: a level of 0, for what is divided by it
GATING = ("tpot_p50", "tpot_p90")
WATCHED = (*GATING, "ttft_p50", "ttft_p90")

Status = Literal["windowable", "insufficient_duration", "insufficient_passes", "partial_dataset"]
Verdict = Literal["steady state", "drifting up", "drifting down", "anomaly", "not found"]
Window = tuple[int, int]  # super-passes: the first, and the one after the last


@dataclass(frozen=True)
class SuperPass:
    """A pass of the data set, or several in a row: the seconds from its first request's issue to its last one's, its
    output tokens, and the times of its answered requests in milliseconds, in ascending order."""

    seconds: float
    tokens: int
    ttft: list[float]
    tpot: list[float]
    latency: list[float]

    @classmethod
    def of(cls, requests: Sequence[Request]) -> "SuperPass":
        whole = without_failures(requests)
        return cls(
            (requests[-1].issued_s or 0.0) - (requests[0].issued_s or 0.0),
            sum(request.output_tokens for request in whole),
            sorted(request.ttft_ms for request in whole if request.ttft_ms is not None),
            sorted(request.tpot_ms for request in whole if request.tpot_ms is not None),
            sorted(request.latency_ms for request in whole if request.latency_ms is not None),
        )

    def percentile(self, name: str) -> float | None:
        """By name, `tpot_p50` for instance: the value at that share of the way through all, rounded down."""
        kind, _, share = name.partition("_p")
        values: list[float] = getattr(self, kind)
        return values[int(int(share) / 100 * (len(values) - 1))] if values else None


@dataclass(frozen=True)
class SteadyState:
    """What the rules would say of a test: whether a window of super-passes counts, the shape of the whole test, what
    has a trend from the window's start to the end (change end to end, as a share of the level), and the window's issue
    time and figures (percentiles in milliseconds)."""

    status: Status
    verdict: Verdict
    super_passes: int
    window: Window | None = None
    drifts: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    tokens_per_sec: float | None = None
    tpot_p50: float | None = None
    tpot_p90: float | None = None
    ttft_p50: float | None = None
    ttft_p90: float | None = None

    @property
    def is_official(self) -> bool:
        """Whether the rules take the window's figures, not the whole test's; what drifts after it is a warning."""
        return self.status == "windowable"

    @property
    def words(self) -> str:
        low, high = self.window or (0, 0)
        where = f": super-passes {low + 1} to {high} of {self.super_passes}, {self.seconds:,.0f} s" if high else ""
        drifts = ", ".join(f"{name.replace('_', ' ')} {100 * share:+.0f} %" for name, share in self.drifts.items())
        return f"{self.verdict}, {self.status.replace('_', ' ')}{where}{f'; drifts: {drifts}' if drifts else ''}"


def find(requests: Sequence[Request], size: int, least: float) -> SteadyState:
    """The steady state of a test, from its requests in the order of issue and the output tokens of each.

    `size` is that of the data set, `least` the seconds of issue that the window has to span. A super-pass is one pass
    of the set, or several where there would be more than MOST.
    """
    size *= max(1, math.ceil(len(requests) / (MOST * size)))
    if len(requests) < size:
        return SteadyState(status="partial_dataset", verdict="not found", super_passes=0)

    def part(low: int, high: int) -> SuperPass:
        return SuperPass.of(requests[low * size : high * size])

    passes = [part(number, number + 1) for number in range(math.ceil(len(requests) / size))]
    start = ramp(passes)
    plateaus = {window: part(*window) for window in segments(passes, start)}
    if not plateaus:
        return SteadyState("insufficient_passes", "not found", len(passes), drifts=drifts(passes[start:]))
    needed = {window: max(least, needed_s(passes[slice(*window)], whole)) for window, whole in plateaus.items()}
    lasting = [window for window, whole in plateaus.items() if whole.seconds >= needed[window]]
    window = lasting[0] if lasting else max(plateaus, key=lambda each: plateaus[each].seconds)
    chosen, drifting = plateaus[window], drifts(passes[window[0] :])
    levels = [fmean(later.tpot) or TINY for each, later in plateaus.items() if each >= window]
    shifted = any(abs(level / levels[0] - 1) > STEP for level in levels) and has_change_point(passes[start:])
    return SteadyState(
        "windowable" if lasting else "insufficient_duration",
        "anomaly" if shifted else shape(drifting),
        len(passes),
        window,
        drifting,
        chosen.seconds,
        chosen.tokens / chosen.seconds if chosen.seconds else None,
        *(chosen.percentile(name) for name in WATCHED),
    )


def values(passes: Sequence[SuperPass], name: str) -> list[float]:
    return [value for each in passes if (value := each.percentile(name)) is not None]


def ramp(passes: Sequence[SuperPass]) -> int:
    """How many super-passes at the start are of the ramp: at least one, at most half."""
    series = values(passes, "tpot_p50")
    if len(series) < LEAST:
        return 1
    half = len(series) // 2
    level = median(series[half:]) or TINY
    return max(1, next((n for n, value in enumerate(series[:half]) if abs(value / level - 1) <= RAMP_BAND), half))


def segments(passes: Sequence[SuperPass], low: int) -> Iterator[Window]:
    """The plateaus, each as long as it goes, in order."""
    while low + LEAST <= len(passes):
        high = low + LEAST - 1
        while high < len(passes) and is_plateau(passes[low : high + 1]):
            high += 1
        if high - low >= LEAST:
            yield low, high
            low = high
        else:
            low += 1


def is_plateau(passes: Sequence[SuperPass]) -> bool:
    """Whether time per output token stays where it is."""
    for series in (values(passes, name) for name in GATING):
        if len(series) < len(passes) or pstdev(series) > SCATTER * fmean(series):
            return False
        if trend(series) and abs(drift(series)) >= LARGE_DRIFT:
            return False
    return True


def needed_s(passes: Sequence[SuperPass], whole: SuperPass) -> float:
    """How long a window has to last by what is in it: until its mean is precise, and several times as long as its
    requests take."""
    series = values(passes, GATING[0])
    batches = math.ceil((NORMAL * pstdev(series) / (fmean(series) or TINY) / PRECISION) ** 2)
    precise = batches * median(each.seconds for each in passes) if batches > LEAST else 0.0
    return max(precise, RELAXATION * (whole.percentile("latency_p90") or 0.0) / 1e3)


def drifts(passes: Sequence[SuperPass]) -> dict[str, float]:
    """The metrics that have a trend, and how large it is end to end, as a share of their level."""
    watched = {name: values(passes, name) for name in WATCHED}
    return {name: drift(series) for name, series in watched.items() if trend(series)}


def shape(drifting: dict[str, float]) -> Verdict:
    """The verdict on a test whose time per output token drifts so."""
    largest = max((share for name, share in drifting.items() if name in GATING), key=abs, default=0.0)
    return "steady state" if not largest else "drifting up" if largest > 0 else "drifting down"


def drift(series: Sequence[float]) -> float:
    """The change from end to end over the median, by the straight line of least squares."""
    return linear_regression(range(len(series)), series).slope * (len(series) - 1) / (median(series) or TINY)


def trend(series: Sequence[float]) -> int:
    """Whether a series rises (1) or falls (-1) beyond chance: Mann and Kendall's test, its variance corrected by Hamed
    and Rao (1998) for the autocorrelation of the ranks, which are taken as they are."""
    count, score = len(series), int(np.triu(signs(series)).sum())
    if count < LEAST or not score:
        return 0
    variance = pairs(count) - sum(map(pairs, Counter(series).values()))
    off = np.argsort(np.argsort(series, kind="stable")) - (count - 1) / 2
    correction = 1.0
    for lag in range(1, count):
        shared = float(off[lag:] @ off[:-lag] / (off @ off))
        if abs(shared) > NORMAL / math.sqrt(count):
            correction += 2 * math.perm(count - lag, 3) * shared / math.perm(count, 3)
    deviation = math.sqrt(variance / 18 * (correction if correction > 0 else 1.0))
    return int(np.sign(score)) if abs(score) - 1 > NORMAL * deviation else 0


def pairs(count: int) -> int:
    """18 times the variance of Mann and Kendall's statistic over so many values, or of as many that are equal."""
    return count * (count - 1) * (2 * count + 5)


def has_change_point(passes: Sequence[SuperPass]) -> bool:
    """Whether mean time per output token changes its level once, by Pettitt's test (1979)."""
    above, count = signs([fmean(each.tpot) if each.tpot else 0.0 for each in passes]), len(passes)
    largest = max((abs(above[:at, at:].sum()) for at in range(1, count)), default=0)
    return count >= LEAST and 2 * math.exp(-6 * largest**2 / (count**3 + count**2)) < ALPHA


def signs(series: Sequence[float]) -> Any:
    """Whether the later value [., j] is above (1) or below (-1) the earlier [i, .]."""
    return np.sign(np.subtract.outer(series, series)).T
