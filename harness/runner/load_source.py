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
    left_s: float = inf  # --minutes leaves so many seconds.
    lone: LoneRequest | None = None  # A lone request took so long before the tests, where that was measured.

    @property
    def all(self) -> list[Outcome]:
        return [*self.probes, *self.attempts]


class RateSource:
    """A source of a run's load. This one has a load that was given: there is nothing to find and nothing to correct."""

    corrections = 0  # So many attempts with another load may follow.
    before: TestPart | None = None  # This comes before the performance test, whatever the plan.

    def outlook(self, plan: Plan) -> TestPart | None:
        """Return what comes before the performance test; None for nothing."""
        return self.before

    def least_s(self, plan: Plan) -> float | None:
        """Return the seconds of a run after its engine's start, at least; None where --minutes has no meaning."""
        return None

    def find(self, bench: Bench) -> Plan:
        """Return the plan with its load, and a note of it; tests on the way are recorded at once. Raises
        NotAcceptedError where no load keeps the limits.
        """
        return bench.plan

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """Return the plan for another attempt after the last test; None where another would not help."""
        return None

    def conclude(self, plan: Plan, tests: DoneTests) -> Plan:
        """Return the plan of the attempt that counts, with what all of them came to; the last, unless another is
        better.
        """
        return plan

    def total(self, plan: Plan) -> str:
        """Return what a run is going to do after its engine is up, in one line with the sum of its times."""
        return plan.total(self.outlook(plan), "after the engine has started")
