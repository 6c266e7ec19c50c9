"""A run under way, as a place where loads are tried before its test: trials, bursts and probes.

None of this is a result: LoadGen's verdict on the run's own test is. It tells which load is worth a test.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil, inf
from pathlib import Path

from harness.config.loadgen_schedule import queries_until
from harness.config.patterns import SURE_QUERIES, ClosedLoop
from harness.config.plan import Plan, TestPart, duration_text
from harness.core import nvml
from harness.core.formatting import joined_text, number, plural
from harness.core.progress import Display
from harness.core.statements import Statement
from harness.loadgen import gpu_readings
from harness.loadgen.sending import trial_size
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import RECORDING, Recording, TestRun
from harness.rates.clock import clock_fall
from harness.rates.first_requests import LONE_REQUESTS, LONE_S, BurstResult, run_burst, run_lone_requests
from harness.rates.goal import Goal
from harness.rates.measurements import PROBE_S, Candidate, probe_s
from harness.rates.server_model import LoneRequest
from harness.rates.trials import TolerantEngine, Trial, run_trial
from harness.results import test_table
from harness.results.benchmark_run import BenchmarkRun
from harness.results.level import level_of
from harness.results.outcome import Outcome
from harness.results.test_outcome import outcome_of
from harness.runs.run_folder import new_folder
from harness.workloads.sample_library import Prompt

# LoadGen plans for 1.1 x duration x rate. A trial sees the ramps at both ends more than a long run does, so the
# engine may prove faster than the trial; too few samples would make the run INVALID, too many only longer.
OFFLINE_MARGIN = 1.1
# A probe has this file in place of machine.csv if the run itself records nothing.
CLOCK_RECORDING = "clock.csv"


@dataclass
class Bench:
    """A run under way, and the session of its tests."""

    run: BenchmarkRun
    session: LoadGenSession
    until: float = inf  # The search plans to end by this time, by time.monotonic.
    may_shorten: bool = False  # Probes may have fewer queries than LoadGen needs for a verdict.

    @property
    def plan(self) -> Plan:
        return self.run.plan

    @property
    def goal(self) -> Goal:
        return Goal.of(self.plan)

    @property
    def left_s(self) -> float:
        """The seconds left for trying loads; infinity if the search has no time limit."""
        return self.until - time.monotonic()

    @property
    def at_once(self) -> int:
        """The number of requests that the engine runs at once."""
        return self.session.engine.concurrency

    def trial(self, plan: Plan, is_probe: bool = False) -> Trial:
        """Run a short trial of the plan's load without LoadGen, and return the speed that the trial shows.

        If `is_probe`, a refusal by a full server is a measurement and no failure.
        """
        self.session.display.stage("calibrating", "load")
        size = trial_size(plan, self.at_once)
        engine = self.tolerant_engine(size, is_probe)
        return self.session.run_watched(run_trial(plan, engine, self.prompts(size), self.at_once))

    def lone_request(self) -> LoneRequest:
        """Send a few requests one after the other, note the median of their times in the run's facts, and return it."""
        self.session.display.stage("a lone request", "load")
        request_count = LONE_REQUESTS + 1  # The first does not count: the engine may still be starting.
        # With a time limit, lone requests take at most a quarter of the time left: probes need most of it.
        most_s = min(LONE_S, self.left_s / 4)
        engine = self.tolerant_engine(request_count)
        lone = self.session.run_watched(run_lone_requests(engine, self.prompts(request_count), most_s))
        self.run.facts.lone_request_s = (lone.ttft_s, lone.tpot_s, lone.latency_s)
        return lone

    def burst(self, size: int) -> BurstResult:
        """Send `size` requests at once and return how many were answered, how many refused, and the time they took."""
        self.session.display.stage(f"{plural(size, 'request')} at once", "load")
        return self.session.run_watched(
            run_burst(self.tolerant_engine(size, is_probe=True), self.prompts(size), self.plan)
        )

    def tolerant_engine(self, requests: int, is_probe: bool = False) -> TolerantEngine:
        """Return the run's engine such that a few of `requests` requests may fail, as --max-failed allows."""
        flag = self.plan.pattern.most_in_flight_flag
        return TolerantEngine(self.session.engine, self.run.config.max_failed, requests, is_probe, flag)

    def prompts(self, count: int) -> list[Prompt]:
        """Return the first `count` prompts of the workload, repeated from the start if the workload has fewer."""
        return list(islice(cycle(self.session.samples(self.plan).requests), count))

    def say(self, text: str) -> None:
        self.session.display.say(text)

    def limit_in_flight(self, most: int) -> None:
        """From now on, keep at most `most` requests in flight at all servers together, because they refused more.

        The limit is kept in the run's settings as `max_in_flight`, which is the limit of each single server.
        """
        per_server = self.session.engine.limit_in_flight(most)
        config = self.plan.config.with_settings(max_in_flight=per_server)
        note = f"max_in_flight = {per_server} (the server is full at {most} in flight; the others wait in this client)"
        self.run.adopt(self.plan.with_note(note, config=config))

    def discard(self, probes: Sequence[Outcome]) -> None:
        """Mark probes as outdated, because the server has changed since. They stay in the run's config.json."""
        outdated_folders = {probe.folder for probe in probes}
        tests = self.run.facts.probes
        for index, test in enumerate(tests):
            if test.folder in outdated_folders:
                tests[index] = test.model_copy(update={"is_outdated": True})
        self.run.save()

    def probe(self, candidate: Candidate) -> Outcome:
        """Probe a rate. The outcome of a server that refuses requests because it is full says so; it is no error."""
        return self.test(at_rate(self.plan, candidate.rate, candidate.seconds), candidate.reason)

    def test(self, short: Plan, reason: str = "") -> Outcome:
        """Run a short performance test with LoadGen, save its outcome in config.json at once, and return the outcome.

        `short` is the run's plan with another load and a short length. `reason` says on the screen why the test runs.
        """
        session = self.session
        why = joined_text("; ", short.expected_length, reason)
        load = number(short.pattern.planned_load(short))  # the rate, the concurrency or the like, as text
        folder = new_folder(session.folder.subfolder("Probes"), load)
        session.display.stage(f"probe at {load} {short.pattern.unit}", "load", why)
        with self.recording_clock(folder):
            may_be_refused = short.pattern.is_rated  # At any other load, a refusal is a failure.
            system_under_test = session.drive("performance", short, folder, is_probe=may_be_refused)
        test = TestRun.read(folder, short)
        probe = outcome_of(test, short, session.folder.path)
        admission = system_under_test.admission  # the requests that the server took and those that it refused
        if admission.refusal_times:
            probe = with_refusals(probe, len(admission.refusal_times), admission.full_at or 1)
        # The fall of the GPUs' clock while queries were sent, which takes `issue_s` seconds.
        probe = probe.model_copy(update={"clock_fall": clock_fall(recording_of(folder), probe.issue_s or 0.0)})
        if not short.config.quick:  # An estimate (--quick) has no verdicts to show.
            leave_row(session.display, probe)
        return keep_test(self.run, short, probe)

    @contextmanager
    def recording_clock(self, folder: Path) -> Iterator[None]:
        """Record the GPUs once a second during a probe, so that the fall of their clock can be computed.

        Records nothing if the run already records the GPUs (--extra-metrics), or if the server's GPUs are not in this
        machine.
        """
        gpus = self.plan.watched_gpus
        is_wanted = bool(gpus and nvml.gpus() and not self.run.config.extra_metrics)
        # Neither the engine's metrics (`list` returns none) nor GPUs elsewhere (`dict` returns none) are recorded.
        with gpu_readings.record_machine(
            folder / CLOCK_RECORDING, is_wanted, prometheus_metrics=list, gpus=gpus, remote=dict
        ):
            yield


