"""One LoadGen test of a load, as the search, the report and the curves see it."""

import re

from harness.config.plan import Plan
from harness.loadgen.log import TestResult
from harness.loadgen.search import Goal
from harness.runs.probe import Probe, Queue

MORE = re.compile(r"at least (\d+) more queries")  # LoadGen's early stopping


def goal(plan: Plan) -> Goal:
    """What the run's own test is held to; for scenarios with limits."""
    limits = plan.limits
    assert limits is not None
    return Goal(plan.min_duration_s, plan.min_queries, limits.ttft_ms, limits.tpot_ms)


def measured(result: TestResult, plan: Plan, queue: Queue | None, folder: str) -> Probe:
    """What a test came to: `plan` is the test's own, `folder` that of its logs within the run's."""
    first, each, whole = result.ttft_ms, result.tpot_ms, result.latency_ms
    rated = plan.config.scenario_rules.fixed_rate
    sent = result.scheduled_qps if rated else None
    return Probe(
        qps=None if plan.config.scenario_rules.capped else plan.target_qps,
        concurrency=plan.concurrency,
        samples_per_query=plan.samples_per_query,
        valid=bool(result.valid),
        latency_p50=whole.p50 if whole else None,
        latency_p90=whole.p90 if whole else None,
        ttft_p99=first.p99 if first else None,
        tpot_p99=each.p99 if each else None,
        ttft_p90=first.p90 if first else None,
        tpot_p90=each.p90 if each else None,
        latency_p99=whole.p99 if whole else None,
        ttft_p50=first.p50 if first else None,
        tpot_p50=each.p50 if each else None,
        ttft_min=first.min if first else None,
        tokens_per_sec=result.tokens_per_sec,
        samples_per_sec=result.samples_per_sec,
        sent=sent,
        seconds=result.queries / sent if sent and result.queries else None,
        more=more(result) if result.failed == ("early_stopping",) else None,
        queue=queue if rated else None,
        why="; ".join(why(result, plan, queue if rated else None)),
        folder=folder,
    )


def more(result: TestResult) -> int | None:
    """How many queries LoadGen's early stopping wants beyond those of the test; None where it does not say."""
    said = " ".join(str(value) for value in result.early_stopping.values())
    return max((int(count) for count in MORE.findall(said)), default=None)


def why(result: TestResult, plan: Plan, queue: Queue | None) -> list[str]:
    """Why a test is INVALID, or would be if it lasted, or why a level is over its limits: a few words each."""
    found, limits = [], plan.limits
    if limits:
        kinds = (("TTFT", result.ttft_ms, limits.ttft_ms), ("TPOT", result.tpot_ms, limits.tpot_ms))
        found += [f"{name} p99 {ms.p99:,.4g} of {most:,.4g} ms" for name, ms, most in kinds if ms and ms.p99 > most]
    if plan.config.scenario_rules.capped:  # LoadGen judges its length alone there
        return found
    if result.failed == ("early_stopping",):
        count = more(result)
        found.append(f"{count:,} more queries needed" if count else "too few queries to be sure")
    found += [words for check, words in SHORT.items() if check in result.failed]
    if queue and queue.grew:
        found.append(f"queue grew by {queue.growth:.2g} a second")
    return found or ([] if result.valid else result.invalid_reasons)


SHORT = {"min_duration": "shorter than the minimum duration", "min_queries": "fewer queries than the minimum"}
