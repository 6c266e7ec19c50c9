"""One test, read once: what LoadGen says of it, mended; its requests; what it took of the machine and of a server.

What its logs and requests.csv alone tell needs no package.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from harness.config.mlperf import Limits
from harness.core import files
from harness.core.statistics import Spread
from harness.loadgen import log as loadgen_log
from harness.loadgen import recording
from harness.loadgen.log import Latency, LogError, TestResult
from harness.loadgen.mending import SteadyPart, mend, steady_part, with_times
from harness.loadgen.recording import Recording
from harness.loadgen.requests import FILE, Request, read_requests, spread, without_failures

if TYPE_CHECKING:
    from harness.config.plan import Plan
    from harness.engines.protocol import ServerUse
    from harness.loadgen.outcome import MachineUse

MACHINE, SERVER = "machine.json", "server.json"


@dataclass(frozen=True)
class TestRun:
    """All that one performance test left in its folder; `result` is LoadGen's, mended."""

    __test__ = False  # no test of pytest's

    folder: Path
    result: TestResult
    requests: tuple[Request, ...]
    concurrency: int | None = None
    """Requests in flight, where it was fixed."""
    client_delay: Latency | None = None
    """Milliseconds until each request was sent: from its scheduled time, where it had one, a part of each TTFT; in a
    closed loop from the end of the answer whose place it took."""

    @classmethod
    def read(cls, folder: Path, plan: "Plan") -> Self:
        """The test in a folder. Raises LogError for logs that cannot be trusted, or are of another scenario, or not of
        the test of its requests; UsageError for a damaged file."""
        mixed = plan.request_set is not None
        test = cls.logged(folder, plan.limits, plan.concurrency, plan.config.scenario_rules.loadgen, mixed)
        return replace(test, client_delay=client_delay(test.requests, plan))

    @classmethod
    def logged(
        cls, folder: Path, limits: Limits | None, concurrency: int | None, scenario: str = "", mixed: bool = False
    ) -> Self:
        """The same without the plan; `mixed`: of requests that may well have answers of one token."""
        result, requests = loadgen_log.read(folder, scenario, "PerformanceOnly"), read_requests(folder)
        if fault := count_difference(folder, result, requests):
            raise LogError(fault)
        return cls(folder, mend(result, requests, limits, expected=mixed), tuple(requests), concurrency)

    @cached_property
    def machine(self) -> "MachineUse":
        """What it took of the machine. Raises UsageError for a damaged file."""
        from harness.loadgen.outcome import MachineUse

        return files.read_if_any(self.folder / MACHINE, MachineUse) or MachineUse()

    @cached_property
    def server(self) -> "ServerUse | None":
        """What a server counted, likewise."""
        from harness.engines.protocol import ServerUse

        return files.read_if_any(self.folder / SERVER, ServerUse)

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
        part = self.window
        if not (part and part.requests):
            return self.result
        result = with_times(self.result, part.requests)
        return replace(result, tokens_per_sec=part.tokens_per_sec, samples_per_sec=part.samples_per_sec)

    @cached_property
    def recording(self) -> Recording:
        """machine.csv; empty where nothing was recorded. Raises UsageError for a damaged one."""
        return Recording.read(self.folder / recording.FILE)

    @property
    def total_new_tokens(self) -> int | None:
        """Of the answered requests, as the other sums; None where there is none."""
        return sum(each.output_tokens for each in self.answered) or None

    @property
    def total_input_tokens(self) -> int | None:
        return sum(each.prompt_tokens for each in self.answered) or None

    @property
    def input_lengths(self) -> Spread | None:
        return Spread.of([each.prompt_tokens for each in self.answered])

    @property
    def output_lengths(self) -> Spread | None:
        return Spread.of([each.output_tokens for each in self.answered])

    @property
    def input_tokens_per_sec(self) -> float | None:
        """Prompt tokens of the answered requests over LoadGen's duration."""
        tokens, seconds = self.total_input_tokens, self.result.duration_s
        return tokens / seconds if tokens and seconds else None

    @property
    def total_tokens_per_sec(self) -> float | None:
        """Prompt and output tokens, likewise."""
        read, written = self.input_tokens_per_sec, self.result.tokens_per_sec
        return read + written if read and written else None

    @property
    def is_timed(self) -> bool:
        """Whether the times of each request are known."""
        return any(request.latency_ms is not None for request in self.requests)


def count_difference(folder: Path, result: TestResult, requests: Sequence[Request]) -> str:
    """In words, where requests.csv has not as many requests as LoadGen logged samples of the same test."""
    by_client = any(request.clock == "client" for request in requests)
    if result.samples is None or by_client or len(requests) == result.samples:
        return ""
    return f"{folder / FILE} has {len(requests):,} requests, but LoadGen's log {result.samples:,}: not one test."


def client_delay(requests: Sequence[Request], plan: "Plan") -> Latency | None:
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
    for issued_s, sent_ms in sorted(begun):
        while ends and ends[0] <= issued_s:
            free.append(ends.popleft())
        if free:
            yield 1e3 * (issued_s - free.popleft()) + sent_ms
