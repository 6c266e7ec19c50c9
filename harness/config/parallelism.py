"""Spread an engine over the GPUs: tensor parallel as far as the weights need, replicas over the rest."""

from collections.abc import Sequence
from math import inf

from harness.config.engine import EngineConfig
from harness.core import system
from harness.core.errors import UsageError
from harness.core.nvml import GPU


def parallelism(config: EngineConfig, gpus: Sequence[GPU], weight_bytes: int) -> tuple[int, int]:
    """Return the tensor and the data parallel size.

    A model is split over only as many GPUs as its weights need. The other GPUs hold further copies. The weights may
    take 0.8 of the memory that vLLM may use, since the attention cache needs the rest. Raises UsageError if the GPUs do
    not suffice.
    """
    tensor, data = config.tensor_parallel_size, config.data_parallel_size
    if tensor == "auto":
        tensor = fewest_gpus(config, gpus, weight_bytes)
    copies = max(1, len(gpus) // tensor) if data == "auto" else data
    check_size(config, gpus, tensor, copies)
    return tensor, copies


def fewest_gpus(config: EngineConfig, gpus: Sequence[GPU], weight_bytes: int) -> int:
    """Return the fewest GPUs that hold one copy of the weights, a power of two. Raises UsageError if none do."""
    fixed_copies = config.data_parallel_size
    if fixed_copies == "auto" or config.has_other_hosts:
        fixed_copies = 1
    available = max(1, len(gpus) // fixed_copies)
    smallest = min((gpu.memory for gpu in gpus), default=inf)
    usable = 0.8 * config.memory_share * smallest
    count = 1
    while count < available and weight_bytes > count * usable:
        count *= 2
    if count > available or weight_bytes > count * usable:
        raise UsageError(
            f"{config.model} needs {weight_bytes / 2**30:.0f} GiB for its weights; {available} GPU(s) with "
            f"{smallest / 2**30:.0f} GiB each do not hold it. Use more GPUs or --quantization fp8."
        )
    return count


def check_size(config: EngineConfig, gpus: Sequence[GPU], tensor: int, copies: int) -> None:
    """Raise UsageError if an engine of these sizes needs more GPUs than are visible, or more CPU cores without any."""
    most, units = len(gpus), "GPUs"
    if not gpus:
        most, units = system.core_count(), "CPU cores, since there is no GPU"
    if tensor * copies > most and not config.has_other_hosts:
        raise UsageError(
            f"{tensor} x --data-parallel-size {copies} needs {tensor * copies} {units}; {most} visible.",
            flag="--tensor-parallel-size",
        )
