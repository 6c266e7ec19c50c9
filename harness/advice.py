"""What to try where a latency limit broke, from the numbers of the test."""

from collections.abc import Iterator

from harness.summary import Performance
from harness.usage import QUEUED


def advice(test: Performance) -> list[str]:
    """What to change, a sentence each; nothing for a test that kept its limits, or has none."""
    return [] if test.limits_ms is None else [*slow_tokens(test), *late_starts(test)]


def slow_tokens(test: Performance) -> Iterator[str]:
    """TPOT over its limit: each step of the engine takes too long."""
    if test.limits_ms and test.tpot_ms and test.tpot_ms.p99 > test.limits_ms.tpot:
        flight = f" with {test.requests_in_flight:,.0f} requests in flight" if test.requests_in_flight else ""
        yield (
            f"TPOT is over its limit{flight}: a lower rate, or shorter steps (a lower --max-num-batched-tokens, so "
            "that prompts hold up running answers less; a lower --max-num-seqs, so that fewer share a step)"
        )


def late_starts(test: Performance) -> Iterator[str]:
    """TTFT over its limit: requests queue, or prompts take too long."""
    if not (test.limits_ms and test.ttft_ms and test.ttft_ms.p99 > test.limits_ms.ttft):
        return
    waiting = test.usage.get("requests_waiting")
    if waiting is None:
        yield "TTFT is over its limit: --extra-metrics shows whether requests waited, or their prompts took too long"
    elif waiting.mean >= QUEUED:
        yield (
            f"TTFT is over its limit because requests queue ({waiting.mean:,.0f} waited on average, {waiting.max:,.0f} "
            "at most): a lower rate, or whatever ran out first"
        )
    else:
        yield (
            "TTFT is over its limit though hardly a request waited: prompts take too long; a higher "
            "--max-num-batched-tokens computes each in fewer steps"
        )
