"""The outcome of a level of concurrency from all its tests together."""

import re
from collections.abc import Iterable, Sequence
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

USED_CORES = re.compile(r"\d+\.\d+")  # the number in a text on the cores that other programs used


def heaviest_loads(texts: Iterable[str]) -> tuple[str, ...]:
    """Return the texts on other programs during the tests of a level, each kind of load once.

    Of texts that differ only in the number of cores that were used, it is the one with the highest number.
    """
    heaviest = dict[str, str]()
    for text in texts:
        kind = USED_CORES.sub("", text)
        if kind not in heaviest or used_cores(text) > used_cores(heaviest[kind]):
            heaviest[kind] = text
    return tuple(heaviest.values())


def used_cores(text: str) -> float:
    """Return the number of cores in a text on other programs, 0 for a text on another kind of load."""
    number = USED_CORES.search(text)
    return float(number[0]) if number else 0.0


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
        background_load=heaviest_loads(background_load),
        disagreements=tuple(dict.fromkeys(disagreements)),
        repeats=[outcome.folder for outcome in outcomes],
        repeats_over=sum(bool(outcome.reasons) for outcome in outcomes),
        speed_range=speed_range([outcome.tokens_per_sec for outcome in outcomes]),
    )
