"""The entries of LoadGen's detail log: read one by one, checked, kept by key, and which of them a scenario has."""

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TextIO

from harness.core.errors import BAD_INPUT, BenchmarkError
from harness.core.file_limits import LARGEST_LOADGEN_LOG
from harness.core.formatting import Measured
from harness.core.message_text import system_reason
from harness.core.reading import open_regular
from harness.core.word_list import names_in

if TYPE_CHECKING:
    from pydantic import JsonValue

DETAIL = "mlperf_log_detail.txt"
LOG_MARK = ":::MLLOG "
PERCENTILES = names_in("50.00 90.00 95.00 97.00 99.00 99.90")


class LogError(BenchmarkError):
    """A log that cannot be trusted. The message names the file and what is wrong."""

    exit_code = BAD_INPUT


def finite_or_none(number: str | float) -> Measured:
    """Return the number as a float. None if it is out of a float's range."""
    value = float(number)
    if not math.isfinite(value):
        return None
    return value


def read_null(name: str) -> None:
    """Return None for NaN and Infinity, which LoadGen writes although JSON does not have them."""


DECODER = json.JSONDecoder(parse_float=finite_or_none, parse_constant=read_null)


class Entries(dict[str, "JsonValue"]):
    """The values of a log's entries by key.

    The methods return None for an entry that the log does not have, or whose value LoadGen could not compute. They
    raise TypeError for a value of another kind.
    """

    def text(self, key: str) -> str | None:
        """Return the text of an entry; None if there is none. Raises TypeError for another kind of value."""
        value = self.get(key)
        if value is not None and not isinstance(value, str):
            raise TypeError(f"{key} is not text")
        return value

    def number(self, key: str) -> float | None:
        """Return the number of an entry; None if there is none. Raises TypeError for another kind of value."""
        value = self.get(key)
        if value is not None and not isinstance(value, int | float):
            raise TypeError(f"{key} is not a number")
        return value

    def whole_number(self, key: str) -> int | None:
        """Return the whole number of an entry; None if there is none. Raises TypeError for another kind of value."""
        value = self.get(key)
        if value is not None and not isinstance(value, int):
            raise TypeError(f"{key} is not a whole number")
        return value


# An entry of the log: the key, the value, and the metadata, such as is_error and is_warning.
LogRecord = tuple[str, "JsonValue", Mapping[str, object]]


def log_records(path: Path) -> Iterator[LogRecord]:
    """Yield the log's entries one by one: the key, the value, and the metadata, such as is_error and is_warning.

    Raises LogError if an entry is damaged, or if the file cannot be read.
    """
    try:
        with open_regular(path, LARGEST_LOADGEN_LOG) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.startswith(LOG_MARK):
                    continue
                record = parse_record(line)
                if record is None:
                    raise LogError(f"{path}:{number}: {cause_of_damage(following_lines=lines)}.")
                yield record
    except OSError as error:
        raise LogError(f"{path}: {system_reason(error)}.") from None


def parse_record(line: str) -> LogRecord | None:
    """Return the key, the value and the metadata of a line with LoadGen's mark. None if the line is damaged."""
    try:
        entry = DECODER.decode(line.removeprefix(LOG_MARK))
    except (ValueError, RecursionError):  # It is no JSON.
        return None
    match entry:
        case {"key": str(key), "value": value, **others}:
            metadata = others.get("metadata")
            if not isinstance(metadata, Mapping):
                metadata = {}
            return key, value, metadata
    return None


def cause_of_damage(following_lines: TextIO) -> str:
    """Return the likely cause of a damaged entry, in words, judged by the lines of the file that follow it.

    If there are none, the file was cut off within the entry. Otherwise it was changed or damaged.
    """
    if next(following_lines, None) is None:
        return "the log ends in the middle of an entry: the run was ended, or its copy is cut short"
    return "a damaged entry, with others after it: the file was changed, or its copy is damaged"


def offline_duration(values: Entries) -> Measured:
    """Return the seconds until the last sample of an Offline test was complete."""
    last = values.number("result_max_latency_ns")
    return None if last is None else last / 1e9


def duration_at(values: Entries, entry: str) -> Measured:
    """Return the seconds of a test, computed from the rate in an entry: LoadGen's rates are (queries - 1) / seconds.

    None if the log does not have the rate or the number of queries.
    """
    rate, queries = values.number(entry), values.whole_number("result_query_count")
    if not queries or not rate:
        return None
    return finite_or_none((queries - 1) / rate)


def scheduled_duration(values: Entries) -> Measured:
    """Return the seconds of a Server or SingleStream test, by the rate that LoadGen logs. None if it logs none.

    A Server test counts up to the completion of the last query, a SingleStream test up to the issue of the last query.
    """
    rate_entry = scenario_entries(values).sample_rate
    return duration_at(values, rate_entry) if rate_entry else None


def sequential_duration(values: Entries) -> Measured:
    """Return the seconds that the queries of a MultiStream test took together, without the time between them.

    None if the log lacks their number or mean latency. LoadGen logs no rate for this scenario.
    """
    queries, mean_ns = values.whole_number("result_query_count"), values.number("result_mean_query_latency_ns")
    if not queries or not mean_ns:
        return None
    return finite_or_none(queries * mean_ns / 1e9)


class ScenarioEntries(NamedTuple):
    """The keys of the log's entries that hold a scenario's results."""

    sample_rate: str | None  # samples per second; None if LoadGen does not log them
    tokens: str = "result_completed_tokens_per_second"
    seconds: Callable[[Entries], Measured] = scheduled_duration  # returns the length of the measured part
    multi_sample_queries: bool = False  # a query holds several samples
    edges: str = "result_{}_latency_ns"  # {} stands for min, mean and max
    percentiles: str = "result_{}_percentile_latency_ns"  # {} stands for the percentile


ENTRIES_BY_SCENARIO = {
    "Offline": ScenarioEntries(
        "result_samples_per_second", "result_tokens_per_second", offline_duration, multi_sample_queries=True
    ),
    "Server": ScenarioEntries("result_completed_samples_per_sec"),
    "SingleStream": ScenarioEntries("result_qps_with_loadgen_overhead"),
    "MultiStream": ScenarioEntries(
        None,
        seconds=sequential_duration,
        multi_sample_queries=True,
        edges="result_{}_query_latency_ns",
        percentiles="result_{}_percentile_per_query_latency_ns",
    ),
}
MODES = names_in("SubmissionRun AccuracyOnly PerformanceOnly FindPeakPerformance")


def scenario_entries(values: Entries) -> ScenarioEntries:
    """Return the keys under which a log has the results, which depend on the log's scenario.

    An unknown scenario has the usual keys, without a rate of samples.
    """
    return ENTRIES_BY_SCENARIO.get(str(values["effective_scenario"]), ScenarioEntries(sample_rate=None))
