"""How a run finds its target rate: from the history, a short trial, or short tests."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Literal

from harness.config import checkpoint
from harness.config.flags import MOST_AT_ONCE
from harness.config.patterns import SURE_P90_QUERIES, Need
from harness.config.plan import Plan, minutes
from harness.core import system
from harness.core.errors import NotAcceptedError
from harness.core.schema import gpu_names
from harness.core.statements import together
from harness.loadgen.patterns import WAYS
from harness.loadgen.session import LoadGenSession
from harness.rates import probing, search, target_rate
from harness.rates.probing import TRIAL_S
from harness.rates.search import PROBE_S, Candidate, Evidence, Goal
from harness.runs.folder import BenchmarkRun, history
from harness.runs.outcome import Outcome
from harness.workloads.cnn_dailymail import Library

Finder = Callable[[BenchmarkRun, LoadGenSession], Plan]


def find_rate(run: BenchmarkRun, session: LoadGenSession) -> None:
    """Completes the plan with its target rate: from the history, a short calibration, or a search."""
    if (need := target_rate.rate_needed(run.config)) == "nothing":
        return
    found = FINDERS[need](run, session)
    run.display.done(found.notes[-1])
    run.adopt(found)
    run.display.say(total(found, has_rate=True))
    run.warn_short()


def known_offline(plan: Plan) -> target_rate.OfflineRun | None:
    """The last Offline run of the same set-up on these GPUs."""
    names = None if plan.config.endpoint else [gpu.name for gpu in system.gpus()]
    return target_rate.known_offline(plan, names, history(plan.config.results_dir))


def calibrate(plan: Plan, session: LoadGenSession) -> probing.Trial:
    session.display.stage("calibrating", "load")
    at_once = session.engine.concurrency
    size = WAYS[type(plan.pattern)].trial_size(plan, at_once)
    prompts = list(islice(cycle(session.samples(plan).requests), size))
    engine = probing.Sparing.of(session.engine, plan.config.max_failed, size)
    return session.measure(probing.run_trial(plan, engine, prompts, at_once))


def run_probe(run: BenchmarkRun, session: LoadGenSession, short: Plan, reason: str = "") -> Outcome:
    """A short test, kept in config.json at once."""
    run.facts.probes.append(probing.run_probe(session, short, reason))
    run.save()
    return run.facts.probes[-1]


def by_trial(planned: Callable[[Plan, probing.Trial], Plan]) -> Finder:
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

    def probe(chosen: Candidate) -> Outcome:
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
    *before, last = target_rate.levels_of(run.config.levels, session.engine.concurrency)
    for level in before:
        short = at_level(plan, session, level)
        if level == before[0]:
            run.display.say(total(short))
        run_probe(run, session, short)
    return at_level(plan, session, last)


def most_in_flight(run: BenchmarkRun, session: LoadGenSession) -> Plan:
    """The plan at the highest concurrency that keeps both limits, by short tests."""
    plan, first = run.plan, session.engine.concurrency // 4

    def probe(level: int) -> Outcome:
        return run_probe(run, session, target_rate.as_probe(at_level(plan, session, level)))

    assert plan.limits is not None
    found = target_rate.highest(probe, plan.limits, max(1, first), MOST_AT_ONCE)
    if found is None:
        raise NotAcceptedError("a single request in flight exceeds the limits: see Probes/ in the run's folder.")
    return at_level(plan, session, found)


def at_level(plan: Plan, session: LoadGenSession, level: int) -> Plan:
    """The plan of a test with so many requests in flight, after a short trial."""
    return target_rate.at_level(plan, level, calibrate(replace(plan, concurrency=level), session))


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


# What a run is going to do, in words, before it does any of it.
TYPICAL_PROBES = 4  # of a search for the highest rate: benchmarks.search
LEVELS = 8  # of a search for the highest concurrency: a few to either side, then half of the gap each time


def lines(plan: Plan, library: Library, gpus: Sequence[system.GPU]) -> list[str]:
    """A line for each thing that a user may want to stop: machine, samples, tests, minutes, disk, comparability."""
    config = plan.config
    return [
        f"model: {config.model}, {'as the server has it' if config.endpoint else checkpoint.format_of(config)}",
        f"machine: {machine(plan, gpus)}",
        f"samples: {len(library):,} of {library.source}, prompts of {library.mean_prompt_tokens:,.0f} tokens on "
        f"average, answers of at most {plan.max_new_tokens:,}",
        *map(str, filter(None, [plan.replay])),
        *(f"{part.name}: {part.text}" for part in parts(plan)),
        total(plan),
        f"disk: {free_gib(config.results_dir):,.0f} GiB free for {config.results_dir}",
        f"comparable with MLPerf results: {'no: ' * bool(plan.deviations)}{together(plan.deviations) or 'yes'}",
    ]


def machine(plan: Plan, gpus: Sequence[system.GPU]) -> str:
    """What the answers are computed on, as far as this process decides it."""
    if plan.config.endpoint:
        return f"the servers behind {', '.join(plan.config.endpoint)}"
    if not gpus:
        return f"no GPU, {system.core_count()} CPU cores"
    split = f"tensor parallel {plan.tensor_parallel_size}, data parallel {plan.data_parallel_size}"
    return f"{gpu_names([gpu.name for gpu in gpus])}; {split}"


@dataclass(frozen=True)
class Part:
    """A part of a run, in words, and about how many seconds it takes, or `bound`; None: as long as the answers do."""

    name: str
    text: str
    seconds: float | None
    bound: Literal["", "at least ", "at most "] = ""


def parts(plan: Plan, has_rate: bool = False) -> list[Part]:
    """The tests of a run, and what comes before the performance test unless it `has_rate`, as far as it is known."""
    pattern, found, last = plan.pattern, list[Part](), at_most(plan)
    length = pattern.length(last.load)
    if plan.config.mode != "performance":
        seconds = plan.samples * length[1] / length[0] if length else None
        found.append(Part("accuracy test", f"{plan.samples:,} samples, as long as they take", seconds))
    if plan.config.mode != "accuracy":
        if not has_rate and (before := PREPARATIONS[target_rate.rate_needed(plan.config)](plan)):
            found.append(before)
        least = Part("performance test", f"at least {minutes(plan.min_duration_s)}", plan.min_duration_s, "at least ")
        found.append(replace(least, text=last.length or least.text, seconds=length[1], bound="") if length else least)
    return found


def total(plan: Plan, has_rate: bool = False) -> str:
    """What a run is going to do after its engine is up, or once it `has_rate`, in one line with the sum of its
    times."""
    found = parts(plan, has_rate)
    timed = [part for part in found if part.seconds is not None]
    said = [f"{part.name} {part.bound}{minutes(part.seconds or 0.0)}" for part in timed]
    said += [f"{part.name} as long as it takes" for part in found if part.seconds is None]
    is_least = len(timed) < len(found) or any(part.bound == "at least " for part in found)
    summed = sum(part.seconds or 0.0 for part in timed if not (is_least and part.bound == "at most "))
    start = "from here on" if has_rate else "once the engine is up"
    return f"{'at least' if is_least else 'about'} {minutes(summed)} {start}: {', '.join(said)}"


def at_most(plan: Plan, level: int = 0) -> Plan:
    """The plan at a level of concurrency, the highest unless it is given, with the rate that a trial at another one
    makes expect there; as it is without levels."""
    if not (level := level or max(plan.config.levels, default=0)):
        return plan
    each = (plan.target_qps or 0.0) / (plan.concurrency or 1)
    return replace(plan, concurrency=level, target_qps=level * each or None)


def curve(plan: Plan) -> Part:
    given = plan.config.server_target_qps
    rates = sorted(set(given)) if isinstance(given, tuple) else []
    seconds = [Goal.of(plan).probe_s(rate) for rate in rates]
    queries = round(min((rate * length for rate, length in zip(rates, seconds, strict=True)), default=0.0))
    return Part(f"{len(rates)} rates", f"of {queries:,} queries or more, about {minutes(sum(seconds))}", sum(seconds))


def lower_levels(plan: Plan) -> Part | None:
    if not plan.config.levels:
        text = "up to what the engine computes at once, each as long as the last"
        return Part("a test at each power of four", text, None)
    *lower, _ = sorted(plan.config.levels)
    lengths = [plan.pattern.length(at_most(plan, level).load) for level in lower]
    seconds = sum(length[1] if length else plan.min_duration_s for length in lengths)
    each = f"each of {SURE_P90_QUERIES} requests or more, after a trial of at most {minutes(TRIAL_S)}"
    text, name = f"at least {minutes(seconds)}, {each}", f"{len(lower)} lower level{'s' * (len(lower) > 1)}"
    return Part(name, text, seconds, "at least ") if lower else None


def probes(name: str, count: int) -> Callable[[Plan], Part]:
    seconds = count * PROBE_S
    return lambda plan: Part(name, f"{count} probes or so of at least {minutes(PROBE_S)} each", seconds)


def levels(plan: Plan) -> Part:
    """Each with the trial that tells LoadGen its rate."""
    trial = f"each after a trial of at most {minutes(TRIAL_S)}"
    text = f"{LEVELS} levels or so of at least {minutes(PROBE_S)}, {trial}"
    return Part("search for the highest concurrency", text, LEVELS * (PROBE_S + TRIAL_S))


def calibration(plan: Plan) -> Part:
    return Part("calibration", f"at most {minutes(TRIAL_S)}", TRIAL_S, "at most ")


def batches(plan: Plan) -> Part | None:
    count = len(set(plan.config.batches)) - 1
    return probes(f"{count} smaller batch{'es' if count > 1 else ''}", count)(plan) if count else None


PREPARATIONS: dict[Need, Callable[[Plan], Part | None]] = {
    "nothing": lambda plan: None,
    "offline": calibration,
    "server": calibration,
    "latency": calibration,
    "batches": batches,
    "curve": curve,
    "max": probes("search for the highest rate", TYPICAL_PROBES),
    "levels": lower_levels,
    "most": levels,
}


def free_gib(folder: Path) -> float:
    """Of the disk that the folder is on, or will be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free / 2**30
