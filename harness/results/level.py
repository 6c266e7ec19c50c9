"""Several tests of one level of concurrency, as one: a level is what all of its tests together measured."""

from collections.abc import Sequence
from pathlib import Path

from harness.config.plan import Plan
from harness.core.formatting import Measured
from harness.core.statistics import FEWEST_P99
from harness.loadgen.requests import Request, times_of
from harness.loadgen.test_run import TestRun
from harness.results.outcome import Outcome, Times
from harness.results.test_outcome import outcome_of, over_limits


def seconds_of(test: TestRun) -> float:
    """Return the seconds that a test's speeds are of: without its ramps, where those are known."""
    return test.window.seconds if test.window else test.result.duration_s or 0.0


def mean_by_time(values: Sequence[Measured], seconds: Sequence[float]) -> Measured:
    """Return the mean of speeds, each counted by the seconds that it is of; None where one is not known."""
    known = [value for value in values if value is not None]
    if len(known) < len(values) or not sum(seconds):
        return None
    return sum(value * weight for value, weight in zip(known, seconds, strict=True)) / sum(seconds)


def level_of(tests: Sequence[TestRun], plan: Plan, run: Path) -> Outcome:
    """Return the outcome of a level by all tests of it, in the folder of a run. `plan` has the level.

    Its speeds are the mean of its tests, its latencies are of all their requests together, and these decide whether it
    keeps the limits. Its logs are those of the longest test.
    """
    outcomes = [outcome_of(test, plan, run) for test in tests]
    if len(outcomes) == 1:
        return outcomes[0]
    seconds = [seconds_of(test) for test in tests]
    requests = list[Request]()
    for test in tests:
        requests += test.counted
    latencies = {}
    for name, latency in times_of(requests).items():
        latencies[name] = Times.of(latency)
    means = {}
    for name in ("tokens_per_sec", "input_tokens_per_sec", "samples_per_sec", "trend", "joules_per_output_token"):
        means[name] = mean_by_time([getattr(outcome, name) for outcome in outcomes], seconds)
    speeds = [outcome.tokens_per_sec for outcome in outcomes if outcome.tokens_per_sec is not None]
    loads, disputes = list[str](), list[str]()
    for outcome in outcomes:
        loads += outcome.background_load
        disputes += outcome.disagreements
    is_few = len(requests) < FEWEST_P99
    longest = outcomes[seconds.index(max(seconds))]
    return longest.model_copy(
        update={
            **latencies,
            **means,
            "valid": all(outcome.valid for outcome in outcomes),
            "reasons": tuple(over_limits(plan, latencies["ttft_ms"].p99, latencies["tpot_ms"].p99, is_few)),
            "queries": len(requests) // plan.samples_per_query,
            "is_buffered": any(outcome.is_buffered for outcome in outcomes),
            "background_load": tuple(dict.fromkeys(loads)),
            "disagreements": tuple(dict.fromkeys(disputes)),
            "repeats": [outcome.folder for outcome in outcomes],
            "repeats_over": sum(bool(outcome.reasons) for outcome in outcomes),
            "speed_range": (min(speeds), max(speeds)) if speeds else None,
        }
    )
