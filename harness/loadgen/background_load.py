"""Background load: what other programs took of the machine while a test ran. The speed alone does not show it."""

import os
import re
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple, Protocol, Self
from urllib.parse import urlsplit

import psutil

from harness.core.formatting import Measured
from harness.core.nvml import ask_gpus, memory_of
from harness.core.system import container_cpu_s, core_count, cores

# The load of other programs counts if they use more than this share of the cores: the first if the CPU computes the
# answers, the second if a GPU or a server does, which leaves cores to spare.
CPU_SHARE, SPARE_CPU_SHARE = 0.1, 0.5
CLIENT_SHARE = 0.9  # a client process that takes more than this share of a core may be what is slow
PRECISION_FLAGS = ("--dtype", "--quantization")  # flags of vLLM and SGLang
# Programs that forward connections into containers.
RELAYS = ("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "kube-proxy")
GPU_SLACK_BYTES = 2**31  # bytes of a GPU that a driver or a display server may take


@dataclass
class BackgroundLoad:
    """The load of other programs during a test."""

    cpu_cores: Measured = None  # the cores that they used on average; None if unknown
    cores: int = field(default_factory=core_count)  # the cores of this process
    gpus: list[int] = field(default_factory=list)  # the indices of GPUs whose memory they used
    most_cpu_share: float = CPU_SHARE  # the largest share of the cores that they may use without a warning
    unknown: str = ""  # the reason why `cpu_cores` is unknown
    client_share: Measured = None  # the share of a core that the busiest of this client's processes took

    def warnings(self, when: str = "during the test") -> list[str]:
        """Return in words each kind of load that may have cost speed: CPU, GPU memory, and this client's own processes.

        `when` is put into the text about the CPU. The list is empty if nothing may have cost speed or nothing is known.
        """
        # A figure that is None was not measured.
        texts = []
        if self.cpu_cores is not None and self.cpu_cores > self.most_cpu_share * self.cores:
            texts.append(f"other programs used {self.cpu_cores:.1f} of {self.cores} CPU cores {when}")
        if self.gpus:
            texts.append(f"other programs used memory of GPU {', '.join(map(str, self.gpus))}")
        if self.client_share is not None and self.client_share > CLIENT_SHARE:
            texts.append(
                f"this client's busiest process used {100 * self.client_share:.0f} % of a core: times may be its own, "
                "not the server's"
            )
        return texts


def warning_lines(warnings: Sequence[str], has_endpoint: bool) -> list[str]:
    """Return warnings about background load as the screen shows them.

    Without an endpoint, the measured speed is this machine's, so each warning adds that the speed may be too low. With
    an endpoint, the speed is that of a server, and the warnings stay as they are.
    """
    if has_endpoint:
        return list(warnings)
    return [f"{warning}: the speed may be lower than this machine's" for warning in warnings]


CPU_TIMES = Path("/proc/stat")


def busy_s() -> float:
    """Return for how many seconds the cores that this process may use have been busy since the machine started.

    The seconds are summed over the cores. With a CPU quota, only the container's own seconds count.
    """
    container_s = container_cpu_s()
    if container_s is not None:
        return container_s  # Programs outside take nothing from the quota.
    # The numbers of the cores that are online. psutil lists the same cores in this order, without their numbers.
    online = re.findall(r"(?m)^cpu(\d+)", CPU_TIMES.read_text())
    usable = cores()
    total_s = 0.0
    for core, times in zip(map(int, online), psutil.cpu_times(percpu=True), strict=False):
        if core in usable:
            total_s += busy_time(times)
    return total_s


class CoreTimes(Protocol):
    """The seconds that a core has spent in each way, as psutil has them on Linux; their sum is all its time."""

    guest: float
    guest_nice: float
    idle: float
    iowait: float

    def __iter__(self) -> Iterator[float]: ...


def busy_time(times: CoreTimes) -> float:
    """Return the seconds for which a core was busy: neither idle nor waiting for a disk."""
    guests = times.guest + times.guest_nice  # The sum holds these twice, since user time contains them.
    return float(sum(times) - times.idle - times.iowait - guests)


def cpu_by_process(roots: Iterable[int]) -> dict[int, float]:
    """Return the CPU seconds of these processes and all processes below them, by process id.

    The seconds of a child that has ended count for its parent. Processes that cannot be read are left out.
    """
    seconds_by_process = {}
    for root in roots:
        with suppress(psutil.Error):
            root_process = psutil.Process(root)
            for process in (root_process, *root_process.children(recursive=True)):
                with suppress(psutil.Error):
                    times = process.cpu_times()[:4]  # user and system time, its own and that of ended children
                    seconds_by_process[process.pid] = float(sum(times))
    return seconds_by_process


class LocalServers(NamedTuple):
    """The servers on this machine: the ids of their topmost processes, or why these are not known."""

    process_ids: frozenset[int] = frozenset()
    unknown: str = ""


class UnknownProcessError(Exception):
    """The process that serves a port is not known; the message says why."""


def servers_here(addresses: Sequence[str]) -> LocalServers:
    """Return the processes of the servers that are behind the addresses and on this machine.

    If the processes of one server are not known, return only the reason.
    """
    process_ids = set[int]()
    for address in addresses:
        parts = urlsplit(address)
        if not is_this_machine(parts.hostname or ""):
            continue
        port = parts.port or (443 if parts.scheme == "https" else 80)
        try:
            process_ids |= listening_processes(port)
        except UnknownProcessError as error:
            return LocalServers(unknown=str(error))  # The server's load looks like that of other programs.
    return LocalServers(frozenset(process_ids))


def listener_ids(port: int) -> list[int | None]:
    """Return the process id of each program that listens on a TCP port of this machine.

    The id is None if the program belongs to another user. Empty if no program listens.
    """
    ids = []
    for connection in psutil.net_connections("tcp"):
        if connection.status == "LISTEN" and connection.laddr.port == port:
            ids.append(connection.pid)
    return ids


def listening_processes(port: int) -> set[int]:
    """Return the id of the topmost process of each server that listens on a TCP port of this machine.

    Raises UnknownProcessError if a server belongs to another user or is behind a relay, or if no process listens.
    """
    owners = set[int]()
    for pid in listener_ids(port):
        if pid is None:
            raise UnknownProcessError(f"the server on port {port} belongs to another user")
        owners.add(top_of(pid))  # finds out that a process is a relay
    if not owners:  # Something that is no process here, such as the kernel, must forward the port to the server.
        raise UnknownProcessError(f"port {port} is forwarded: no process of this machine listens on it")
    return owners


def precision_of(addresses: Sequence[str]) -> dict[str, str]:
    """Return the values of --dtype and --quantization with which the servers on this machine were started.

    The keys are "server_dtype" and "server_quantization"; a flag that was not given is missing. A process whose command
    line cannot be read is skipped.
    """
    flags = dict[str, str]()
    for pid in servers_here(addresses).process_ids:
        with suppress(psutil.Error):
            words = list[str]()
            for word in psutil.Process(pid).cmdline():
                words += word.split("=", 1)  # FLAG=VALUE becomes two words, as FLAG VALUE is
            for name, value in pairwise(words):
                if name in PRECISION_FLAGS:
                    flags[f"server_{name.removeprefix('--')}"] = value
    return flags


def is_this_machine(host: str) -> bool:
    """Return whether a host, by its name or address, is this machine. False if the name cannot be resolved."""
    own_addresses = set[str]()
    for interfaces in psutil.net_if_addrs().values():
        own_addresses.update(interface.address for interface in interfaces)
    with suppress(OSError):
        host_addresses = set[str]()
        for _, _, _, _, socket_address in socket.getaddrinfo(host, None):
            host_addresses.add(str(socket_address[0]))
        return not host_addresses.isdisjoint(own_addresses)
    return False


def top_of(pid: int) -> int:
    """Return the id of the process that started a server: the topmost ancestor that runs the same program.

    Raises UnknownProcessError for a relay, whose server is elsewhere, and for a process that cannot be read.
    """
    try:
        process = psutil.Process(pid)
        name = process.name()
        own_ancestors = {ancestor.pid for ancestor in psutil.Process().parents()}  # such as a shell
        if any(relay in name for relay in RELAYS):
            raise UnknownProcessError(f"{name} forwards the server's port")
        parent = process.parent()
        # Go up while the parent runs the same program.
        while parent and parent.pid not in own_ancestors and parent.exe() == process.exe():
            process, parent = parent, parent.parent()
    except psutil.Error as error:
        raise UnknownProcessError(f"the server's process {pid} cannot be read ({type(error).__name__})") from None
    return int(process.pid)


def busy_gpus() -> list[int]:
    """Return the indices of visible GPUs whose memory other programs use, beyond GPU_SLACK_BYTES for the driver.

    Must be called before the engine starts, whose own memory would count. A GPU that does not report its memory is left
    out.
    """
    memory = ask_gpus(memory_of)
    return [index for index, usage in enumerate(memory) if usage and usage.used > GPU_SLACK_BYTES]


class CpuReading(NamedTuple):
    """The CPU seconds used so far, at one time: by all programs, and by each process that does not count as others."""

    time_s: float
    busy_s: float
    used_s: dict[int, float]

    @classmethod
    def take(cls, processes: Iterable[int]) -> Self:
        """Return a reading of now. `processes` are those that do not count as others, with all processes below them."""
        return cls(time.monotonic(), busy_s(), cpu_by_process(processes))

    def used_since(self, earlier: "CpuReading") -> dict[int, float]:
        """Return the CPU seconds that each process used since an earlier reading, by process id."""
        return {pid: used_s - earlier.used_s.get(pid, 0.0) for pid, used_s in self.used_s.items()}

    def busiest_share(self, earlier: "CpuReading", processes: Iterable[int]) -> float:
        """Return the share of a core that the busiest of these processes used on average since an earlier reading."""
        used_s = self.used_since(earlier)
        return max(used_s.get(pid, 0.0) for pid in processes) / (self.time_s - earlier.time_s)

    def cores_of_others(self, earlier: "CpuReading") -> float:
        """Return the cores that other programs used on average since an earlier reading.

        Not below 0, which the difference may be since the parts of a reading are taken one after the other.
        """
        own_s = sum(self.used_since(earlier).values())  # of this program's processes
        others_s = self.busy_s - earlier.busy_s - own_s
        return max(0.0, others_s / (self.time_s - earlier.time_s))


class OthersMeter:
    """Tells from time to time how much of the CPU other programs took since the time before."""

    def __init__(self, endpoints: Sequence[str] = ()) -> None:
        """Take the first reading. The processes of servers behind `endpoints` on this machine are not other programs.

        If these processes are not known, nothing is measured.
        """
        servers = servers_here(endpoints)
        self.is_known = not servers.unknown
        self.known_processes = {os.getpid()} | servers.process_ids
        self.last = CpuReading.take(self.known_processes)

    def percent(self) -> Measured:
        """Return the share of this process's cores that other programs took since the last reading, in percent.

        None if the load of other programs cannot be told apart from that of the servers.
        """
        if not self.is_known:
            return None
        last, self.last = self.last, CpuReading.take(self.known_processes)
        percent = 100 * self.last.cores_of_others(last) / core_count()
        return round(min(100.0, percent), 1)


@contextmanager
def watch_others(
    busy_gpus: Sequence[int] = (), has_gpus: bool = False, endpoints: Sequence[str] = ()
) -> Iterator[BackgroundLoad]:
    """Measure what other programs use while the block runs. Yield the result, which is complete after the block.

    `busy_gpus` had other programs before the engine started. `has_gpus` says that GPUs compute the answers. Servers
    behind `endpoints` do not count as other programs.
    """
    servers = servers_here(endpoints)
    load = BackgroundLoad(gpus=list(busy_gpus), unknown=servers.unknown)
    has_spare_cores = has_gpus or bool(endpoints)  # since a GPU or a server computes the answers
    if has_spare_cores:
        load.most_cpu_share = SPARE_CPU_SHARE
    own_processes = {os.getpid()}
    known_processes = own_processes | servers.process_ids
    before = CpuReading.take(known_processes)
    yield load
    after = CpuReading.take(known_processes)
    is_too_short = after.time_s - before.time_s <= 1
    if is_too_short:  # The CPU load stays unknown.
        return
    if endpoints:  # A client that is too busy sees the server's answers late, so its own load is noted, too.
        client_processes = cpu_by_process(own_processes).keys()  # this process and all below it
        load.client_share = round(after.busiest_share(before, client_processes), 2)
    if not servers.unknown:  # Otherwise a server on this machine may count as another program.
        load.cpu_cores = round(after.cores_of_others(before), 2)
