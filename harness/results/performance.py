"""A performance test: LoadGen's measurements, and what follows from them and from the test's requests. In parts, which
summary.json holds as one object.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import JsonValue, NonNegativeInt, model_validator

from harness.config import arrival_patterns, engine
from harness.config.mlperf import LatencyLimits, Tail
from harness.core import formatting, statements, statistics
from harness.core.formatting import Measured
from harness.core.schema import FrozenModel, StoredStatement, fields_from
from harness.engines.answer_delivery import ServerUse
from harness.loadgen.log import Latency
from harness.loadgen.log_entries import LogError
from harness.loadgen.machine_use import MachineUse, Usage
from harness.loadgen.requests import Request, without_failures
from harness.loadgen.test_run import TestRun, steady_part
from harness.results import claims, cost, gpu_time_shares, telemetry
from harness.results.outcome import LATENCY_KINDS, Doubt, Outcome
from harness.results.records import RunFacts
from harness.runs.run_folder import TEST_FOLDERS

FieldValues = dict[str, Any]  # of fields, by name
Intervals = dict[str, dict[str, tuple[float, Measured] | None]]


# A test without its ramps, and the share of requests that kept both limits.
class Steady(FrozenModel):
    """A test without its ramps: from as many answers as are computed at once until as few are left."""

    begin_s: Measured = None
    """Since the first request was sent; null in summaries of older versions."""
    seconds: float
    share_percent: float
    """Of the test's duration."""
    tokens_per_sec: float
    """Output tokens per second of the answers that ended in the steady part."""
    input_tokens_per_sec: Measured = None
    """Prompt tokens of the same answers; from here to `tokens_per_sec_per_user` at fixed concurrency alone."""
    total_tokens_per_sec: Measured = None
    samples_per_sec: Measured = None
    trend: float
    """The rate of its second half over that of the first."""
    requests: int | None = None
    """That were sent and answered in it, of which what follows is."""
    latency_ms: Latency | None = None
    ttft_ms: Latency | None = None
    tpot_ms: Latency | None = None
    slo_attainment: Measured = None
    goodput: Measured = None
    tokens_per_sec_per_user: Measured = None
    """1,000 / TPOT p90 in ms, over the steady part."""

    @classmethod
    def of(cls, test: TestRun, facts: RunFacts) -> Self | None:
        """None of a scenario that sends by time, or one query after the other, and of a test too short for one."""
        plan, seconds = facts.plan, test.result.duration_s
        at_once = plan.pattern.kept_in_flight(plan, facts.concurrency)
        if plan.config.batch_size or not at_once or not seconds:
            return None
        part = test.window if plan.concurrency else steady_part(test.requests, at_once)
        if part is None:
            return None
        found = {name: getattr(part, name) for name in ("begin_s", "seconds", "tokens_per_sec", "trend")}
        found["share_percent"] = 100 * part.seconds / seconds
        if not (plan.concurrency and part.requests):
            return cls(**found)
        result, kept = test.counted_result, slo_attainment(part.window, plan.limits, test.is_buffered)
        user_ms = result.tpot_ms.p90 if result.tpot_ms and not test.is_buffered else None
        return cls(
            **found | fields_from(cls, result),
            input_tokens_per_sec=part.input_tokens_per_sec or None,
            total_tokens_per_sec=part.total_tokens_per_sec,
            requests=len(part.requests),
            slo_attainment=kept,
            goodput=None if kept is None else kept / 100 * len(part.ended) / part.seconds,
            tokens_per_sec_per_user=1000 / user_ms if user_ms else None,
        )


def slo_attainment(requests: Sequence[Request], limits: LatencyLimits | None, is_buffered: bool) -> Measured:
    """Percent of the requests that kept both limits, which failed ones did not; an answer of one token has no time per
    output token to keep. None where there are no limits, or the time of a first token is not the engine's or not
    known.
    """
    answered = without_failures(requests)
    if limits is None or is_buffered or not requests or any(each.ttft_ms is None for each in answered):
        return None
    kept = sum((each.ttft_ms or 0.0) <= limits.ttft and (each.tpot_ms or 0.0) <= limits.tpot for each in answered)
    return 100 * kept / len(requests)


