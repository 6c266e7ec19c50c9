"""What a run knows of itself, typed: config.json and status.json; and what all files of a run folder have in common."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, ConfigDict, Field, JsonValue, model_validator

from harness.config.comparability import Comparable
from harness.config.flags import setting
from harness.config.patterns import ClosedLoop, Poisson, Sequential
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core.coerce import as_flag
from harness.core.markdown import number
from harness.core.schema import File, Model, stored_as
from harness.core.screen import Stage
from harness.core.statistics import FEWEST_P99, percentile
from harness.core.system import System

# A short LoadGen test at one load, as config.json keeps it.
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
    def verdict(self) -> str:
        """LoadGen's."""
        return "VALID" if self.valid else "INVALID"

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
        return ((self.latency_p50 or 0.0) - (self.ttft_p50 or 0.0)) / (self.tpot_p50 or inf)

    @property
    def is_settled(self) -> bool:
        """Whether it lasted for so long that as many queries ran as ever will."""
        return (self.seconds or inf) >= SETTLED * (self.latency_p50 or 0.0) / 1000

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
        verdict = self.verdict
        of_tokens = map(self.shown, ("ttft_p50", "ttft_p99", "tpot_p50", "tpot_p99"))
        times = (self.latency_p50, self.latency_p90) if self.unit == Sequential.unit else of_tokens
        if self.concurrency is not None:
            kept = "not judged" if self.busy else "within"
            verdict = f"over: {self.over[0] if len(self.over) == 1 else 'both'}" if self.why else kept
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


class RunStatus(File):
    """status.json."""

    status: Literal["running", "complete", "failed", "interrupted"]
    reason: str = ""
    time: str | None = None


class Facts(File):
    """What config.json holds of whatever was run; it grows while that runs."""

    model_config = ConfigDict(frozen=False)

    started: str
    command: str
    system: System
    installed: dict[str, str] = {}
    """Every package of the environment, with its version."""
    engine: str | None = None  # with its version; None: an older record, or one that did not start
    engine_start_s: float | None = None
    engine_args: dict[str, JsonValue] = {}
    kernels: dict[str, str] = {}
    """What the engine says that it runs: its attention backend, and the kernel of its linear layers."""


class RunFacts(Facts):
    """config.json of a run of run.py: every resolved setting, and what is known of the run beside its tests."""

    plan: Plan
    deviations: Annotated[list[str], Field(validation_alias=AliasChoices("deviations", "shortcomings"))]  # before 3
    loadgen: dict[str, str] = {}
    probes: list[Probe] = []
    attempts: list[Probe] = []  # performance tests that another one followed
    concurrency: int | None = None  # most requests computed at once
    checkpoint: str | None = None  # where it came quantized
    weights: str | None = None  # their number format in words, where this process loads them
    data: str | None = None
    mean_prompt_tokens: float | None = None
    stages: list[Stage] = []
    unread: Annotated[list[str], Field(exclude=True)] = []
    """What of the record this version does not read, in words."""

    @model_validator(mode="before")
    @classmethod
    def read_settings(cls, data: Any) -> Any:
        """The settings of a record, of any version: by today's names, without those that there are no longer."""
        match data:
            case {"plan": {"config": {**config}} as plan}:
                settings = {setting(str(name)): value for name, value in config.items()}
                unknown = sorted(settings.keys() - RunConfig.model_fields.keys())
                left = [f"config.json: {as_flag(name)} is no setting of this version" for name in unknown]
                return data | {"plan": plan | {"config": RunConfig.differing(settings)}, "unread": left}
        return data

    def adopt(self, plan: Plan) -> None:
        """Takes the plan as it is known now, and what follows from it."""
        self.plan, self.deviations = plan, plan.deviations
        self.loadgen = {"model": plan.loadgen_model, "scenario": plan.config.scenario_rules.loadgen}

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    @property
    def settings(self) -> dict[str, object]:
        """Every setting by its name: flags, and over them the values of `auto`."""
        plan = self.model_dump()["plan"]
        flags: dict[str, object] = plan.pop("config")
        return flags | {name: value for name, value in plan.items() if name not in ("task", "notes")}

    @property
    def comparable(self) -> Comparable:
        """The run by what it was asked, how, and on what."""
        return Comparable.on(self.system, self.engine, work=self.plan.work, settings=self.plan.settings)


class MachineUse(Model):
    """machine.json: what a test took of the machine, and what other programs did meanwhile."""

    others_cpu_cores: float | None = None
    """CPU cores that other programs used during the test, on average."""
    background_load: Annotated[list[str], stored_as("others", "background_load")] = []
    """What other programs took of the machine, in words, where it may have cost speed."""
    gpu_joules: float | None = None
    """Energy of the GPUs during the test, by their counters; with --telemetry-url by their power, null over a gap."""
    server_gpus: list[str] = []
    """The models of a server's GPUs, by --telemetry-url."""
    waits_ms: dict[str, float] = {}
    """Milliseconds before a first token in the engine's queue and in its prefill, each the mean of the test by the
    engine's own histograms; empty where it has none, or statistics are off (no --extra-metrics)."""


class Usage(Model):
    """A quantity that was recorded once a second during a test."""

    mean: float
    max: float


class Capacity(Model):
    """Cost, energy and utilization at the measured rate."""

    requests_per_hour: float
    requests_per_day: float
    full_set_s: float | None = None
    """For all samples of MLPerf's set; null where others were asked."""


class Spread(Model):
    """Lengths in tokens; each percentile is one of the lengths."""

    min: int
    mean: float
    p50: int
    p99: int
    max: int

    @classmethod
    def of(cls, lengths: Sequence[int]) -> Self | None:
        """None where there are none."""
        if not lengths:
            return None
        ranked = sorted(lengths)
        mean, p50, p99 = sum(ranked) / len(ranked), percentile(ranked, 0.5), percentile(ranked, 0.99)
        return cls(min=ranked[0], mean=mean, p50=p50, p99=p99, max=ranked[-1])


class Cost(Model):
    """What tokens and requests cost at --price-per-hour, in its currency."""

    price_per_hour: float
    per_million_output_tokens: float | None = None
    per_million_tokens: float | None = None
    """Input and output."""
    per_thousand_requests: float | None = None
