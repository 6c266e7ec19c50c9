"""LoadGen's detail log, the stable source of a result, and why LoadGen calls a result INVALID.

LoadGen's own reason is a recommendation without numbers, and is empty if only early stopping failed. The numbers behind
each check are entries of the detail log. Source: PerformanceSummary::LogDetail in loadgen/results.cc.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.formatting import Measured, first_of, plural
from harness.core.reading import DAMAGED
from harness.core.statements import Statement
from harness.core.word_list import names_in
from harness.loadgen.invalid_reasons import ENTRY_BY_CHECK, Check, failed_checks, reasons
from harness.loadgen.log_entries import (
    DETAIL,
    ENTRIES_BY_SCENARIO,
    MODES,
    PERCENTILES,
    Entries,
    LogError,
    finite_or_none,
    log_records,
    scenario_entries,
)

if TYPE_CHECKING:
    from pydantic import JsonValue

MOST_FOLDERS = 5  # the most folders of tests that a message names
LATENCY_KINDS = ("ttft", "tpot", "latency")
SEED_NAMES = names_in("qsl sample_index schedule")

# The entries that a result is read from, by the kind of their value.
TEXT_ENTRIES = names_in(
    """
    loadgen_version test_datetime effective_scenario effective_test_mode result_validity result_invalid_reason
    early_stopping_result early_stopping_ttft_result early_stopping_tpot_result
    """
)
ONE_VALUE_PREFIXES = names_in("result_ effective_ early_stopping")  # entries that no log has with two values
COUNT_ENTRIES = re.compile(r"(result|generated|effective)_.*(count|samples_per_query|duration_ms)|num_errors")
RATE_ENTRIES = re.compile(r"(result|effective)_.*(qps|per_sec).*")
BOOLEAN_ENTRIES = {*ENTRY_BY_CHECK.values(), "requested_use_token_latencies"}


@dataclass(frozen=True)
class Latency:
    """Nanoseconds as LoadGen logged them, here in milliseconds."""

    min: float
    mean: float
    max: float
    p50: float
    p90: float
    p95: float
    p97: float
    p99: float
    p99_9: float


def p99_of(latency: Latency | None) -> float | None:
    """Return the 99th percentile in milliseconds. None if the latency is unknown."""
    return latency.p99 if latency else None


@dataclass(frozen=True)
class TestResult:
    """The result of one LoadGen test by its log.

    Fields that its scenario or mode does not have are None. So are numbers that LoadGen could not compute, such as a
    rate over a single query, which it logs as NaN or Infinity.
    """

    __test__ = False  # no test of pytest's

    loadgen_version: str
    scenario: str
    mode: str
    started: str | None
    token_latencies: bool  # whether LoadGen took the times of tokens (use_token_latencies)
    valid: bool | None  # None for an accuracy test
    failed: tuple[Check, ...]  # the checks that make it INVALID
    invalid_reasons: list[Statement]  # the reasons for which these checks failed
    ran_short: bool  # LoadGen ran out of queries before its minimum duration
    samples: int | None
    queries: int | None
    duration_s: Measured
    tokens_per_sec: Measured
    samples_per_sec: Measured
    target_qps: Measured
    scheduled_qps: Measured
    latency_ms: Latency | None  # latencies of queries
    ttft_ms: Latency | None
    tpot_ms: Latency | None
    mean_sample_latency_ms: Measured
    early_stopping: Entries
    seeds: dict[str, int]
    effective: Entries
    errors: list[str]
    warnings: list[str]
    single_token: int = 0  # answers that have no time per output token
    tpot_judged: bool = True  # whether the answers with a time per output token are enough to judge it by its limit


FIRST_ENTRIES = ("loadgen_version", "effective_scenario", "effective_test_mode")  # the log of every test has these


def read(folder: Path, scenario: str = "", mode: str = "") -> TestResult:
    """Return the result of the LoadGen test whose logs are in `folder`.

    Raises LogError if the log is missing, damaged, unfinished, or of another `scenario` or `mode`, which are LoadGen's
    words, such as "Server" and "PerformanceOnly".
    """
    path = folder / DETAIL
    values = Entries()
    errors = []
    warnings = []
    try:
        for key, value, metadata in log_records(path):
            add_entry(values, key, value)
            if metadata.get("is_error"):
                errors.append(str(value))
            elif metadata.get("is_warning"):
                warnings.append(str(value))
        check_beginning(path, values)
        has_end = all(key in values for key in keys_of_end(values))
        if not has_end:
            raise LogError(f"{path}: the test did not finish, so it has no result.")
        for wanted, logged in ((scenario, values["effective_scenario"]), (mode, values["effective_test_mode"])):
            if wanted and logged != wanted:
                raise LogError(f"{path}: not this test's log: it says {logged}, not {wanted}.")
        return result_of(values, errors, warnings)
    except ValueError as error:  # Its message says what is wrong.
        raise LogError(f"{path}: {error}.") from None
    except DAMAGED as error:  # such as a TypeError, whose message needs a few words before it
        raise LogError(f"{path}: a damaged value: {type(error).__name__}: {error}.") from None


def check_beginning(path: Path, values: Entries) -> None:
    """Raise LogError if a log lacks one of the entries with which every test begins.

    The message tells apart an empty file, another program's log, and one that was cut off.
    """
    missing = [key for key in FIRST_ENTRIES if key not in values]
    if not missing:
        return
    if path.stat().st_size == 0:
        raise LogError(f"{path}: the log is empty: LoadGen did not begin a test, or its log was lost.")
    if not values:
        raise LogError(f"{path}: no entry of LoadGen's is in it: it is the log of another program.")
    raise LogError(f"{path}: it ends before {missing[0]}, with which a test begins: it is cut short.")


def add_entry(values: Entries, key: str, value: "JsonValue") -> None:
    """Add an entry of a LoadGen log to `values`. Of a repeated entry, the last value counts.

    Raises ValueError if the log has a second test, repeats an entry that LoadGen does not, or has a damaged value.
    """
    if key == "loadgen_version" and key in values:  # A test begins with this entry.
        raise ValueError("contains the logs of two tests")
    if key in values and key.startswith(ONE_VALUE_PREFIXES):
        is_verdict = key == "result_validity"  # LoadGen writes it once.
        is_same = values[key] == value and type(values[key]) is type(value)
        if is_verdict or not is_same:
            raise ValueError(f"{key} appears twice, as {values[key]!r:.40} and {value!r:.40}")
    if not is_of_kind(key, value):
        raise ValueError(f"a damaged value: {key} is {value!r:.40}")
    values[key] = value


def is_of_kind(key: str, value: object) -> bool:
    """Return whether a value is of the type that LoadGen writes for this entry, so that damaged logs are refused."""
    number = number_of(value)
    is_null = value is None
    if key in TEXT_ENTRIES:
        return isinstance(value, str)
    if key in BOOLEAN_ENTRIES:
        return isinstance(value, bool)
    if COUNT_ENTRIES.fullmatch(key):
        return isinstance(number, int) and number >= 0
    if RATE_ENTRIES.fullmatch(key):
        return is_null or (number is not None and number >= 0)
    # This program does not know the entry. Its prefix says what may be in it.
    if key.startswith(("result_", "generated_")):
        return is_null or number is not None
    if key.startswith(("effective_", "early_stopping")):
        return is_null or number is not None or isinstance(value, str | bool)
    return True


def number_of(value: object) -> int | float | None:
    """Return a value if it is a number within the 64 bits of LoadGen's integers; None for any other, such as true."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return value if abs(value) < 2**64 else None


