"""The steady state of a test at fixed concurrency, as MLPerf Endpoints finds it: endpoints_rules.md, section 4.4.

Requests in the order of issue fall into super-passes, one pass of the data set each. A window of them is steady if
time per output token is a plateau over it, at p50 and at p90: little scatter, and no trend by the test of Mann and
Kendall with the correction of Hamed and Rao (1998). The window is one of issue time, so neither the ramp nor the drain
is in it. TTFT decides nothing, since its spread follows the prompts, but its drift is named.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, median, pstdev
from typing import Literal

from pydantic import Field

from harness.common.schema import Model
from harness.loadgen.request_times import per_token, spread
from harness.loadgen.trace import Sample

LEAST = 4  # super-passes of a window: MIN_TREND_N of the rules, below which a trend means nothing
MOST = 64  # super-passes of a test: more tell no more, and a small set would have thousands
BAND = 0.1  # of the steady TPOT p50; super-passes at the start that are further off are the ramp
SCATTER = {"tpot_p50": 0.05, "tpot_p90": 0.08}  # standard deviation over mean that a plateau may have
DRIFT = 0.05  # of the level, end to end: a trend below is significant at most, not large
ALPHA = 0.05  # two-sided, of a trend and of an autocorrelation

Status = Literal["windowable", "insufficient_duration", "insufficient_passes", "partial_dataset"]
Verdict = Literal["steady state", "drifting up", "drifting down", "anomaly", "not found"]
Window = tuple[int, int]  # super-passes: the first, and the one after the last


@dataclass(frozen=True)
class SuperPass:
    """One pass of the data set, by issue order: when its issue began, in seconds, and p50 and p90 in milliseconds by
    name, `ttft_p50` for instance."""

    begin_s: float
    percentiles: dict[str, float]


class SteadyState(Model):
    """What the rules of MLPerf Endpoints would say of a test at fixed concurrency; percentiles in milliseconds."""

    status: Status
    """Whether the window counts as the official result."""
    verdict: Verdict
    """The shape of the whole test."""
    super_passes: int
    window: Window | None = None
    """Of super-passes, one pass of the data set each: the first, and the one after the last."""
    seconds: float = 0.0
    """Its issue time."""
    tokens_per_sec: float | None = None
    ttft_p50: float | None = None
    ttft_p90: float | None = None
    tpot_p50: float | None = None
    tpot_p90: float | None = None
    drifts: dict[str, float] = Field(default={})
    """Metrics with a trend from its start to the end of the test: the change end to end, as a share of the level."""

    @property
    def official(self) -> bool:
        """Whether the rules take the window's figures rather than those of the whole test."""
        return self.status == "windowable" and self.verdict in ("steady state", "anomaly")

    @property
    def told(self) -> str:
        """In words."""
        drifts = ", ".join(f"{name.replace('_', ' ')} {100 * share:+.0f} %" for name, share in self.drifts.items())
        where = ""
        if self.window:
            low, high = self.window
            where = f": super-passes {low + 1} to {high} of {self.super_passes}, {self.seconds:,.0f} s"
        return f"{self.verdict}, {self.status.replace('_', ' ')}{where}{f'; drifts: {drifts}' if drifts else ''}"


def found(samples: Sequence[Sample], counts: Sequence[int], size: int, least: float) -> SteadyState:
    """The steady state of a test, from its requests in the order of issue and the output tokens of each.

    `size` is that of the data set, `least` the seconds of issue that the window has to span. A super-pass is one pass
    of the set, or several where there would be more than MOST.
    """
    size *= max(1, math.ceil(len(samples) / (MOST * size)))
    passes = super_passes(samples, counts, size)
    if not passes:
        return SteadyState(status="partial_dataset", verdict="not found", super_passes=0)
    end_s = samples[min(len(passes) * size, len(samples) - 1)].scheduled_ms / 1e3
    edges = [each.begin_s for each in passes] + [end_s]
    plateaus = segments(passes, ramp(passes))
    if not plateaus:
        tail = drifts(passes)
        moving = shape(tail)
        return SteadyState(
            status="insufficient_passes",
            verdict="not found" if moving == "steady state" else moving,
            super_passes=len(passes),
            drifts=tail,
        )
    window = next((each for each in plateaus if edges[each[1]] - edges[each[0]] >= least), plateaus[0])
    low, high = window
    seconds = edges[high] - edges[low]
    tail = drifts(passes[low:])
    chosen, tokens = samples[low * size : high * size], counts[low * size : high * size]
    return SteadyState(
        status="windowable" if seconds >= least else "insufficient_duration",
        verdict="anomaly" if stepped(passes, window, plateaus) else shape(tail),
        super_passes=len(passes),
        window=window,
        seconds=seconds,
        tokens_per_sec=sum(tokens) / seconds if seconds else None,
        drifts=tail,
        **percentiles(chosen, tokens),
    )


def super_passes(samples: Sequence[Sample], counts: Sequence[int], size: int) -> list[SuperPass]:
    """The whole ones; none where the counts are of other requests."""
    if len(samples) != len(counts):
        return []
    starts = range(0, len(samples) - size + 1, size)
    blocks = [(samples[at : at + size], counts[at : at + size]) for at in starts]
    return [SuperPass(block[0].scheduled_ms / 1e3, percentiles(block, tokens)) for block, tokens in blocks]


