"""Advice from a test's numbers: what limits it, and what to try."""

from collections.abc import Iterable, Mapping

from harness.core.formatting import number, plural, sentence
from harness.core.statistics import tail_name
from harness.results import telemetry
from harness.results.outcome import Outcome
from harness.results.summary import Summary

UNSTEADY_DRIFT = 0.1  # the speed may change by this share between the halves of a test
# Percent of a test's time that its steady part must have for a drift to be judged. The rest is one wave of answers at
# either end, so at 75 % each half has three waves. With fewer, the halves differ by where their waves happen to end.
LEAST_SHARE_FOR_DRIFT = 75.0
IDLE_SHARE = 0.02  # share of a slot's time in a closed loop; a client that waits longer lowers the speed
DELAY_SHARE = 0.05  # share of TTFT p99; a longer delay of the client is worth a warning


def findings(summary: Summary) -> list[str]:
    """Return sentences on what limited a run's performance test, and what to try. There must be such a test."""
    test = summary.result
    assert test
    sentences = [f"What to try: {remedy}." for remedy in advice(test)]
    sentences += as_sentences(drift_warnings(test))
    sentences += bound_sentences(test, limits_of(summary))
    if summary.run.profile:
        sentences += as_sentences(summary.run.profile.slow)
    return sentences


def as_sentences(texts: Iterable[object]) -> list[str]:
    return [f"{sentence(str(text))}." for text in texts]


def limits_of(summary: Summary) -> dict[str, str]:
    """Return what may limit a run's speed, each with the name of the quantity that shows it."""
    quantity_by_limit = {"the KV cache": "kv_cache_percent", "request slots": "requests_waiting"}
    is_behind_endpoint = bool(summary.meta.endpoints)
    if is_behind_endpoint or summary.system.gpus:  # A server behind an endpoint may have GPUs that are not seen here.
        quantity_by_limit["the GPU"] = "gpu_load_percent"
    cpu = "the client's CPU" if is_behind_endpoint else "the CPU"
    quantity_by_limit[cpu] = "cpu_percent"
    return quantity_by_limit


def client_warning(test: Outcome) -> str:
    """Return a warning if this client's own delay falsifies the figures; empty if not, or if it is not known."""
    details = test.details
    delay, latency, ttft = details.client_delay_ms, details.whole.latency_ms, details.whole.ttft_ms
    if delay is None:
        return ""
    delay_text = f"{tail_name('delay', test.is_few)} {number(delay.p99, 3)} ms"
    if details.concurrency and latency:  # a closed loop
        # The delay leaves a slot for requests idle between two requests, which lowers the speed.
        idle_share = delay.mean / (delay.mean + latency.mean)
        if idle_share <= IDLE_SHARE:
            return ""
        return (
            f"client delay: {delay_text} from an answer's end until the next request, "
            f"{number(100 * idle_share, 2)} % of the time of each slot "
            f"(threshold {100 * IDLE_SHARE:g} %); the server had less to do than was asked for"
        )
    # With a schedule, the delay is from a request's scheduled time, and makes TTFT longer.
    if ttft is None or delay.p99 <= DELAY_SHARE * ttft.p99:
        return ""
    return (
        f"client delay: {delay_text} from its schedule until a request was sent, "
        f"{number(100 * delay.p99 / ttft.p99, 3)} % of {tail_name('TTFT', test.is_few)} (threshold "
        f"{100 * DELAY_SHARE:g} %); the reported TTFT includes it"
    )


def bound_sentences(test: Outcome, limits: Mapping[str, str]) -> list[str]:
    """Return sentences on what was used up, the strongest limit first, or that nothing was or nothing is known.

    `limits` maps what may limit the speed to the quantity that shows it.
    """
    details = test.details
    if not details.usage:
        return ["What limits the speed was not recorded: run with --extra-metrics to see it."]
    if details.ran_out:
        strongest, *further_bounds = details.ran_out
        return [f"**Bottleneck**: {strongest}.", *as_sentences(further_bounds)]
    if test.background_load:
        return ["What limits the speed is not known: the machine was busy."]
    recorded, unrecorded = list[str](), list[str]()
    for name, quantity in limits.items():
        if quantity in details.usage:
            recorded.append(name)
        else:
            unrecorded.append(name)
    recorded_text = ", ".join(recorded)
    if unrecorded:
        unsaturated = recorded_text or "none of the rest"  # the rest beside those that are not known
        return [f"Not saturated in the performance test: {unsaturated}. Not known: {', '.join(unrecorded)}."]
    return [
        f"No resource was saturated in the performance test ({recorded_text}): the load, or work between the steps, "
        "set the speed."
    ]


def drift_warnings(test: Outcome) -> list[str]:
    """Return a warning if the speed changed between the halves of a test's steady part, else nothing.

    A longer test would then have another mean.
    """
    steady = test.details.steady
    if test.trend is None or abs(test.trend - 1) <= UNSTEADY_DRIFT:
        return []
    # A small steady part has only few waves of answers, whose speeds differ anyway.
    if steady is None or (steady.share_percent or 0.0) < LEAST_SHARE_FOR_DRIFT:
        return []
    return [
        f"throughput drifted: the second half was {number(test.trend, 3)} times as fast as the first, ramps "
        "excluded; repeat with a longer --min-duration on an idle machine"
    ]


def lower_load(test: Outcome) -> str:
    """Return what a lower load is called in advice: fewer requests in flight at fixed
    concurrency, else a lower rate.
    """
    if test.details.concurrency:
        return "fewer in flight"
    return "a lower rate"


def advice(test: Outcome) -> list[str]:
    """Return a text on what to change so that TTFT and TPOT keep their limits; nothing if they did or have none."""
    match [tail.kind for tail in test.tails if tail.is_over]:
        case [_, _]:  # both
            return [
                f"TTFT and TPOT are both over their limits{in_flight_text(test)}: {lower_load(test)}; else a faster "
                "set-up (fewer bits, more GPUs), since larger or smaller steps help one and cost the other"
            ]
        case ["TTFT"]:
            return [advise_ttft(test)]
        case ["TPOT"]:
            return [
                f"TPOT is over its limit{in_flight_text(test)}: {lower_load(test)}, or shorter steps (a lower "
                "--max-num-batched-tokens, so that prompts hold up running answers less; a lower --max-num-seqs, so "
                "that fewer share a step)"
            ]
    return []


def in_flight_text(test: Outcome) -> str:
    """Return how many requests were in flight, as a part of a sentence; empty if that is not known."""
    if not test.details.requests_in_flight:
        return ""
    return f" with {plural(round(test.details.requests_in_flight), 'request')} in flight"


def advise_ttft(test: Outcome) -> str:
    """Return advice for a test with TTFT over its limit: either requests queue, or prompts take too long.

    If it was not recorded how many requests waited, the advice is to record it.
    """
    waiting = test.details.usage.get("requests_waiting")
    if waiting is None:
        return "TTFT is over its limit: --extra-metrics shows whether requests waited, or their prompts took too long"
    if waiting.mean >= telemetry.WAITING_REQUESTS:
        return (
            f"TTFT is over its limit because requests queue ({waiting.mean:,.0f} waited on average, {waiting.max:,.0f} "
            f"at most): {lower_load(test)}, or remove what limits the speed"
        )
    return (
        "TTFT is over its limit though hardly a request waited: prompts take too long, while other answers run or even "
        f"alone; {lower_load(test)}, or a higher --max-num-batched-tokens if prompts are longer than a step"
    )
