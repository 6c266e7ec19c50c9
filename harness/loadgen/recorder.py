"""The machine and the engine while a test runs: one line a second in a CSV file."""

import asyncio
import csv
import multiprocessing
import os
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from typing import Any
from urllib.parse import urlsplit

import psutil
from aiohttp import ClientSession

from harness.config.server_addresses import exporter
from harness.core.errors import BenchmarkError, UsageError
from harness.core.formatting import Measured
from harness.core.message_text import first_line
from harness.core.nvml import SM_CLOCK, ask_gpus, nvml_gpus, query_or_none
from harness.core.processes import by_signal
from harness.core.system import container_s, core_count, cores
from harness.engines import discovery, server_metrics

# The reasons for which a GPU's clock is lowered, as bits of NVML's answer (nvmlClocksEventReasons in nvml.h).
POWER_CAPPED = 0x4 | 0x80  # the power limit in software, a power brake
TOO_HOT = 0x8 | 0x20 | 0x40  # hardware slowdown, thermal slowdown by software and by hardware
GPUs = dict[str, dict[str, float]]  # by page and GPU: its values, by column
Remote = Callable[[], GPUs]
MEMORY_CLOCK, GPU_SENSOR = 2, 0
READ_S = 2.0  # for one reading of all GPUs
MEMORY_SENSOR = 82  # NVML_FI_DEV_MEMORY_TEMP, a field
SENT, RECEIVED = 0, 1  # nvmlPcieUtilCounter_t


def throttle_percent(nvml: Any, handle: Any, reasons: int) -> int:
    """100 while a GPU's clock is lowered for one of the reasons, else 0."""
    return 100 if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & reasons else 0


def field_value(nvml: Any, handle: Any, field: object) -> Any:
    """A GPU's value of a field of NVML's. Raises ValueError where it has none."""
    (found,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if found.nvmlReturn:
        raise ValueError("no such field")
    return found.value


# What a GPU has sent and received since its driver was loaded, by all its links: NVML's fields, in KiB.
# PCIe's fields (197, 198) have 32 bits, which 4.3 GB/s go through in a second: its throughput is asked for instead.
ALL_LINKS = 0xFFFFFFFF
COUNTERS = {"nvlink_sent_gb_per_s": 138, "nvlink_received_gb_per_s": 139}  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, RX


Read = Callable[[Any, Any], Measured]  # of NVML and a GPU; raises where the GPU does not tell


def increase(field: int) -> Read:
    """Reads the increase of a counter of each GPU since it was last asked, in GB/s."""
    before = dict[int, tuple[float, int]]()

    def read(nvml: Any, handle: Any) -> Measured:
        count = field_value(nvml, handle, (field, ALL_LINKS)).ullVal
        index, now = nvml.nvmlDeviceGetIndex(handle), (time.monotonic(), int(count))
        then, before[index] = before.get(index, now), now
        seconds, more = now[0] - then[0], now[1] - then[1]
        return round(more * 1024 / seconds / 1e9, 4) if seconds and more >= 0 else None

    return read


GPU_COLUMNS: dict[str, Read] = {
    "load_percent": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "memory_gib": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30, 2),
    "power_w": lambda nvml, handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    "clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK),
    "max_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK),
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, GPU_SENSOR),
    "memory_load_percent": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, MEMORY_CLOCK),
    "memory_temperature_c": lambda nvml, handle: field_value(nvml, handle, MEMORY_SENSOR).uiVal,
    "power_capped_percent": lambda nvml, handle: throttle_percent(nvml, handle, POWER_CAPPED),
    "too_hot_percent": lambda nvml, handle: throttle_percent(nvml, handle, TOO_HOT),
    "pcie_sent_gb_per_s": lambda nvml, handle: nvml.nvmlDeviceGetPcieThroughput(handle, SENT) / 1e6,  # over 20 ms
    "pcie_received_gb_per_s": lambda nvml, handle: nvml.nvmlDeviceGetPcieThroughput(handle, RECEIVED) / 1e6,
}


GPU_NAMES = (*GPU_COLUMNS, *COUNTERS)


