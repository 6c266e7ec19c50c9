"""One test, read once: what LoadGen says of it, its requests, what it took of the machine and of a server.

LoadGen's result is mended where its own numbers cannot be used. Answers of one token have no time per output token:
LoadGen counts such an answer as none, divides the time after its first token by -1, and logs an error (logging.cc).
Requests that failed under --max-failed were reported to it as answers of `PLACEHOLDER` tokens. Queries that a closed
loop did not send before its time was over were reported in the same way.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

from harness.config.mlperf import Limits
from harness.config.patterns import LIMIT_PERCENTILE
from harness.config.plan import Plan
from harness.core import files, statistics
from harness.core.document import Statement, number
from harness.engines.protocol import ServerUse
from harness.loadgen import log as loadgen_log
from harness.loadgen import recorder
from harness.loadgen.log import Latency, LogError, TestResult
from harness.loadgen.outcome import MachineUse
from harness.loadgen.requests import FILE, Request, read_requests, spread, times_of, without_failures


# The steady part of a test: without the ramp at its start and the drain at its end.
@dataclass(frozen=True)
class SteadyPart:
    """The part of a test in which the engine had all its work: after as many answers as it takes at once, and before as
    few are left. `ended`: the requests whose answers ended in it; `window`: those that were sent in it as well."""

    begin_s: float
    end_s: float
    ended: tuple[Request, ...]
    window: tuple[Request, ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def tokens_per_sec(self) -> float:
        """Output tokens of the answers that ended in it."""
        return sum(each.output_tokens for each in self.ended) / self.seconds

    @property
    def input_tokens_per_sec(self) -> float:
        """Their prompts' tokens."""
        return sum(each.prompt_tokens for each in without_failures(self.ended)) / self.seconds

    @property
    def samples_per_sec(self) -> float:
        return len(without_failures(self.ended)) / self.seconds

    @property
    def trend(self) -> float:
        """The speed of its second half over that of its first."""
        middle = (self.begin_s + self.end_s) / 2
        late = sum(each.output_tokens for each in self.ended if (each.done_s or 0.0) > middle)
        early = sum(each.output_tokens for each in self.ended) - late
        return late / early

    @cached_property
    def requests(self) -> list[Request]:
        """Those that were sent and answered in it."""
        return without_failures(self.window)


def steady_part(requests: Sequence[Request], at_once: int) -> SteadyPart | None:
    """The steady part of a test that computes `at_once` requests at a time; None where there are too few for one."""
    done = sorted((request for request in requests if request.done_s is not None), key=lambda each: each.done_s or 0.0)
    if len(done) < len(requests) or len(done) < 4 * at_once:
        return None
    first, last = at_once - 1, len(done) - at_once - 1
    begin, end = done[first].done_s or 0.0, done[last].done_s or 0.0
    ended = tuple(done[first + 1 : last + 1])
    middle = (begin + end) / 2
    if not begin < middle < end or not any(each.output_tokens for each in ended if (each.done_s or 0.0) <= middle):
        return None
    window = (each for each in requests if (each.issued_s or 0.0) >= begin and (each.done_s or 0.0) <= end)
    return SteadyPart(begin, end, ended, tuple(window))


MACHINE, SERVER = "machine.json", "server.json"
PLACEHOLDER = 2  # tokens of an answer that there is none of: the fewest that LoadGen takes without an error
LOWER = "lower the target rate"
ONE_TOKEN = "Number of tokens need to be greater than 1"  # LoadGen's error for each answer of one token


