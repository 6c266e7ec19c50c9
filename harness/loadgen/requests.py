"""The requests of a test: a line of requests.csv each, written once when the test ends.

In all of MLPerf's scenarios the times are LoadGen's, from its trace. At fixed concurrency and with arrivals of the
user's own, LoadGen issues one Offline query and cannot know when each request was sent, so the system under test takes
the times. The column `clock` says whose they are. A time that nobody took is empty.
"""

import csv
import gzip
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Literal, NamedTuple, TypedDict, get_args

from harness.core import csv_files, statistics
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_LOADGEN_LOG, LARGEST_REQUESTS
from harness.core.formatting import Measured, plural
from harness.core.message_text import system_reason
from harness.core.reading import DAMAGED, open_regular
from harness.core.word_list import names_in
from harness.loadgen.log import Latency
from harness.loadgen.log_entries import DECODER, PERCENTILES, LogError, cause_of_damage

TRACE_FILE = "mlperf_log_trace.json"  # LoadGen's trace: the times of each sample of a test
ANSWERS_FILE = "mlperf_log_accuracy.json"  # LoadGen's log of the token ids of an accuracy test


@dataclass(slots=True)
class Sample:
    """One sample as LoadGen's trace has it."""

    order: int  # the order of issue
    index: int  # the index in the sample library
    scheduled_ms: float  # milliseconds since the first entry of the trace
    ttft_ms: Measured  # from the scheduled time, as the others below
    latency_ms: float
    delay_ms: float  # until LoadGen issued the sample


def read_trace(folder: Path) -> list[Sample]:
    """Return every sample of a test from LoadGen's trace, in the order of issue.

    Raises LogError if the trace cannot be read, is damaged, or is cut short.
    """
    path = folder / TRACE_FILE
    reader = TraceReader()
    try:
        with open_regular(path, LARGEST_LOADGEN_LOG) as lines:
            for line in lines:
                try:
                    reader.take(line)
                except DAMAGED:
                    raise LogError(f"{path}: {cause_of_damage(following_lines=lines)}.") from None
    except OSError as error:
        raise LogError(f"{path}: {system_reason(error)}.") from None
    if not reader.has_end:
        raise LogError(f"{path}: the trace has no end (LastTrace): the run was ended, or its copy is cut short.")
    return sorted(reader.samples, key=attrgetter("order"))


class EventArguments(TypedDict, total=False):
    """The times and numbers of an event in LoadGen's trace. The event's name decides which of them it has."""

    issue_delay: int
    issue_to_done: int
    sample_seq: int
    sample_idx: int
    issue_start_ns: int
    complete_ns: int


class TraceEvent(TypedDict):
    """An event of LoadGen's trace. `ts` is in microseconds, all other times are in nanoseconds."""

    name: str
    ts: float
    args: EventArguments


