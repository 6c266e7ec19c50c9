"""What to try where a latency limit broke, from the numbers of the test."""

from harness.results.summary import Performance
from harness.results.telemetry import QUEUED


def advice(test: Performance) -> list[str]:
    """What to change, a sentence each; nothing for a test that kept its limits, or has none."""
    limits, first, each = test.limits_ms, test.ttft_ms, test.tpot_ms
    late = bool(limits and first and first.p99 > limits.ttft)
    slow = bool(limits and each and each.p99 > limits.tpot)
    if late and slow:
        return [both(test)]
    return [slow_tokens(test)] if slow else [late_starts(test)] if late else []


def flight(test: Performance) -> str:
    return f" with {test.requests_in_flight:,.0f} requests in flight" if test.requests_in_flight else ""


def both(test: Performance) -> str:
    """Neither limit is kept: what would help one by the size of steps costs the other."""
    return (
        f"TTFT and TPOT are both over their limits{flight(test)}: a lower rate; if that does not do, a faster set-up "
        "(fewer bits, more GPUs), since larger or smaller steps help the one and cost the other"
    )


def slow_tokens(test: Performance) -> str:
    """TPOT over its limit: each step of the engine takes too long."""
    return (
        f"TPOT is over its limit{flight(test)}: a lower rate, or shorter steps (a lower --max-num-batched-tokens, so "
        "that prompts hold up running answers less; a lower --max-num-seqs, so that fewer share a step)"
    )


def late_starts(test: Performance) -> str:
    """TTFT over its limit: requests queue, or prompts take too long."""
    waiting = test.usage.get("requests_waiting")
    if waiting is None:
        return "TTFT is over its limit: --extra-metrics shows whether requests waited, or their prompts took too long"
    if waiting.mean >= QUEUED:
        return (
            f"TTFT is over its limit because requests queue ({waiting.mean:,.0f} waited on average, {waiting.max:,.0f} "
            "at most): a lower rate, or whatever ran out first"
        )
    return (
        "TTFT is over its limit though hardly a request waited: prompts take too long, beside running answers or by "
        "themselves; a lower rate, or a higher --max-num-batched-tokens if prompts are longer than a step"
    )
