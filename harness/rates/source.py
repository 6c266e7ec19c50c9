"""Where a run's load comes from: said before the run, found on the loaded engine, corrected by the performance test."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from math import ceil
from typing import Any

from harness.config.comparability import Comparable, differences
from harness.config.mlperf import SCENARIO
from harness.config.patterns import Burst
from harness.config.plan import Plan, minutes
from harness.core import system
from harness.core.markdown import number
from harness.loadgen.log import TestResult
from harness.loadgen.patterns import driver_of
from harness.loadgen.session import LoadGenSession
from harness.rates import outlook, probing
from harness.rates.outlook import Part
from harness.rates.probing import TRIAL_S, Trial
from harness.rates.search import PROBE_S
from harness.runs.folder import BenchmarkRun, history
from harness.runs.outcome import Outcome

# LoadGen plans for 1.1 x duration x rate. A trial sees the ramps at both ends more than a long run does, so the
# engine may prove faster than the trial; too few samples would make the run INVALID, too many only longer.
OFFLINE_MARGIN = 1.1
# LoadGen generates 2 x duration / latency queries for SingleStream and issues them all.
LATENCY_MARGIN = 1.5
# Of an Offline run that tells the rate of another scenario: what leaves requests/s as they are.
IGNORED = ("scenario", "total_sample_count", "samples_per_query", "software", "busyness", "rate")


@dataclass(frozen=True)
class Bench:
    """A run under way, and the session of its tests: where loads are tried."""

    run: BenchmarkRun
    session: LoadGenSession

    @property
    def plan(self) -> Plan:
        return self.run.plan

    def trial(self, plan: Plan) -> Trial:
        self.session.display.stage("calibrating", "load")
        at_once = self.session.engine.concurrency
        size = driver_of(plan).trial_size(at_once)
        prompts = list(islice(cycle(self.session.samples(plan).requests), size))
        engine = probing.TolerantEngine(self.session.engine, plan.config.max_failed, size)
        return self.session.measure(probing.run_trial(plan, engine, prompts, at_once))

    def probe(self, short: Plan, reason: str = "") -> Outcome:
        """A short test, kept in config.json at once."""
        self.run.facts.probes.append(probing.run_probe(self.session, short, reason))
        self.run.save()
        return self.run.facts.probes[-1]


class RateSource:
    """Where a run's load comes from. As it is, the load was given: there is nothing to find and nothing to correct."""

    corrections = 0  # attempts with another load, at most

    def outlook(self, plan: Plan) -> Part | None:
        """What comes before the performance test; None for nothing."""
        return None

    def find(self, bench: Bench) -> Plan:
        """The plan with its load, and a note of it; tests on the way are recorded at once. Raises NotAcceptedError
        where no load keeps the limits."""
        return bench.plan

    def correct(self, plan: Plan, result: TestResult, tests: Sequence[Outcome]) -> Plan | None:
        """The plan for another attempt after a test that did not do; None where another would not help. `tests` are
        the probes and, last, the test of this result."""
        return None

    def total(self, plan: Plan) -> str:
        """What a run is going to do after its engine is up, in one line with the sum of its times."""
        return outlook.total(plan, self.outlook(plan), "once the engine is up")


def as_probe(plan: Plan) -> Plan:
    """The plan of a short test of the same load."""
    return replace(plan, min_duration_s=min(PROBE_S, plan.min_duration_s))


def probes(name: str, count: int) -> Part:
    return Part(name, f"{count} probes or so of at least {minutes(PROBE_S)} each", count * PROBE_S)


class TrialRate(RateSource):
    """What a short trial on the loaded engine shows."""

    def outlook(self, plan: Plan) -> Part | None:
        return Part("calibration", f"at most {minutes(TRIAL_S)}", TRIAL_S, "at most ")

    def find(self, bench: Bench) -> Plan:
        return self.planned(bench.plan, bench.trial(bench.plan))

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        """The plan with what LoadGen has to expect by a trial, and a note that says where it comes from."""
        raise NotImplementedError


class MeasuredRate(TrialRate):
    """The same; where the test ran short by it, what the test itself shows."""

    corrections = 1

    def correct(self, plan: Plan, result: TestResult, tests: Sequence[Outcome]) -> Plan | None:
        if not (result.ran_short and result.samples and result.samples_per_sec):
            return None
        again = self.planned(plan, Trial(result.samples, result.samples / result.samples_per_sec))
        note = f"the test ended after {result.duration_s:.1f} s; retrying with {again.notes[-1]}"
        return replace(again, notes=(*plan.notes, note))


