"""One test, read once: LoadGen's result as far as it counts, the requests, the part in which the engine was fully
occupied, and what the test took of the machine and of a server. Reading logs and requests.csv needs no other package.

LoadGen's result is corrected if its own numbers cannot be used. Answers of one token have no time per output token:
LoadGen counts such an answer as none, divides the time after its first token by -1, and logs an error (logging.cc).
Requests that failed under --max-failed were reported to LoadGen as answers of `PLACEHOLDER_TOKENS`. Queries that a
closed loop did not send before its time was over were reported in the same way.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

from harness.config.mlperf import LatencyLimits, Tail
from harness.config.patterns import LIMIT_PERCENTILE
from harness.core import csv_files, files, statistics
from harness.core.errors import UsageError
from harness.core.formatting import Measured, number, plural
from harness.core.statements import Statement
from harness.core.statistics import Spread
from harness.loadgen import log
from harness.loadgen.log import Latency, TestResult, p99_of
from harness.loadgen.log_entries import LogError
from harness.loadgen.requests import (
    REQUESTS_FILE,
    Request,
    is_timed_by_client,
    latency_summary,
    output_token_sum,
    prompt_token_sum,
    read_requests,
    successful_requests,
    times_of,
)
from harness.loadgen.steady_window import SteadyWindow, steady_window

if TYPE_CHECKING:
    from harness.config.plan import Plan
    from harness.engines.answer_delivery import ServerUse
    from harness.loadgen.machine_use import MachineUse

# The tokens reported for a request without an answer: the fewest that LoadGen takes without an error.
PLACEHOLDER_TOKENS = 2
LOWER_RATE_REMEDY = "lower the target rate"
ONE_TOKEN_ERROR = "Number of tokens need to be greater than 1"  # LoadGen's error for each answer of one token


def corrected_result(
    result: TestResult, requests: Sequence[Request], limits: LatencyLimits | None, may_have_single_tokens: bool
) -> TestResult:
    """Return LoadGen's result corrected for requests that failed, were not sent, or have an answer of one token.

    `limits` is None if the run has no limits. `may_have_single_tokens` says that answers of one token were asked for.
    """
    answered = successful_requests(requests)
    # LoadGen's rates of MultiStream leave the time between queries out.
    result = result_over_whole_test(result, answered)
    if has_other_times(requests):  # LoadGen's times are not those of the real answers, but those in `requests` are.
        result = result_with_times(result, answered)
    failed = len(requests) - len(answered)
    unanswered = failed
    # LoadGen counted requests that were not sent in time; `requests` lacks them.
    if is_timed_by_client(requests) and result.samples is not None:
        unanswered += result.samples - len(requests)
    # If LoadGen takes the times of tokens, it leaves answers of one token out of its rates, and such answers make its
    # TPOT wrong.
    are_single_tokens_wrong = result.token_latencies and single_tokens(answered) > 0
    if unanswered or are_single_tokens_wrong:  # LoadGen's rates are wrong.
        result = result_of_real_answers(result, requests, unanswered)
    if failed and limits and result.valid:  # placeholders may have kept LoadGen's own percentiles within the limits
        tails = limits.tails(p99_of(result.ttft_ms), p99_of(result.tpot_ms))
        result = result_by_limits(tails, "without the failed requests", result)
    if not are_single_tokens_wrong:  # LoadGen's TPOT is right.
        return result
    if may_have_single_tokens:  # LoadGen logs such an answer as an error, although nothing is wrong with it.
        errors = [error for error in result.errors if ONE_TOKEN_ERROR not in error]
        result = replace(result, errors=errors)
    if result.ttft_ms is None:  # Without TTFT, TPOT is not known either.
        return result
    return result_with_tpot(result, answered, limits)


def has_other_times(requests: Sequence[Request]) -> bool:
    """Tell whether requests.csv has other times than LoadGen's log, because LoadGen's are not those of the answers.

    False if requests.csv has no times, for example after an accuracy test.
    """
    if is_timed_by_client(requests):
        return True
    has_times = any(request.latency_ms is not None for request in requests)
    # LoadGen logs a time for requests that failed or got no token, too, since it must be told of an answer.
    has_missing_tokens = any(request.failure or request.first_tokens == 0 for request in requests)
    return has_times and has_missing_tokens


def single_tokens(requests: Iterable[Request]) -> int:
    """Return how many answers have less than two tokens, and so no time per output token."""
    return sum(request.output_tokens < 2 for request in requests)


def result_with_tpot(result: TestResult, answered: Sequence[Request], limits: LatencyLimits | None) -> TestResult:
    """Return the result with the times per output token (TPOT) of the answers of two tokens and more.

    `answered` are all answered requests. With `limits`, the result is INVALID if the p99 of TPOT is over its limit.
    """
    times_ms = [request.tpot_ms for request in answered if request.tpot_ms is not None]
    tpot_ms = latency_summary(times_ms)
    result = replace(result, tpot_ms=tpot_ms, single_token=single_tokens(answered))
    if limits is None:
        return result
    if tpot_ms and tpot_ms.p99 > limits.tpot:
        answers = f"of the {plural(len(times_ms), 'answer')} of two tokens and more"
        return result_by_limits(limits.tails(None, tpot_ms.p99), answers, result)
    over = sum(time_ms > limits.tpot for time_ms in times_ms)
    # the rule of LoadGen's early stopping
    fewest = statistics.fewest_queries(LIMIT_PERCENTILE, over)
    return replace(result, tpot_judged=len(times_ms) >= fewest)


def result_over_whole_test(result: TestResult, answered: Sequence[Request]) -> TestResult:
    """Return the result; in MultiStream, with all rates over the same time: that of the whole test.

    The other rates of a MultiStream result are over the sum of the queries' latencies, which leaves out the time
    between queries.
    """
    tokens = output_token_sum(answered)
    if result.scenario != "MultiStream" or not result.tokens_per_sec or not tokens:
        return result
    seconds = tokens / result.tokens_per_sec  # The tokens per second are LoadGen's only rate over the whole test.
    samples_per_sec = result.samples_per_sec
    if result.samples:
        samples_per_sec = result.samples / seconds
    return replace(result, duration_s=seconds, samples_per_sec=samples_per_sec)


def result_with_times(result: TestResult, requests: Sequence[Request]) -> TestResult:
    """Return the result with latency, TTFT and TPOT computed from these requests instead of LoadGen's own."""
    times = times_of(requests)
    mean_ms = times.latency_ms.mean if times.latency_ms else None
    return replace(
        result,
        latency_ms=times.latency_ms,
        ttft_ms=times.ttft_ms,
        tpot_ms=times.tpot_ms,
        mean_sample_latency_ms=mean_ms,
    )


