"""A test without its ramps, and the share of requests that kept both limits."""

from collections.abc import Sequence
from typing import Any, Self

from harness.common.schema import Model
from harness.config.mlperf import Limits
from harness.loadgen.log import Latency
from harness.loadgen.requests import Request, times_of, without_failures
from harness.loadgen.steady import SteadyPart, steady_part
from harness.loadgen.test_run import TestRun
from harness.runs.records import RunFacts


class Steady(Model):
    """A test without its ramps: from as many answers as are computed at once until as few are left."""

    begin_s: float | None = None
    """Since the first request was sent; null in summaries of older versions."""
    seconds: float
    share_percent: float
    """Of the test's duration."""
    tokens_per_sec: float
    """Output tokens per second of the answers that ended in the steady part."""
    input_tokens_per_sec: float | None = None
    """Prompt tokens of the same answers; from here to `tokens_per_sec_per_user` at fixed concurrency alone."""
    total_tokens_per_sec: float | None = None
    samples_per_sec: float | None = None
    trend: float
    """The rate of its second half over that of the first."""
    requests: int | None = None
    """That were sent and answered in it, of which what follows is."""
    latency_ms: Latency | None = None
    ttft_ms: Latency | None = None
    tpot_ms: Latency | None = None
    slo_attainment: float | None = None
    goodput: float | None = None
    tokens_per_sec_per_user: float | None = None
    """1,000 / TPOT p90 in ms, over the steady part."""

    @classmethod
    def of(cls, test: TestRun, facts: RunFacts) -> Self | None:
        """None of a scenario that sends by time, or one query after the other, and of a test too short for one."""
        plan, seconds = facts.plan, test.result.duration_s
        at_once = plan.config.scenario_rules.pattern.kept_in_flight(plan.load, facts.concurrency)
        if plan.config.batch_size or not at_once or not seconds:
            return None
        part = test.window if plan.concurrency else steady_part(test.requests, at_once)
        if part is None:
            return None
        of_window = window(test, part, plan.limits) if plan.concurrency and part.requests else {}
        return cls(
            begin_s=part.begin_s,
            seconds=part.seconds,
            share_percent=100 * part.seconds / seconds,
            tokens_per_sec=part.tokens_per_sec,
            trend=part.trend,
            **of_window,
        )


def window(test: TestRun, part: SteadyPart, limits: Limits | None) -> dict[str, Any]:
    """What is the result at fixed concurrency, instead of the same of the whole test."""
    is_buffered, times = test.server is not None and test.server.is_buffered, times_of(part.requests)
    kept, each = None if is_buffered else slo_attainment(part.window, limits), times["tpot_ms"]
    return {
        "input_tokens_per_sec": part.input_tokens_per_sec or None,
        "total_tokens_per_sec": part.input_tokens_per_sec + part.tokens_per_sec,
        "samples_per_sec": part.samples_per_sec,
        "requests": len(part.requests),
        **times,
        "slo_attainment": kept,
        "goodput": None if kept is None else kept / 100 * len(part.ended) / part.seconds,
        "tokens_per_sec_per_user": 1000 / each.p90 if each and each.p90 and not is_buffered else None,
    }


def slo_attainment(requests: Sequence[Request], limits: Limits | None) -> float | None:
    """Percent of the requests that kept both limits, which failed ones did not; an answer of one token has no time per
    output token to keep. None where there are no limits, or the time of a first token is not known."""
    answered = without_failures(requests)
    if limits is None or not requests or any(each.ttft_ms is None for each in answered):
        return None
    times = [(each.ttft_ms or 0.0, each.tpot_ms or 0.0) for each in answered]
    kept = sum(first <= limits.ttft and token <= limits.tpot for first, token in times)
    return 100 * kept / len(requests)