class OfflineTrial(MeasuredRate):
    """The rate for which LoadGen has to plan in Offline."""

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        rate = OFFLINE_MARGIN * trial.samples_per_sec
        note = f"offline_expected_qps = {number(rate)} samples/s ({OFFLINE_MARGIN} x {trial})"
        return plan.with_note(note, target_qps=rate)


class LatencyTrial(MeasuredRate):
    """The latency of a query that LoadGen has to expect; with the most samples per query, where several numbers of them
    were given: the others are short tests before."""

    def outlook(self, plan: Plan) -> Part | None:
        count = len(plan.config.batches) - 1
        name = f"{count} smaller batch{'es' if count > 1 else ''}"
        return probes(name, count) if count > 0 else super().outlook(plan)

    def find(self, bench: Bench) -> Plan:
        plan = bench.plan
        *before, last = sorted(plan.config.batches) or [plan.samples_per_query]
        for size in before:
            short = as_probe(replace(plan, samples_per_query=size))
            bench.probe(self.planned(short, bench.trial(short)))
        whole = replace(plan, samples_per_query=last)
        return self.planned(whole, bench.trial(whole))

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        queries = ceil(trial.samples / plan.samples_per_query)
        mean = 1000 * plan.samples_per_query / trial.samples_per_sec
        expected = LATENCY_MARGIN * mean
        of = f"queries of {plan.samples_per_query} samples" if plan.samples_per_query > 1 else "samples"
        return plan.with_note(
            f"expected latency = {number(expected)} ms ({LATENCY_MARGIN} x {number(mean)} ms, the mean of {queries} "
            f"{of})",
            expected_latency_ms=expected,
        )


@dataclass(frozen=True)
class OfflineRun:
    """The last VALID Offline run of the same set-up on the same GPUs."""

    run: str
    tokens_per_sec: float
    tokens_per_request: float

    @property
    def requests_per_sec(self) -> float:
        return self.tokens_per_sec / self.tokens_per_request


def known_offline(plan: Plan, gpus: list[str] | None, history: Iterable[Mapping[str, Any]]) -> OfflineRun | None:
    """What the history tells of the speed of this set-up on `gpus`; None where it tells nothing."""
    offline = next(rules.name for rules in SCENARIO.values() if isinstance(rules.pattern, Burst))
    mine = Comparable(plan.work, plan.setup | {"category": plan.config.category, "batch_size": None}, {"gpus": gpus})
    last = None
    for line in history:
        theirs = Comparable.of_line(line)
        theirs = replace(theirs, work=theirs.work or plan.work)
        is_alike = line.get("scenario") == offline and not differences(mine, theirs, IGNORED)
        if is_alike and line.get("tokens_per_sec") and line.get("mean_new_tokens"):
            last = OfflineRun(str(line["run"]), float(line["tokens_per_sec"]), float(line["mean_new_tokens"]))
    return last


def last_offline(plan: Plan) -> OfflineRun | None:
    """The last Offline run of the same set-up on these GPUs, in the run's results folder."""
    names = None if plan.config.endpoint else [gpu.name for gpu in system.gpus()]
    return known_offline(plan, names, history(plan.config.results_dir))


class HistoryRate(TrialRate):
    """A share of the rate that the last Offline run of this set-up reached, or else a trial."""

    def find(self, bench: Bench) -> Plan:
        offline = last_offline(bench.plan)
        return from_history(bench.plan, offline) if offline else super().find(bench)

    def planned(self, plan: Plan, trial: Trial) -> Plan:
        origin = f"{trial}; the history has no Offline run of this set-up"
        return share_of(plan, trial.samples_per_sec, origin)


def from_history(plan: Plan, offline: OfflineRun) -> Plan:
    """The plan with a share of the rate that an Offline run reached."""
    origin = (
        f"{offline.tokens_per_sec:,.1f} tokens/s / {offline.tokens_per_request:.1f} tokens per request, "
        f"from Offline run {offline.run}"
    )
    return share_of(plan, offline.requests_per_sec, origin)


def share_of(plan: Plan, full: float, origin: str) -> Plan:
    """The plan with a share of the rate at which the engine completes a full load."""
    share = plan.config.scenario_rules.offline_share or 1.0
    note = f"server_target_qps = {number(share * full)} queries/s ({share} x {origin})"
    return plan.with_note(note, target_qps=share * full)