def percentiles(samples: Sequence[Sample], counts: Sequence[int]) -> dict[str, float]:
    """p50 and p90 of TTFT and TPOT over requests that were answered."""
    whole = [(s, n) for s, n in zip(samples, counts, strict=True) if s.ttft_ms is not None and not s.failed]
    first = spread([sample.ttft_ms or 0.0 for sample, _ in whole])
    each = spread(per_token(*zip(*whole, strict=True)) if whole else [])
    named = (("ttft", first), ("tpot", each))
    return {f"{name}_{point}": getattr(values, point) for name, values in named if values for point in ("p50", "p90")}


def ramp(passes: Sequence[SuperPass]) -> int:
    """How many super-passes at the start are of the ramp: at most half."""
    series = values(passes, "tpot_p50")
    if not series:
        return 0
    level = median(series[len(series) // 2 :])
    off = (number for number, value in enumerate(series) if abs(value / level - 1) <= BAND)
    return min(next(off, 0), len(series) // 2)


def segments(passes: Sequence[SuperPass], start: int) -> list[Window]:
    """The plateaus, each as long as it goes, in order."""
    done: list[Window] = []
    low = start
    while low + LEAST <= len(passes):
        high = low + LEAST
        if not plateau(passes[low:high]):
            low += 1
            continue
        while high < len(passes) and plateau(passes[low : high + 1]):
            high += 1
        done.append((low, high))
        low = high
    return done


def plateau(passes: Sequence[SuperPass]) -> bool:
    """Whether time per output token stays where it is."""
    for name, most in SCATTER.items():
        series = values(passes, name)
        if len(series) < len(passes) or pstdev(series) > most * fmean(series) or abs(drift(series)) >= DRIFT:
            return False
    return True


def values(passes: Sequence[SuperPass], name: str) -> list[float]:
    return [each.percentiles[name] for each in passes if name in each.percentiles]


def drifts(passes: Sequence[SuperPass]) -> dict[str, float]:
    """The metrics that have a trend, and how large it is end to end, as a share of their level."""
    all_ = {name: drift(values(passes, name)) for name in ("ttft_p50", "ttft_p90", *SCATTER)}
    return {name: share for name, share in all_.items() if abs(share) >= DRIFT}


def shape(drifting: dict[str, float]) -> Verdict:
    """The verdict on a test whose time per output token drifts so."""
    largest = max((share for name, share in drifting.items() if name in SCATTER), key=abs, default=0.0)
    return "steady state" if not largest else "drifting up" if largest > 0 else "drifting down"


def drift(series: Sequence[float]) -> float:
    """The change from end to end over the median, by the straight line; 0 where it is no significant trend."""
    if len(series) < LEAST or not trending(series):
        return 0.0
    middle = (len(series) - 1) / 2
    slope = sum((at - middle) * value for at, value in enumerate(series)) / sum(
        (at - middle) ** 2 for at in range(len(series))
    )
    return slope * (len(series) - 1) / median(series)


def trending(series: Sequence[float]) -> bool:
    """Whether a series has a monotonic trend: Mann and Kendall's test, its variance corrected by Hamed and Rao for the
    autocorrelation of the ranks of what is left when Sen's slope is taken away."""
    count = len(series)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    score = sum((series[j] > series[i]) - (series[j] < series[i]) for i, j in pairs)
    variance = count * (count - 1) * (2 * count + 5) / 18
    slope = median((series[j] - series[i]) / (j - i) for i, j in pairs)
    left = ranks([value - slope * at for at, value in enumerate(series)])
    sure = NormalDist().inv_cdf(1 - ALPHA / 2)
    off = [rank - (count + 1) / 2 for rank in left]
    total = sum(each**2 for each in off)
    correction = 1.0
    for lag in range(1, count - 2):
        shared = sum(a * b for a, b in zip(off, off[lag:], strict=False))
        tie = shared / total if total else 0.0
        if abs(tie) > sure / math.sqrt(count):
            weight = (count - lag) * (count - lag - 1) * (count - lag - 2)
            correction += 2 * weight * tie / (count * (count - 1) * (count - 2))
    variance *= max(correction, 1 / count)
    return abs(score) - 1 > sure * math.sqrt(variance)


def ranks(series: Sequence[float]) -> list[float]:
    """From 1; equal values share the mean of theirs."""
    ordered = sorted(series)
    return [ordered.index(value) + (ordered.count(value) + 1) / 2 for value in series]


def stepped(passes: Sequence[SuperPass], window: Window, plateaus: Sequence[Window]) -> bool:
    """Whether a later plateau is at another level. The rules also ask for a change point by Pettitt's test, which does
    not see one near the end of a test; here the two plateaus are enough to name it."""
    level = fmean(values(passes[slice(*window)], "tpot_p50"))
    later = (fmean(values(passes[slice(*each)], "tpot_p50")) for each in plateaus if each[0] >= window[1])
    return any(abs(other / level - 1) > SCATTER["tpot_p50"] for other in later)