class TraceReader:
    """Reads LoadGen's trace, which is JSON with one event a line.

    A sample's first token is a Token_Latency event with the same scheduled time (Server), or a Token event with the
    same number (SingleStream), before the Sample event that closes it.
    """

    def __init__(self) -> None:
        """Begin without samples. They are added as lines are taken."""
        self.samples: list[Sample] = []
        self.has_end = False  # whether the last line of the trace came
        # Times of first tokens in ms, of samples that have not ended yet. A Token_Latency event (Server) does not tell
        # the sample's number, so its times are by the sample's scheduled time and delay.
        self._first_by_time: dict[tuple[float, float], float] = {}
        self._first_by_number: dict[int, float] = {}  # from Token events (SingleStream)

    def take(self, line: str) -> None:
        """Take what a line of the trace says: that the trace ends, or the time of a sample's first token, or its end.

        Raises one of the errors in DAMAGED if a line is damaged.
        """
        if '"LastTrace"' in line:
            self.has_end = True
        has_sample_or_token = '"Sample"' in line or '"Token"' in line
        # The first token is a Token_Latency or a Token event, by the scenario. Other lines are not parsed, since a
        # trace may be long.
        if '"Token_Latency"' in line:
            event = read_event(line)
            delay_ns = event["args"]["issue_delay"]
            first_ns = delay_ns + event["args"]["issue_to_done"]
            self._first_by_time[event["ts"], delay_ns] = first_ns / 1e6
        elif has_sample_or_token and '"ph":"b"' in line:  # The first line (b) of such an event has all its numbers.
            self._take_completion(read_event(line))

    def _take_completion(self, event: TraceEvent) -> None:
        """Take a Token event, which has the time of a sample's first token, or a Sample event, which ends the sample.

        A sample without a first token gets None as its TTFT.
        """
        arguments = event["args"]
        number = int(arguments["sample_seq"])
        elapsed_ms = arguments["complete_ns"] / 1e6  # from the scheduled time to the event
        if event["name"] == "Token":
            self._first_by_number[number] = elapsed_ms
            return
        delay_ns = arguments["issue_start_ns"]  # from the scheduled time until the sample was issued
        # The first token's time is in only one of the two dictionaries: `take` fills `_first_by_time` in the Server
        # scenario, and a Token event fills `_first_by_number` in SingleStream.
        first_ms = self._first_by_time.pop((event["ts"], delay_ns), None)
        if first_ms is None:
            first_ms = self._first_by_number.pop(number, None)
        sample = Sample(
            order=number,
            index=int(arguments["sample_idx"]),
            scheduled_ms=event["ts"] / 1e3,
            ttft_ms=first_ms,
            latency_ms=elapsed_ms,
            delay_ms=delay_ns / 1e6,
        )
        self.samples.append(sample)


def read_event(line: str) -> TraceEvent:
    """Return the event in a line of LoadGen's trace, which may end with a comma. Raises one of the errors DAMAGED."""
    event: TraceEvent = DECODER.decode(line.rstrip().rstrip(","))
    return event


REQUESTS_FILE = "requests.csv"
COMPRESSION_LEVEL = 1  # gzip's level: a tenth of the size at a hundred MB/s
COUNT_COLUMNS = names_in("sample prompt_tokens output_tokens first_tokens")
TIME_COLUMNS = names_in("issued_s sent_ms ttft_ms latency_ms")
REQUEST_COLUMNS = (*COUNT_COLUMNS, *TIME_COLUMNS, "clock", "failure")
Clock = Literal["", "loadgen", "client"]
CLOCKS: tuple[Clock, ...] = get_args(Clock)


@dataclass(slots=True)
class Request:
    """One request of a test. Its times in milliseconds count from `issued_s`."""

    sample: int  # the index in the sample library
    prompt_tokens: int = 0
    output_tokens: int = 0
    # The tokens that TPOT leaves out: those of the first message, or one token if LoadGen takes the times. 0 if no
    # token came.
    first_tokens: int = 1
    # LoadGen's scheduled time, the time at which an arrival was due, or when a closed loop sent the request. In seconds
    # since the first request of the test.
    issued_s: Measured = None
    sent_ms: Measured = None  # until the request was handed to the engine, or written to a connection
    ttft_ms: Measured = None
    latency_ms: Measured = None
    clock: Clock = ""  # whose clock took the times
    failure: str = ""  # the error message if the request failed; the times are then those of the failure
    order: int = 0  # the order of issue, which is that of the lines
    round: int = 0  # how often the sample was issued before; only while the test runs, as the next
    id: int = 0  # LoadGen's number of the request

    @property
    def begin_s(self) -> float:
        """The value of `issued_s`, or 0 if it is unknown."""
        return self.issued_s or 0.0

    @property
    def end_s(self) -> float:
        """The value of `done_s`, or 0 if it is unknown."""
        return self.done_s or 0.0

    @property
    def done_s(self) -> Measured:
        """The time when the last token came, in seconds since the first request of the test. None if unknown."""
        if self.issued_s is None or self.latency_ms is None:
            return None
        return self.issued_s + self.latency_ms / 1e3

    @property
    def tpot_ms(self) -> Measured:
        """Milliseconds per output token after those that came in the first message (`first_tokens`).

        None if no token came after them, if the times are unknown, or if the request failed.
        """
        later_tokens = self.output_tokens - self.first_tokens
        if self.ttft_ms is None or self.latency_ms is None or later_tokens < 1 or self.failure:
            return None
        return (self.latency_ms - self.ttft_ms) / later_tokens


