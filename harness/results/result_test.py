"""The test whose figures are those of a run."""

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from harness.config.plan import Plan
from harness.core.errors import UsageError
from harness.loadgen import log_entries
from harness.loadgen.test_run import TestRun
from harness.results.outcome import Outcome, best_load
from harness.results.records import RunFacts
from harness.results.summary import CURVE_UNITS
from harness.runs.run_folder import TEST_FOLDERS


class ResultTest(NamedTuple):
    """A run's own test, and the facts of the run with the plan of that test."""

    test: TestRun
    facts: RunFacts


def choose_test(folder: Path, facts: RunFacts, is_complete: bool) -> ResultTest | None:
    """Return the test whose figures are the result of the run, with its facts; None if no test finished.

    Raises LogError or UsageError if logs of a complete run cannot be trusted.
    """
    # Of several levels of concurrency or batch sizes, the best within the limits is the result.
    levels = []
    if facts.config.concurrency != "max":  # The search of "max" tests its levels only briefly.
        levels = [probe for probe in facts.probes if probe.unit in CURVE_UNITS]
    if is_complete:
        candidates = [folder_and_plan(best_load(levels), facts)]
    else:
        performance_test = folder_and_plan(None, facts)
        candidates = [performance_test, folder_and_plan(best_load(facts.attempts), facts)]
    for test_folder, plan in candidates:
        if not (folder / test_folder / log_entries.DETAIL).exists():  # The test left no logs.
            continue
        try:
            test = TestRun.read(folder / test_folder, plan, facts.concurrency)
        except (log_entries.LogError, UsageError):
            if is_complete:
                raise
            continue  # An incomplete run may have cut the logs of this test, so the next test is tried.
        return ResultTest(test, facts.model_copy(update={"plan": plan}))
    return None


def folder_and_plan(outcome: Outcome | None, facts: RunFacts) -> tuple[str, Plan]:
    """Return the folder of a test's logs in the run folder, and the plan at the test's load.

    Both are those of the performance test if `outcome` is None, or has no folder because an older version recorded it.
    """
    if outcome is None or not outcome.folder:
        return TEST_FOLDERS["performance"], facts.plan
    return outcome.folder, at_load(facts.plan, outcome)


def at_load(plan: Plan, outcome: Outcome) -> Plan:
    """Return the plan with the load of an outcome: its rate, its concurrency, or else its samples per query."""
    if plan.pattern.load == "target_qps":
        return replace(plan, target_qps=outcome.load)
    if plan.pattern.load == "concurrency":
        return replace(plan, concurrency=int(outcome.load))
    return replace(plan, samples_per_query=int(outcome.load))
