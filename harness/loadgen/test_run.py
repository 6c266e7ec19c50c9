"""One test, read once: what LoadGen says of it as far as it counts, its requests, the part in which the engine had all
its work, and what it took of the machine and of a server. What its logs and requests.csv alone tell needs no package.

LoadGen's result is mended where its own numbers cannot be used. Answers of one token have no time per output token:
LoadGen counts such an answer as none, divides the time after its first token by -1, and logs an error (logging.cc).
Requests that failed under --max-failed were reported to it as answers of `PLACEHOLDER` tokens. Queries that a closed
loop did not send before its time was over were reported in the same way.
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
from harness.core.formatting import Measured, number
from harness.core.statements import Statement
from harness.core.statistics import Spread
from harness.loadgen import log
from harness.loadgen.log import Latency, TestResult, p99_of
from harness.loadgen.log_entries import LogError
from harness.loadgen.requests import REQUESTS_FILE, Request, read_requests, spread, times_of, without_failures
from harness.loadgen.steady_window import SteadyWindow, steady_window

if TYPE_CHECKING:
    from harness.config.plan import Plan
    from harness.engines.answer_delivery import ServerUse
    from harness.loadgen.machine_use import MachineUse

PLACEHOLDER = 2  # tokens reported for a request without an answer: the fewest that LoadGen takes without an error
LOWER_RATE_REMEDY = "lower the target rate"
ONE_TOKEN = "Number of tokens need to be greater than 1"  # LoadGen's error for each answer of one token


def mend(result: TestResult, requests: Sequence[Request], limits: LatencyLimits | None, expected: bool) -> TestResult:
    """Return LoadGen's result corrected for requests that failed, were not sent, or have an answer of one token.

    LoadGen received placeholders for requests without an answer, which are taken out. Times per output token are
    computed from answers of two tokens and more. `limits` are the run's latency limits. `expected` says that requests
    may have answers of one token. LoadGen's errors about such answers then do not count.
    """
    whole = without_failures(requests)
    result = with_one_duration(result, whole)
    failed = len(requests) - len(whole)
    by_client = any(request.clock == "client" for request in requests)
    unanswered = failed + ((result.samples or 0) - len(requests) if by_client else 0)
    is_timed = any(request.latency_ms is not None for request in requests)
    has_unseen = any(request.first_tokens == 0 for request in whole)  # LoadGen was told a first token of these
    if by_client or (is_timed and (failed or has_unseen)):
        result = with_times(result, whole)
    if unanswered:
        result = without_placeholders(result, requests, unanswered)
    if failed and limits and result.valid:
        result = held_against(
            limits.tails(p99_of(result.ttft_ms), p99_of(result.tpot_ms)), "without the failed requests", result
        )
    single = sum(request.output_tokens < 2 for request in whole)
    if not single or not result.token_latencies:
        return result
    mended = result if unanswered else without_placeholders(result, requests, 0)
    if expected:
        mended = replace(mended, errors=[error for error in mended.errors if ONE_TOKEN not in error])
    if result.ttft_ms is None:
        return mended
    times = [request.tpot_ms for request in whole if request.tpot_ms is not None]
    mended = replace(mended, tpot_ms=spread(times), single_token=single)
    if limits is None:
        return mended
    if mended.tpot_ms and mended.tpot_ms.p99 > limits.tpot:
        answers = f"of the {len(times):,} answers of two tokens and more"
        return held_against(limits.tails(None, mended.tpot_ms.p99), answers, mended)
    over = sum(time > limits.tpot for time in times)
    return replace(mended, tpot_judged=len(times) >= statistics.fewest_queries(LIMIT_PERCENTILE, over))


def with_one_duration(result: TestResult, answered: Sequence[Request]) -> TestResult:
    """Return a MultiStream result whose rates are all over the same time.

    Any other result is returned unchanged. LoadGen logs tokens per second over the whole test, and no samples per
    second. A rate from the queries' latencies would leave out the time between them.
    """
    tokens = sum(request.output_tokens for request in answered)
    if result.scenario != "MultiStream" or not result.tokens_per_sec or not tokens:
        return result
    seconds = tokens / result.tokens_per_sec
    samples_per_sec = result.samples / seconds if result.samples else result.samples_per_sec
    return replace(result, duration_s=seconds, samples_per_sec=samples_per_sec)


def with_times(result: TestResult, requests: Sequence[Request]) -> TestResult:
    """Return the result with the times of these requests."""
    times = times_of(requests)
    return replace(
        result,
        latency_ms=times.latency_ms,
        ttft_ms=times.ttft_ms,
        tpot_ms=times.tpot_ms,
        mean_sample_latency_ms=times.latency_ms.mean if times.latency_ms else None,
    )


def without_placeholders(result: TestResult, requests: Iterable[Request], unanswered: int) -> TestResult:
    """Return the result with rates that count only real answers.

    Answers of one token, which LoadGen leaves out, are included.
    """
    counts = [request.output_tokens for request in requests]
    counted = sum(count for count in counts if count > 1 or not result.token_latencies) + PLACEHOLDER * unanswered
    samples, queries = result.samples, result.queries
    if queries and queries == samples:  # a query of several samples counts as a whole
        queries -= unanswered
    tokens_per_sec = sum(counts) / result.duration_s if result.duration_s else None
    if result.tokens_per_sec and counted:
        tokens_per_sec = result.tokens_per_sec * sum(counts) / counted
    samples_per_sec = result.samples_per_sec
    if samples_per_sec and samples:
        samples_per_sec *= 1 - unanswered / samples
    return replace(
        result,
        samples=samples and samples - unanswered,
        queries=queries,
        tokens_per_sec=tokens_per_sec,
        samples_per_sec=samples_per_sec,
    )


def held_against(tails: Iterable[Tail], answers: str, result: TestResult) -> TestResult:
    """Return the result, made INVALID if one of the `tails` is over its limit.

    `answers` names the answers in the reason.
    """
    reasons = []
    for tail in tails:
        if tail.is_over:
            text = f"{tail.kind} p99 {answers} was {number(tail.p99, 3)} ms, over the limit of {tail.limit:g} ms"
            reasons.append(Statement(text, LOWER_RATE_REMEDY, tail.kind))
    if not reasons:
        return result
    failed = tuple(dict.fromkeys((*result.failed, "latency")))
    return replace(result, valid=False, failed=failed, invalid_reasons=[*result.invalid_reasons, *reasons])


RECORDING = "machine.csv"
LONGEST_GAP_S = 5.0  # no energy is summed up over a longer gap between two readings


class Recording(NamedTuple):
    """machine.csv: its seconds, and the columns of numbers beside them, None where one was not reported."""

    seconds: list[float]
    columns: csv_files.Columns

    @classmethod
    def read(cls, path: Path) -> Self:
        """Return the recording in a file. Empty if there is no file. Raises UsageError if the file is damaged."""
        columns = csv_files.read_columns(path) if path.exists() else {}
        seconds = columns.pop("seconds", [])
        if None in seconds or (columns and not seconds):
            raise UsageError(f"{path}: a line has no seconds.", path=path)
        return cls([second for second in seconds if second is not None], columns)

    @property
    def durations(self) -> list[float]:
        """The seconds for which each line counts: the time since the line before.

        A busy machine writes some lines late.
        """
        return [now - before for before, now in pairwise([0.0, *self.seconds])]

    @property
    def gpus(self) -> list[str]:
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
        """The number of readings in which a GPU's power is missing. Without GPUs, these are all readings."""
        powers = [self.column(f"{gpu}_power_w") for gpu in self.gpus]
        return sum(not powers or None in reading for reading in zip(self.seconds, *powers, strict=True))

    @property
    def joules(self) -> Measured:
        """The energy of all GPUs in J, summed up from their power. None if a GPU reported nothing for too long."""
        total = 0.0
        for gpu in self.gpus:
            powers = zip(self.seconds, self.column(f"{gpu}_power_w"), strict=True)
            readings = [(second, power) for second, power in powers if power is not None]
            if not readings:
                return None
            readings = [(0.0, readings[0][1]), *readings, (self.seconds[-1], readings[-1][1])]
            if any(now - then > LONGEST_GAP_S for (then, _), (now, _) in pairwise(readings)):
                return None
            for (then, before), (now, power) in pairwise(readings):
                total += (now - then) * (power + before) / 2
        return total if self.gpus else None


