"""A short LoadGen test at one load, as config.json keeps it."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from harness.common.markdown import number
from harness.common.statistics import FEWEST_P99
from harness.config.patterns import ClosedLoop, Poisson, Sequential

SURE = 2.33  # standard errors: less than 1 in 100 by chance
PRECISE = 0.04  # of the completions a second: their error, where they are the server's and not the arrivals'
SETTLED = 6  # latencies of a query, after which as many run as ever will
WAITING = 0.1  # of a query's time: with more, it does not tell what its tokens take


@dataclass(frozen=True)
class Queue:
    """The second half of the time in which queries were issued: without ramp and drain. All a second."""

    sent: float  # queries issued
    completed: float
    completed_error: float  # its standard error
    growth: float  # of what is in flight
    chance: float  # the standard error of `growth`, of arrivals and completions, where the server is just fast enough
    dispersion: float  # variance over mean of the completions: 0 is clockwork, 1 pure chance
    base_s: float = 0.0  # what a query takes, in seconds: without what follows, ...
    each_s: float = 0.0  # ... for each that is in flight meanwhile, itself included, ...
    prompt_s: float = 0.0  # ... and for each that begins meanwhile

    @property
    def has_grown(self) -> bool:
        """Whether more queries came than the server completes, beyond chance."""
        return self.growth > SURE * self.chance

    @property
    def capacity(self) -> float | None:
        """Queries/s that the server completes at most: known where it always had some waiting, and to `PRECISE`."""
        return self.completed if self.has_grown and self.completed_error <= PRECISE * self.completed else None


@dataclass(frozen=True)
class Probe:
    """One test of a load: a rate (queries/s), or samples per query; LoadGen's verdict, percentiles in milliseconds,
    output speed; its queue, where a rate was sent."""

    qps: float | None
    valid: bool
    ttft_p99: float | None
    tpot_p99: float | None
    ttft_p50: float | None = None
    tpot_p50: float | None = None
    tokens_per_sec: float | None = None  # output
    samples_per_sec: float | None = None
    samples_per_query: int = 1
    concurrency: int | None = None  # requests in flight, where it was fixed
    ttft_p90: float | None = None
    tpot_p90: float | None = None
    latency_p99: float | None = None
    joules_per_token: float | None = None  # of the GPUs, output
    trend: float | None = None  # the output speed of the steady part's second half over that of its first
    latency_p50: float | None = None  # of a query
    latency_p90: float | None = None
    ttft_min: float | None = None
    sent: float | None = None  # queries/s that were scheduled in fact: random gaps add up to their own rate
    seconds: float | None = None  # of issue
    client_delay_p99: float | None = None  # until a request was sent: from its schedule, or from an answer's end
    more: int | None = None  # queries that early stopping alone wants beyond those of the probe
    queue: Queue | None = None
    buffered: bool = False  # its TTFT and TPOT are those of a buffer, not the engine's
    why: str = ""  # it is INVALID, or too fast for a full test
    folder: str = ""  # of its logs, in the run's
    busy: str = ""  # what other programs took of the machine meanwhile, where it may have cost speed
    tpot_mean: float | None = None
    queries: int | None = None

    @property
    def is_few(self) -> bool:
        """Whether the p99 of its queries is the slowest of them."""
        return self.queries is not None and self.queries < FEWEST_P99

    def shown(self, name: str) -> float | None:
        """A figure by its name; None of a p99 of few queries."""
        value: float | None = getattr(self, name)
        return None if self.is_few and name.endswith("_p99") else value

    @property
    def load(self) -> float:
        """What differs between the probes of a run."""
        if self.concurrency is not None:
            return self.concurrency
        return self.samples_per_query if self.qps is None else self.qps

    @property
    def unit(self) -> str:
        if self.concurrency is not None:
            return ClosedLoop.unit
        return Sequential.unit if self.qps is None else Poisson.unit

    @property
    def tokens_per_sec_per_user(self) -> float | None:
        """1,000 / TPOT p90, as MLPerf Endpoints has it; None where that is no engine's."""
        return 1000 / self.tpot_p90 if self.tpot_p90 and not self.buffered else None

    def cost(self, price_per_hour: float) -> float | None:
        """What a million output tokens cost."""
        return price_per_hour / 0.0036 / self.tokens_per_sec if self.tokens_per_sec else None

    @property
    def rate(self) -> float:
        """What the server was sent, queries/s."""
        return self.sent or self.load

    @property
    def tokens(self) -> float:
        """Of an answer after the first, about; 0 where they are not known."""
        return ((self.latency_p50 or 0.0) - (self.ttft_p50 or 0.0)) / (self.tpot_p50 or math.inf)

    @property
    def is_settled(self) -> bool:
        """Whether it lasted for so long that as many queries ran as ever will."""
        return (self.seconds or math.inf) >= SETTLED * (self.latency_p50 or 0.0) / 1000

    @property
    def has_grown(self) -> bool:
        """Whether more came than was completed, beyond chance and beyond what fills an idle server."""
        return self.queue is not None and self.queue.has_grown and (self.is_settled or self.capacity is not None)

    @property
    def has_waited(self) -> bool:
        """Whether waiting was a good part of a query's time, rather than what ran beside it."""
        return (self.ttft_p50 or 0.0) > WAITING * (self.latency_p50 or 0.0)

    @property
    def capacity(self) -> float | None:
        """Queries/s that the server completes at most: known where queries always waited."""
        return self.queue.capacity if self.queue and self.has_waited else None

    @property
    def served_rate(self) -> float:
        """The rate that its latencies belong to: the server's own, where it was busy all the time."""
        return self.capacity or self.rate

    @property
    def has_held(self) -> bool:
        """Whether it kept the limits with a steady queue."""
        return self.valid and not self.has_grown

    @property
    def has_kept(self) -> bool:
        """Whether it kept the limits: by LoadGen's verdict and its queue, at fixed concurrency by the latencies."""
        return self.has_held if self.concurrency is None else not self.why

    @property
    def is_short(self) -> bool:
        """Whether it broke no limit, and LoadGen wants more queries to be sure."""
        return self.more is not None and not self.over and not self.has_grown

    @property
    def over(self) -> list[str]:
        """The latencies that were over their limits."""
        return [name for name in ("TTFT", "TPOT") if name in self.why]

    @property
    def text(self) -> str:
        if self.concurrency is not None:
            return f"{number(self.concurrency)} request{'s' if self.concurrency != 1 else ''} in flight"
        return f"{number(self.load)} {self.unit}"

    @property
    def head(self) -> tuple[str, ...]:
        """What stands above `cells`."""
        if self.unit == Sequential.unit:
            return ("samples at once", "tokens/s", "query p50, ms", "query p90, ms", "LoadGen")
        return (self.unit, "tokens/s", "TTFT p50", "TTFT p99", "TPOT p50", "TPOT p99", "(ms)")

    @property
    def cells(self) -> tuple[str, ...]:
        """Load, speed, latencies in milliseconds, and LoadGen's verdict, or that on the user's own limits."""
        verdict = "VALID" if self.valid else "INVALID"
        of_tokens = map(self.shown, ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"))
        times = (self.latency_p50, self.latency_p90) if self.unit == Sequential.unit else of_tokens
        if self.concurrency is not None:
            verdict = f"over: {self.over[0] if len(self.over) == 1 else 'both'}" if self.why else "within"
        return (number(self.load), number(self.tokens_per_sec), *map(number, times), verdict)


def percentiles(**kinds: object) -> dict[str, Any]:
    """The fields of a probe that say how long its queries took, in milliseconds, by their names; from what is known of
    `latency`, `ttft` and `tpot`."""
    parts = ((name, *name.split("_", 1)) for name in Probe.__dataclass_fields__ if "_" in name)
    return {name: getattr(kinds[kind], point, None) for name, kind, point in parts if kind in kinds}


def deciding(probes: Iterable[Probe]) -> list[Probe]:
    """One test for each load, by load: of several the last, which agrees with the first or decides between two in the
    search, and is the run's own at its level."""
    return sorted({probe.load: probe for probe in probes}.values(), key=lambda probe: probe.load)