def result_of_real_answers(result: TestResult, requests: Iterable[Request], unanswered: int) -> TestResult:
    """Return the result with counts and rates of real answers only, without the `unanswered` requests.

    LoadGen received a placeholder for each unanswered request, and counted it as an answer.
    """
    samples, queries = result.samples, result.queries
    has_one_sample_per_query = queries == samples
    if queries and has_one_sample_per_query:  # A larger query still counts if some of its samples have no answer.
        queries -= unanswered
    samples_per_sec = result.samples_per_sec
    if samples_per_sec and samples:
        samples_per_sec *= 1 - unanswered / samples
    return replace(
        result,
        samples=samples and samples - unanswered,  # None stays None
        queries=queries,
        tokens_per_sec=rate_of_real_tokens(result, requests, unanswered),
        samples_per_sec=samples_per_sec,
    )


def rate_of_real_tokens(result: TestResult, requests: Iterable[Request], unanswered: int) -> Measured:
    """Return LoadGen's output tokens/s, scaled from the tokens that LoadGen counted to those of the real answers.

    None if neither a rate nor the duration is known.
    """
    real_tokens = counted_by_loadgen = 0
    for request in requests:
        real_tokens += request.output_tokens
        # If LoadGen measures the latencies of tokens, it does not count answers of one token.
        is_left_out = result.token_latencies and request.output_tokens <= 1
        if not is_left_out:
            counted_by_loadgen += request.output_tokens
    counted_by_loadgen += PLACEHOLDER_TOKENS * unanswered
    if result.tokens_per_sec and counted_by_loadgen:
        return result.tokens_per_sec * real_tokens / counted_by_loadgen
    if result.duration_s:
        return real_tokens / result.duration_s
    return None


