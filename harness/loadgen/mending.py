"""A test's result as far as it counts: LoadGen's, mended by what is known of each request, and the part of a test in
which the engine had all its work. Needs no package.

LoadGen's result is mended where its own numbers cannot be used. Answers of one token have no time per output token:
LoadGen counts such an answer as none, divides the time after its first token by -1, and logs an error (logging.cc).
Requests that failed under --max-failed were reported to it as answers of `PLACEHOLDER` tokens. Queries that a closed
loop did not send before its time was over were reported in the same way.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from harness.config.mlperf import Limits, Tail
from harness.config.patterns import LIMIT_PERCENTILE
from harness.core import statistics
from harness.core.document import Statement, number
from harness.loadgen.log import TestResult
from harness.loadgen.requests import Request, spread, times_of, without_failures

PLACEHOLDER = 2  # tokens of an answer that there is none of: the fewest that LoadGen takes without an error
LOWER = "lower the target rate"
LEAST_SHARE = 0.1  # of a test's time, of its steady part: with waves enough it has half of it or more
ONE_TOKEN = "Number of tokens need to be greater than 1"  # LoadGen's error for each answer of one token


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
    def total_tokens_per_sec(self) -> float:
        """Both."""
        return self.input_tokens_per_sec + self.tokens_per_sec

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
    """The steady part of a test that computes `at_once` requests at a time; None where there are too few for one, or it
    is so short that the answers did not come steadily."""
    done = sorted((request for request in requests if request.done_s is not None), key=lambda each: each.done_s or 0.0)
    if len(done) < len(requests) or len(done) < 4 * at_once:
        return None
    first, last = at_once - 1, len(done) - at_once - 1
    begin, end = done[first].done_s or 0.0, done[last].done_s or 0.0
    ended = tuple(done[first + 1 : last + 1])
    middle = (begin + end) / 2
    if (
        end - begin < LEAST_SHARE * (done[-1].done_s or 0.0)
        or not begin < middle < end
        or not any(each.output_tokens for each in ended if (each.done_s or 0.0) <= middle)
    ):
        return None
    window = (each for each in requests if (each.issued_s or 0.0) >= begin and (each.done_s or 0.0) <= end)
    return SteadyPart(begin, end, ended, tuple(window))


def mend(result: TestResult, requests: Sequence[Request], limits: Limits | None, expected: bool) -> TestResult:
    """LoadGen's result without what it received for requests that were not answered or not sent, and with times per
    output token of the answers that have one.

    `limits` are the run's; `expected`: its requests may well have answers of one token, so that LoadGen's errors over
    them are none.
    """
    whole = without_failures(requests)
    failed = len(requests) - len(whole)
    by_client = any(request.clock == "client" for request in requests)
    unanswered = failed + ((result.samples or 0) - len(requests) if by_client else 0)
    if by_client or (failed and any(request.latency_ms is not None for request in requests)):
        result = with_times(result, whole)
    if unanswered:
        result = without_placeholders(result, requests, unanswered)
    if failed and limits and result.valid:
        result = held_against(limits.tails(result.ttft_ms, result.tpot_ms), "without the failed requests", result)
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
        return held_against(limits.tails(None, mended.tpot_ms), answers, mended)
    over = sum(time > limits.tpot for time in times)
    return replace(mended, tpot_judged=len(times) >= statistics.fewest_queries(LIMIT_PERCENTILE, over))


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


def held_against(tails: Iterable[Tail], answers: str, result: TestResult) -> TestResult:
    """The result, INVALID where latencies of these answers break a limit that LoadGen saw kept."""
    reasons = [
        Statement(
            name=tail.kind,
            what=f"{tail.kind} p99 {answers} was {number(tail.p99, 3)} ms, over the limit of {tail.limit:g} ms",
            remedy=LOWER,
        )
        for tail in tails
        if tail.is_over
    ]
    if not reasons:
        return result
    failed = tuple(dict.fromkeys((*result.failed, "latency")))
    return replace(result, valid=False, failed=failed, invalid_reasons=[*result.invalid_reasons, *reasons])
