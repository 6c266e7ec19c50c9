"""Suggestions after a VALID result: a higher rate within the limits, or another setting."""

from harness.config.patterns import Burst, Poisson
from harness.core.document import Line
from harness.core.formatting import number
from harness.core.processes import command_with_flag
from harness.results.outcome import Doubt, Outcome
from harness.results.summary import Summary
from harness.results.telemetry import BUSY_PERCENT

AMPLE_SHARE = 0.8  # A p99 below this share of its limit leaves room for a higher rate.


def headroom_lines(summary: Summary) -> list[Line]:
    """Return what to try after a VALID run, with the command; empty if there is nothing to suggest.

    Doubtful figures, except for having few requests, suggest nothing.
    """
    test = summary.result
    if test is None or test.has_own_limits or set(test.doubts) - {Doubt.FEW}:
        return []
    pattern = summary.scenario.pattern
    if isinstance(pattern, Poisson):
        return room_for_rate(summary, test)
    if isinstance(pattern, Burst):
        return room_for_setting(summary, test)
    return []


def room_for_rate(summary: Summary, test: Outcome) -> list[Line]:
    """Suggest a search for a higher rate, if no higher rate has failed and both p99 are well below their limits.

    Nothing is suggested if the requests are too few for a p99. Well below is less than AMPLE_SHARE of the limit.
    """
    failed_above = [outcome for outcome in summary.tests if outcome.load > test.load and not outcome.has_kept]
    tails = test.sure_tails  # each p99 with its limit; empty for few requests
    has_room = bool(tails) and max(tail.share for tail in tails) < AMPLE_SHARE
    if failed_above or not has_room:
        return []
    used_shares = " and ".join(f"{tail.kind} p99 at {number(100 * tail.share, 2)} %" for tail in tails)
    limits = "its limit" if len(tails) == 1 else "their limits"
    command = command_with_flag(summary.meta.command, "--server-target-qps", "max")
    return [
        Line("room", f"{used_shares} of {limits}: a higher rate may hold"),
        Line("next", command, is_command=True),
    ]


def room_for_setting(summary: Summary, test: Outcome) -> list[Line]:
    """Suggest fp8, if the GPU's work limited the speed and it computed in 16 bits.

    Any other bound of the speed has its own remedy. Nothing is suggested without a GPU, nor for a checkpoint that has a
    number format of its own.
    """
    meta = summary.meta
    has_16_bits = meta.quantization == "none" and meta.checkpoint is None
    if not (is_bound_by_gpu_work(test) and has_16_bits and summary.gpu_models):
        return []
    return [
        Line("worth trying", "fp8: about half the work of a token; the accuracy test shows what it costs in ROUGE"),
        Line("next", command_with_flag(meta.command, "--quantization", "fp8"), is_command=True),
    ]


def is_bound_by_gpu_work(test: Outcome) -> bool:
    """Tell whether the GPU's work set the speed, so that only less work for each token makes the test faster.

    If the CPU was busy instead, fewer bits on the GPU would not help.
    """
    bounds, gpu_load = test.details.ran_out, test.details.usage.get("gpu_load_percent")
    if not bounds:
        return False
    first_bound = bounds[0].name
    if first_bound == "busy":  # This name stands for a busy GPU and for a busy CPU.
        return gpu_load is not None and gpu_load.mean >= BUSY_PERCENT
    return first_bound == "held_by_power"
