"""The reasons for which LoadGen calls a result INVALID, by the entries of its log."""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

from harness.core.formatting import Measured, number, plural
from harness.core.statements import Statement
from harness.loadgen.log_entries import Entries, duration_at, scenario_entries

Check = Literal["latency", "min_duration", "min_queries", "early_stopping"]
# LoadGen's entry for each check. A result is VALID if none of these entries is false.
ENTRY_BY_CHECK: dict[Check, str] = {
    "latency": "result_perf_constraints_met",
    "min_duration": "result_min_duration_met",
    "min_queries": "result_min_queries_met",
    "early_stopping": "early_stopping_met",
}


class Limit(NamedTuple):
    """A latency that LoadGen compares with a limit, both in nanoseconds, with the keys of their entries in the log."""

    name: str
    latency: str  # the key of the latency, in which {} stands for the percentile
    limit: str
    early_stopping: str  # the key of LoadGen's sentence on whether there were enough queries


TOKEN_LIMITS = (
    Limit(
        "TTFT",
        "result_first_token_{}_percentile_latency_ns",
        "requested_server_ttft_latency",
        "early_stopping_ttft_result",
    ),
    Limit(
        "TPOT",
        "result_time_per_output_token_{}_percentile_ns",
        "requested_server_tpot_latency",
        "early_stopping_tpot_result",
    ),
)
MORE_QUERIES_PATTERN = re.compile(r"at least (\d+) more queries")  # in LoadGen's sentences on early stopping
QUERY_LIMITS = (
    Limit("latency", "result_{}_percentile_latency_ns", "effective_target_latency_ns", "early_stopping_result"),
)


def failed_checks(values: Entries) -> tuple[Check, ...]:
    """Return the checks that a log's entries say have failed. A check without an entry has not."""
    return tuple(check for check, entry in ENTRY_BY_CHECK.items() if values.get(entry) is False)


Reasons = Iterator[tuple[str, str]]  # pairs of what is wrong, and what to do


def reasons(values: Entries) -> list[Statement]:
    """Return why a result is INVALID: one or more statements for each failed check.

    If the log does not say which check failed, return one statement that says so.
    """
    problems = []
    for check in failed_checks(values):
        for what, remedy in REASONS_BY_CHECK[check](values):
            problems.append(Statement(name=check, what=what, remedy=remedy))
    return problems or [Statement(what="LoadGen says INVALID, and does not log which of its checks failed")]


def exceeded_latency(values: Entries) -> Reasons:
    """Yield how far each latency is over its limit, and what to do.

    If the log does not show which latency is over its limit, yield a sentence without numbers.
    """
    remedy = f"lower the target rate{current_value(values.number('effective_target_qps'), 'queries/s')}"
    exceeded = exceeded_limits(values)
    for limit, (measured, allowed) in exceeded.items():
        digits = 0 if measured > 1.1 * allowed else 1  # Without a decimal, a small excess would be "0 %".
        over_by = f"{100 * (measured / allowed - 1):,.{digits}f} % over the limit of {ms_text(allowed)}"
        yield f"{limit.name} p{target_percentile(values):g} was {ms_text(measured)}, {over_by}", remedy
    if not exceeded:
        yield "a latency limit was exceeded", remedy


def target_percentile(values: Entries) -> float:
    """Return the percentile for which LoadGen's latency limits hold, such as 99, its default."""
    share = values.number("effective_target_latency_percentile")
    if share is None:
        share = 0.99
    return 100 * share


def exceeded_limits(values: Entries) -> dict[Limit, tuple[float, float]]:
    """Return the limits that were exceeded, each with the measured and the allowed latency in nanoseconds.

    A limit whose values are not in the log counts as not exceeded.
    """
    limits: Sequence[Limit] = QUERY_LIMITS
    if values.get("requested_use_token_latencies"):
        limits = TOKEN_LIMITS  # TTFT and TPOT
    exceeded = {}
    percentile = f"{target_percentile(values):.2f}"  # as LoadGen has it in the keys of its log, such as 99.00
    for limit in limits:
        measured = values.number(limit.latency.format(percentile))
        allowed = values.number(limit.limit)
        if measured and allowed and measured > allowed:
            exceeded[limit] = (measured, allowed)
    return exceeded


