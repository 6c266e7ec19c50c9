"""The outcome of a level of concurrency from all its tests together."""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path

from harness.config.plan import Plan
from harness.core.formatting import Measured
from harness.core.statistics import FEWEST_P99
from harness.loadgen.log import p99_of
from harness.loadgen.requests import times_of
from harness.loadgen.test_run import TestRun
from harness.results.outcome import Outcome, Times
from harness.results.test_outcome import outcome_of, over_limits


def seconds_of(test: TestRun) -> float:
    """Return the seconds over which a test's speeds were measured: its steady part or, without one, the whole test."""
    if test.window:
        return test.window.seconds
    return test.result.duration_s or 0.0


def mean_by_time(speeds: Sequence[Measured], seconds: Sequence[float]) -> Measured:
    """Return the mean of a speed over tests, weighted by the seconds of each test.

    None if the speed of a test is not known, or if the tests have no seconds.
    """
    total = 0.0
    for speed, weight in zip(speeds, seconds, strict=True):
        if speed is None:
            return None
        total += speed * weight
    return total / sum(seconds) if sum(seconds) else None


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
    # If a buffer held answers back, TTFT and TPOT do not describe the engine.
    unbuffered_tests = [test for test in tests if not test.is_buffered]
    timed_tests = unbuffered_tests or tests
    requests = [*chain.from_iterable(test.counted_requests for test in timed_tests)]
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
        is_buffered=not unbuffered_tests,
        background_load=tuple(dict.fromkeys(background_load)),
        disagreements=tuple(dict.fromkeys(disagreements)),
        repeats=[outcome.folder for outcome in outcomes],
        repeats_over=sum(bool(outcome.reasons) for outcome in outcomes),
        speed_range=speed_range(outcomes),
    )


def speed_range(outcomes: Sequence[Outcome]) -> tuple[float, float] | None:
    """Return the output tokens/s of the slowest and the fastest test; None if no speed is known."""
    speeds = [outcome.tokens_per_sec for outcome in outcomes if outcome.tokens_per_sec is not None]
    if not speeds:
        return None
    return min(speeds), max(speeds)
