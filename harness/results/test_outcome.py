"""Build a test's outcome at its load and, for a run's own test, all details of it."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from harness.config import arrival_patterns, engine
from harness.config.plan import Plan
from harness.core import statistics
from harness.core.formatting import Measured, number, plural
from harness.core.statements import Statement
from harness.core.statistics import FEWEST_P99, tail_name
from harness.loadgen.invalid_reasons import MORE_QUERIES_PATTERN
from harness.loadgen.log import LATENCY_KINDS, Latency, TestResult, p99_of
from harness.loadgen.log_entries import LogError
from harness.loadgen.machine_use import Usage
from harness.loadgen.test_run import TestRun
from harness.results import claims, cost, gpu_time_shares, hardware_limits, load_effect, telemetry
from harness.results.cost import Capacity, Cost
from harness.results.figures import figures_of_steady_part, figures_of_test
from harness.results.gpu_time import GpuTime
from harness.results.outcome import Outcome, Queue, Times
from harness.results.queue_fit import queue_of
from harness.results.records import RunFacts
from harness.results.test_details import Intervals, TestDetails

# LoadGen's checks of a test's length, and what a test that fails them is.
SHORTFALL_TEXTS = {"min_duration": "shorter than the minimum duration", "min_queries": "fewer queries than the minimum"}
CLOCK_TOLERANCE = 1.001  # the ratio by which times of two clocks may differ
ROUNDING_RATIO = 1 + 1e-9  # the ratio by which two times may differ by rounding
INTERVAL_PERCENTILES = (50, 90, 99)


def outcome_of(test: TestRun, plan: Plan, run: Path, load: Measured = None) -> Outcome:
    """Return the outcome of a test. `run` is the run folder. If `load` is None, the test's load is that of the plan."""
    result, steady_part = test.counted_result, test.window
    queue = sent_qps = issue_s = more_queries = None
    if plan.pattern.is_rated:  # Other tests send no schedule of queries, so there is no rate and no queue.
        queue = queue_of(test.requests)
        sent_qps = result.scheduled_qps
    if sent_qps and result.queries:
        issue_s = result.queries / sent_qps  # the seconds in which the queries were sent
    # If a test failed another check as well, more queries alone would not make it VALID.
    if result.failed == ("early_stopping",):
        more_queries = missing_queries(result)
    queries = len(test.counted_requests) // plan.samples_per_query
    return Outcome(
        load=load or plan.pattern.planned_load(plan) or 0.0,
        unit=plan.pattern.unit,
        valid=bool(result.valid),
        has_own_limits=plan.pattern.is_timed_by_client,  # LoadGen judges all other tests by MLPerf's limits.
        reasons=tuple(reasons(result, plan, queue, is_few=queries < FEWEST_P99)),
        tokens_per_sec=result.tokens_per_sec,
        input_tokens_per_sec=(steady_part or test).input_tokens_per_sec,
        samples_per_sec=result.samples_per_sec,
        latency_ms=Times.of(result.latency_ms),
        ttft_ms=Times.of(result.ttft_ms),
        tpot_ms=Times.of(result.tpot_ms),
        client_delay_ms=Times.of(test.client_delay),
        joules_per_output_token=joules_per_token(test, plan),
        trend=steady_part.trend if steady_part else None,
        queries=queries,
        sent=sent_qps,
        issue_s=issue_s,
        more=more_queries,
        queue=queue,
        is_buffered=test.is_buffered,
        background_load=tuple(test.machine.background_load),
        folder=str(test.folder.relative_to(run)),
    )


def own_outcome_of(test: TestRun, facts: RunFacts, run: Path) -> Outcome:
    """Return the outcome of a run's own test with all details. Raises LogError if the log is of another run.

    Its load is what LoadGen logged, not what was planned: the concurrency, the rate, or else the samples per query.
    """
    details = details_of(test, facts)
    load = details.concurrency or details.target_qps or details.samples_per_query
    outcome = outcome_of(test, facts.plan, run, load)
    trend = details.steady.trend if details.steady else None
    return outcome.with_details(details, trend)


