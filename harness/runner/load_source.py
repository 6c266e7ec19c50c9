"""The interface of the sources that a run's load comes from."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

from harness.config.plan import Plan, TestPart
from harness.loadgen.log import TestResult
from harness.rates.bench import Bench
from harness.rates.server_model import LoneRequest
from harness.results.outcome import Outcome


class DoneTests(NamedTuple):
    """The tests of a run so far: its probes, and its full tests, the last of which has just ended."""

    probes: Sequence[Outcome] = ()
    attempts: Sequence[Outcome] = ()
    left_s: float = inf  # the seconds that are left of --minutes
    lone: LoneRequest | None = None  # the times of a lone request before the tests; None if not measured

    @property
    def all(self) -> list[Outcome]:
        return [*self.probes, *self.attempts]


class RateSource:
    """A source of a run's load.

    In this class the user gave the load, so there is nothing to find and nothing to correct.
    """

    corrections = 0  # the number of further attempts with another load that may follow
    before: TestPart | None = None  # the part before the performance test, for any plan

    def part_before(self, plan: Plan) -> TestPart | None:
        """Return the part of the run before its performance test, so that the user can be told how long that takes.

        None if nothing comes before that test. Here it is the same part for any plan; a subclass may need the plan.
        """
        return self.before

    def least_s(self, plan: Plan) -> float | None:
        """Return the fewest seconds that a run with this source takes after its engine's start.

        A shorter --minutes is refused. None if --minutes has no meaning for the source. That is so here, where the user
        gave the load; subclasses return a time.
        """
        return None

    def find(self, bench: Bench) -> Plan:
        """Return the plan with its load, and with a note on how the load was found.

        Here the user gave the load, so the plan stays as it is. A subclass finds the load by tests, which it records at
        once, and raises NotAcceptedError if no load keeps the limits.
        """
        return bench.plan

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """Return the plan for another attempt after the last full test, whose result is `result`.

        None if another attempt would not help. That is so here, where the user gave the load; subclasses correct it.
        """
        return None

    def conclude(self, plan: Plan, tests: DoneTests) -> Plan:
        """Return the plan of the attempt that counts, which is here the last one.

        A subclass may choose a better attempt, and adds a note about all attempts.
        """
        return plan

    def duration_line(self, plan: Plan) -> str:
        """Return the parts of a run after its engine's start in one line, with the sum of their times."""
        return plan.duration_line(self.part_before(plan), "after the engine's start")
