"""Advice from a test's numbers: what bounds it, and what to try."""

from collections.abc import Mapping

from harness.core.formatting import number, sentence
from harness.core.statistics import tail_name
from harness.results import telemetry
from harness.results.outcome import Outcome
from harness.results.summary import Summary

UNSTEADY_DRIFT = 0.1  # the speed may change by this share between the halves of a test
IDLE_SHARE = 0.02  # share of a place's time in a closed loop: beyond it the client's own time lowers the speed
DELAY_SHARE = 0.05  # share of TTFT p99: a client's delay beyond it is a part of the result worth a warning


def findings(summary: Summary) -> list[str]:
    """Return what bounds the performance test of a run that has one, and what to try, a sentence each."""
    test = summary.result
    assert test
    broken = [f"What to try: {remedy}." for remedy in advice(test)]
    drift = [f"{sentence(text)}." for text in unsteady(test)]
    slow = summary.run.profile.slow if summary.run.profile else ()
    limits = {
        "the KV cache": "kv_cache_percent",
        "request slots": "requests_waiting",
        **({"the GPU": "gpu_load_percent"} if summary.meta.endpoints or summary.system.gpus else {}),
        "the client's CPU" if summary.meta.endpoints else "the CPU": "cpu_percent",
    }
    return [*broken, *drift, *bounds(test, limits), *(f"{sentence(kernel)}." for kernel in slow)]


def client(test: Outcome) -> str:
    """Return a warning where the client's own delay shows in TTFT, or in the speed of a closed loop; else nothing."""
    details = test.details
    delay, whole = details.client_delay_ms, details.whole
    first = whole.ttft_ms
    late = f"{tail_name('delay', test.is_few)} {number(delay.p99, 3)} ms" if delay else ""
    if delay and whole.latency_ms and details.concurrency:
        idle = delay.mean / (delay.mean + whole.latency_ms.mean)
        if idle <= IDLE_SHARE:
            return ""
        return (
            f"client delay: {late} from an answer's end until the next request, "
            f"{number(100 * idle, 2)} % of the time of each of the {number(details.concurrency)} slots (threshold "
            f"{100 * IDLE_SHARE:g} %); the server had less to do than was asked for"
        )
    if not (delay and first and delay.p99 > DELAY_SHARE * first.p99):
        return ""
    return (
        f"client delay: {late} from its schedule until a request was sent, "
        f"{number(100 * delay.p99 / first.p99, 3)} % of {tail_name('TTFT', test.is_few)} (threshold "
        f"{100 * DELAY_SHARE:g} %); the reported TTFT includes it"
    )


def bounds(test: Outcome, limits: Mapping[str, str]) -> list[str]:
    """Return what was used up, what bounds first, first; `limits`: what may be, and the quantity that shows it."""
    details = test.details
    if not details.usage:
        return [
            "What limits the speed was not recorded: --extra-metrics records once a second what engine and machine do."
        ]
    if not details.ran_out and test.background_load:
        return ["What limits the speed is not known: the machine was busy."]
    if not details.ran_out:
        shown_limits = [name for name, quantity in limits.items() if quantity in details.usage]
        seen, unseen = ", ".join(shown_limits), ", ".join(name for name in limits if name not in shown_limits)
        if unseen:
            return [f"Not saturated in the performance test: {seen or 'none of the rest'}. Not known: {unseen}."]
        return [
            f"No resource was saturated in the performance test ({seen}): the load, or work between the steps, set the "
            "speed."
        ]
    first, *rest = details.ran_out
    return [f"**What limits the speed**: {first}.", *(f"{sentence(str(statement))}." for statement in rest)]


def unsteady(test: Outcome) -> list[str]:
    """A speed that changed while the engine had all its work: the mean is not what a longer test would give."""
    if test.trend is None or abs(test.trend - 1) <= UNSTEADY_DRIFT:
        return []
    return [
        f"throughput drifted: the second half was {number(test.trend, 3)} times as fast as the first, ramps "
        "excluded; repeat with a longer --min-duration on an idle machine"
    ]


def lower_load(test: Outcome) -> str:
    return "fewer in flight" if test.details.concurrency else "a lower rate"


def advice(test: Outcome) -> list[str]:
    """Return what to change, a sentence each; nothing for a test that kept its limits, or has none."""
    match [tail.kind for tail in test.tails if tail.is_over]:
        case [_, _]:
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
    return f" with {test.details.requests_in_flight:,.0f} requests in flight" if test.details.requests_in_flight else ""


def advise_ttft(test: Outcome) -> str:
    """TTFT over its limit: requests queue, or prompts take too long."""
    waiting = test.details.usage.get("requests_waiting")
    if waiting is None:
        return "TTFT is over its limit: --extra-metrics shows whether requests waited, or their prompts took too long"
    if waiting.mean >= telemetry.WAITING_REQUESTS:
        return (
            f"TTFT is over its limit because requests queue ({waiting.mean:,.0f} waited on average, {waiting.max:,.0f} "
            f"at most): {lower_load(test)}, or whatever bounds it"
        )
    return (
        "TTFT is over its limit though hardly a request waited: prompts take too long, beside running answers or by "
        f"themselves; {lower_load(test)}, or a higher --max-num-batched-tokens if prompts are longer than a step"
    )
