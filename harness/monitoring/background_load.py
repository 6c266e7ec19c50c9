"""Load that is not ours: what other programs took of the machine while a test ran, which a speed cannot tell."""

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import psutil

from harness.common.system import cores, nvml_gpus, query_or_none

CPU_SHARE = 0.1  # of the cores, from which others' load counts where the answers are computed on them
SPARE_CPU_SHARE = 0.5  # the same where a GPU or a server computes
CLIENT_SHARE = 0.9  # of a core, from which a client process may be what is slow
SLOWER_WARNING = "the speed may be lower than this machine's"
RELAYS = ("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "kube-proxy")  # into containers
GPU_SLACK_BYTES = 2**31  # bytes of a GPU that a driver or a display server may take


@dataclass
class BackgroundLoad:
    """What other programs used in a test: CPU cores on average, None beside a server on this machine; GPUs by index."""

    cpu_cores: float | None = None
    cores: int = field(default_factory=lambda: len(cores()))
    gpus: list[int] = field(default_factory=list)
    share: float = CPU_SHARE  # of the cores, from which it counts
    client_share: float | None = None  # of a core, of the busiest process that asks an endpoint

    @property
    def warnings(self) -> list[str]:
        """What of it may have cost speed, in words."""
        why = []
        if self.cpu_cores is not None and self.cpu_cores > self.share * self.cores:
            why.append(f"other programs used {self.cpu_cores:.1f} of {self.cores} CPU cores during the test")
        if self.gpus:
            why.append(f"other programs held memory of GPU {', '.join(map(str, self.gpus))}")
        if self.client_share is not None and self.client_share > CLIENT_SHARE:
            why.append(
                f"this client's busiest process used {100 * self.client_share:.0f} % of a core: times may be its own, "
                "not the server's"
            )
        return why


def busy_s() -> float:
    """Seconds that the cores which this process may use have been busy, in all, since the machine started."""
    return sum(busy(times) for core, times in enumerate(psutil.cpu_times(percpu=True)) if core in cores())


def busy(times: Any) -> float:
    idle = times.idle + getattr(times, "iowait", 0.0)
    guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)  # which user time holds already
    return float(sum(times) - idle - guests)


def by_process(*roots: int) -> dict[int, float]:
    """CPU seconds by process id: of the processes named, this one if none is, and each below them, with those of their
    children that have ended."""
    total = {}
    for root in roots or (os.getpid(),):
        with contextlib.suppress(psutil.Error):
            for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    total[process.pid] = float(sum(process.cpu_times()[:4]))
    return total


def servers_here(addresses: Sequence[str]) -> set[int] | None:
    """The processes of this machine that serve the addresses, the topmost of each; None where they are not known: of
    another user, or in a container, of which the listener is a relay."""
    found: set[int] = set()
    for address in addresses:
        parts = urlsplit(address)
        if not is_here(parts.hostname or ""):
            continue
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        sockets = [
            each for each in psutil.net_connections("tcp") if each.status == "LISTEN" and each.laddr.port == port
        ]
        owners = {top_of(each.pid) for each in sockets if each.pid}
        if not owners or None in owners or any(each.pid is None for each in sockets):
            return None
        found |= {pid for pid in owners if pid}
    return found


def is_here(host: str) -> bool:
    """Whether a host of an address is this machine."""
    own = {each.address for name in psutil.net_if_addrs().values() for each in name}
    with contextlib.suppress(OSError):
        return any(str(found[4][0]) in own for found in socket.getaddrinfo(host, None))
    return False


def top_of(pid: int) -> int | None:
    """The process that started a server: the parent as long as it runs the same program and started none of ours.
    None for a relay, whose server is elsewhere."""
    with contextlib.suppress(psutil.Error):
        process, ours = psutil.Process(pid), {each.pid for each in psutil.Process().parents()}
        if any(name in process.name() for name in RELAYS):
            return None
        while (parent := process.parent()) and parent.pid not in ours and parent.exe() == process.exe():
            process = parent
        return int(process.pid)
    return None


def busy_gpus() -> list[int]:
    """The visible GPUs of which somebody holds memory; to be asked before the engine starts."""
    with nvml_gpus() as (nvml, handles):
        memory = [query_or_none(nvml.nvmlDeviceGetMemoryInfo, handle) for handle in handles]
        return [index for index, own in enumerate(memory) if own and own.used > GPU_SLACK_BYTES]


@contextlib.contextmanager
def watch_others(
    gpus: Sequence[int] = (), has_gpus: bool = False, endpoints: Sequence[str] = ()
) -> Iterator[BackgroundLoad]:
    """Yields what others use while the block runs; complete once it has ended. `gpus` were taken before; behind
    `endpoints` the processes of a server on this machine are no others."""
    found = BackgroundLoad(gpus=list(gpus), share=SPARE_CPU_SHARE if has_gpus or endpoints else CPU_SHARE)
    servers = servers_here(endpoints)
    begin, busy, own = time.monotonic(), busy_s(), by_process()
    server = by_process(*servers) if servers else {}
    yield found
    if (seconds := time.monotonic() - begin) <= 1:
        return
    used = {pid: s - own.get(pid, 0.0) for pid, s in by_process().items()}
    if endpoints:
        found.client_share = max(round(s / seconds, 2) for s in used.values())
    if servers is not None:
        used |= {pid: s - server.get(pid, 0.0) for pid, s in (by_process(*servers) if servers else {}).items()}
        found.cpu_cores = max(0.0, round((busy_s() - busy - sum(used.values())) / seconds, 2))