def result_by_limits(tails: Iterable[Tail], answers: str, result: TestResult) -> TestResult:
    """Return the result, made INVALID by the check of the latencies if one of the `tails` is over its limit.

    A tail is the p99 of a latency, beside its limit. `answers` says in the reason which answers the tails are of.
    """
    reasons = []
    for tail in tails:
        if tail.is_over:
            text = f"{tail.kind} p99 {answers} was {number(tail.p99, 3)} ms, over the limit of {tail.limit:g} ms"
            reasons.append(Statement(text, remedy=LOWER_RATE_REMEDY, name=tail.kind))
    if not reasons:
        return result
    failed = tuple(dict.fromkeys((*result.failed, "latency")))  # each failed check once
    return replace(result, valid=False, failed=failed, invalid_reasons=[*result.invalid_reasons, *reasons])


RECORDING = "machine.csv"
LONGEST_GAP_S = 5.0  # no energy is summed up over a longer gap between two readings


class Recording(NamedTuple):
    """machine.csv: its seconds, and the other columns of numbers, in which None was not reported."""

    seconds: list[float]
    columns: csv_files.Columns

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the recording in a file. Empty if there is no file. Raises UsageError if the file is damaged."""
        if not path.exists():
            return cls([], {})
        columns = csv_files.read_columns(path)
        seconds = columns.pop("seconds", [])
        known_seconds = [second for second in seconds if second is not None]
        has_gaps = len(known_seconds) < len(seconds)
        has_no_seconds = bool(columns) and not seconds
        if has_gaps or has_no_seconds:
            raise UsageError(f"{path}: a line has no seconds.", path=path)
        return cls(known_seconds, columns)

    @property
    def durations(self) -> list[float]:
        """The seconds for which each line counts: the time since the line before.

        They differ, since a busy machine writes some lines late.
        """
        return [now - before for before, now in pairwise([0.0, *self.seconds])]

    @property
    def gpus(self) -> list[str]:
        """The names with which the columns of each GPU begin, such as "gpu0"."""
        return sorted({name.partition("_")[0] for name in self.columns if name.startswith("gpu")})

    def column(self, name: str) -> list[Measured]:
        """Return a column. All its values are None if it was not recorded."""
        return self.columns.get(name) or [None] * len(self.seconds)

    def highest(self, name: str) -> float:
        """Return the highest value of a quantity on any GPU. 0 if there is none."""
        values = chain.from_iterable(self.column(f"{gpu}_{name}") for gpu in self.gpus)
        return max(filter(None, values), default=0.0)

    @property
    def missing(self) -> int:
        """The number of readings in which the power of at least one GPU is missing; all readings if no GPU was read."""
        powers = [self.column(f"{gpu}_power_w") for gpu in self.gpus]
        if not powers:
            return len(self.seconds)
        return sum(None in reading for reading in zip(*powers, strict=True))

    @property
    def joules(self) -> Measured:
        """The energy of all GPUs in J, summed up from their power by the trapezoidal rule.

        None if there is no GPU, or if a GPU reported no power at all, or none for longer than LONGEST_GAP_S.
        """
        if not self.gpus:
            return None
        total = 0.0
        for gpu in self.gpus:
            readings = self.power_readings(gpu)
            if not readings:
                return None
            for (then_s, power_then), (now_s, power_now) in pairwise(readings):
                if now_s - then_s > LONGEST_GAP_S:
                    return None
                total += (now_s - then_s) * (power_now + power_then) / 2
        return total

    def power_readings(self, gpu: str) -> list[tuple[float, float]]:
        """Return the seconds and the power in W of each reading of a GPU. Empty if its power was never read.

        The first power is repeated for the start of the recording, and the last for its end.
        """
        readings = []
        for second, power in zip(self.seconds, self.column(f"{gpu}_power_w"), strict=True):
            if power is not None:
                readings.append((second, power))
        if not readings:
            return []
        _, first_power = readings[0]
        _, last_power = readings[-1]
        return [(0.0, first_power), *readings, (self.seconds[-1], last_power)]


MACHINE_FILE, SERVER_FILE = "machine.json", "server.json"


@dataclass(frozen=True)
class TestRun:
    """All that one performance test left in its folder. `result` is LoadGen's, corrected."""

    __test__ = False  # no test of pytest's

    folder: Path
    result: TestResult
    requests: tuple[Request, ...]
    concurrency: int | None
    """Requests in flight, if their number was fixed."""
    client_delay: Latency | None = None
    """Milliseconds until each request was sent. They count from its scheduled time, if it had one, and are then a part
    of its TTFT. In a closed loop they count from the end of the answer whose place the request took."""
    at_once: int | None = None
    """Requests that the engine computes at once, if that is known and at least as many are in flight."""

    @classmethod
    def read(cls, folder: Path, plan: "Plan", engine_concurrency: int | None = None) -> Self:
        """Return the test in a folder, with the client's delay and how many requests the engine computed at once.

        `engine_concurrency` is the most requests that the engine computes at once; None if that is not known.
        Raises LogError for logs that cannot be trusted or are of another test, and UsageError for a damaged file.
        """
        has_own_requests = plan.request_set is not None  # The user's own requests may ask for answers of one token.
        scenario = plan.config.scenario_rules.loadgen
        test = cls.from_logs(folder, plan.limits, plan.concurrency, scenario, may_have_single_tokens=has_own_requests)
        at_once = None
        has_batches = bool(plan.config.batch_size)
        if not has_batches:  # With batches, no part is steady: in each batch, the number in flight falls to 0.
            at_once = plan.pattern.steady_concurrency(plan, engine_concurrency)
        return replace(test, client_delay=client_delay(test.requests, plan), at_once=at_once)

    @classmethod
    def from_logs(
        cls,
        folder: Path,
        limits: LatencyLimits | None,
        concurrency: int | None,
        scenario: str = "",
        may_have_single_tokens: bool = False,
    ) -> Self:
        """Return the test in a folder without its plan. `scenario` is LoadGen's name of the scenario, or empty for any.

        `may_have_single_tokens` allows answers of one token. Raises LogError or UsageError, as `read` does.
        """
        result, requests = log.read(folder, scenario, "PerformanceOnly"), read_requests(folder)
        difference = count_difference(folder, result, requests)
        if difference:
            raise LogError(difference)
        result = corrected_result(result, requests, limits, may_have_single_tokens)
        return cls(folder, result, tuple(requests), concurrency)

    @cached_property
    def machine(self) -> "MachineUse":
        """The test's use of the machine, from machine.json. Empty without the file. Raises UsageError if damaged."""
        from harness.loadgen.machine_use import MachineUse

        return files.read_if_any(self.folder / MACHINE_FILE, MachineUse) or MachineUse()

    @cached_property
    def server(self) -> "ServerUse | None":
        """The server's own counts during the test. None without a server. Raises UsageError if the file is damaged."""
        from harness.engines.answer_delivery import ServerUse

        return files.read_if_any(self.folder / SERVER_FILE, ServerUse)

    @property
    def is_buffered(self) -> bool:
        """Tell whether a buffer between the engine and this client makes TTFT and TPOT unusable."""
        return self.server is not None and self.server.is_buffered

    @cached_property
    def answered_requests(self) -> list[Request]:
        return successful_requests(self.requests)

    @cached_property
    def steady(self) -> SteadyWindow | None:
        """The steady part of a test that keeps a number of requests in flight.

        None for any other test, or if the test is too short to have a steady part.
        """
        requests_at_once = self.concurrency or self.at_once  # fixed by the user or, in other tests, by the engine
        if not requests_at_once:
            return None
        return steady_window(self.requests, requests_at_once)

    @cached_property
    def window(self) -> SteadyWindow | None:
        """The part of the test that counts: the steady part at fixed concurrency. None if the whole test counts."""
        return self.steady if self.concurrency else None

    @cached_property
    def counted_requests(self) -> list[Request]:
        """The answers from which the test's latencies are taken: those of the `window`, or else all."""
        if self.window and self.window.requests:
            return self.window.requests
        return self.answered_requests

    @cached_property
    def counted_result(self) -> TestResult:
        """LoadGen's result. At fixed concurrency, the speeds and times are those of the `window`, without the ramps."""
        window = self.window
        if not (window and window.requests):  # The whole test counts.
            return self.result
        result = result_with_times(self.result, window.requests)
        return replace(result, tokens_per_sec=window.tokens_per_sec, samples_per_sec=window.samples_per_sec)

    @cached_property
    def recording(self) -> Recording:
        """The content of machine.csv. Empty if nothing was recorded. Raises UsageError if the file is damaged."""
        return Recording.read(self.folder / RECORDING)

    @property
    def total_new_tokens(self) -> int | None:
        """The sum of the output tokens of the answered requests. None if there are none."""
        return output_token_sum(self.answered_requests) or None

    @property
    def total_input_tokens(self) -> int | None:
        """The sum of the prompt tokens of the answered requests. None if there are none."""
        return prompt_token_sum(self.answered_requests) or None

    @property
    def input_lengths(self) -> Spread | None:
        return Spread.from_lengths([request.prompt_tokens for request in self.answered_requests])

    @property
    def output_lengths(self) -> Spread | None:
        return Spread.from_lengths([request.output_tokens for request in self.answered_requests])

    @property
    def input_tokens_per_sec(self) -> Measured:
        """Prompt tokens of the answered requests per second of LoadGen's duration."""
        tokens, seconds = self.total_input_tokens, self.result.duration_s
        if not tokens or not seconds:
            return None
        return tokens / seconds

    @property
    def total_tokens_per_sec(self) -> Measured:
        """Prompt and output tokens of the answered requests per second of LoadGen's duration."""
        read, written = self.input_tokens_per_sec, self.result.tokens_per_sec
        if not read or not written:
            return None
        return read + written

    @property
    def is_timed(self) -> bool:
        """Tell whether the times of each request are known."""
        return any(request.latency_ms is not None for request in self.requests)


