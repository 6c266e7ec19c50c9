"""What a run is going to do, in words, before it does any of it."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from harness.common.schema import gpu_names
from harness.common.system import GPU, cores
from harness.config import checkpoint
from harness.config.plan import Plan, minutes
from harness.rates.rules import RULES, Goal
from harness.rates.target_rate import Need, needed
from harness.rates.trial import TRIAL_S
from harness.workloads.cnn_dailymail import Library

TYPICAL_PROBES = 4  # of a search for the highest rate: benchmarks.search


def lines(plan: Plan, library: Library, gpus: Sequence[GPU]) -> list[str]:
    """A line for each thing that a user may want to stop: machine, samples, tests, minutes, disk, comparability."""
    config = plan.config
    return [
        f"model: {config.model}, {'as the server has it' if config.endpoint else checkpoint.format_of(config)}",
        f"machine: {machine(plan, gpus)}",
        f"samples: {len(library):,} of {library.source}, prompts of {library.mean_prompt_tokens:,.0f} tokens on "
        f"average, answers of at most {plan.max_new_tokens:,}",
        *tests(plan),
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


def tests(plan: Plan) -> list[str]:
    """Each test of the run, with its length as far as it is known before the engine starts."""
    found = []
    if plan.config.mode != "performance":
        found.append(f"accuracy test: {plan.samples:,} samples, as long as they take")
    if plan.config.mode != "accuracy":
        if before := PREPARATIONS[needed(plan.config)](plan):
            found.append(f"before the performance test: {before}")
        found.append(f"performance test: {plan.length or f'at least {minutes(plan.min_duration_s)}'}")
    return found


def curve(plan: Plan) -> str:
    given = plan.config.server_target_qps
    rates = sorted(set(given)) if isinstance(given, tuple) else []
    seconds = sum(Goal.of(plan).probe_s(rate) for rate in rates)
    return f"{len(rates)} rates, about {minutes(seconds)} in all"


def searched(plan: Plan) -> str:
    return f"a search for the highest rate, {TYPICAL_PROBES} probes or so of at least {minutes(RULES.probe_s)} each"


def levels(plan: Plan) -> str:
    count = len(plan.config.levels)
    if not count:
        return "a test at each power of four up to what the engine computes at once, each as long as the last"
    lower = f"{count - 1} lower levels, at least {minutes((count - 1) * plan.min_duration_s)} in all"
    return lower if count > 1 else ""


def trial(plan: Plan) -> str:
    return f"a calibration of at most {minutes(TRIAL_S)}"


def batches(plan: Plan) -> str:
    return f"{len(plan.config.batches)} batches, {minutes(RULES.probe_s)} or so each"


def most(plan: Plan) -> str:
    return f"a search for the highest concurrency, probes of {minutes(RULES.probe_s)}"


def nothing(plan: Plan) -> str:
    return ""


PREPARATIONS: dict[Need, Callable[[Plan], str]] = {
    "nothing": nothing,
    "offline": trial,
    "server": trial,
    "latency": trial,
    "batches": batches,
    "curve": curve,
    "max": searched,
    "levels": levels,
    "most": most,
}


def free_gib(folder: Path) -> float:
    """Of the disk that the folder is on, or will be."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free / 2**30