def recording_of(folder: Path) -> Recording:
    """Return the once-a-second recording of a probe: the run's own if it has one, else that made for the clock.

    The recording is empty if nothing was recorded.
    """
    name = RECORDING if (folder / RECORDING).exists() else CLOCK_RECORDING
    return Recording.read(folder / name)


def with_refusals(probe: Outcome, refused: int, full_at: int) -> Outcome:
    """Return the probe with its refused requests as a reason against its rate.

    `full_at` is the number of requests in flight at which the server refused more.
    """
    asked = (probe.queries or 0) + refused  # The queries of a probe are those that the server took.
    reason = Statement(
        f"refused {refused:,} of {plural(asked, 'request')}: full at {full_at:,} in flight", name="refused"
    )
    return probe.model_copy(update={"refused": refused, "full_at": full_at, "reasons": (*probe.reasons, reason)})


def leave_row(display: Display, outcome: Outcome) -> None:
    """Print a test's row on the screen, and below it why the load is too high.

    A test that this program judges by the run's own limits needs no reason: the row shows which latency is over.
    """
    why = "" if outcome.has_own_limits else outcome.why
    display.leave_row(test_table.head(outcome), test_table.cells(outcome), good=not outcome.reasons, why=why)


def as_probe(plan: Plan) -> Plan:
    """Return the plan with the same load and the length of a probe; the plan's own length if that is shorter."""
    return replace(plan, min_duration_s=min(PROBE_S, plan.min_duration_s))


