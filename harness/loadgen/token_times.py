"""A test's result where answers of one token spoiled LoadGen's: they have no time per output token.

LoadGen counts such an answer as none, divides the time after its first token by -1, and logs an error (logging.cc).
Here the times per output token are taken again from its own trace, over the answers of two tokens and more.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.common import files
from harness.common.statistics import least_queries
from harness.config.mlperf import LIMIT_PERCENTILE, Limits
from harness.loadgen import failures, request_times
from harness.loadgen import log as loadgen_log
from harness.loadgen.log import TestResult
from harness.loadgen.request_times import per_token, spread
from harness.loadgen.trace import TRACE

TOKENS = "tokens.json"
ONE_TOKEN = "Number of tokens need to be greater than 1"  # LoadGen's error for each such answer


def read(folder: Path, limits: Limits | None, expected: bool, scenario: str = "", mode: str = "") -> TestResult:
    """LoadGen's result, its times per output token mended where there are answers of one token.

    `limits` are the run's; `expected`: its requests may well have such answers, so that LoadGen's errors over them are
    none. Raises LogError for logs that cannot be trusted, or are of another scenario or mode than given.
    """
    result, counts = loadgen_log.read(folder, scenario, mode), token_counts(folder)
    failed = failures.failures_of(folder)
    if (folder / request_times.REQUESTS).exists() or (failed and traced(folder)):
        result = request_times.with_own_times(result, folder, counts)
    unsent = (result.samples or 0) - len(counts) if (folder / request_times.REQUESTS).exists() else 0
    if unanswered := len(failed) + unsent:
        result = failures.left_out(result, counts, unanswered)
    if failed:
        result = failures.judged(result, limits)
    single = sum(count < 2 for count in counts) - len(failed)
    if not single or not result.token_latencies:
        return result
    mended = result if unanswered else failures.left_out(result, counts, 0)
    if expected:
        mended = replace(mended, errors=[error for error in mended.errors if ONE_TOKEN not in error])
    if result.ttft_ms is None:
        return mended
    times = per_token(*request_times.answered(request_times.samples(folder), counts)) if traced(folder) else []
    return judged(replace(mended, tpot_ms=spread(times), single_token=single), times, limits)


def traced(folder: Path) -> bool:
    """Whether the times of each request are known."""
    return any((folder / name).exists() for name in (TRACE, request_times.REQUESTS))


def token_counts(folder: Path) -> list[int]:
    """The tokens of each answer in the order of issue; none where they were not recorded. Raises UsageError."""
    path = folder / TOKENS
    return files.read(path, list[int]) if path.exists() else []


def judged(result: TestResult, times: Sequence[float], limits: Limits | None) -> TestResult:
    """The result with a verdict on its times per output token: INVALID where they break the limit, and none where they
    are too few to be sure that they keep it."""
    if limits is None or result.tpot_ms is None:
        return replace(result, tpot_judged=limits is None)
    over = sum(time > limits.tpot_ms for time in times)
    if result.tpot_ms.p99 <= limits.tpot_ms:
        return replace(result, tpot_judged=len(times) >= least_queries(LIMIT_PERCENTILE, over))
    reason = (
        f"TPOT p99 of the {len(times):,} answers of two tokens and more was {result.tpot_ms.p99:.3g} ms, over the "
        f"limit of {limits.tpot_ms:g} ms: lower the target rate"
    )
    failed = tuple(dict.fromkeys((*result.failed, "latency")))
    return replace(result, valid=False, failed=failed, invalid_reasons=[*result.invalid_reasons, reason])