MACHINE_FILE, SERVER_FILE = "machine.json", "server.json"


@dataclass(frozen=True)
class TestRun:
    """All that one performance test left in its folder; `result` is LoadGen's, mended."""

    __test__ = False  # no test of pytest's

    folder: Path
    result: TestResult
    requests: tuple[Request, ...]
    concurrency: int | None
    """Requests in flight, where it was fixed."""
    client_delay: Latency | None = None
    """Milliseconds until each request was sent: from its scheduled time, where it had one, a part of each TTFT; in a
    closed loop from the end of the answer whose place it took."""
    at_once: int | None = None
    """Requests that the engine computes at once, where that is known and LoadGen keeps as many in flight."""

    @classmethod
    def read(cls, folder: Path, plan: "Plan", engine_concurrency: int | None = None) -> Self:
        """Return the test in a folder.

        `engine_concurrency` is how many requests the engine computes at once. Raises LogError if the logs cannot be
        trusted, are of another scenario, or do not belong to the test's requests. Raises UsageError if a file is
        damaged.
        """
        mixed = plan.request_set is not None
        test = cls.logged(folder, plan.limits, plan.concurrency, plan.config.scenario_rules.loadgen, mixed)
        at_once = None if plan.config.batch_size else plan.pattern.steady_concurrency(plan, engine_concurrency)
        return replace(test, client_delay=client_delay(test.requests, plan), at_once=at_once)

    @classmethod
    def logged(
        cls,
        folder: Path,
        limits: LatencyLimits | None,
        concurrency: int | None,
        scenario: str = "",
        mixed: bool = False,
    ) -> Self:
        """Return the test in a folder without its plan.

        `mixed` says that its requests may have answers of one token.
        """
        result, requests = log.read(folder, scenario, "PerformanceOnly"), read_requests(folder)
        if fault := count_difference(folder, result, requests):
            raise LogError(fault)
        return cls(folder, mend(result, requests, limits, expected=mixed), tuple(requests), concurrency)

    @cached_property
    def machine(self) -> "MachineUse":
        """The test's use of the machine. Raises UsageError if the file is damaged."""
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
    def answered(self) -> list[Request]:
        return without_failures(self.requests)

    @cached_property
    def steady(self) -> SteadyWindow | None:
        """The steady part of a test that keeps a number of requests in flight.

        None for any other test, or if the test is too short to have a steady part.
        """
        at_once = self.concurrency or self.at_once
        return steady_window(self.requests, at_once) if at_once else None

    @cached_property
    def window(self) -> SteadyWindow | None:
        """The part of the test that counts: the steady part at fixed concurrency. None if the whole test counts."""
        return self.steady if self.concurrency else None

    @cached_property
    def counted(self) -> list[Request]:
        """The answers from which the test's latencies are taken."""
        return (self.window.requests if self.window else None) or self.answered

    @cached_property
    def counted_result(self) -> TestResult:
        """LoadGen's result as far as it counts. At fixed concurrency its speeds and times leave out the ramps."""
        window = self.window
        if not (window and window.requests):
            return self.result
        result = with_times(self.result, window.requests)
        return replace(result, tokens_per_sec=window.tokens_per_sec, samples_per_sec=window.samples_per_sec)

    @cached_property
    def recording(self) -> Recording:
        """The content of machine.csv. Empty if nothing was recorded. Raises UsageError if the file is damaged."""
        return Recording.read(self.folder / RECORDING)

    @property
    def total_new_tokens(self) -> int | None:
        """The sum of the output tokens of the answered requests. None if there are none."""
        return sum(request.output_tokens for request in self.answered) or None

    @property
    def total_input_tokens(self) -> int | None:
        return sum(request.prompt_tokens for request in self.answered) or None

    @property
    def input_lengths(self) -> Spread | None:
        return Spread.of([request.prompt_tokens for request in self.answered])

    @property
    def output_lengths(self) -> Spread | None:
        return Spread.of([request.output_tokens for request in self.answered])

    @property
    def input_tokens_per_sec(self) -> Measured:
        """Prompt tokens of the answered requests per second of LoadGen's duration."""
        tokens, seconds = self.total_input_tokens, self.result.duration_s
        return tokens / seconds if tokens and seconds else None

    @property
    def total_tokens_per_sec(self) -> Measured:
        """Prompt and output tokens of the answered requests per second of LoadGen's duration."""
        read, written = self.input_tokens_per_sec, self.result.tokens_per_sec
        return read + written if read and written else None

    @property
    def is_timed(self) -> bool:
        """Tell whether the times of each request are known."""
        return any(request.latency_ms is not None for request in self.requests)