def at_rate(plan: Plan, qps: float, seconds: float | None = None) -> Plan:
    """Return the plan of a short test at a rate, with only as many samples as the test needs.

    The test takes `seconds` seconds or, if that is None, a probe's usual length.
    """
    length_s = seconds or probe_s(qps, Goal.of(plan))
    # LoadGen's schedule has random gaps between queries, so only the schedule tells how many come in this length.
    scheduled_queries = queries_until(plan.schedule_seed, qps, length_s)
    # LoadGen needs SURE_QUERIES for a verdict. A short probe of an estimate has fewer, and needs no verdict.
    fewest_queries = min(SURE_QUERIES, ceil(qps * length_s))
    queries = max(scheduled_queries, fewest_queries)
    # LoadGen always sends whole passes over the samples: for one query more than a pass, it would send a second pass.
    # So the plan gets fewer samples, and the same number of passes has hardly more queries than needed.
    passes = ceil(queries / plan.samples)
    samples = ceil(queries / passes)
    return replace(plan, target_qps=qps, min_duration_s=length_s, samples=samples)


def probes_part(name: str, count: int, seconds: float = PROBE_S) -> TestPart:
    """Return the part of a run's time table for about `count` probes of `seconds` seconds each."""
    return TestPart(name, f"{plural(count, 'probe')} or so of at least {duration_text(seconds)} each", count * seconds)


def keep_test(run: BenchmarkRun, plan: Plan, test: Outcome) -> Outcome:
    """Add a test to the tests in config.json, save the file at once, and return the outcome of the test's load.

    All tests of the same fixed concurrency become one outcome, which replaces the earlier one.
    """
    outcomes = run.facts.probes
    is_fixed_concurrency = test.unit == ClosedLoop.unit
    outcomes_of_same_load = [outcome for outcome in outcomes if is_same_load(outcome, test)]
    if is_fixed_concurrency and outcomes_of_same_load:
        earlier = outcomes_of_same_load[0]
        earlier_folders = earlier.repeats or [earlier.folder]  # It may itself be the outcome of several tests.
        logged_tests = [TestRun.read(run.folder.path / folder, plan) for folder in (*earlier_folders, test.folder)]
        of_all_tests = level_of(logged_tests, plan, run.folder.path)
        outcomes[outcomes.index(earlier)] = of_all_tests
        run.save()
        return of_all_tests
    outcomes.append(test)
    run.save()
    return test


def is_same_load(test: Outcome, other: Outcome) -> bool:
    """Tell whether two tests ran at the same load, in the same unit."""
    return (test.unit, test.load) == (other.unit, other.load)