def keys_of_end(values: Entries) -> list[str]:
    """Return the keys of the entries that a log has only if its test finished.

    A finished performance test has a verdict (result_validity).
    """
    if values["effective_test_mode"] != "PerformanceOnly":  # an accuracy test
        return ["power_end"]
    if "num_errors" in values:  # LoadGen 5.0.16 and later end a log with this entry, so the log is whole.
        return ["result_validity"]
    # Older versions end it with the highest percentile or, if they take the times of tokens, with the tokens/s.
    keys = ["result_validity", f"result_{PERCENTILES[-1]}_percentile_latency_ns"]
    if values.get("requested_use_token_latencies"):
        keys.append(scenario_entries(values).tokens)
    return keys


def entries_with_prefix(values: Entries, prefix: str) -> Entries:
    """Return the entries of a log whose keys begin with a prefix, under their whole keys."""
    return Entries((key, value) for key, value in values.items() if key.startswith(prefix))


def seeds_of(values: Entries) -> dict[str, int]:
    """Return LoadGen's seeds by name, as far as the log has them."""
    seeds = {}
    for name in SEED_NAMES:
        seed = values.whole_number(f"effective_{name}_rng_seed")
        if seed is not None:
            seeds[name] = seed
    return seeds


def sample_count(values: Entries) -> int | None:
    """Return the number of samples in all queries. None if the log does not tell it.

    It is the number of queries, unless the scenario has several samples in a query.
    """
    queries = values.whole_number("result_query_count")
    if not scenario_entries(values).multi_sample_queries or not queries:
        return queries
    samples_per_query = values.whole_number("generated_samples_per_query")
    if not samples_per_query:
        return samples_per_query  # None if it is not logged, or the logged 0
    return queries * samples_per_query