@dataclass(frozen=True)
class TestRun:
    """All that one performance test left in its folder; `result` is LoadGen's, mended."""

    __test__ = False  # no test of pytest's

    folder: Path
    result: TestResult
    requests: tuple[Request, ...]
    machine: MachineUse
    server: ServerUse | None
    client_delay: Latency | None = None
    """Milliseconds until each request was sent: from its scheduled time, where it had one, a part of each TTFT; in a
    closed loop from the end of the answer whose place it took."""
    concurrency: int | None = None
    """Requests in flight, where it was fixed."""

    @classmethod
    def read(cls, folder: Path, plan: Plan) -> Self:
        """The test in a folder. Raises LogError for logs that cannot be trusted, or are of another scenario, or not of
        the test of its requests; UsageError for a damaged file."""
        result = loadgen_log.read(folder, plan.config.scenario_rules.loadgen, "PerformanceOnly")
        requests = read_requests(folder)
        by_client = any(request.clock == "client" for request in requests)
        if result.samples is not None and not (by_client or len(requests) == result.samples):
            raise LogError(
                f"{folder / FILE} has {len(requests):,} requests, but LoadGen's log {result.samples:,}: not one test."
            )
        machine, server = folder / MACHINE, folder / SERVER
        return cls(
            folder,
            mend(result, requests, plan.limits, expected=plan.request_set is not None),
            tuple(requests),
            files.read(machine, MachineUse) if machine.exists() else MachineUse(),
            files.read(server, ServerUse) if server.exists() else None,
            client_delay(requests, plan),
            plan.concurrency,
        )

    @cached_property
    def answered(self) -> list[Request]:
        return without_failures(self.requests)

    @cached_property
    def window(self) -> SteadyPart | None:
        """A test at fixed concurrency without its ramps; None of any other, and of one too short for that."""
        return steady_part(self.requests, self.concurrency) if self.concurrency else None

    @cached_property
    def counted(self) -> list[Request]:
        """The answers that its latencies are of: those of the window where there is one, else all."""
        return (self.window.requests if self.window else None) or self.answered

    @cached_property
    def counted_result(self) -> TestResult:
        """LoadGen's result as far as it counts: at fixed concurrency speeds and times without the ramps."""
        if not (self.window and self.window.requests):
            return self.result
        speeds = {"tokens_per_sec": self.window.tokens_per_sec, "samples_per_sec": self.window.samples_per_sec}
        return replace(with_times(self.result, self.counted), **speeds)  # type: ignore[arg-type]

    @cached_property
    def recording(self) -> recorder.Recording:
        """machine.csv; empty where nothing was recorded. Raises UsageError for a damaged one."""
        return recorder.Recording.read(self.folder / recorder.FILE)

    @property
    def input_tokens_per_sec(self) -> float | None:
        """Prompt tokens of the answered requests over LoadGen's duration."""
        tokens = sum(request.prompt_tokens for request in self.answered)
        return tokens / self.result.duration_s if tokens and self.result.duration_s else None

    @property
    def total_tokens_per_sec(self) -> float | None:
        """Prompt and output tokens, likewise."""
        read, written = self.input_tokens_per_sec, self.result.tokens_per_sec
        return read + written if read and written else None

    @property
    def is_timed(self) -> bool:
        """Whether the times of each request are known."""
        return any(request.latency_ms is not None for request in self.requests)


def client_delay(requests: Sequence[Request], plan: Plan) -> Latency | None:
    """How long requests waited for this client; None where LoadGen sends each when the one before is answered, and of
    all at once."""
    if plan.pattern.is_rated:
        return spread(each.sent_ms for each in requests)
    return spread(gaps_ms(requests)) if plan.concurrency else None


def gaps_ms(requests: Iterable[Request]) -> Iterator[float]:
    """Milliseconds from the end of an answer until the next request was sent in its place, in a closed loop: the place
    that has been free for longest is taken next."""
    ends = deque(sorted(each.done_s for each in requests if each.done_s is not None))
    begun = [
        (each.issued_s, each.sent_ms or 0.0)
        for each in requests
        if each.issued_s is not None and each.done_s is not None
    ]
    free: deque[float] = deque()
    for issued_s, sent_ms in sorted(begun, key=lambda each: each[0]):
        while ends and ends[0] <= issued_s:
            free.append(ends.popleft())
        if free:
            yield 1e3 * (issued_s - free.popleft()) + sent_ms


