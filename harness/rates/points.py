"""What a test's logs say of its load, as a point of a curve."""

from dataclasses import replace
from pathlib import Path

from harness.common.markdown import number
from harness.common.statistics import FEWEST_P99, tail_name
from harness.config.plan import Plan
from harness.loadgen.log import TestResult
from harness.loadgen.test_run import TestRun, with_times
from harness.loadgen.validity import MORE
from harness.rates.queueing import queue_of
from harness.runs.probe import Probe, Queue, percentiles

SHORT = {"min_duration": "shorter than the minimum duration", "min_queries": "fewer queries than the minimum"}


def probe_of(test: TestRun, plan: Plan, run: Path) -> Probe:
    """A test in the folder of a run as a point of a curve; at fixed concurrency without its ramps, where it is long
    enough."""
    result, trend = test.result, None
    if part := test.window:
        trend = part.trend
        if part.requests:
            speeds = {"tokens_per_sec": part.tokens_per_sec, "samples_per_sec": part.samples_per_sec}
            result = replace(with_times(result, part.requests), **speeds)  # type: ignore[arg-type]
    ends = [(one.issued_s or 0.0, one.done_s) for one in test.requests if one.done_s is not None]
    queue, sent = None, None
    if plan.config.scenario_rules.pattern.is_rated:
        queue, sent = queue_of([at for at, _ in ends], [end for _, end in ends]), result.scheduled_qps
    count = len(part.requests if part and part.requests else test.answered) // plan.samples_per_query
    tokens, joules = sum(one.output_tokens for one in test.requests), test.machine.gpu_joules
    return Probe(
        qps=None if plan.concurrency else plan.target_qps,
        concurrency=plan.concurrency,
        samples_per_query=plan.samples_per_query,
        valid=bool(result.valid),
        **percentiles(latency=result.latency_ms, ttft=result.ttft_ms, tpot=result.tpot_ms),
        queries=count,
        tokens_per_sec=result.tokens_per_sec,
        samples_per_sec=result.samples_per_sec,
        sent=sent,
        seconds=result.queries / sent if sent and result.queries else None,
        more=more_queries(result) if result.failed == ("early_stopping",) else None,
        queue=queue,
        why="; ".join(reasons(result, plan, queue, is_few=count < FEWEST_P99)),
        folder=str(test.folder.relative_to(run)),
        busy="; ".join(test.machine.background_load),
        buffered=bool(test.server and test.server.is_buffered),
        joules_per_token=joules / tokens if joules and tokens else None,
        trend=trend,
        client_delay_p99=test.client_delay.p99 if test.client_delay else None,
    )


def more_queries(result: TestResult) -> int | None:
    """How many queries LoadGen's early stopping wants beyond those of the test; None where it does not say."""
    said = " ".join(str(value) for value in result.early_stopping.values())
    return max((int(count) for count in MORE.findall(said)), default=None)


def reasons(result: TestResult, plan: Plan, queue: Queue | None, is_few: bool) -> list[str]:
    """Why a test is INVALID, or would be if it lasted, or why a level is over its limits: a few words each."""
    found, limits = [], plan.limits
    if limits:
        tails = (tail for tail in limits.tails(result.ttft_ms, result.tpot_ms) if tail.is_over)
        found += [f"{tail_name(kind, is_few)} {number(p99)} of {number(most)} ms" for kind, p99, most in tails]
    if plan.concurrency:  # LoadGen judges its length alone there
        return found
    if result.failed == ("early_stopping",):
        count = more_queries(result)
        found.append(f"{count:,} more queries needed" if count else "too few queries to be sure")
    found += [words for check, words in SHORT.items() if check in result.failed]
    if queue and queue.has_grown:
        found.append(f"queue grew by {number(queue.growth, 2)} a second")
    return found or ([] if result.valid else result.invalid_reasons)