def joules_per_token(test: TestRun, plan: Plan) -> Measured:
    """Return the energy of the GPUs per output token in joules.

    None if the energy was not measured, if other GPUs than the recorded ones may have computed, or without output
    tokens.
    """
    are_all_recorded = plan.config.may_see_gpus and not plan.config.has_other_hosts
    joules, tokens = test.machine.gpu_joules, test.total_new_tokens
    if not (are_all_recorded and joules and tokens):
        return None
    return joules / tokens


def missing_queries(result: TestResult) -> int | None:
    """Return how many more queries LoadGen's early stopping asks for; None if it does not say.

    Early stopping may ask for one number for each latency; the largest counts.
    """
    logged_text = " ".join(map(str, result.early_stopping.values()))
    return max(map(int, MORE_QUERIES_PATTERN.findall(logged_text)), default=None)


def reasons(result: TestResult, plan: Plan, queue: Queue | None, is_few: bool) -> list[Statement]:
    """Return why a test is INVALID, or would be INVALID as a full test.

    LoadGen's own reasons are given only if no other is found. `is_few` tells that a p99 is the slowest of few requests.
    """
    statements = list(over_limits(plan, p99_of(result.ttft_ms), p99_of(result.tpot_ms), is_few))
    # LoadGen does not judge latencies that the client timed, so only the user's limits count.
    if plan.pattern.is_timed_by_client:
        return statements
    statements += shortfalls(result)
    if queue and queue.has_grown:
        statements.append(Statement(f"the queue grew by {number(queue.growth, 2)} queries a second", name="queue"))
    if not statements and not result.valid:
        return list(result.invalid_reasons)
    return statements


def shortfalls(result: TestResult) -> Iterator[Statement]:
    """Yield what the test has too little of for LoadGen's verdict: queries or time."""
    # Early stopping also fails if another check does, and more queries alone would not make such a test VALID.
    if result.failed == ("early_stopping",):
        count = missing_queries(result)
        text = f"{plural(count, 'more query')} needed" if count else "too few queries to be sure"
        yield Statement(text, name="early_stopping")
    for check, text in SHORTFALL_TEXTS.items():
        if check in result.failed:
            yield Statement(text, name=check)


def over_limits(plan: Plan, ttft_p99_ms: float | None, tpot_p99_ms: float | None, is_few: bool) -> Iterator[Statement]:
    """Yield a statement for each latency with a p99 over its limit. None are given if the run has no limits.

    `is_few` tells that the requests are so few that a p99 is the slowest of them, which the text then says.
    """
    if plan.limits is None:
        return
    for tail in plan.limits.tails(ttft_p99_ms, tpot_p99_ms):
        if tail.is_over:
            yield Statement(tail.text(tail_name(tail.kind, is_few)), name=tail.kind)


def target_rate(test: TestRun, plan: Plan) -> Measured:
    """Return the rate that is a test's target by its load pattern: LoadGen's, the planned one, or none."""
    rates = {"logged": test.result.target_qps, "planned": plan.target_qps, "none": None}
    return rates[plan.pattern.named_rate]


