"""Why LoadGen calls a performance result INVALID: which of its checks failed, by how much, and what to change.

LoadGen's own reason is a recommendation without numbers, empty where only early stopping failed; the numbers behind
each check are entries of its detail log. Source: PerformanceSummary::LogDetail in loadgen/results.cc.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NamedTuple

from harness.core.markdown import number
from harness.core.statements import Statement

Check = Literal["latency", "min_duration", "min_queries", "early_stopping"]
Values = Mapping[str, Any]  # the log's entries by key

# LoadGen's entry for each check; a result is VALID where none of them is false.
ENTRY: dict[Check, str] = {
    "latency": "result_perf_constraints_met",
    "min_duration": "result_min_duration_met",
    "min_queries": "result_min_queries_met",
    "early_stopping": "early_stopping_met",
}


class Limit(NamedTuple):
    """A latency that LoadGen holds against a limit, both in nanoseconds, by the entries that hold them."""

    name: str
    latency: str  # {} stands for the percentile
    limit: str
    early_stopping: str  # LoadGen's sentence on whether there were queries enough


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
MORE = re.compile(r"at least (\d+) more queries")  # in what early stopping says
QUERY_LIMITS = (
    Limit("latency", "result_{}_percentile_latency_ns", "effective_target_latency_ns", "early_stopping_result"),
)


def failed_checks(values: Values) -> tuple[Check, ...]:
    return tuple(check for check, entry in ENTRY.items() if values.get(entry) is False)


Said = Iterator[tuple[str, str]]  # what is wrong, and what to do


def reasons(values: Values) -> list[Statement]:
    """Why a result is INVALID: a statement or more for each failed check."""
    found = [
        Statement(name=check, what=what, remedy=remedy)
        for check in failed_checks(values)
        for what, remedy in SENTENCES[check](values)
    ]
    return found or [Statement(what="LoadGen says INVALID, and does not log which of its checks failed")]


def latency(values: Values) -> Said:
    remedy = f"lower the target rate{now(values.get('effective_target_qps'), 'queries/s')}"
    exceeded = over(values)
    for limit, (found, allowed) in exceeded.items():
        over_by = f"{100 * (found / allowed - 1):,.{0 if found > 1.1 * allowed else 1}f} %"
        name = f"{limit.name} p{percentile(values):g}"
        yield f"{name} was {ms(found)}, {over_by} over the limit of {ms(allowed)}", remedy
    if not exceeded:
        yield "a latency limit was exceeded", remedy


def percentile(values: Values) -> float:
    return float(100 * values.get("effective_target_latency_percentile", 0.99))


def over(values: Values) -> dict[Limit, tuple[float, float]]:
    """The limits that were exceeded, each with what was found and what is allowed, in nanoseconds."""
    exceeded = {}
    for limit in limits(values):
        found, allowed = values.get(limit.latency.format(f"{percentile(values):.2f}")), values.get(limit.limit)
        if found and allowed and found > allowed:
            exceeded[limit] = (found, allowed)
    return exceeded


def min_duration(values: Values) -> Said:
    expected = values.get("requested_single_stream_expected_latency_ns")
    scenario = values.get("effective_scenario")
    remedy = {
        "Offline": f"raise the expected rate{now(values.get('effective_target_qps'), 'samples/s')}",
        "Server": f"raise the target rate{now(values.get('effective_target_qps'), 'queries/s')}",
    }.get(str(scenario), f"lower the expected latency{now(expected and expected / 1e6, 'ms')}")
    least = values.get("effective_min_duration_ms")
    ran = measured_s(values)
    if ran is None or least is None:
        yield "the test ended before its minimum duration", remedy
    else:
        short = least / 1000 - ran
        yield f"the test ran {number(ran)} s, {number(short, 3)} s short of its minimum of {least / 1000:g} s", remedy


def measured_s(values: Values) -> float | None:
    """The seconds that LoadGen holds against the minimum duration: until the last sample was complete (Offline),
    scheduled (Server) or issued (SingleStream)."""
    if last := values.get("result_max_latency_ns") if values.get("effective_scenario") == "Offline" else None:
        return float(last) / 1e9
    rate = values.get("result_scheduled_samples_per_sec") or values.get("result_qps_with_loadgen_overhead")
    queries = values.get("result_query_count")
    return (queries - 1) / rate if rate and queries else None


def min_queries(values: Values) -> Said:
    remedy = "raise the maximum duration or query count, or see the log's errors for what ended the test early"
    queries, each = values.get("result_query_count"), values.get("generated_samples_per_query", 1)
    counts = (
        ("queries", queries, values.get("effective_min_query_count")),
        ("samples", queries and queries * each, values.get("effective_min_sample_count")),
    )
    for unit, found, least in counts:
        if found is not None and least and found < least:
            yield f"{found:,} {unit} were issued, {least - found:,} fewer than the minimum of {least:,}", remedy
            return
    yield "too few queries were issued", remedy


def early_stopping(values: Values) -> Said:
    """LoadGen puts its counts into sentences: how many more queries it takes, or how many in all.

    A percentile that is over its limit is left out: more queries would not help it.
    """
    late = "latency" in failed_checks(values)
    remedy = "lower the target rate" if late else "run longer (a higher minimum duration or query count)"
    queries = values.get("result_query_count")
    processed = "the" if queries is None else f"{queries:,}"
    unsure = f"{processed} queries are too few to be sure of the {{}} p{percentile(values):g} (early stopping)"
    found, exceeded = [], over(values)
    for limit in (*TOKEN_LIMITS, *QUERY_LIMITS):
        if limit in exceeded:
            continue
        said = str(values.get(limit.early_stopping) or "")
        if more := MORE.search(said):
            found.append(f"{unsure.format(limit.name)}, {int(more[1]):,} more within the limit are needed")
        elif least := re.search(r"Need to process at least (\d+) queries", said):
            found.append(f"{unsure.format('latency')}, {int(least[1]):,} are needed")
    if not found and not late:
        found = [unsure.format("latency")]
    for sentence in dict.fromkeys(found):
        yield f"{sentence}", remedy


SENTENCES: dict[Check, Callable[[Values], Said]] = {
    "latency": latency,
    "min_duration": min_duration,
    "min_queries": min_queries,
    "early_stopping": early_stopping,
}


def limits(values: Values) -> tuple[Limit, ...]:
    """The limits that LoadGen checks: of tokens where it takes their times, else of whole queries."""
    return TOKEN_LIMITS if values.get("requested_use_token_latencies") else QUERY_LIMITS


def now(value: float | None, unit: str) -> str:
    return "" if value is None else f" (now {number(value)} {unit})"


def ms(nanoseconds: float) -> str:
    value = nanoseconds / 1e6
    return f"{value:,.0f} ms" if value >= 100 else f"{number(value, 3)} ms"
