"""Whether vLLM's processes have the shared memory that they talk through; a container often has next to none."""

import os
from pathlib import Path

from harness.common.errors import UsageError

SHM = Path("/dev/shm")
CHUNKS, CHUNK_MIB = 10, 16  # of a message queue, one for each engine: vLLM 0.32, `MessageQueue` and its executor
MIB = 2**20


def bytes_needed(engines: int, workers: int, on_gpus: bool) -> int:
    """Bytes for `engines` engines of so many workers: on a GPU, a single worker runs in the engine's own process."""
    chunk = int(os.environ.get("VLLM_MQ_MAX_CHUNK_BYTES_MB", CHUNK_MIB))
    return 0 if on_gpus and workers == 1 else engines * CHUNKS * chunk * MIB


def check(engines: int, workers: int, on_gpus: bool) -> str:
    """What is free, in words. Raises UsageError where it is less than those engines take."""
    try:
        place = os.statvfs(SHM)
    except OSError:  # no such place on this system
        return f"no {SHM} on this system"
    free, need = place.f_bavail * place.f_frsize, bytes_needed(engines, workers, on_gpus)
    if free < need:
        raise UsageError(
            f"{SHM} has {free / MIB:,.0f} MiB free, and vLLM's processes need {need / MIB:,.0f}: in a container, "
            "start it with --shm-size=8g."
        )
    return f"{free / MIB:,.0f} MiB free, {need / MIB:,.0f} needed"