def details_of(test: TestRun, facts: RunFacts) -> TestDetails:
    """Return the details of a run's own test. Raises LogError if the log is of another run.

    Values that no test can have are added to the disagreements.
    """
    plan, result = facts.plan, test.result
    check_same_run(test, facts)
    failures = [request.failure for request in test.requests if request.failure]
    sent_s = sent_times(test) if plan.config.arrivals else []
    usage = telemetry.usage_of(test.recording)
    memory = usage.get("gpu_memory_gib") if plan.config.may_see_gpus else None  # only of GPUs that may have computed
    gpu_time = gpu_time_shares.gpu_times(test, facts)
    # The shares of the GPUs' peak arithmetic (mfu) and memory bandwidth (mbu) that the test reached.
    mfu_percent, mbu_percent = hardware_limits.peak_shares(test, facts) or (None, None)
    details = TestDetails(
        whole=figures_of_test(test, plan.limits),
        steady=figures_of_steady_part(test, plan.limits),
        machine=test.machine,
        scenario=plan.config.scenario,
        invalid_reasons=result.invalid_reasons,
        duration_s=result.duration_s,
        samples=result.samples,
        samples_per_query=plan.samples_per_query,
        concurrency=plan.concurrency,
        arrivals=plan.config.arrivals,
        arrivals_cv=arrival_patterns.gap_variation(sent_s) if sent_s else None,
        target_qps=target_rate(test, plan),
        achieved_qps=achieved_rate(test, plan.samples_per_query, sent_s),
        # Without --max-failed, the first failed request ends the run.
        failed_requests=len(failures) if engine.allows_failures(plan.config.max_failed) else None,
        failures=with_counts(failures),
        early_stopping=result.early_stopping,
        seeds=result.seeds,
        loadgen_version=result.loadgen_version,
        errors=with_counts(result.errors),
        warnings=with_counts(result.warnings),
        total_new_tokens=test.total_new_tokens,
        total_input_tokens=test.total_input_tokens,
        input_lengths=test.input_lengths,
        output_lengths=test.output_lengths,
        # answers with more tokens than were allowed
        longer=sum(request.output_tokens > plan.max_new_tokens for request in test.answered_requests),
        intervals=percentile_intervals(test),
        client_delay_ms=test.client_delay,
        single_token=result.single_token,
        tpot_judged=result.tpot_judged,
        limits_ms=plan.limits,
        requests_in_flight=mean_in_flight(test),
        peak_memory_gib=memory.max if memory else None,
        usage=usage,
        gpu_time=gpu_time,
        ran_out=what_ran_out(test, facts, usage, gpu_time),
        load_effect=load_effect.effect_of_load(test),
        server=test.server,
        disagreements=list(test.server.disagreements) if test.server else [],
        cost=cost_of(test, plan),
        capacity=shown_capacity(test, plan),
        mfu_percent=mfu_percent,
        mbu_percent=mbu_percent,
    )
    impossible = impossible_values(details, longest_ms(test, facts))
    contradictions = [f"{text}: LoadGen's log contradicts itself" for text in impossible]
    return details.model_copy(update={"disagreements": [*details.disagreements, *contradictions]})


def shown_capacity(test: TestRun, plan: Plan) -> Capacity | None:
    """Return how many requests the server can answer in an hour and a day, by a test.

    None if the test does not show it. An INVALID test at a rate does not show that the server keeps that rate.
    """
    if plan.pattern.is_rated and not test.result.valid:
        return None
    return cost.capacity(plan, test.counted_result.samples_per_sec)


def what_ran_out(
    test: TestRun, facts: RunFacts, usage: Mapping[str, Usage], gpu_time: Sequence[GpuTime]
) -> list[Statement]:
    """Return what limited the speed of a test: the parts of the engine and the machine that were used up.

    `usage` has the mean and the maximum of each recorded quantity, `gpu_time` the shares of the GPUs' time.
    """
    counted = test.counted_result
    others_percent = 100 * (test.machine.others_cpu_cores or 0.0) / max(1, facts.system.cores)
    statements = telemetry.ran_out(
        usage,
        facts.concurrency,
        gpu_time,
        facts.engine_args,
        client=bool(facts.plan.config.endpoint),
        others_percent=others_percent,
    )
    # Only whether a latency is over its limit matters here. `is_few` changes nothing but the texts.
    latencies_over = over_limits(facts.plan, p99_of(counted.ttft_ms), p99_of(counted.tpot_ms), is_few=False)
    if any(latencies_over):
        statements = telemetry.without_more_load(statements)
    return list(statements)


def cost_of(test: TestRun, plan: Plan) -> Cost | None:
    """Return the cost of a test's tokens and requests; None without a price."""
    counted = test.counted_result  # At a fixed concurrency, its speeds are those of the steady part alone.
    total_tokens_per_sec = test.total_tokens_per_sec
    if test.window and test.window.requests:
        total_tokens_per_sec = test.window.total_tokens_per_sec
    return cost.cost(plan.config.price_per_hour, counted.tokens_per_sec, total_tokens_per_sec, counted.samples_per_sec)


def check_same_run(test: TestRun, facts: RunFacts) -> None:
    """Raise LogError if the seeds or the minimum duration in the log are not those of the run's plan."""
    plan, log = facts.plan, test.result
    # LoadGen logs the minimum duration in whole milliseconds.
    for name, logged, planned in (
        ("seeds", log.seeds, vars(plan.seeds)),
        ("minimum duration, ms", log.effective.get("min_duration_ms"), round(1000 * plan.min_duration_s)),
    ):
        if logged != planned:
            raise LogError(f"{test.folder}: a log of another run: its {name}: {logged}, not {planned}.")


