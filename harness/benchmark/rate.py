"""How a run finds its target rate: from the history, a short trial, or short tests."""

from collections.abc import Callable
from dataclasses import replace
from itertools import cycle, islice

from harness.benchmark.state import BenchmarkRun
from harness.common import system
from harness.common.errors import NotAcceptedError
from harness.config.flags import MOST_AT_ONCE
from harness.config.patterns import Need
from harness.config.plan import Plan
from harness.loadgen.patterns import WAYS
from harness.loadgen.session import LoadGenSession
from harness.rates import levels, probing, search, target_rate, trial
from harness.rates.rules import Goal
from harness.rates.search import Candidate, Evidence
from harness.runs import folder as results
from harness.runs.probe import Probe

Finder = Callable[[BenchmarkRun, LoadGenSession], Plan]


def find_rate(run: BenchmarkRun, session: LoadGenSession) -> None:
    """Completes the plan with its target rate: from the history, a short calibration, or a search."""
    if (need := target_rate.rate_needed(run.config)) == "nothing":
        return
    found = FINDERS[need](run, session)
    run.display.done(found.notes[-1])
    run.adopt(found)
    run.warn_short()


def known_offline(plan: Plan) -> target_rate.OfflineRun | None:
    """The last Offline run of the same set-up on these GPUs."""
    names = None if plan.config.endpoint else [gpu.name for gpu in system.gpus()]
    return target_rate.known_offline(plan, names, results.history(plan.config.results_dir))


def calibrate(plan: Plan, session: LoadGenSession) -> trial.Trial:
    session.display.stage("calibrating", "load")
    at_once = session.engine.concurrency
    size = WAYS[type(plan.config.scenario_rules.pattern)].trial_size(plan, at_once)
    prompts = list(islice(cycle(session.samples(plan).requests), size))
    engine = trial.Sparing.of(session.engine, plan.config.max_failed, size)
    return session.measure(trial.run_trial(plan, engine, prompts, at_once))


def run_probe(run: BenchmarkRun, session: LoadGenSession, short: Plan, reason: str = "") -> Probe:
    """A short test, kept in config.json at once."""
    run.facts.probes.append(probing.run_probe(session, short, reason))
    run.save()
    return run.facts.probes[-1]


def by_trial(planned: Callable[[Plan, trial.Trial], Plan]) -> Finder:
    """Finds the plan with the rate, or the latency, of a short trial."""
    return lambda run, session: planned(run.plan, calibrate(run.plan, session))


def by_history(run: BenchmarkRun, session: LoadGenSession) -> Plan:
    """The plan with a share of the rate of the last Offline run, or else of a trial."""
    last_offline = known_offline(run.plan)
    if last_offline:
        return target_rate.from_history(run.plan, last_offline)
    return target_rate.share_of_trial(run.plan, calibrate(run.plan, session))


def by_search(run: BenchmarkRun, session: LoadGenSession) -> Plan:
    """The plan with the highest rate that a full test should keep."""
    plan = run.plan

    def probe(chosen: Candidate) -> Probe:
        return run_probe(run, session, target_rate.at_rate(plan, chosen.rate, chosen.seconds), chosen.reason)

    return target_rate.from_search(plan, search.search(start_rate(plan, session), probe, Goal.of(plan)))


def try_rates(run: BenchmarkRun, session: LoadGenSession) -> Plan:
    """The plan with the best of the rates that were given, each a short test."""
    plan, given = run.plan, run.config.server_target_qps
    for qps in sorted(set(given)) if isinstance(given, tuple) else ():
        run_probe(run, session, target_rate.at_rate(plan, qps))
    if more := search.rate_beyond(Evidence(Goal.of(plan), run.facts.probes)):
        run_probe(run, session, target_rate.at_rate(plan, more))
    return target_rate.from_curve(plan, run.facts.probes)


def try_batches(run: BenchmarkRun, session: LoadGenSession) -> Plan:
    """The plan with the most samples per query; the other numbers of them are short tests before it."""
    *before, last = sorted(set(run.config.batches))
    for size in before:
        short = target_rate.as_probe(replace(run.plan, samples_per_query=size))
        run_probe(run, session, target_rate.expected_latency(short, calibrate(short, session)))
    whole = replace(run.plan, samples_per_query=last)
    return target_rate.expected_latency(whole, calibrate(whole, session))


def try_levels(run: BenchmarkRun, session: LoadGenSession) -> Plan:
    """The plan at the highest level of concurrency; the others are separate tests before it, as long as it."""
    plan = run.plan
    *before, last = levels.levels_of(run.config.levels, session.engine.concurrency)
    for level in before:
        run_probe(run, session, at_level(plan, session, level))
    return at_level(plan, session, last)


def most_in_flight(run: BenchmarkRun, session: LoadGenSession) -> Plan:
    """The plan at the highest concurrency that keeps both limits, by short tests."""
    plan, first = run.plan, session.engine.concurrency // 4

    def probe(level: int) -> Probe:
        return run_probe(run, session, target_rate.as_probe(at_level(plan, session, level)))

    assert plan.limits is not None
    found = levels.highest(probe, plan.limits, max(1, first), MOST_AT_ONCE)
    if found is None:
        raise NotAcceptedError("a single request in flight exceeds the limits: see Probes/ in the run's folder.")
    return at_level(plan, session, found)


def at_level(plan: Plan, session: LoadGenSession, level: int) -> Plan:
    """The plan of a test with so many requests in flight, after a short trial."""
    return levels.at_level(plan, level, calibrate(replace(plan, concurrency=level), session))


def start_rate(plan: Plan, session: LoadGenSession) -> float:
    """Where a search begins: at a share of the Offline rate, known or from a short trial."""
    rules, last_offline = plan.config.scenario_rules, known_offline(plan)
    if last_offline is None:
        return (rules.offline_share or 1.0) * calibrate(plan, session).samples_per_sec
    return (rules.search_share or 1.0) * last_offline.requests_per_sec


FINDERS: dict[Need, Finder] = {
    "offline": by_trial(target_rate.offline_rate),
    "latency": by_trial(target_rate.expected_latency),
    "batches": try_batches,
    "server": by_history,
    "max": by_search,
    "curve": try_rates,
    "levels": try_levels,
    "most": most_in_flight,
}
