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
    most, units = (len(gpus), "GPUs") if gpus else (system.core_count(), "CPU cores, since there is no GPU")
    if tensor == "auto":
        smallest = min((gpu.memory for gpu in gpus), default=inf)
        fixed_copies = 1 if data == "auto" or config.has_other_hosts else data
        available = max(1, len(gpus) // fixed_copies)
        usable = 0.8 * config.memory_share * smallest
        fitting = 1
        while fitting < available and weight_bytes > fitting * usable:
            fitting *= 2
        if fitting > available or weight_bytes > fitting * usable:
            raise UsageError(
                f"{config.model} needs {weight_bytes / 2**30:.0f} GiB for its weights; {available} GPU(s) with "
                f"{smallest / 2**30:.0f} GiB each do not hold it. Use more GPUs or --quantization fp8."
            )
        tensor = fitting
    copies = max(1, len(gpus) // tensor) if data == "auto" else data
    if tensor * copies > most and not config.has_other_hosts:
        raise UsageError(
            f"{tensor} x --data-parallel-size {copies} needs {tensor * copies} {units}; {most} visible.",
            flag="--tensor-parallel-size",
        )
    return tensor, copies