def sent_times(test: TestRun) -> list[float]:
    """Return the times at which requests were sent, sorted, in seconds since the first was issued.

    A request's `begin_s` is already relative to that.
    """
    return sorted(request.begin_s + (request.sent_ms or 0.0) / 1e3 for request in test.requests)


def achieved_rate(test: TestRun, samples_per_query: int, sent_s: Sequence[float]) -> Measured:
    """Return the rate of a test in queries/s; None or 0 if LoadGen gives none.

    `sent_s` has the times of sending, sorted, if the test sent requests by the user's own schedule; else it is empty.
    """
    if sent_s and sent_s[-1] > sent_s[0]:
        gaps = len(sent_s) - 1  # The time from the first request to the last is that of the gaps between them.
        return gaps / (sent_s[-1] - sent_s[0])
    rate = test.result.samples_per_sec
    if not rate:
        return rate
    return rate / samples_per_query


def mean_in_flight(test: TestRun) -> Measured:
    """Return the mean number of requests in flight by Little's law: rate times mean latency.

    None in Offline, where all are issued at once, and if LoadGen's rate or mean latency is not known.
    """
    result = test.result
    is_offline = not result.ttft_ms  # the only scenario without a TTFT
    if is_offline or not (result.samples_per_sec and result.mean_sample_latency_ms):
        return None
    return result.samples_per_sec * result.mean_sample_latency_ms / 1000


def longest_ms(test: TestRun, facts: RunFacts) -> Measured:
    """Return an upper bound for every latency of a test, in milliseconds; None if not known."""
    # LoadGen's duration of a paced load may end before the last query does.
    if facts.plan.pattern.is_paced or not test.result.duration_s:
        latencies = [request.latency_ms for request in test.requests if request.latency_ms is not None]
        return max(latencies, default=None)
    return 1000 * test.result.duration_s


def impossible_values(details: TestDetails, most_ms: Measured) -> Iterator[str]:
    """Yield a sentence for each value that no test can have.

    Such values are a negative number, a latency over `most_ms`, and a TTFT or TPOT over the longest latency. If
    `most_ms` is None, any latency is possible.
    """
    for name, value in claims.leaves(details.model_dump()):
        if isinstance(value, int | float) and value < 0:
            yield f"{name.removeprefix('whole.').removeprefix('machine.')} is {value:g}"
    whole = details.whole
    if most_ms:
        yield from too_long("latency", whole.latency_ms, most_ms * CLOCK_TOLERANCE)
    if whole.latency_ms:
        yield from too_long("TTFT", whole.ttft_ms, whole.latency_ms.max)
        yield from too_long("TPOT", whole.tpot_ms, whole.latency_ms.max)


def too_long(name: str, times: Latency | None, most_ms: float) -> Iterator[str]:
    """Yield a sentence if the longest latency of a kind is over `most_ms`, beyond rounding.

    Nothing if there are no such times.
    """
    if times and times.max > most_ms * ROUNDING_RATIO:
        yield f"the longest {name} is {number(times.max)} ms, beyond {number(most_ms)} ms"


def percentile_intervals(test: TestRun) -> Intervals:
    """Return the 95 % intervals of p50, p90 and p99, by kind of latency and name of the percentile.

    A percentile has none if the latency is not known of single requests, or if no request would be slower than it.
    """
    by_kind: Intervals = {}
    kinds: Sequence[str] = LATENCY_KINDS
    is_offline = not test.result.ttft_ms  # one query, of which LoadGen logs one latency and no TTFT
    if is_offline:  # The client itself may know these times.
        kinds = ("ttft", "tpot")
    for kind in kinds:
        times = [getattr(request, f"{kind}_ms") for request in test.answered_requests]
        values = [value for value in times if value is not None]
        for percent in INTERVAL_PERCENTILES:
            slower_count = len(values) * (1 - percent / 100)
            if slower_count >= 1:
                interval = statistics.quantile_interval(values, percent / 100)
                by_kind.setdefault(kind, {})[f"p{percent}"] = interval
    return by_kind


def with_counts(texts: Sequence[str]) -> list[str]:
    """Return each distinct text, with the number of times that it occurs if it occurs more than once."""
    counted = []
    for text, times in Counter(texts).items():
        if times > 1:
            counted.append(f"{text} ({times:,} times)")
        else:
            counted.append(text)
    return counted
