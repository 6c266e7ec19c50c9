"""The command to run next after a run without a valid result."""

from harness.config.patterns import ClosedLoop, Poisson
from harness.core.processes import command_with_flag
from harness.results.outcome import Outcome, kept_below_failures
from harness.results.summary import Summary


def next_command(summary: Summary) -> str:
    """Return the command to run next; empty if there is nothing to suggest.

    The run's own command is suggested only after an interruption: a run that failed would fail again, and one that
    found its result would find it again.
    """
    command = suggested_command(summary)
    ended = summary.meta.ended
    would_end_alike = ended is None or ended.startswith("failed")
    if would_end_alike and command == summary.meta.command:
        return ""
    return command


def suggested_command(summary: Summary) -> str:
    """Return the command that follows the run's result, or what there is of it; empty if there is none."""
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
    """Return the command that goes on where a run without a result ended.

    It tests the rate that a search had come to or, after a failure, the levels that kept the limits before it.
    """
    command, tests = summary.meta.command, summary.curve
    kept_levels = ",".join(f"{load:.0f}" for load in kept_loads(summary))
    has_failed_after_levels = kept_levels and tests[0].unit == ClosedLoop.unit and summary.meta.ended != "interrupted"
    if has_failed_after_levels:
        return command_with_flag(command, "--concurrency", kept_levels)
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
