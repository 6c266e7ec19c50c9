"""What a run is going to do, in words, before it does any of it."""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.common.schema import gpu_names
from harness.common.system import GPU, cores
from harness.config import checkpoint
from harness.config.patterns import Need
from harness.config.plan import Plan, minutes
from harness.rates.rules import RULES, Goal
from harness.rates.target_rate import rate_needed
from harness.rates.trial import TRIAL_S
from harness.workloads.cnn_dailymail import Library

TYPICAL_PROBES = 4  # of a search for the highest rate: benchmarks.search
LEVELS = 8  # of a search for the highest concurrency: a few to either side, then half of the gap each time


def lines(plan: Plan, library: Library, gpus: Sequence[GPU]) -> list[str]:
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
        f"comparable with MLPerf results: {'no: ' + '; '.join(plan.deviations) if plan.deviations else 'yes'}",
    ]


def machine(plan: Plan, gpus: Sequence[GPU]) -> str:
    """What the answers are computed on, as far as this process decides it."""
    if plan.config.endpoint:
        return f"the servers behind {', '.join(plan.config.endpoint)}"
    if not gpus:
        return f"no GPU, {len(cores())} CPU cores"
    split = f"tensor parallel {plan.tensor_parallel_size}, data parallel {plan.data_parallel_size}"
    return f"{gpu_names([gpu.name for gpu in gpus])}; {split}"


@dataclass(frozen=True)
class Part:
    """A part of a run, in words, and about how many seconds it takes, or `bound`; None: as long as the answers do."""

    name: str
    text: str
    seconds: float | None
    bound: Literal["", "at least ", "at most "] = ""


def parts(plan: Plan) -> list[Part]:
    """The tests of a run, and what comes before the performance test, as far as it is known before they begin."""
    found = []
    if plan.config.mode != "performance":
        found.append(Part("accuracy test", f"{plan.samples:,} samples, as long as they take", None))
    if plan.config.mode != "accuracy":
        if before := PREPARATIONS[rate_needed(plan.config)](plan):
            found.append(before)
        length = plan.config.scenario_rules.pattern.length(plan.load)
        least = Part("performance test", f"at least {minutes(plan.min_duration_s)}", plan.min_duration_s, "at least ")
        found.append(replace(least, text=plan.length or least.text, seconds=length[1], bound="") if length else least)
    return found


def total(plan: Plan) -> str:
    """What a run is going to do after its engine is up, in one line with the sum of its times."""
    found = parts(plan)
    timed = [part for part in found if part.seconds is not None]
    said = [f"{part.name} {part.bound}{minutes(part.seconds or 0.0)}" for part in timed]
    said += [f"{part.name} as long as it takes" for part in found if part.seconds is None]
    return f"about {minutes(sum(part.seconds or 0.0 for part in timed))} once the engine is up: {', '.join(said)}"


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
    count = len(plan.config.levels) - 1
    seconds = count * plan.min_duration_s
    text = f"at least {minutes(seconds)}, each after a trial of at most {minutes(TRIAL_S)}"
    return Part(f"{count} lower levels", text, seconds, "at least ") if count else None


def probes(name: str, count: int) -> Callable[[Plan], Part]:
    seconds = count * RULES.probe_s
    return lambda plan: Part(name, f"{count} probes or so of at least {minutes(RULES.probe_s)} each", seconds)


def levels(plan: Plan) -> Part:
    """Each with the trial that tells LoadGen its rate."""
    trial = f"each after a trial of at most {minutes(TRIAL_S)}"
    text = f"{LEVELS} levels or so of at least {minutes(RULES.probe_s)}, {trial}"
    return Part("search for the highest concurrency", text, LEVELS * (RULES.probe_s + TRIAL_S))


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