def write_requests(folder: Path, requests: Iterable[Request]) -> None:
    """Write requests.csv of a test with a line for each request, in the order of issue, without secrets.

    Raises OSError.
    """
    csv_files.write_table(folder / REQUESTS_FILE, REQUEST_COLUMNS, map(cells_of, requests))


def cells_of(request: Request) -> Sequence[object]:
    """Return the cells of a request's line, in the order of REQUEST_COLUMNS."""
    counts = (request.sample, request.prompt_tokens, request.output_tokens, request.first_tokens)
    times = (request.issued_s, request.sent_ms, request.ttft_ms, request.latency_ms)
    return (*counts, *map(decimal_text, times), request.clock, request.failure)


def decimal_text(value: Measured) -> str:
    """Return a time with at most six decimals: whole microseconds of seconds, or whole nanoseconds of milliseconds.

    Empty if the time is unknown.
    """
    if value is None:
        return ""
    return f"{value:.6f}".rstrip("0").rstrip(".")


def read_requests(folder: Path) -> list[Request]:
    """Return the requests of a test from requests.csv in its folder, in the order of issue.

    Raises UsageError, which names the file and a damaged line, if the file cannot be read or has other columns.
    """
    path = folder / REQUESTS_FILE
    requests = list[Request]()
    try:
        with open_regular(path, LARGEST_REQUESTS) as file:
            table = csv.reader(file)
            head = tuple(next(table, ()))
            if head != REQUEST_COLUMNS:
                raise UsageError(
                    f"{path}:1: columns {', '.join(head) or 'missing'}; expected {', '.join(REQUEST_COLUMNS)}.",
                    path=path,
                )
            for cells in table:
                requests.append(parse_line(cells, len(requests)))
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}.", path=path) from None
    except (ValueError, csv.Error) as error:  # The head is line 1 of the file, so the first request is line 2.
        raise UsageError(f"{path}:{len(requests) + 2}: not a request: {error}.", path=path) from None
    return requests


def parse_line(cells: Sequence[str], order: int) -> Request:
    """Return the request of a line of requests.csv. An empty time is None. `order` is the number of the line, from 0.

    Raises ValueError if a cell does not hold what its column should, or is negative.
    """
    if len(cells) != len(REQUEST_COLUMNS):
        raise ValueError(f"{plural(len(cells), 'cell')} instead of {len(REQUEST_COLUMNS)}")
    counts = list(map(int, cells[:4]))
    times = list(map(csv_files.finite_number, cells[4:8]))
    clock = clock_of(cells[8])
    if any(number is not None and number < 0 for number in (*counts, *times)):
        raise ValueError("a negative number")
    sample, prompt_tokens, output_tokens, first_tokens = counts
    issued_s, sent_ms, ttft_ms, latency_ms = times
    return Request(
        sample=sample,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        first_tokens=first_tokens,
        issued_s=issued_s,
        sent_ms=sent_ms,
        ttft_ms=ttft_ms,
        latency_ms=latency_ms,
        clock=clock,
        failure=cells[9],
        order=order,
    )


def clock_of(text: str) -> Clock:
    """Return the clock that a cell names. Raises ValueError for any other text."""
    for clock in CLOCKS:
        if text == clock:
            return clock
    raise ValueError(f"unknown clock {text!r:.40}")


def successful_requests(requests: Iterable[Request]) -> list[Request]:
    return [request for request in requests if not request.failure]


