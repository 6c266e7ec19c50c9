"""The outcome of a level of concurrency from all its tests together."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from harness.config.plan import Plan
from harness.core.statistics import FEWEST_P99
from harness.loadgen.log import p99_of
from harness.loadgen.requests import times_of
from harness.loadgen.test_run import TestRun
from harness.results.level_figures import mean_by_time, seconds_of, speed_range, timed_requests
from harness.results.outcome import Outcome, Times
from harness.results.test_outcome import outcome_of, over_limits


def level_of(tests: Sequence[TestRun], plan: Plan, run: Path) -> Outcome:
    """Return the outcome of a level, which is a number of requests in flight, from all tests at this level.

    Speeds are means over the tests, latencies are of all requests together, and other fields are of the longest test.
    `run` is the run folder.
    """
    outcomes = [outcome_of(test, plan, run) for test in tests]
    if len(outcomes) == 1:
        return outcomes[0]
    seconds = [seconds_of(test) for test in tests]
    longest = outcomes[seconds.index(max(seconds))]
    are_buffered = [test.is_buffered for test in tests]
    requests = timed_requests(tests, are_buffered)
    times, is_few = times_of(requests), len(requests) < FEWEST_P99
    reasons = over_limits(plan, p99_of(times.ttft_ms), p99_of(times.tpot_ms), is_few)
    background_load = chain.from_iterable(outcome.background_load for outcome in outcomes)
    disagreements = chain.from_iterable(outcome.disagreements for outcome in outcomes)
    return Outcome(
        load=longest.load,
        unit=longest.unit,
        has_own_limits=longest.has_own_limits,
        folder=longest.folder,
        client_delay_ms=longest.client_delay_ms,
        valid=all(outcome.valid for outcome in outcomes),
        reasons=tuple(reasons),
        tokens_per_sec=mean_by_time([outcome.tokens_per_sec for outcome in outcomes], seconds),
        input_tokens_per_sec=mean_by_time([outcome.input_tokens_per_sec for outcome in outcomes], seconds),
        samples_per_sec=mean_by_time([outcome.samples_per_sec for outcome in outcomes], seconds),
        joules_per_output_token=mean_by_time([outcome.joules_per_output_token for outcome in outcomes], seconds),
        trend=mean_by_time([outcome.trend for outcome in outcomes], seconds),
        latency_ms=Times.of(times.latency_ms),
        ttft_ms=Times.of(times.ttft_ms),
        tpot_ms=Times.of(times.tpot_ms),
        queries=len(requests) // plan.samples_per_query,
        is_buffered=all(are_buffered),
        background_load=tuple(dict.fromkeys(background_load)),
        disagreements=tuple(dict.fromkeys(disagreements)),
        repeats=[outcome.folder for outcome in outcomes],
        repeats_over=sum(bool(outcome.reasons) for outcome in outcomes),
        speed_range=speed_range([outcome.tokens_per_sec for outcome in outcomes]),
    )
