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

    If the run has levels or batches, that is the best test within the limits, else the performance test. Of an
    incomplete run, it is the performance test if that finished, else the best full test before. Raises LogError or
    UsageError if logs of a complete run cannot be trusted. Such logs of an incomplete run are left out.
    """
    levels = []
    if facts.config.concurrency != "max":  # The search of "max" tests its levels only briefly.
        levels = [probe for probe in facts.probes if probe.unit in CURVE_UNITS]
    candidates: list[Outcome | None] = [best_load(levels)]
    if not is_complete:
        candidates = [None, best_load(facts.attempts)]
    for outcome in candidates:
        # None stands for the performance test. So does an outcome of an older version, which recorded no folder.
        logs, plan = TEST_FOLDERS["performance"], facts.plan
        if outcome and outcome.folder:
            logs, plan = outcome.folder, at_load(facts.plan, outcome)
        if not (folder / logs / log_entries.DETAIL).exists():
            continue
        try:
            test = TestRun.read(folder / logs, plan, facts.concurrency)
        except (log_entries.LogError, UsageError):
            if is_complete:
                raise
            continue
        return ResultTest(test, facts.model_copy(update={"plan": plan}))
    return None


def at_load(plan: Plan, outcome: Outcome) -> Plan:
    """Return the plan with the load of an outcome: its rate, its concurrency, or else its samples per query."""
    if plan.pattern.load == "target_qps":
        return replace(plan, target_qps=outcome.load)
    if plan.pattern.load == "concurrency":
        return replace(plan, concurrency=int(outcome.load))
    return replace(plan, samples_per_query=int(outcome.load))
