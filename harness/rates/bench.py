"""Where loads are tried before a run's test, and what every source of a load does."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from math import ceil
from typing import NamedTuple

from harness.config.plan import Plan, TestPart, minutes
from harness.core.document import number
from harness.loadgen.folder import BenchmarkRun
from harness.loadgen.log import TestResult
from harness.loadgen.outcome import Outcome
from harness.loadgen.patterns import trial_size
from harness.loadgen.session import LoadGenSession
from harness.rates import probing, search
from harness.rates.law import Alone, Goal
from harness.workloads.cnn_dailymail import Prompt

# LoadGen plans for 1.1 x duration x rate. A trial sees the ramps at both ends more than a long run does, so the
# engine may prove faster than the trial; too few samples would make the run INVALID, too many only longer.
OFFLINE_MARGIN = 1.1
TYPICAL_PROBES = 3  # of a search: benchmarks.search


class Bench(NamedTuple):
    """A run under way, and the session of its tests: where loads are tried."""

    run: BenchmarkRun
    session: LoadGenSession

    @property
    def plan(self) -> Plan:
        return self.run.plan

    def trial(self, plan: Plan) -> probing.Trial:
        self.session.display.stage("calibrating", "load")
        asked = self.asked(plan, trial_size(plan, self.at_once))
        return self.session.measure(probing.run_trial(plan, *asked, self.at_once))

    def asked(self, plan: Plan, size: int) -> tuple[probing.TolerantEngine, list[Prompt]]:
        """The engine of which some requests may fail, and so many prompts."""
        prompts = list(islice(cycle(self.session.samples(plan).requests), size))
        return probing.TolerantEngine(self.session.engine, plan.config.max_failed, size), prompts

    @property
    def at_once(self) -> int:
        return self.session.engine.concurrency

    def alone(self) -> Alone:
        self.session.display.stage("a request alone", "load")
        return self.session.measure(probing.run_alone(*self.asked(self.plan, probing.ALONE + 1)))

    def burst(self, alone: Alone) -> float:
        size = min(probing.BURST, self.at_once)
        self.session.display.stage(f"{size} requests at once", "load")
        found = self.session.measure(probing.run_burst(*self.asked(self.plan, size), self.plan, alone))
        part = probes("search", TYPICAL_PROBES, search.probe_s(found, Goal.of(self.plan)))
        self.session.display.say(f"about {number(found)} queries/s: {part.text}, {minutes(part.seconds or 0.0)} in all")
        return found

    def probe(self, chosen: search.Candidate) -> Outcome:
        return self.test(at_rate(self.plan, chosen.rate, chosen.seconds), chosen.reason)

    def test(self, short: Plan, reason: str = "") -> Outcome:
        """A short test, kept in config.json at once."""
        self.run.facts.probes.append(probing.run_probe(self.session, short, reason))
        self.run.save()
        return self.run.facts.probes[-1]


class DoneTests(NamedTuple):
    """What a run has tested: its probes, and its full tests, the last of which has just ended."""

    probes: Sequence[Outcome] = ()
    attempts: Sequence[Outcome] = ()

    @property
    def all(self) -> list[Outcome]:
        return [*self.probes, *self.attempts]


class RateSource:
    """Where a run's load comes from. As it is, the load was given: there is nothing to find and nothing to correct."""

    corrections = 0  # attempts with another load, at most
    before: TestPart | None = None  # the performance test, whatever the plan

    def outlook(self, plan: Plan) -> TestPart | None:
        """What comes before the performance test; None for nothing."""
        return self.before

    def find(self, bench: Bench) -> Plan:
        """The plan with its load, and a note of it; tests on the way are recorded at once. Raises NotAcceptedError
        where no load keeps the limits."""
        return bench.plan

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """The plan for another attempt after the last test; None where another would not help."""
        return None

    def conclude(self, plan: Plan, tests: DoneTests) -> Plan:
        """The plan of the attempt that counts, with what all of them came to; the last, unless another is better."""
        return plan

    def total(self, plan: Plan) -> str:
        """What a run is going to do after its engine is up, in one line with the sum of its times."""
        return plan.total(self.outlook(plan), "after the engine has started")


def as_probe(plan: Plan) -> Plan:
    """The plan of a short test of the same load."""
    return replace(plan, min_duration_s=min(search.PROBE_S, plan.min_duration_s))


def probes(name: str, count: int, seconds: float = search.PROBE_S) -> TestPart:
    return TestPart(name, f"{count} probes or so of at least {minutes(seconds)} each", count * seconds)


def at_rate(plan: Plan, qps: float, seconds: float | None = None) -> Plan:
    """The plan of a short test at a rate, on as many samples as it takes: LoadGen takes whole passes of them."""
    length = seconds or search.probe_s(qps, Goal.of(plan))
    queries = ceil(qps * length)
    samples = ceil(queries / ceil(queries / plan.samples))
    return replace(plan, target_qps=qps, min_duration_s=length, samples=samples)
