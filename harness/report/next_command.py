"""The command to run next after a run without a valid result."""

from harness.config.patterns import Poisson
from harness.core.processes import command_with_flag
from harness.results.outcome import Outcome, kept_below_failures
from harness.results.summary import Summary


def next_command(summary: Summary) -> str:
    """Return the command to run next; empty if there is nothing to suggest."""
    test = summary.result
    has_ended_early = bool(summary.meta.ended)
    if test is None and has_ended_early:
        return command_after_interruption(summary)
    if test is None:  # It was a run of accuracy alone.
        return ""
    if test.valid and not test.has_own_limits:
        return ""
    if test.details.concurrency:
        return command_after_levels(summary, test)
    return command_after_invalid_test(summary, test)


def kept_loads(summary: Summary) -> list[float]:
    """Return the loads of a search or a curve that kept their limits below all that did not, in order."""
    return [test.load for test in kept_below_failures(summary.curve)]


def command_after_interruption(summary: Summary) -> str:
    """Return the command that tests the rate that an interrupted search had come to."""
    command, tests = summary.meta.command, summary.curve
    if not tests or tests[0].unit != Poisson.unit:  # No rate was tested.
        return command
    kept_rates = kept_loads(summary)
    rates_of_short_tests = [test.load for test in tests if test.is_short]
    if summary.meta.target_qps:  # the rate planned for the full test
        rate = summary.meta.target_qps
    elif kept_rates:
        rate = max(kept_rates)
    elif rates_of_short_tests:
        rate = max(rates_of_short_tests)
    else:  # All tested rates were too high.
        lowest = tests[0].load
        rate = lowest / 2
    return command_with_flag(command, "--server-target-qps", f"{round(rate, 3):g}")


def command_after_levels(summary: Summary, test: Outcome) -> str:
    """Return the command that follows a test at fixed concurrency; empty if there is nothing to suggest.

    It tests a level that kept the limits, a lower one, or higher ones. A test that is INVALID for another reason than
    its latencies has the command of any INVALID test.
    """
    command, levels = summary.meta.command, summary.curve
    is_over_limits = bool(test.reasons)
    if is_over_limits:
        lowest = levels[0].load if levels else test.load
        kept_levels = kept_loads(summary)
        if kept_levels:
            level = max(kept_levels)
        elif lowest > 1:
            level = max(1, lowest // 4)
        else:  # There is no level below 1.
            return ""
        return command_with_flag(command, "--concurrency", f"{level:.0f}")
    highest_is_within_limits = test.details.limits_ms and levels and not levels[-1].reasons
    if highest_is_within_limits:
        return command_with_flag(command, "--concurrency", "max")
    return command_after_invalid_test(summary, test)


def command_after_invalid_test(summary: Summary, test: Outcome) -> str:
    """Return the command that follows an INVALID test. Empty if the test is VALID or has no limits."""
    if test.valid or not test.details.limits_ms:
        return ""
    command = summary.meta.command
    is_within_limits = not any(tail.is_over for tail in test.tails)
    if is_within_limits:  # The test was only too short.
        return command_with_flag(command, "--min-duration", "auto")
    tested_rate = test.details.target_qps or 0.0
    lower_rates = [rate for rate in kept_loads(summary) if rate < tested_rate]
    if not lower_rates:
        return command_with_flag(command, "--server-target-qps", "max")
    return command_with_flag(command, "--server-target-qps", f"{max(lower_rates):.2f}")