def min_duration(values: Entries) -> Reasons:
    """Yield how much too short the test was, and which setting makes it longer.

    LoadGen plans the number of queries by the expected rate or latency, so the test of a faster server ends early.
    """
    target = values.number("effective_target_qps")
    expected_ns = values.number("requested_single_stream_expected_latency_ns")
    expected_ms = expected_ns / 1e6 if expected_ns else expected_ns  # None stays None
    match values["effective_scenario"]:
        case "Offline":
            remedy = f"raise --offline-expected-qps{current_value(target, 'samples/s')}"
        case "Server":
            remedy = f"raise --server-target-qps{current_value(target, 'queries/s')}"
        case _:  # SingleStream and MultiStream
            remedy = f"lower the expected latency{current_value(expected_ms, 'ms')}"
    # In Server, LoadGen compares the minimum with the time up to the last scheduled sample. No other scenario has an
    # entry for that rate: there, the minimum is compared with the length of the test.
    scheduled_s = duration_at(values, "result_scheduled_samples_per_sec")
    ran_s = scheduled_s or scenario_entries(values).seconds(values)
    min_ms = values.number("effective_min_duration_ms")
    shortfall = "too short"
    if min_ms and ran_s:
        shortfall = f"{number(min_ms / 1000 - ran_s, 3)} s short of its minimum of {min_ms / 1000:g} s"
    yield f"the test ran {number(ran_s)} s, {shortfall}", remedy


def min_queries(values: Entries) -> Reasons:
    """Yield the reason for a log that says that too few queries were issued: how many were missing, and what to do."""
    issued = values.whole_number("result_query_count")
    minimum = values.whole_number("effective_min_query_count")
    text = "too few queries were issued"
    if minimum and issued is not None:
        text = f"LoadGen issued {plural(issued, 'query')}, {minimum - issued:,} fewer than the minimum of {minimum:,}"
    remedy = "raise the maximum duration or query count, or see the log's errors for what ended the test early"
    yield text, remedy


def early_stopping(values: Entries) -> Reasons:
    """Yield a sentence for each latency whose percentile is uncertain, as the test had too few queries, and the remedy.

    Without a number of missing queries in the log, a single sentence says that there are too few.
    """
    is_over_limit = "latency" in failed_checks(values)
    # At a rate that exceeds a limit, a longer test would fail as well.
    remedy = "lower the target rate" if is_over_limit else "run longer (a higher minimum duration or query count)"
    query_count = values.whole_number("result_query_count")
    percentile = f"p{target_percentile(values):g}"

    def too_few(latency_name: str) -> str:
        """Return the beginning of a sentence: there were too few queries for the percentile of a latency."""
        verb = "is" if query_count == 1 else "are"
        queries = plural(query_count, "query")
        return f"{queries} {verb} too few to be sure of the {latency_name} {percentile} (early stopping)"

    problems = []
    exceeded = exceeded_limits(values)
    for limit in (*TOKEN_LIMITS, *QUERY_LIMITS):
        if limit in exceeded:  # More queries would not help.
            continue
        logged_text = str(values.get(limit.early_stopping) or "")
        more = MORE_QUERIES_PATTERN.search(logged_text)
        fewest = re.search(r"Need to process at least (\d+) queries", logged_text)
        if more:
            problems.append(f"{too_few(limit.name)}, {int(more[1]):,} more within the limit are needed")
        elif fewest:  # This number is the same for all latencies, so the sentence is, too.
            problems.append(f"{too_few('latency')}, {int(fewest[1]):,} are needed")
    if not problems and not is_over_limit:  # If a limit was exceeded, the reason about that limit says enough.
        problems = [too_few("latency")]
    for sentence in dict.fromkeys(problems):  # each sentence once
        yield sentence, remedy


REASONS_BY_CHECK = {
    "latency": exceeded_latency,
    "min_duration": min_duration,
    "min_queries": min_queries,
    "early_stopping": early_stopping,
}


def current_value(value: Measured, unit: str) -> str:
    """Return a setting's value as the end of a remedy, such as " (now 5 queries/s)"; empty if it is not known."""
    if value is None:
        return ""
    return f" (now {number(value)} {unit})"


def ms_text(nanoseconds: float) -> str:
    return f"{number(nanoseconds / 1e6, 3)} ms"