def count_difference(folder: Path, result: TestResult, requests: Sequence[Request]) -> str:
    """Return how the number of requests in requests.csv differs from LoadGen's, in words. Empty if it does not."""
    by_client = any(request.clock == "client" for request in requests)
    if result.samples is None or by_client or len(requests) == result.samples:
        return ""
    return (
        f"{folder / REQUESTS_FILE} has {len(requests):,} requests, but LoadGen's log {result.samples:,}: not one test."
    )


def client_delay(requests: Sequence[Request], plan: "Plan") -> Latency | None:
    """Return how long requests waited for this client.

    None if all are sent at once, or one after the other by LoadGen.
    """
    if plan.pattern.is_rated:
        return spread(request.sent_ms for request in requests)
    return spread(gaps_ms(requests)) if plan.concurrency else None


def gaps_ms(requests: Iterable[Request]) -> Iterator[float]:
    """Yield the milliseconds from the end of each answer until the next request took its place, in a closed loop.

    The place that has been free for longest is taken next.
    """
    ends = deque(sorted(request.done_s for request in requests if request.done_s is not None))
    begun = ((request.begin_s, request.sent_ms or 0.0) for request in requests if request.done_s is not None)
    free: deque[float] = deque()
    for issued_s, sent_ms in sorted(begun):
        while ends and ends[0] <= issued_s:
            free.append(ends.popleft())
        if free:
            yield 1e3 * (issued_s - free.popleft()) + sent_ms
