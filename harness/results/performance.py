"""A performance test's folder -> all that is known of it: LoadGen's numbers, tokens, the machine, the cost."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from harness.common import files
from harness.config import endpoint, mlperf, models
from harness.config.arrivals import variation
from harness.config.plan import Plan
from harness.loadgen import client_delay, failures, request_times, token_times
from harness.loadgen import log as loadgen_log
from harness.results import roofline, telemetry
from harness.results.summary import Performance, Steady
from harness.runs.delivery import ServerUse
from harness.runs.records import Capacity, Cost, LimitsMs, MachineUse, RunFacts, Spread

PROMPT_TOKENS, SERVER = "prompt_tokens.json", "server.json"


def read(folder: Path, facts: RunFacts) -> Performance:
    """The performance part of the summary: LoadGen's numbers, and the token counts that were reported to it.

    Raises LogError for the log of another run.
    """
    plan = facts.plan
    scenario = plan.config.scenario_rules
    log = token_times.read(folder, plan.limits, plan.request_set is not None, scenario.loadgen, "PerformanceOnly")
    for name, found, planned in (
        ("seeds", log.seeds, asdict(plan.seeds)),
        ("minimum duration, ms", log.effective.get("min_duration_ms"), round(1000 * plan.min_duration_s)),
    ):
        if found != planned:
            raise loadgen_log.LogError(f"{folder}: a log of another run: its {name}: {found}, not {planned}.")
    limits = plan.limits
    used = files.read(folder / "machine.json", MachineUse) if (folder / "machine.json").exists() else MachineUse()
    recorded = telemetry.usage_of(folder / "machine.csv")
    here = endpoint.here(plan.config.endpoint)
    peak = recorded.get("gpu_memory_gib") if here else None
    joules = used.gpu_joules if here and not plan.config.spans_hosts else None
    failed = failures.failures_of(folder)
    every, new, prompts = token_times.token_counts(folder), *answered(folder, failed)
    read_in = sum(prompts) / log.duration_s if prompts and log.duration_s else None
    shares = near_peak(facts, prompts, new, log.duration_s)
    total = read_in + log.tokens_per_sec if read_in and log.tokens_per_sec else None
    server = files.read(folder / SERVER, ServerUse) if (folder / SERVER).exists() else None
    kept, part = slo_attainment(folder, every, limits), steady(folder, facts, every, log.duration_s)
    if server and server.buffered:  # what its users see is not known
        kept, part = None, part and part.model_copy(update={"tokens_per_sec_per_user": None})
    sent = len(every) / len(new) if new else 1.0  # requests for each that was answered
    found = Performance(
        scenario=plan.config.scenario,
        valid=bool(log.valid),
        invalid_reasons=log.invalid_reasons,
        duration_s=log.duration_s,
        samples=log.samples,
        samples_per_query=plan.samples_per_query,
        total_new_tokens=sum(new) if new else None,
        total_input_tokens=sum(prompts) if prompts else None,
        input_lengths=Spread.of(prompts),
        output_lengths=Spread.of(new),
        tokens_per_sec=log.tokens_per_sec,
        input_tokens_per_sec=read_in,
        total_tokens_per_sec=total,
        samples_per_sec=log.samples_per_sec,
        target_qps=plan.target_qps if scenario.scheduled else log.target_qps if scenario.planned_by_rate else None,
        achieved_qps=log.samples_per_sec and log.samples_per_sec / plan.samples_per_query,
        latency_ms=log.latency_ms,
        ttft_ms=log.ttft_ms,
        tpot_ms=log.tpot_ms,
        arrivals=plan.config.arrivals,
        arrivals_cv=variation(request_times.dues(folder)) if scenario.scheduled else None,
        client_delay_ms=client_delay.client_delays(folder),
        single_token=log.single_token,
        tpot_judged=log.tpot_judged,
        limits_ms=LimitsMs(ttft=limits.ttft_ms, tpot=limits.tpot_ms) if limits else None,
        early_stopping=log.early_stopping,
        peak_memory_gib=peak.max if peak else None,
        failed_requests=len(failed) if endpoint.may_fail(plan.config.max_failed, 10**9) else None,
        failures=counted(list(failed.values())),
        longer=sum(count > plan.max_new_tokens for count in new),
        usage=recorded,
        ran_out=list(telemetry.ran_out(recorded, facts.concurrency, client=bool(plan.config.endpoint))),
        server=server,
        disagreements=server.disagreements if server else [],
        **used.model_dump(),
        concurrency=plan.concurrency,
        steady=part,
        slo_attainment=kept,
        goodput=log.samples_per_sec * sent * kept / 100 if kept is not None and log.samples_per_sec else None,
        requests_in_flight=log.samples_per_sec * log.mean_sample_latency_ms / 1000
        if scenario.streaming and log.samples_per_sec and log.mean_sample_latency_ms
        else None,
        joules_per_output_token=joules / sum(new) if joules and sum(new) else None,
        capacity=capacity(plan, log.samples_per_sec) if log.valid or not scenario.fixed_rate else None,
        mfu_percent=shares[0] if shares else None,
        mbu_percent=shares[1] if shares else None,
        cost=cost(plan.config.price_per_hour, log.tokens_per_sec, total, log.samples_per_sec),
        seeds=log.seeds,
        loadgen_version=log.loadgen_version,
        errors=counted(log.errors),
        warnings=counted(log.warnings),
    )
    if wrong := next(impossible(found, scenario.planned_by_rate), None):
        raise loadgen_log.LogError(f"{folder}: {wrong}: no test can measure that; its logs are not to be trusted.")
    return found


def impossible(test: Performance, lasts: bool) -> Iterator[str]:
    """Numbers that no test can have: negative ones, and latencies beyond its length. `lasts`: its duration holds every
    query's (SingleStream's ends when the last one begins)."""
    for name, value in leaves(test.model_dump()):
        if value < 0:
            yield f"{name} is {value:g}"
    whole = 1001 * test.duration_s if lasts and test.duration_s else None  # ms, and what clocks differ by
    longest = test.latency_ms.max if test.latency_ms else None
    for name, found, most in (
        ("the longest latency", longest, whole),
        ("the longest TTFT", test.ttft_ms.max if test.ttft_ms else None, longest),
        ("the longest TPOT", test.tpot_ms.max if test.tpot_ms else None, longest),
    ):
        if found is not None and most is not None and found > most * (1 + 1e-9):
            yield f"{name} is {found:g} ms, beyond {most:g}"


def leaves(data: Any, name: str = "") -> Iterator[tuple[str, float]]:
    """Every number in nested data, with the path to it."""
    if isinstance(data, Mapping):
        for key, value in data.items():
            yield from leaves(value, f"{name}.{key}".lstrip("."))
    elif type(data) in (int, float):
        yield name, data


def slo_attainment(folder: Path, tokens: Sequence[int], limits: mlperf.Limits | None) -> float | None:
    """Percent of the requests that kept both limits, which failed ones did not; an answer of one token has no time per
    output token to keep.

    None where there are no limits, or LoadGen left no trace.
    """
    if limits is None or not token_times.traced(folder):
        return None
    samples = request_times.samples(folder)
    if not samples or len(samples) != len(tokens):
        return None
    kept = 0
    for sample, count in zip(samples, tokens, strict=True):
        if sample.failed:
            continue
        if sample.ttft_ms is None:
            return None
        kept += sample.ttft_ms <= limits.ttft_ms and (sample.tpot_ms(count) or 0.0) <= limits.tpot_ms
    return 100 * kept / len(samples)


def steady(folder: Path, facts: RunFacts, tokens: Sequence[int], seconds: float | None) -> Steady | None:
    """What a test came to without its ramps; None of a scenario that sends by time, or one query after the other."""
    scenario, at_once = facts.plan.config.scenario_rules, facts.plan.concurrency or facts.concurrency
    if (
        scenario.reported
        or scenario.scheduled
        or facts.plan.config.batch_size
        or not at_once
        or not seconds
        or not token_times.traced(folder)
    ):
        return None
    samples = request_times.samples(folder)
    part = request_times.steady(samples, tokens, at_once)
    if part is None:
        return None
    found = Steady(
        seconds=part.seconds,
        share_percent=100 * part.seconds / seconds,
        tokens_per_sec=part.tokens_per_sec,
        trend=part.trend,
    )
    if not scenario.capped:
        return found
    times = request_times.part_times(samples, tokens, part)
    each = times.get("tpot_ms")
    return found.model_copy(update=times | {"tokens_per_sec_per_user": 1000 / each.p90 if each and each.p90 else None})


def near_peak(
    facts: RunFacts, prompts: list[int], answers: list[int], seconds: float | None
) -> tuple[float, float] | None:
    """The shares of arithmetic and bandwidth of an Offline test of the reference model, all of it computed as the
    formula has it, on the GPUs of this host; else None."""
    plan, complete = facts.plan, facts.concurrency and seconds and len(prompts) == len(answers)
    if not complete or plan.config.scenario_rules.streaming or not plan.reference_model or plan.config.spans_hosts:
        return None
    engine_state = plan.engine_state
    if engine_state.prefix_caching is not False or engine_state.speculation or plan.config.precision == "fp32":
        return None
    return roofline.shares(
        roofline.OfflineLoad(
            gpus=facts.system.gpus[: plan.tensor_parallel_size * plan.data_parallel_size],
            bits=roofline.bits(engine_state.quantization, models.in_eight_bits(plan.config.model)),
            kv_cache_dtype=engine_state.kv_cache_dtype,
            replicas=plan.data_parallel_size,
            concurrency=facts.concurrency or 1,
            prompts=prompts,
            answers=answers,
            seconds=seconds or 0.0,
        )
    )


def capacity(plan: Plan, rate: float | None) -> Capacity | None:
    """What a rate of samples/s comes to; for MLPerf's whole set where the samples were MLPerf's."""
    if not rate:
        return None
    official = plan.official_data and not plan.request_set and not plan.config.model_spec.deviation
    official = official and plan.max_new_tokens == mlperf.MAX_NEW_TOKENS
    full = mlperf.OFFICIAL[plan.config.category].samples / rate if official else None
    return Capacity(requests_per_hour=3600 * rate, requests_per_day=86400 * rate, full_set_s=full)


def cost(price_per_hour: float | None, output: float | None, total: float | None, rate: float | None) -> Cost | None:
    """What a machine at this price an hour takes for its tokens and requests; rates are per second."""
    if price_per_hour is None:
        return None
    second = price_per_hour / 3600
    return Cost(
        price_per_hour=price_per_hour,
        per_million_output_tokens=1e6 * second / output if output else None,
        per_million_tokens=1e6 * second / total if total else None,
        per_thousand_requests=1e3 * second / rate if rate else None,
    )


def answered(folder: Path, failed: Mapping[int, str]) -> tuple[list[int], list[int]]:
    """The tokens of each answer and of its prompt, of the requests that did not fail."""
    new, prompts = token_times.token_counts(folder), prompt_counts(folder)
    return tuple([n for place, n in enumerate(counts) if place not in failed] for counts in (new, prompts))  # type: ignore[return-value]


def prompt_counts(folder: Path) -> list[int]:
    """The tokens of each prompt in the order of issue; none where they were not recorded. Raises UsageError."""
    path = folder / PROMPT_TOKENS
    return files.read(path, list[int]) if path.exists() else []


def counted(texts: Sequence[str]) -> list[str]:
    """Each text once, with how often it was said."""
    return [f"{text} ({times:,} times)" if times > 1 else text for text, times in Counter(texts).items()]
