"""Requests that failed and, with --max-failed, did not end the run.

LoadGen waits for every answer, so it is told of one of `PLACEHOLDER` tokens at the time of the failure. Its own counts,
latencies and verdict hold them; ours leave them out, and the result is never comparable with MLPerf's.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from harness.common.files import read, write_json
from harness.config.mlperf import Limits
from harness.loadgen.log import Latency, TestResult

FILE = "failed.json"
PLACEHOLDER = 2  # the fewest that LoadGen takes without an error


def write(folder: Path, failed: dict[int, str]) -> None:
    """Keeps the failures of a test: their place in the order of issue, and what was said."""
    write_json(folder / FILE, {str(order): said for order, said in sorted(failed.items())})


def failures_of(folder: Path) -> dict[int, str]:
    """The failures of a test; none where none were allowed. Raises UsageError."""
    found = read(folder / FILE, dict[str, str]) if (folder / FILE).exists() else {}
    return {int(order): said for order, said in found.items()}


def left_out(result: TestResult, counts: Sequence[int], failed: int) -> TestResult:
    """LoadGen's result with the rates of the answers alone, those of one token, which it left out, included; `counts`
    are the tokens of all, 0 of a failed one."""
    counted = sum(count for count in counts if count > 1 or not result.token_latencies) + PLACEHOLDER * failed
    samples, tokens, rate = result.samples, result.tokens_per_sec, result.samples_per_sec
    whole = sum(counts) / result.duration_s if result.duration_s else None
    return replace(
        result,
        samples=samples and samples - failed,
        tokens_per_sec=tokens * sum(counts) / counted if tokens and counted else whole,
        samples_per_sec=rate * (1 - failed / samples) if rate and samples else rate,
    )


def judged(result: TestResult, limits: Limits | None) -> TestResult:
    """The result, INVALID where its latencies without the failed requests break a limit that LoadGen saw kept."""
    pairs: list[tuple[str, Latency | None, float]] = []
    if limits:
        pairs = [("TTFT", result.ttft_ms, limits.ttft_ms), ("TPOT", result.tpot_ms, limits.tpot_ms)]
    broken = [
        f"{name} p99 without the failed requests was {found.p99:.3g} ms, over the limit of {most:g} ms: "
        "lower the target rate"
        for name, found, most in pairs
        if found and found.p99 > most
    ]
    if not broken or not result.valid:
        return result
    return replace(result, valid=False, failed=("latency",), invalid_reasons=broken)