def count_difference(folder: Path, result: TestResult, requests: Sequence[Request]) -> str:
    """Return how the number of requests in requests.csv differs from LoadGen's, in words. Empty if it does not.

    A difference shows that log and requests are of two tests. Empty also if LoadGen's number is not known, or if the
    client took the times: then LoadGen may have issued more requests than were sent.
    """
    if result.samples is None or is_timed_by_client(requests) or len(requests) == result.samples:
        return ""
    requests_text = plural(len(requests), "request")
    return f"{folder / REQUESTS_FILE} has {requests_text}, but LoadGen's log {result.samples:,}: not one test."


def client_delay(requests: Sequence[Request], plan: "Plan") -> Latency | None:
    """Return how long requests waited for this client, to see whether the client is too slow.

    None if all requests are sent at once, or one by one by LoadGen.
    """
    if plan.pattern.is_rated:
        return latency_summary(request.sent_ms for request in requests)  # from a request's scheduled time
    if plan.concurrency:
        return latency_summary(gaps_ms(requests))  # from the end of an earlier answer
    return None


def gaps_ms(requests: Iterable[Request]) -> Iterator[float]:
    """Yield how many milliseconds each place of a closed loop was free, from an answer's end until the next request.

    A closed loop keeps a fixed number of requests in flight: its places. Which place a request took is not recorded.
    The one that had been free for the longest time is assumed.
    """
    known_requests = [request for request in requests if request.done_s is not None]
    later_ends = deque(sorted(request.end_s for request in known_requests))
    free_since = deque[float]()  # for each free place, when its last answer ended
    # Each request begins at a time of the test, and is sent some milliseconds later.
    begins = sorted((request.begin_s, request.sent_ms or 0.0) for request in known_requests)
    for begin_s, sent_ms in begins:
        while later_ends and later_ends[0] <= begin_s:  # Places became free before this request.
            free_since.append(later_ends.popleft())
        if free_since:
            longest_free_s = free_since.popleft()
            yield 1e3 * (begin_s - longest_free_s) + sent_ms
