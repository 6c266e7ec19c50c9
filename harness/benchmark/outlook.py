"""What a run is going to do, line by line, before it does any of it."""

from collections.abc import Sequence

from harness.config import checkpoint
from harness.config.plan import Plan
from harness.core import system
from harness.core.files import free_gib
from harness.core.schema import gpu_names
from harness.core.statements import together
from harness.rates.outlook import parts
from harness.rates.rate import rate_source
from harness.workloads.cnn_dailymail import Library


def lines(plan: Plan, library: Library, gpus: Sequence[system.GPU]) -> list[str]:
    """A line for each thing that a user may want to stop: machine, samples, tests, minutes, disk, comparability."""
    config, source = plan.config, rate_source(plan.config)
    return [
        f"model: {config.model}, {'as the server has it' if config.endpoint else checkpoint.format_of(config)}",
        f"machine: {machine(plan, gpus)}",
        f"samples: {len(library):,} of {library.source}, prompts of {library.mean_prompt_tokens:,.0f} tokens on "
        f"average, answers of at most {plan.max_new_tokens:,}",
        *map(str, filter(None, [plan.replay])),
        *(f"{part.name}: {part.text}" for part in parts(plan, source.outlook(plan))),
        source.total(plan),
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
