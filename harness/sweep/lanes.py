"""The places where experiments run: on the whole machine one after the other, or side by side, each on its own GPU."""

import os
from dataclasses import dataclass, field

from harness.core import errors, nvml, system

SHARING_NOTE = (
    "Experiments ran side by side, a GPU each. They share the CPU, its memory, the power supply and the cooling, which "
    "can slow each of them down, so each is compared with the baseline on the same GPU; a speed to publish takes a run "
    "with the machine for itself."
)


@dataclass(frozen=True)
class Lane:
    """A place where one experiment runs at a time: a GPU or, without a `gpu`, the whole machine."""

    gpu: str = ""  # as CUDA_VISIBLE_DEVICES names it
    node: str = field(default_factory=lambda: os.environ.get("SLURMD_NODENAME", ""))
    number: int | None = None  # the index of the GPU among the visible GPUs
    cores: frozenset[int] = frozenset()  # the cores to stay on; empty: all

    @property
    def env(self) -> dict[str, str]:
        """The environment variables that keep a process on this GPU; empty for the whole machine."""
        if not self.gpu:
            return {}
        return {"CUDA_VISIBLE_DEVICES": self.gpu}

    def pin(self) -> None:
        """Keep the calling thread, and every process that it starts, on the lane's cores, if
        the lane has cores of its own.
        """
        if self.cores:
            os.sched_setaffinity(0, self.cores)


def choose_lanes(side_by_side: bool) -> list[Lane]:
    """Return a single lane for the whole machine or, with `side_by_side`, one for each visible GPU.

    A lane is where one experiment runs at a time. Raises UsageError for fewer than two GPUs side by side.
    """
    if not side_by_side:
        return [Lane()]
    gpus = visible_gpus()
    if len(gpus) < 2:
        raise errors.UsageError(f"--gpus side-by-side: {len(gpus)} visible GPU(s); at least two are needed.")
    return divide_lanes(gpus, system.cores())


def visible_gpus() -> list[str]:
    """Return the visible GPUs, as CUDA_VISIBLE_DEVICES names them; their indexes if the variable is not set."""
    count = len(nvml.gpus())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(number) for number in range(count)]
    return nvml.device_words(chosen)[:count]  # CUDA ignores all words from the first on whose GPU does not exist.


def divide_lanes(gpus: list[str], cores: set[int]) -> list[Lane]:
    """Return a lane for each GPU, with a block of neighboring cores, all of about the same size.

    If there are more GPUs than cores, several GPUs share a core.
    """
    order = sorted(cores)
    divided = []
    for number, gpu in enumerate(gpus):
        low = number * len(order) // len(gpus)
        high = (number + 1) * len(order) // len(gpus)
        block = order[low:high] or [order[low]]  # The slice is empty if there are more GPUs than cores.
        divided.append(Lane(gpu, number=number, cores=frozenset(block)))
    return divided
