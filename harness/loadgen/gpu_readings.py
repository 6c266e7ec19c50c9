"""The machine and the engine while a test runs: one line a second in a CSV file."""

import csv
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal

import psutil

from harness.core.formatting import Measured
from harness.core.nvml import SM_CLOCK, answer_or_none, ask_gpus, energies_mj, is_split, name_of, nvml_gpus
from harness.core.nvml_library import NVML, FieldNumber, GPUHandle
from harness.core.processes import by_signal
from harness.engines import server_metrics

# The reasons for which a GPU's clock is lowered, as bits of NVML's answer (nvmlClocksEventReasons in nvml.h).
POWER_CAPPED = 0x4 | 0x80  # the power limit in software, a power brake
TOO_HOT = 0x8 | 0x20 | 0x40  # hardware slowdown, thermal slowdown by software and by hardware
GPUs = dict[str, dict[str, float]]  # values by page, GPU and column
Remote = Callable[[], GPUs]
MEMORY_CLOCK, GPU_SENSOR = 2, 0
READ_S = 2.0  # for one reading of all GPUs
END_S = 10.0  # until the last reading is written, and the process that reads the GPUs has said how it ended
MEMORY_SENSOR = 82  # NVML_FI_DEV_MEMORY_TEMP, a field
SENT, RECEIVED = 0, 1  # nvmlPcieUtilCounter_t


def throttle_percent(nvml: NVML, handle: GPUHandle, reasons: int) -> int:
    """100 while a GPU's clock is lowered for one of the reasons, else 0."""
    return 100 if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & reasons else 0


def field_value(nvml: NVML, handle: GPUHandle, field: object) -> FieldNumber:
    """A GPU's value of a field of NVML's. Raises ValueError where it has none."""
    (field_reading,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if field_reading.nvmlReturn:
        raise ValueError("no such field")
    return field_reading.value


# NVML's fields for what a GPU has sent and received by all its links since its driver was loaded, in KiB.
# PCIe's fields (197, 198) have 32 bits, which 4.3 GB/s go through in a second: its throughput is asked for instead.
ALL_LINKS = 0xFFFFFFFF
COUNTERS = {"nvlink_sent_gb_per_s": 138, "nvlink_received_gb_per_s": 139}  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, RX


Read = Callable[[NVML, GPUHandle], Measured]  # takes NVML and a GPU; raises if the GPU does not tell


def increase(field: int) -> Read:
    """Reads the increase of a counter of each GPU since it was last asked, in GB/s."""
    before = dict[int, tuple[float, int]]()

    def read(nvml: NVML, handle: GPUHandle) -> Measured:
        count = field_value(nvml, handle, (field, ALL_LINKS)).ullVal
        index, now = nvml.nvmlDeviceGetIndex(handle), (time.monotonic(), int(count))
        then, before[index] = before.get(index, now), now
        seconds, more = now[0] - then[0], now[1] - then[1]
        return round(more * 1024 / seconds / 1e9, 4) if seconds and more >= 0 else None

    return read


def unless_split(read: Read) -> Read:
    """Return what reads a GPU, and nothing of a card that is split (MIG): there NVML tells no load, some drivers 0 for
    it, and power is the whole card's, of which others may have a part.
    """
    return lambda nvml, handle: None if is_split(nvml, handle) else read(nvml, handle)


GPU_COLUMNS: dict[str, Read] = {
    "load_percent": unless_split(lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "memory_gib": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30, 2),
    "power_w": unless_split(lambda nvml, handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000)),
    "clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK),
    "max_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK),
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, GPU_SENSOR),
    "memory_load_percent": unless_split(lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).memory),
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
    not report it.
    """
    energies = energies_mj()[:gpus]
    known = [energy for energy in energies if energy is not None]
    return sum(known) / 1000 if known and len(known) == len(energies) else None


def column_names(gpus: int) -> list[str]:
    """Return the columns of a recording of so many GPUs."""
    names = ["seconds", "cpu_percent", "memory_gib"]
    for index in range(gpus):
        names += [f"gpu{index}_{column}" for column in GPU_NAMES]
    return [*names, *(column.name for column in server_metrics.METRIC_COLUMNS)]


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
            table.writerow(column_names(count + len(far)))
            psutil.cpu_percent()  # it tells of the time since it was last called
            then, before = 0.0, server_metrics.samples(prometheus_metrics())
            while not stop.wait(1.0):
                seconds, counted = time.monotonic() - begin, server_metrics.samples(prometheus_metrics())
                machine = [round(seconds, 1), psutil.cpu_percent(), round(psutil.virtual_memory().used / 2**30, 2)]
                row_values, now = read_gpus(), remote()
                for gpu in far:
                    row_values += map(now.get(gpu, {}).get, GPU_NAMES)
                table.writerow([*machine, *row_values, *server_metrics.row(before, counted, seconds - then)])
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
        recorder.join(timeout=END_S)


@contextmanager
def reading_gpus(most: int | None, troubles: list[str]) -> Iterator[tuple[int, Callable[[], list[Measured]]]]:
    """Give the number of visible GPUs that are read, and what reads all their columns: a process of its own, since a
    driver's library that crashes takes its process with it. Values that it does not tell in time are unknown.
    """
    count, spawn = len(ask_gpus(name_of)[:most]), multiprocessing.get_context("spawn")
    mine, theirs = spawn.Pipe()
    process = spawn.Process(target=tell_gpus, args=(theirs, count), name="telemetry", daemon=True)
    if count:
        process.start()
    theirs.close()
    unknown: list[Measured] = [None for _ in range(count * len(GPU_NAMES))]

    def read() -> list[Measured]:
        with suppress(OSError, EOFError):
            while mine.poll():  # answers that came too late
                mine.recv()
            mine.send(None)
            if mine.poll(READ_S) and len(values := mine.recv()) == len(unknown):
                return list(values)
        return [*unknown]

    def is_gone() -> bool:
        """Return whether the process has closed its end of the pipe, which it does only as it ends."""
        try:
            while mine.poll():
                mine.recv()
        except (OSError, EOFError):
            return True
        return False

    with closing(mine):
        yield count, read
        if count and is_gone():
            process.join(timeout=READ_S)  # its exit code is known only after that
        code = process.exitcode
        if code is not None:
            ended = by_signal(-code) if code < 0 else f"ended with code {code}"
            troubles.append(f"--extra-metrics: the process that reads the GPUs {ended}, so that values are missing")


def tell_gpus(asked: Connection, count: int) -> None:
    """Read the GPUs whenever asked to, until nobody can ask: the work of the reading process."""
    signal(SIGINT, SIG_IGN)  # Ctrl-C reaches it, too: the command ends it
    with suppress(OSError, EOFError), nvml_gpus() as (nvml, handles):
        reads = GPU_COLUMNS | {name: increase(field) for name, field in COUNTERS.items()}  # since this test began
        while True:
            values = list[Measured]()
            if nvml:
                for gpu in handles[:count]:
                    values += [answer_or_none(partial(read, nvml, gpu)) for read in reads.values()]
            asked.send(values)  # the first unasked, with which the counters begin
            asked.recv()