def mend(result: TestResult, requests: Sequence[Request], limits: Limits | None, expected: bool) -> TestResult:
    """LoadGen's result without what it received for requests that were not answered or not sent, and with times per
    output token of the answers that have one.

    `limits` are the run's; `expected`: its requests may well have answers of one token, so that LoadGen's errors over
    them are none.
    """
    whole = without_failures(requests)
    failed = len(requests) - len(whole)
    timed = any(request.latency_ms is not None for request in requests)
    by_client = any(request.clock == "client" for request in requests)
    unanswered = failed + ((result.samples or 0) - len(requests) if by_client else 0)
    if by_client or (failed and timed):
        result = with_times(result, whole)
    if unanswered:
        result = without_placeholders(result, requests, unanswered)
    if failed:
        result = with_limit_verdict(result, limits)
    single = sum(request.output_tokens < 2 for request in whole)
    if not single or not result.token_latencies:
        return result
    mended = result if unanswered else without_placeholders(result, requests, 0)
    if expected:
        mended = replace(mended, errors=[error for error in mended.errors if ONE_TOKEN not in error])
    if result.ttft_ms is None:
        return mended
    times = [request.tpot_ms for request in whole if request.tpot_ms is not None]
    return with_tpot_verdict(replace(mended, tpot_ms=spread(times), single_token=single), times, limits)


def with_times(result: TestResult, requests: Sequence[Request]) -> TestResult:
    """The result with the times of these requests."""
    latencies = [request.latency_ms for request in requests if request.latency_ms is not None]
    mean = sum(latencies) / len(latencies) if latencies else None
    return replace(result, **times_of(requests), mean_sample_latency_ms=mean)


def without_placeholders(result: TestResult, requests: Iterable[Request], unanswered: int) -> TestResult:
    """The result with the rates of the answers alone, those of one token, which LoadGen left out, included."""
    counts = [request.output_tokens for request in requests]
    counted = sum(count for count in counts if count > 1 or not result.token_latencies) + PLACEHOLDER * unanswered
    samples, tokens, rate = result.samples, result.tokens_per_sec, result.samples_per_sec
    whole = sum(counts) / result.duration_s if result.duration_s else None
    return replace(
        result,
        samples=samples and samples - unanswered,
        tokens_per_sec=tokens * sum(counts) / counted if tokens and counted else whole,
        samples_per_sec=rate * (1 - unanswered / samples) if rate and samples else rate,
    )


def with_limit_verdict(result: TestResult, limits: Limits | None) -> TestResult:
    """The result, INVALID where its latencies without the failed requests break a limit that LoadGen saw kept."""
    broken = [
        Statement(
            name=tail.kind,
            what=f"{tail.kind} p99 without the failed requests was {number(tail.p99, 3)} ms, over the limit of "
            f"{tail.limit:g} ms",
            remedy=LOWER,
        )
        for tail in (limits.tails(result.ttft_ms, result.tpot_ms) if limits else ())
        if tail.is_over
    ]
    if not broken or not result.valid:
        return result
    return replace(result, valid=False, failed=("latency",), invalid_reasons=broken)


def with_tpot_verdict(result: TestResult, times: Sequence[float], limits: Limits | None) -> TestResult:
    """The result with a verdict on its times per output token: INVALID where they break the limit, and none where they
    are too few to be sure that they keep it."""
    if limits is None or result.tpot_ms is None:
        return replace(result, tpot_judged=limits is None)
    over = sum(time > limits.tpot for time in times)
    if result.tpot_ms.p99 <= limits.tpot:
        return replace(result, tpot_judged=len(times) >= statistics.fewest_queries(LIMIT_PERCENTILE, over))
    reason = Statement(
        name="TPOT",
        what=f"TPOT p99 of the {len(times):,} answers of two tokens and more was {number(result.tpot_ms.p99, 3)} ms, "
        f"over the limit of {limits.tpot:g} ms",
        remedy=LOWER,
    )
    failed = tuple(dict.fromkeys((*result.failed, "latency")))
    return replace(result, valid=False, failed=failed, invalid_reasons=[*result.invalid_reasons, reason])