class Conditions(FrozenModel):
    """What was run, and LoadGen's verdict on it."""

    scenario: str
    valid: bool
    invalid_reasons: list[StoredStatement] = []
    duration_s: Measured
    """Of the performance test, as LoadGen measured."""
    samples: int | None
    samples_per_query: int = 1
    """More than one in MultiStream alone, where latencies are those of whole queries."""
    concurrency: int | None = None
    """Requests in flight, where it was fixed; this program then measures latencies, from the time each was sent."""
    arrivals: str | None = None
    """How requests came, where not as LoadGen has it: as `--arrivals` was given."""
    arrivals_cv: Measured = None
    """The coefficient of variation of the times between them: 0 is clockwork, 1 pure chance, more is bursts."""
    target_qps: Measured = None
    """Offline: samples/s expected; Server, Interactive: queries/s sent; else null."""
    achieved_qps: Measured = None
    """Queries a second; in Offline, which is one query, samples; of arrivals, what was sent, without the drain."""
    failed_requests: NonNegativeInt | None = None
    """Requests that failed, left out of everything but `slo_attainment` and `valid`; null without --max-failed."""
    failures: list[str] = []
    """Their error messages."""
    early_stopping: dict[str, JsonValue] = {}
    seeds: dict[str, int] = {}
    loadgen_version: str = ""
    errors: list[str] = []
    warnings: list[str] = []

    @staticmethod
    def of(test: TestRun, facts: RunFacts) -> FieldValues:
        plan, log = facts.plan, test.result
        failures = [each.failure for each in test.requests if each.failure]
        at = (each.begin_s + (each.sent_ms or 0.0) / 1e3 for each in test.requests)
        sent = sorted(at) if plan.config.arrivals else []
        rate = log.samples_per_sec and log.samples_per_sec / plan.samples_per_query
        if sent and sent[-1] > sent[0]:
            rate = (len(sent) - 1) / (sent[-1] - sent[0])
        return dict(
            scenario=plan.config.scenario,
            valid=bool(log.valid),
            samples_per_query=plan.samples_per_query,
            concurrency=plan.concurrency,
            arrivals=plan.config.arrivals,
            arrivals_cv=arrival_patterns.variation(sent) if sent else None,
            target_qps={"logged": log.target_qps, "planned": plan.target_qps}.get(plan.pattern.named_rate),
            achieved_qps=rate,
            failed_requests=len(failures) if engine.may_fail(plan.config.max_failed, 10**9) else None,
            failures=with_counts(failures),
            errors=with_counts(log.errors),
            warnings=with_counts(log.warnings),
            longer=sum(each.output_tokens > plan.max_new_tokens for each in test.answered),
        )


class Throughput(FrozenModel):
    """Tokens, samples and their rates."""

    total_new_tokens: int | None = None
    """Output tokens: the ids that came; where a server sends text, its own count (`usage`) if each answer has one, else
    the text encoded with the model's tokenizer. `disagreements` has a difference of more than 2 %."""
    total_input_tokens: int | None = None
    """Prompt tokens; null in runs that did not record them."""
    input_lengths: statistics.Spread | None = None
    output_lengths: statistics.Spread | None = None
    tokens_per_sec: Measured = None
    """Output tokens per second, as LoadGen measured."""
    input_tokens_per_sec: Measured = None
    """Prompt tokens over LoadGen's duration."""
    total_tokens_per_sec: Measured = None
    """Prompt and output tokens over LoadGen's duration."""
    samples_per_sec: Measured = None
    longer: int = 0
    """Answers that are longer than the run allowed."""


