"""The command to run next after a run without a valid result."""

from harness.config.patterns import Poisson
from harness.core.processes import command_with_flag
from harness.results.outcome import Outcome
from harness.results.summary import Summary


def next_command(summary: Summary) -> str:
    """Return the command to run next; empty if there is nothing to suggest.

    There is one after a run that ended early or whose test is INVALID. A test with the user's own limits may have one,
    too: other levels of concurrency, or another rate.
    """
    test = summary.result
    if test is None:
        if not summary.meta.ended:  # A run of accuracy alone is complete without a result.
            return ""
        return command_after_interruption(summary)
    if test.valid and not test.has_own_limits:
        return ""
    if test.details.concurrency:
        return command_at_other_levels(summary, test)
    return command_at_other_rate(summary, test)


def kept_loads(summary: Summary) -> list[float]:
    """Return the loads of a search or a curve that kept their limits, in order."""
    return [outcome.load for outcome in summary.curve if outcome.has_kept]


def command_after_interruption(summary: Summary) -> str:
    """Return the command that tests the rate that an interrupted search had come to.

    That is the rate planned for the full test; else the highest rate that kept its limits; else the highest whose test
    failed only because it was too short. If all tested rates were too high, it is half the lowest of them. If no rate
    was tested, return the same command again.
    """
    command, curve = summary.meta.command, summary.curve
    if not curve or curve[0].unit != Poisson.unit:
        return command
    rates = kept_loads(summary)
    if not rates:
        rates = [outcome.load for outcome in curve if outcome.is_short]
    if not rates:  # All tested rates were too high.
        rates = [curve[0].load / 2]
    rate = summary.meta.target_qps or max(rates)
    return command_with_flag(command, "--server-target-qps", f"{round(rate, 3):g}")


def command_at_other_levels(summary: Summary, test: Outcome) -> str:
    """Return the command that tests other levels of concurrency.

    If the result is over the limits, the level is the highest that kept them, else a quarter of the lowest; the text is
    empty if the lowest is 1. If the highest tested level is within the limits, the command searches for the highest
    level. Any other result has a command only if its test was too short: the same command as at a rate.
    """
    command, curve, kept_levels = summary.meta.command, summary.curve, kept_loads(summary)
    if test.reasons:
        lowest = curve[0].load if curve else test.load
        level = max(kept_levels, default=max(1, lowest // 4))
        if level >= lowest and not kept_levels:  # There is no level below 1.
            return ""
        return command_with_flag(command, "--concurrency", f"{level:.0f}")
    if test.details.limits_ms and curve and not curve[-1].reasons:
        return command_with_flag(command, "--concurrency", "max")
    return command_at_other_rate(summary, test)


def command_at_other_rate(summary: Summary, test: Outcome) -> str:
    """Return the command that tests the highest lower rate that kept its limits or, if there is none, searches for one.

    If the test kept its limits, it was only too short, and the command makes it longer. Empty if the test is valid or
    has no limits.
    """
    if test.valid or not test.details.limits_ms:
        return ""
    command = summary.meta.command
    if not any(tail.is_over for tail in test.tails):
        return command_with_flag(command, "--min-duration", "auto")
    lower = [rate for rate in kept_loads(summary) if rate < (test.details.target_qps or 0.0)]
    if not lower:
        return command_with_flag(command, "--server-target-qps", "max")
    return command_with_flag(command, "--server-target-qps", f"{max(lower):.2f}")
