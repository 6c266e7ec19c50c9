"""How an engine is spread over the GPUs: tensor parallel as far as the weights need, replicas over the rest."""

import math
import os
from collections.abc import Sequence

from harness.common.errors import UsageError
from harness.common.system import GPU
from harness.config.engine import EngineConfig


def parallelism(config: EngineConfig, gpus: Sequence[GPU], weight_bytes: int) -> tuple[int, int]:
    """Tensor and data parallel size: split only as far as the weights need, replicate over the rest.

    A model fits when its weights take at most 0.8 of what vLLM may use; the rest is for the attention cache.
    """
    tensor: int | str = config.tensor_parallel_size
    data: int | str = config.data_parallel_size
    if not gpus:
        sizes = [1 if size == "auto" else int(size) for size in (tensor, data)]
        most = os.cpu_count() or 1
        if math.prod(sizes) > most and not config.has_other_hosts:
            flags = f"--tensor-parallel-size {sizes[0]} x --data-parallel-size {sizes[1]}"
            raise UsageError(f"{flags}: there is no GPU here, and {most} CPU cores are too few for that.")
        return sizes[0], sizes[1]
    if tensor == "auto":
        available = len(gpus) // (1 if data == "auto" or config.has_other_hosts else int(data))
        if available == 0:
            raise UsageError(f"--data-parallel-size {data} needs {data} GPUs or more; {len(gpus)} visible.")
        usable = 0.8 * config.memory_share * min(gpu.memory for gpu in gpus)
        sizes = [2**n for n in range(10) if 2**n <= available]
        fitting = [size for size in sizes if weight_bytes / size <= usable]
        if not fitting:
            raise UsageError(
                f"{config.model} needs {weight_bytes / 2**30:.0f} GiB for its weights; {available} GPU(s) with "
                f"{min(gpu.memory for gpu in gpus) / 2**30:.0f} GiB each do not hold it. Use more GPUs or "
                "--quantization fp8."
            )
        tensor = fitting[0]
    tensor = int(tensor)
    data = max(1, len(gpus) // tensor) if data == "auto" else int(data)
    if tensor * data > len(gpus) and not config.has_other_hosts:
        raise UsageError(
            f"--tensor-parallel-size {tensor} x --data-parallel-size {data} needs {tensor * data} GPUs; "
            f"{len(gpus)} visible."
        )
    return tensor, data