class Latencies(FrozenModel):
    """Milliseconds, and what of them kept the limits."""

    latency_ms: Latency | None = None
    ttft_ms: Latency | None = None
    """Time to the first token."""
    tpot_ms: Latency | None = None
    """Time per output token after the first."""
    intervals: Intervals = {}
    """95 % intervals of p50, p90 and p99 of latency, TTFT and TPOT, from this test's requests by order statistics and
    blocks of time; null of fewer than 40 requests. The upper end is null where there are too few requests for it."""
    client_delay_ms: Latency | None = None
    """Server, Interactive, arrivals: from a query's scheduled time until this client sent it, in each latency and
    TTFT. Fixed concurrency: from an answer's end until the next request was sent in its place, a part of none."""
    single_token: NonNegativeInt = 0
    """Answers of one token, which have no time per output token; `tpot_ms` is that of the others."""
    tpot_judged: bool = True
    """Whether the others are enough to be sure that their 99th percentile keeps its limit."""
    limits_ms: LatencyLimits | None = None
    slo_attainment: Measured = None
    """Percent of the requests that kept both limits; null where there are none, and where TTFT and TPOT are those of a
    buffer."""
    goodput: Measured = None
    """Requests that kept both limits, a second."""
    requests_in_flight: Measured = None
    """On average, by Little's law: rate x mean latency of a sample. Null in Offline, where all are issued at once."""

    @staticmethod
    def of(test: TestRun, facts: RunFacts) -> FieldValues:
        log, limits = test.result, facts.plan.limits
        mean, rate = log.mean_sample_latency_ms, log.samples_per_sec
        kept = slo_attainment(test.requests, limits, test.is_buffered)
        sent = len(test.requests) / len(test.answered) if test.answered else 1.0  # for each that was answered
        return dict(
            intervals=intervals(test),
            client_delay_ms=test.client_delay,
            limits_ms=limits,
            slo_attainment=kept,
            goodput=rate * sent * kept / 100 if kept is not None and rate else None,
            requests_in_flight=rate * mean / 1000 if log.ttft_ms and rate and mean else None,
        )


class Machine(MachineUse):
    """What engine, machine and servers did during a test."""

    peak_memory_gib: Measured = None
    """The most memory of all GPUs taken at once; null without them, or without --extra-metrics."""
    usage: dict[str, Usage] = {}
    """What engine and machine did, by quantity, recorded once a second; empty without --extra-metrics."""
    gpu_time: list[gpu_time_shares.GpuTime] = []
    """Where the GPUs' time went in each probe, each attempt and, last, this test; empty without --extra-metrics."""
    ran_out: list[StoredStatement] = []
    """What was lost or used up during the test, what bounds it first."""
    server: ServerUse | None = None
    """What the servers behind an endpoint counted themselves; null where they did not, or there are none."""
    disagreements: list[str] = []
    """Where the wire shows what this program's own figures do not (tokens, the server's cache, delivery), in words."""

    @staticmethod
    def of(test: TestRun, facts: RunFacts) -> FieldValues:
        used, is_client = telemetry.usage_of(test.recording), bool(facts.plan.config.endpoint)
        peak = used.get("gpu_memory_gib") if facts.plan.config.may_see_gpus else None
        times = gpu_time_shares.gpu_times(test, facts)
        others = 100 * (test.machine.others_cpu_cores or 0.0) / max(1, facts.system.cores)
        return dict(
            peak_memory_gib=peak.max if peak else None,
            usage=used,
            gpu_time=times,
            ran_out=list(telemetry.ran_out(used, facts.concurrency, times, facts.engine_args, is_client, others)),
            server=test.server,
            disagreements=[*test.server.disagreements] if test.server else [],
            **test.machine.model_dump(),
        )