def prompt_token_sum(requests: Iterable[Request]) -> int:
    """Return the sum of the requests' prompt tokens."""
    return sum(request.prompt_tokens for request in requests)


def output_token_sum(requests: Iterable[Request]) -> int:
    """Return the sum of the requests' output tokens."""
    return sum(request.output_tokens for request in requests)


def is_timed_by_client(requests: Iterable[Request]) -> bool:
    """Return whether the client took the times of a test's requests."""
    return any(request.clock == "client" for request in requests)


class RequestTimes(NamedTuple):
    """Latency, TTFT and TPOT of requests, in milliseconds; None where they are not known."""

    latency_ms: Latency | None
    ttft_ms: Latency | None
    tpot_ms: Latency | None


def times_of(requests: Sequence[Request]) -> RequestTimes:
    """Return the times of requests, summarized as LoadGen does it."""
    latency_ms = latency_summary(request.latency_ms for request in requests)
    ttft_ms = latency_summary(request.ttft_ms for request in requests)
    tpot_ms = latency_summary(request.tpot_ms for request in requests)
    return RequestTimes(latency_ms, ttft_ms, tpot_ms)


def latency_summary(times: Iterable[Measured]) -> Latency | None:
    """Return the minimum, mean, maximum and percentiles of times, as LoadGen computes them. Unknown times do not count.

    None if no time is known. Each percentile is one of the times, without interpolation.
    """
    ranked = sorted(time for time in times if time is not None)
    if not ranked:
        return None
    mean = sum(ranked) / len(ranked)
    shares = [float(percent) / 100 for percent in PERCENTILES]
    percentiles = [statistics.percentile(ranked, share) for share in shares]
    return Latency(ranked[0], mean, ranked[-1], *percentiles)


def clock_gap_ms(requests: Sequence[Request], samples: Sequence[Sample]) -> float:
    """Return by how many milliseconds the client's clock is ahead of LoadGen's. 0 without requests.

    A request comes to the client some time after LoadGen issued it. In the smallest difference that time is nearly 0.
    """
    differences_ms = []
    for request, sample in zip(requests, samples, strict=True):
        issued_ms = sample.scheduled_ms + sample.delay_ms  # by LoadGen's clock
        differences_ms.append(1e3 * request.begin_s - issued_ms)
    return min(differences_ms, default=0.0)


def take_times(requests: Sequence[Request], folder: Path) -> None:
    """Replace the client's times of each request by LoadGen's own, and compress the trace that they come from.

    Raises LogError if the trace is of another test.
    """
    samples = read_trace(folder)
    if [sample.index for sample in samples] != [request.sample for request in requests]:
        raise LogError(f"{folder / TRACE_FILE} belongs to another test: its samples are not those that were issued.")
    gap_ms = clock_gap_ms(requests, samples)
    test_begin_ms = min((sample.scheduled_ms for sample in samples), default=0.0)
    for request, sample in zip(requests, samples, strict=True):
        if request.sent_ms is not None:  # Only the client knows this time.
            sent_at_ms = 1e3 * request.begin_s + request.sent_ms - gap_ms  # by LoadGen's clock
            request.sent_ms = max(0.0, sent_at_ms - sample.scheduled_ms)
        request.issued_s = (sample.scheduled_ms - test_begin_ms) / 1e3
        request.latency_ms = sample.latency_ms
        request.clock = "loadgen"
        # If no first token came, LoadGen's time is that of a placeholder at the end, so the request's own TTFT stays.
        if request.first_tokens:
            request.ttft_ms = sample.ttft_ms
            request.first_tokens = 1  # LoadGen's time is that of a single token, however many came with it.
    compress_file(folder / TRACE_FILE)


def compress_file(path: Path) -> None:
    """Replace a file by a compressed one, `path`.gz. Raises OSError."""
    with path.open("rb") as whole, gzip.open(f"{path}.gz", "wb", compresslevel=COMPRESSION_LEVEL) as small:
        shutil.copyfileobj(whole, small)
    path.unlink()
