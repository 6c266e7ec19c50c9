"""Load that is not ours: what other programs took of the machine while a test ran, which a speed cannot tell."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import psutil

from harness.common.system import cores, nvml_gpus, query_or_none

CPU_SHARE = {False: 0.1, True: 0.5}  # of the cores, from which others' load counts: without and with a GPU
CLIENT_SHARE = 0.9  # of a core, from which a client process may be what is slow
SLOWER_WARNING = "the speed may be lower than this machine's"
GPU_SLACK_BYTES = 2**31  # bytes of a GPU that a driver or a display server may take


@dataclass
class BackgroundLoad:
    """What other programs used during a test: CPU cores on average, and GPUs by index."""

    cpu_cores: float | None = None
    cores: int = field(default_factory=lambda: len(cores()))
    gpus: list[int] = field(default_factory=list)
    has_gpus: bool = False
    client_share: float | None = None  # of a core, of the busiest process that asks an endpoint

    @property
    def warnings(self) -> list[str]:
        """What of it may have cost speed, in words."""
        why = []
        if self.cpu_cores is not None and self.cpu_cores > CPU_SHARE[self.has_gpus] * self.cores:
            why.append(f"other programs used {self.cpu_cores:.1f} of {self.cores} CPU cores during the test")
        if self.gpus:
            why.append(f"other programs held memory of GPU {', '.join(map(str, self.gpus))}")
        if self.client_share is not None and self.client_share > CLIENT_SHARE:
            why.append(
                f"this client's busiest process used {100 * self.client_share:.0f} % of a core: times may be its own, "
                "not the server's (--client-processes spreads it over more cores)"
            )
        return why


def busy_s() -> float:
    """Seconds that the cores which this process may use have been busy, in all, since the machine started."""
    return sum(busy(times) for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in cores())


def busy(times: Any) -> float:
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # which user time holds already
    return float(sum(times) - idle - guests)


def own_s() -> float:
    """CPU seconds of this process and all below it, those that have ended included."""
    return sum(by_process().values())


def by_process() -> dict[int, float]:
    """CPU seconds by process id: this one and each below it, with those of their children that have ended."""
    total = {}
    me = psutil.Process()
    for process in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            total[process.pid] = float(sum(process.cpu_times()[:4]))
    return total


def busy_gpus() -> list[int]:
    """The visible GPUs of which somebody holds memory; to be asked before the engine starts."""
    with nvml_gpus() as (nvml, handles):
        memory = [query_or_none(nvml.nvmlDeviceGetMemoryInfo, handle) for handle in handles]
        return [index for index, own in enumerate(memory) if own and own.used > GPU_SLACK_BYTES]


@contextlib.contextmanager
def watched(gpus: list[int], has_gpus: bool) -> Iterator[BackgroundLoad]:
    """Yields what others use while the block runs; complete once it has ended. `gpus` were taken before."""
    found = BackgroundLoad(gpus=gpus, has_gpus=has_gpus)
    begin, busy, own = time.monotonic(), busy_s(), own_s()
    yield found
    seconds = time.monotonic() - begin
    if seconds > 1:
        found.cpu_cores = max(0.0, round((busy_s() - busy - (own_s() - own)) / seconds, 2))


@contextlib.contextmanager
def client_watched() -> Iterator[BackgroundLoad]:
    """Yields how busy the processes are that ask an endpoint while the block runs; complete once it has ended.

    What else runs here is not told apart from a server on this machine.
    """
    found = BackgroundLoad()
    begin, own = time.monotonic(), by_process()
    yield found
    seconds = time.monotonic() - begin
    if seconds > 1:
        found.client_share = max(round((used - own.get(pid, 0.0)) / seconds, 2) for pid, used in by_process().items())