def joules(gpus: int | None) -> Measured:
    """The energy that the first visible GPUs (None: all) have taken since their driver was loaded; None where they do
    not report it."""
    energies = ask_gpus("nvmlDeviceGetTotalEnergyConsumption")[:gpus]
    return sum(energies) / 1000 if energies and None not in energies else None


@contextmanager
def recording(
    path: Path, wanted: bool, prometheus_metrics: Callable[[], list[str]], gpus: int | None, remote: Remote
) -> Iterator[list[str]]:
    """Writes one line a second to the CSV file `path` while the block runs, if `wanted`; what one does not tell is left
    empty. Gives a list of what went wrong, which is whole once the block has ended.

    `prometheus_metrics` gives the engine's own metrics, in Prometheus' text format; of the visible GPUs the first count
    (None: all). `remote` gives what is reported of GPUs elsewhere, by GPU and column.
    """
    stop, troubles = threading.Event(), list[str]()

    def record() -> None:
        begin = time.monotonic()
        with path.open("w", newline="") as file, reading_gpus(gpus, troubles) as (count, read_gpus):
            table, far = csv.writer(file), sorted(remote())
            names = [f"gpu{index}_{column}" for index in range(count + len(far)) for column in GPU_NAMES]
            names += [column.name for column in server_metrics.COLUMNS]
            table.writerow(["seconds", "cpu_percent", "memory_gib", *names])
            psutil.cpu_percent()  # which tells of the time since it was last called
            then, before = 0.0, server_metrics.samples(prometheus_metrics())
            while not stop.wait(1.0):
                seconds, counted = time.monotonic() - begin, server_metrics.samples(prometheus_metrics())
                machine = [round(seconds, 1), psutil.cpu_percent(), round(psutil.virtual_memory().used / 2**30, 2)]
                told, now = read_gpus(), remote()
                told += [now.get(gpu, {}).get(column) for gpu in far for column in GPU_NAMES]
                table.writerow([*machine, *told, *server_metrics.row(before, counted, seconds - then)])
                then, before = seconds, counted
                file.flush()

    if not wanted:
        yield troubles
        return
    recorder = threading.Thread(target=record, daemon=True)
    recorder.start()
    try:
        yield troubles
    finally:
        stop.set()
        recorder.join(timeout=2)


@contextmanager
def reading_gpus(most: int | None, troubles: list[str]) -> Iterator[tuple[int, Callable[[], list[Any]]]]:
    """How many of the visible GPUs are read, and what reads all their columns: a process of its own, since a driver's
    library that crashes takes its process with it. Values that it does not tell in time are unknown."""
    count, spawn = len(ask_gpus("nvmlDeviceGetName")[:most]), multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=tell_gpus, args=(theirs, count), name="telemetry", daemon=True)
    if count:
        process.start()
    theirs.close()
    unknown = [None] * count * len(GPU_NAMES)

    def read() -> list[Any]:
        with suppress(OSError, EOFError):
            while mine.poll():  # what came too late
                mine.recv()
            mine.send(None)
            if mine.poll(READ_S) and len(told := mine.recv()) == len(unknown):
                return list(told)
        return [*unknown]

    with closing(mine):
        yield count, read
        if (code := process.exitcode) is not None:
            ended = by_signal(-code) if code < 0 else f"ended with code {code}"
            troubles.append(f"--extra-metrics: the process that reads the GPUs {ended}, so that values are missing")


def tell_gpus(asked: Connection, count: int) -> None:
    """What that process does: read the GPUs whenever it is asked to, until nobody can."""
    signal(SIGINT, SIG_IGN)  # Ctrl-C reaches it, too: the command ends it
    with suppress(OSError, EOFError), nvml_gpus() as (nvml, handles):
        reads = GPU_COLUMNS | {name: increase(field) for name, field in COUNTERS.items()}  # since this test began
        while True:
            told = [query_or_none(read, nvml, gpu) for gpu in handles[:count] for read in reads.values()]
            asked.send(told)  # the first unasked, with which the counters begin
            asked.recv()