def sample_rate(values: Entries) -> Measured:
    """Return the samples per second: LoadGen's own rate or, in a scenario for which LoadGen logs none, the samples
    divided by the seconds that they took. None if unknown.
    """
    keys = scenario_entries(values)
    if keys.sample_rate:
        return values.number(keys.sample_rate)
    samples, seconds = sample_count(values), keys.seconds(values)
    if not samples or not seconds:
        return None
    return finite_or_none(samples / seconds)


def result_of(values: Entries, errors: list[str], warnings: list[str]) -> TestResult:
    """Return the result of one finished test from its entries.

    `errors` and `warnings` are the log's messages. Raises ValueError, TypeError or KeyError if the entries are damaged.
    """
    keys = scenario_entries(values)
    verdict = values.text("result_validity")
    failed = failed_checks(values)
    check_verdict(values, verdict, failed)
    error_count = values.whole_number("num_errors") or 0
    if error_count > len(errors):
        errors = [*errors, f"num_errors counts {plural(error_count, 'error')}, of which the log shows {len(errors):,}"]
    effective = Entries()
    for key, value in entries_with_prefix(values, "effective_").items():
        effective[key.removeprefix("effective_")] = value
    mean_latency_ns = values.number("result_mean_latency_ns")
    return TestResult(
        loadgen_version=str(values["loadgen_version"]),
        scenario=str(values["effective_scenario"]),
        mode=str(values["effective_test_mode"]),
        started=values.text("test_datetime"),
        token_latencies=values.get("requested_use_token_latencies") is True,
        valid=None if verdict is None else verdict == "VALID",  # An accuracy test has no verdict.
        failed=failed,
        invalid_reasons=reasons(values) if verdict == "INVALID" else [],
        ran_short="min_duration" in failed,
        samples=sample_count(values),
        queries=values.whole_number("result_query_count"),
        duration_s=keys.seconds(values),
        tokens_per_sec=values.number(keys.tokens),
        samples_per_sec=sample_rate(values),
        target_qps=values.number("effective_target_qps"),
        scheduled_qps=values.number("result_scheduled_samples_per_sec"),
        latency_ms=latency(values, keys.edges, keys.percentiles),
        ttft_ms=latency(values, "result_first_token_{}_latency_ns", "result_first_token_{}_percentile_latency_ns"),
        tpot_ms=latency(values, "result_time_to_output_token_{}", "result_time_per_output_token_{}_percentile_ns"),
        mean_sample_latency_ms=mean_latency_ns / 1e6 if mean_latency_ns else None,
        early_stopping=entries_with_prefix(values, "early_stopping"),
        seeds=seeds_of(values),
        effective=effective,
        errors=errors,
        warnings=warnings,
    )


def check_verdict(values: Entries, verdict: str | None, failed: Sequence[Check]) -> None:
    """Raise ValueError if LoadGen cannot have written these entries.

    The scenario, the test mode and the verdict must be known to LoadGen, and no check may have failed beside a VALID.
    An accuracy test has no verdict (None).
    """
    for name, known_values in (("effective_scenario", ENTRIES_BY_SCENARIO), ("effective_test_mode", MODES)):
        if values[name] not in known_values:
            raise ValueError(f"{name} is {values[name]!r:.40}, which LoadGen does not know")
    if verdict not in ("VALID", "INVALID", None):
        raise ValueError(f"a damaged value: result_validity is {verdict!r:.40}")
    if verdict == "VALID" and failed:
        raise ValueError(f"result_validity is VALID beside {ENTRY_BY_CHECK[failed[0]]}, which is false")


def latency(values: Entries, edge: str, percentile: str) -> Latency | None:
    """Return the minimum, mean, maximum and percentiles of a kind of latency, such as TTFT, in milliseconds.

    None if the log lacks one. In `edge`, {} stands for "min", "mean" or "max", in `percentile` for the percentile.
    """
    names = [*map(edge.format, ("min", "mean", "max")), *map(percentile.format, PERCENTILES)]
    times_ns = [time for time in map(values.number, names) if time is not None]
    if len(times_ns) < len(names):
        return None
    logged = Latency(*(time / 1e6 for time in times_ns))
    if logged.min < 0:  # LoadGen logs a negative latency if an answer has no first or no second token.
        return None
    return logged


def result_json(folder: Path) -> str:
    """Return the result in a folder's log as a page of JSON.

    Raises LogError, which names the folders of the tests if the folder is that of a run.
    """
    is_of_run = (folder / "config.json").exists()
    if is_of_run and not (folder / DETAIL).exists():
        test_folders = sorted(str(path.parent) for path in folder.rglob(DETAIL))
        if test_folders:
            names = first_of(test_folders, MOST_FOLDERS)
            raise LogError(f"{folder}: a run, whose tests have a {DETAIL} each; give one of these: {names}.")
    return json.dumps(asdict(read(folder)), indent=2, allow_nan=False)
