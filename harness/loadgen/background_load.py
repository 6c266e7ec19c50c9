"""Load that is not ours: what other programs took of the machine while a test ran."""

import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Protocol
from urllib.parse import urlsplit

import psutil

from harness.core.formatting import Measured
from harness.core.nvml import ask_gpus, memory_of
from harness.core.system import container_s, core_count, cores

# Load that is not ours: what other programs took of the machine while a test ran, which a speed cannot tell.
CPU_SHARE = 0.1  # others' load counts from this share of the cores where the answers are computed on them
SPARE_CPU_SHARE = 0.5  # the same where a GPU or a server computes
CLIENT_SHARE = 0.9  # a client process that takes this share of a core may be what is slow
PRECISION_FLAGS = ("--dtype", "--quantization")  # flags of vLLM and SGLang
RELAYS = ("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "kube-proxy")  # into containers
GPU_SLACK_BYTES = 2**31  # bytes of a GPU that a driver or a display server may take


@dataclass
class BackgroundLoad:
    """The load of other programs during a test: CPU cores on average, None beside a server on this machine; GPUs by
    index.
    """

    cpu_cores: Measured = None
    cores: int = field(default_factory=core_count)
    gpus: list[int] = field(default_factory=list)
    share: float = CPU_SHARE  # the share of the cores from which it counts
    client_share: Measured = None  # the share of a core that the busiest process takes that asks an endpoint

    def warnings(self, when: str = "during the test") -> list[str]:
        """Return what of it may have cost speed, in words."""
        why = []
        if self.cpu_cores is not None and self.cpu_cores > self.share * self.cores:
            why.append(f"other programs used {self.cpu_cores:.1f} of {self.cores} CPU cores {when}")
        if self.gpus:
            why.append(f"other programs used memory of GPU {', '.join(map(str, self.gpus))}")
        if self.client_share is not None and self.client_share > CLIENT_SHARE:
            why.append(
                f"this client's busiest process used {100 * self.client_share:.0f} % of a core: times may be its own, "
                "not the server's"
            )
        return why


CPU_TIMES = Path("/proc/stat")


def busy_s() -> float:
    """Seconds that the cores which this process may use have been busy, in all, since the machine started; those of its
    container where a quota holds that to fewer: what others use of the machine takes nothing from a quota.
    """
    if (used := container_s()) is not None:
        return used
    online = re.findall(r"(?m)^cpu(\d+)", CPU_TIMES.read_text())  # those of which psutil tells, in order
    core_times = zip(map(int, online), psutil.cpu_times(percpu=True), strict=False)
    return sum(busy_time(times) for core, times in core_times if core in cores())


class CoreTimes(Protocol):
    """The seconds that a core has spent in each way, as psutil has them on Linux; their sum is all its time."""

    guest: float
    guest_nice: float
    idle: float
    iowait: float

    def __iter__(self) -> Iterator[float]: ...


def busy_time(times: CoreTimes) -> float:
    guests = times.guest + times.guest_nice  # user time holds these already
    return float(sum(times) - times.idle - times.iowait - guests)


def cpu_by_process(roots: Iterable[int]) -> dict[int, float]:
    """CPU seconds by process id: of the processes named, and each below them, with those of their
    children that have ended.
    """
    total = {}
    for root in roots:
        with suppress(psutil.Error):
            for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
                with suppress(psutil.Error):
                    total[process.pid] = float(sum(process.cpu_times()[:4]))
    return total


def servers_here(addresses: Sequence[str]) -> set[int] | None:
    """The processes of this machine that serve the addresses, the topmost of each; None where they are not known: of
    another user, or in a container, of which the listener is a relay.
    """
    process_ids = set[int]()
    for address in addresses:
        parts = urlsplit(address)
        if not is_here(parts.hostname or ""):
            continue
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        owners = {
            connection.pid and top_of(connection.pid)
            for connection in psutil.net_connections("tcp")
            if connection.status == "LISTEN" and connection.laddr.port == port
        }
        if not owners or None in owners:
            return None
        process_ids.update(filter(None, owners))
    return process_ids


def precision_of(addresses: Sequence[str]) -> dict[str, str]:
    """The flags for the number format of the weights that the servers of this machine were started with, as far as
    their processes tell.
    """
    flags = dict[str, str]()
    for pid in servers_here(addresses) or ():
        with suppress(psutil.Error):
            words = list[str]()
            for word in psutil.Process(pid).cmdline():
                words += word.split("=", 1)
            flags |= {f"server_{name[2:]}": value for name, value in pairwise(words) if name in PRECISION_FLAGS}
    return flags


def is_here(host: str) -> bool:
    """Tell whether a host of an address is this machine."""
    own_addresses = set[str]()
    for interfaces in psutil.net_if_addrs().values():
        own_addresses.update(interface.address for interface in interfaces)
    with suppress(OSError):
        return any(str(resolved[4][0]) in own_addresses for resolved in socket.getaddrinfo(host, None))
    return False


def top_of(pid: int) -> int | None:
    """The process that started a server: the parent as long as it runs the same program and started none of ours.
    None for a relay, whose server is elsewhere.
    """
    with suppress(psutil.Error):
        process = psutil.Process(pid)
        ours = {ancestor.pid for ancestor in psutil.Process().parents()}
        if any(name in process.name() for name in RELAYS):
            return None
        while (parent := process.parent()) and parent.pid not in ours and parent.exe() == process.exe():
            process = parent
        return int(process.pid)
    return None


def busy_gpus() -> list[int]:
    """The visible GPUs of which somebody holds memory; to be asked before the engine starts."""
    memory = ask_gpus(memory_of)
    return [index for index, usage in enumerate(memory) if usage and usage.used > GPU_SLACK_BYTES]


@contextmanager
def watch_others(
    gpus: Sequence[int] = (), has_gpus: bool = False, endpoints: Sequence[str] = ()
) -> Iterator[BackgroundLoad]:
    """Yields what others use while the block runs; complete once it has ended. `gpus` were taken before; behind
    `endpoints` the processes of a server on this machine are no others.
    """
    load = BackgroundLoad(gpus=list(gpus), share=SPARE_CPU_SHARE if has_gpus or endpoints else CPU_SHARE)
    servers, own_processes = servers_here(endpoints), {os.getpid()}
    known = own_processes | (servers or set())
    begin, busy, before = time.monotonic(), busy_s(), cpu_by_process(known)
    yield load
    if (seconds := time.monotonic() - begin) <= 1:
        return
    used = {pid: s - before.get(pid, 0.0) for pid, s in cpu_by_process(known).items()}
    if endpoints:
        load.client_share = max(round(used.get(pid, 0.0) / seconds, 2) for pid in cpu_by_process(own_processes))
    if servers is not None:
        load.cpu_cores = max(0.0, round((busy_s() - busy - sum(used.values())) / seconds, 2))