# GPUs behind an endpoint, as an NVIDIA DCGM exporter tells of them (its etc/default-counters.csv has the names).
MOST_VALUE = 1e6  # of any of its quantities
COLUMNS = {  # of machine.csv, in its units but for the memory's, MiB
    "DCGM_FI_DEV_GPU_UTIL": "load_percent",
    "DCGM_FI_DEV_FB_USED": "memory_gib",
    "DCGM_FI_DEV_POWER_USAGE": "power_w",
    "DCGM_FI_DEV_SM_CLOCK": "clock_mhz",
    "DCGM_FI_DEV_GPU_TEMP": "temperature_c",
    "DCGM_FI_DEV_MEM_COPY_UTIL": "memory_load_percent",
    "DCGM_FI_DEV_MEM_CLOCK": "memory_clock_mhz",
    "DCGM_FI_DEV_MEMORY_TEMP": "memory_temperature_c",
}
INSTANCES = ("GPU_I_ID", "GPU_I_PROFILE")  # parts of one GPU (MIG), whose memory is theirs alone


def read(urls: Sequence[str]) -> tuple[GPUs, list[str]]:
    """What the pages tell of the GPUs that the addresses name, and the GPUs' models. Raises UsageError for a page that
    is none, or lacks one of them."""
    found: GPUs = {}
    models = {}
    for url in urls:
        address, gpus, host = exporter(url)
        seen = set[str]()
        for labels, column, value in samples(address):
            gpu, at = labels.get("gpu", ""), labels.get("Hostname", "")
            if gpu in (gpus or [gpu]) and at == (host or at):
                name = f"{address} {at} {gpu}"
                found.setdefault(name, {})[column] = value
                models[name] = labels.get("modelName", "unknown")
                seen.add(gpu)
        if not seen or set(gpus) - seen:
            wanted = f"GPU {', '.join(sorted(set(gpus) - seen))}" if gpus else f"GPU of host {host}"
            raise UsageError(f"--telemetry-url {address} reports no {wanted}: is it a DCGM exporter's page?")
    return found, [models[name] for name in sorted(found)]


def readings(urls: Sequence[str]) -> tuple[GPUs, list[str]]:
    """The same during a test: nothing where it fails, which is a gap."""
    try:
        return read(urls)
    except UsageError:
        return {}, []


async def page(address: str) -> str:
    """An exporter's page, asked for without what a server is sent. Raises EndpointError."""
    async with ClientSession() as session:
        return await discovery.read_page(address, session)


def samples(address: str) -> Iterator[tuple[dict[str, str], str, float]]:
    """Labels, column and value of each GPU's quantities, those that none can have left out. Raises UsageError where
    there is no such page in time."""
    try:
        text = asyncio.run(page(address))
        for name, labels, values in server_metrics.fold(server_metrics.parse(text, COLUMNS), INSTANCES):
            column = COLUMNS[name]
            value = sum(values) / 1024 if column == "memory_gib" else max(values)
            if 0 <= value < MOST_VALUE:
                yield labels, column, value
    except (BenchmarkError, OSError, ValueError) as error:
        raise UsageError(f"--telemetry-url {address}: not an exporter's page: {first_line(error)}.") from None


# Load that is not ours: what other programs took of the machine while a test ran, which a speed cannot tell.
CPU_SHARE = 0.1  # of the cores, from which others' load counts where the answers are computed on them
SPARE_CPU_SHARE = 0.5  # the same where a GPU or a server computes
CLIENT_SHARE = 0.9  # of a core, from which a client process may be what is slow
PRECISION_FLAGS = ("--dtype", "--quantization")  # of vLLM and SGLang
RELAYS = ("docker-proxy", "rootlessport", "rootlesskit", "slirp4netns", "pasta", "kube-proxy")  # into containers
GPU_SLACK_BYTES = 2**31  # bytes of a GPU that a driver or a display server may take


