"""Spread an engine over the GPUs: tensor parallel as far as the weights need, replicas over the rest."""

from collections.abc import Sequence
from math import inf

from harness.config.engine import EngineConfig
from harness.core import system
from harness.core.errors import UsageError
from harness.core.nvml import GPU

WEIGHTS_SHARE = 0.8  # the share of vLLM's memory that weights may take; the attention cache needs the rest


def parallelism(config: EngineConfig, gpus: Sequence[GPU], weight_bytes: int) -> tuple[int, int]:
    """Return the tensor parallel size (the GPUs of one copy) and the data parallel size (the copies).

    Without GPUs, `auto` is 1 for both. Raises UsageError if the GPUs, or without GPUs the CPU cores, do not suffice.
    """
    gpus_per_copy, copies = config.tensor_parallel_size, config.data_parallel_size
    if gpus_per_copy == "auto":
        gpus_per_copy = fewest_gpus(config, gpus, weight_bytes)
    if copies == "auto":
        fitting_copies = max(1, len(gpus) // gpus_per_copy)
        copies = fitting_copies
    check_size(config, gpus, gpus_per_copy, copies)
    return gpus_per_copy, copies


def fewest_gpus(config: EngineConfig, gpus: Sequence[GPU], weight_bytes: int) -> int:
    """Return the fewest GPUs, a power of two, that hold one copy of the weights in WEIGHTS_SHARE of vLLM's memory.

    Raises UsageError if the available GPUs do not hold the weights.
    """
    fixed_copies = config.data_parallel_size
    # Copies on other hosts take none of these GPUs. Otherwise each copy may use only an equal part of the GPUs.
    if fixed_copies == "auto" or config.has_other_hosts:
        fixed_copies = 1
    available = max(1, len(gpus) // fixed_copies)
    smallest = min((gpu.memory for gpu in gpus), default=inf)  # Without GPUs, one copy always fits.
    usable = WEIGHTS_SHARE * config.memory_share * smallest
    count = 1
    while count < available and weight_bytes > count * usable:
        count *= 2
    is_not_available = count > available  # by doubling, for example if 4 of 3 GPUs would be needed
    if is_not_available or weight_bytes > count * usable:
        raise UsageError(
            f"{config.model} needs {weight_bytes / 2**30:.0f} GiB for its weights; {available} GPU(s) with "
            f"{smallest / 2**30:.0f} GiB each do not hold it. Use more GPUs or --quantization fp8."
        )
    return count


def check_size(config: EngineConfig, gpus: Sequence[GPU], gpus_per_copy: int, copies: int) -> None:
    """Raise UsageError if `copies` of an engine need more GPUs than are visible (`gpus`).

    If there is no GPU, a copy needs `gpus_per_copy` CPU cores instead. An engine that also uses GPUs of other hosts is
    not checked.
    """
    most, units = len(gpus), "GPUs"
    if not gpus:
        most, units = system.core_count(), "CPU cores, since there is no GPU"
    needed = gpus_per_copy * copies
    if needed > most and not config.has_other_hosts:
        raise UsageError(
            f"{gpus_per_copy} x --data-parallel-size {copies} needs {needed} {units}; {most} visible.",
            flag="--tensor-parallel-size",
        )