class Performance(cost.Economics, Machine, Latencies, Throughput, Conditions):
    """LoadGen's measurements, and the tokens that were reported to it. Latencies in milliseconds."""

    steady: Steady | None = None
    """The part of the test in which the engine had all its work; null where it is not known what it takes at once."""
    folder: str = TEST_FOLDERS["performance"]
    """Of its logs, in the run's: of several loads the one whose figures are the run's."""

    @property
    def counted(self) -> "Steady | Performance":
        """What its figures are of: the test without its ramps where latencies are known so, else all of it."""
        return self.steady if self.steady and self.steady.ttft_ms else self

    @property
    def load(self) -> float:
        """In the unit of its load pattern."""
        return self.concurrency or self.target_qps or self.samples_per_query

    @property
    def tails(self) -> list[Tail]:
        """TTFT and TPOT as they are held against limits."""
        return self.limits_ms.tails(self.counted.ttft_ms, self.counted.tpot_ms) if self.limits_ms else []

    @property
    def is_buffered(self) -> bool:
        """Whether TTFT and TPOT are those of a buffer between the engine and this client."""
        return self.server is not None and self.server.is_buffered

    @property
    def is_few(self) -> bool:
        """Whether the p99 of its requests is the slowest of them."""
        return Doubt.FEW in self.outcome("").doubts

    def named(self, kind: str) -> str:
        """What the p99 of a kind of latency is."""
        return f"{statistics.tail_name(kind, self.is_few)}{' of the buffering' if self.is_buffered else ''}"

    def outcome(self, unit: str) -> Outcome:
        """The test beside others of its run, whose loads are in this unit."""
        part, own = self.counted, bool(self.concurrency or self.arrivals)
        queries = (part.requests if isinstance(part, Steady) else self.samples) or 0
        over = [
            statements.Statement(f"{tail.kind} is over its limit", name=tail.kind)
            for tail in self.tails
            if tail.is_over
        ]
        fields = fields_from(Outcome, self) | fields_from(Outcome, part)
        fields |= dict(
            load=self.load,
            unit=unit,
            has_own_limits=own,
            reasons=(*(() if own or self.valid else self.invalid_reasons), *over),
            trend=self.steady.trend if self.steady else None,
            queries=queries // self.samples_per_query,
        )
        return Outcome(**fields)

    @model_validator(mode="before")
    @classmethod
    def rename(cls, data: Any) -> Any:
        """Until format 4 the share of requests within the limits was called goodput."""
        match data:
            case {"goodput": share, **rest} if "slo_attainment" not in rest:
                return rest | {"slo_attainment": share}
        return data


def performance(test: TestRun, facts: RunFacts, run: Path) -> Performance:
    """The performance part of the summary, of a test in the folder of a run. Raises LogError for the log of another
    one.
    """
    plan, log = facts.plan, test.result
    for name, found, planned in (
        ("seeds", log.seeds, vars(plan.seeds)),
        ("minimum duration, ms", log.effective.get("min_duration_ms"), round(1000 * plan.min_duration_s)),
    ):
        if found != planned:
            raise LogError(f"{test.folder}: a log of another run: its {name}: {found}, not {planned}.")
    fields = fields_from(Performance, log) | fields_from(Throughput, test)
    for part in (Conditions, Latencies, Machine, cost.Economics):
        fields |= part.of(test, facts)
    made = Performance(**fields | {"steady": Steady.of(test, facts), "folder": str(test.folder.relative_to(run))})
    if plan.pattern.is_paced or not made.duration_s:
        longest_ms = max((each.latency_ms for each in test.requests if each.latency_ms is not None), default=None)
    else:
        longest_ms = 1000 * made.duration_s
    disputed = [f"{each}: LoadGen's log contradicts itself" for each in impossible(made, longest_ms)]
    return made.model_copy(update={"disagreements": [*made.disagreements, *disputed]})


def impossible(test: Performance, longest_ms: Measured) -> Iterator[str]:
    """Numbers that no test can have: negative ones, and latencies beyond `longest_ms`, None where any can be."""
    for name, value in claims.leaves(test.model_dump()):
        if isinstance(value, int | float) and value < 0:
            yield f"{name} is {value:g}"
    whole = longest_ms * 1.001 if longest_ms else None  # by what clocks differ
    longest = test.latency_ms.max if test.latency_ms else None
    for name, times, most in (
        ("latency", test.latency_ms, whole),
        ("TTFT", test.ttft_ms, longest),
        ("TPOT", test.tpot_ms, longest),
    ):
        if times and most is not None and times.max > most * (1 + 1e-9):
            yield f"the longest {name} is {formatting.number(times.max)} ms, beyond {formatting.number(most)} ms"


def intervals(test: TestRun) -> Intervals:
    """The interval of each percentile, by kind of latency and name; none of what is not known of each request, nor of
    the slowest, which is no percentile.
    """
    found: Intervals = {}
    for kind in LATENCY_KINDS if test.result.ttft_ms else ("ttft", "tpot"):
        values = [value for each in test.answered if (value := getattr(each, f"{kind}_ms")) is not None]
        for percent in (50, 90, 99):
            if len(values) * (1 - percent / 100) >= 1:
                found.setdefault(kind, {})[f"p{percent}"] = statistics.quantile_interval(values, percent / 100)
    return found


def with_counts(texts: Sequence[str]) -> list[str]:
    """Each text once, with how often it occurred."""
    return [f"{text} ({times:,} times)" if times > 1 else text for text, times in Counter(texts).items()]