@dataclass
class BackgroundLoad:
    """What other programs used in a test: CPU cores on average, None beside a server on this machine; GPUs by index."""

    cpu_cores: Measured = None
    cores: int = field(default_factory=core_count)
    gpus: list[int] = field(default_factory=list)
    share: float = CPU_SHARE  # of the cores, from which it counts
    client_share: Measured = None  # of a core, of the busiest process that asks an endpoint

    def warnings(self, when: str = "during the test") -> list[str]:
        """What of it may have cost speed, in words."""
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
    container where a quota holds that to fewer: what others use of the machine takes nothing from a quota."""
    if (used := container_s()) is not None:
        return used
    online = re.findall(r"(?m)^cpu(\d+)", CPU_TIMES.read_text())  # those of which psutil tells, in order
    each = zip(map(int, online), psutil.cpu_times(percpu=True), strict=False)
    return sum(busy_time(times) for core, times in each if core in cores())


def busy_time(times: Any) -> float:
    guests = times.guest + times.guest_nice  # which user time holds already
    return float(sum(times) - times.idle - times.iowait - guests)


def cpu_by_process(roots: Iterable[int]) -> dict[int, float]:
    """CPU seconds by process id: of the processes named, and each below them, with those of their
    children that have ended."""
    total = {}
    for root in roots:
        with suppress(psutil.Error):
            for process in (psutil.Process(root), *psutil.Process(root).children(recursive=True)):
                with suppress(psutil.Error):
                    total[process.pid] = float(sum(process.cpu_times()[:4]))
    return total


def servers_here(addresses: Sequence[str]) -> set[int] | None:
    """The processes of this machine that serve the addresses, the topmost of each; None where they are not known: of
    another user, or in a container, of which the listener is a relay."""
    found = set[int]()
    for address in addresses:
        parts = urlsplit(address)
        if not is_here(parts.hostname or ""):
            continue
        port = parts.port or {"https": 443}.get(parts.scheme, 80)
        owners = {
            each.pid and top_of(each.pid)
            for each in psutil.net_connections("tcp")
            if each.status == "LISTEN" and each.laddr.port == port
        }
        if not owners or None in owners:
            return None
        found.update(filter(None, owners))
    return found


def precision_of(addresses: Sequence[str]) -> dict[str, str]:
    """The flags for the number format of the weights that the servers of this machine were started with, as far as
    their processes tell."""
    found = dict[str, str]()
    for pid in servers_here(addresses) or ():
        with suppress(psutil.Error):
            words = [part for word in psutil.Process(pid).cmdline() for part in word.split("=", 1)]
            found |= {f"server_{name[2:]}": value for name, value in pairwise(words) if name in PRECISION_FLAGS}
    return found


def is_here(host: str) -> bool:
    """Whether a host of an address is this machine."""
    own = {each.address for name in psutil.net_if_addrs().values() for each in name}
    with suppress(OSError):
        return any(str(found[4][0]) in own for found in socket.getaddrinfo(host, None))
    return False


def top_of(pid: int) -> int | None:
    """The process that started a server: the parent as long as it runs the same program and started none of ours.
    None for a relay, whose server is elsewhere."""
    with suppress(psutil.Error):
        process, ours = psutil.Process(pid), {each.pid for each in psutil.Process().parents()}
        if any(name in process.name() for name in RELAYS):
            return None
        while (parent := process.parent()) and parent.pid not in ours and parent.exe() == process.exe():
            process = parent
        return int(process.pid)
    return None


def busy_gpus() -> list[int]:
    """The visible GPUs of which somebody holds memory; to be asked before the engine starts."""
    memory = ask_gpus("nvmlDeviceGetMemoryInfo")
    return [index for index, own in enumerate(memory) if own and own.used > GPU_SLACK_BYTES]


@contextmanager
def watch_others(
    gpus: Sequence[int] = (), has_gpus: bool = False, endpoints: Sequence[str] = ()
) -> Iterator[BackgroundLoad]:
    """Yields what others use while the block runs; complete once it has ended. `gpus` were taken before; behind
    `endpoints` the processes of a server on this machine are no others."""
    found = BackgroundLoad(gpus=list(gpus), share=SPARE_CPU_SHARE if has_gpus or endpoints else CPU_SHARE)
    servers, own = servers_here(endpoints), {os.getpid()}
    known = own | (servers or set())
    begin, busy, before = time.monotonic(), busy_s(), cpu_by_process(known)
    yield found
    if (seconds := time.monotonic() - begin) <= 1:
        return
    used = {pid: s - before.get(pid, 0.0) for pid, s in cpu_by_process(known).items()}
    if endpoints:
        found.client_share = max(round(used.get(pid, 0.0) / seconds, 2) for pid in cpu_by_process(own))
    if servers is not None:
        found.cpu_cores = max(0.0, round((busy_s() - busy - sum(used.values())) / seconds, 2))
