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
from harness.core.processes import signal_text
from harness.engines import server_metrics

# The reasons for which a GPU's clock is lowered, as bits of NVML's answer (nvmlClocksEventReasons in nvml.h).
POWER_CAPPED = 0x4 | 0x80  # the power limit in software, a power brake
TOO_HOT = 0x8 | 0x20 | 0x40  # hardware slowdown, thermal slowdown by software and by hardware
GPUs = dict[str, dict[str, float]]  # values by page, GPU and column
Remote = Callable[[], GPUs]
MEMORY_CLOCK, GPU_SENSOR = 2, 0
READ_S = 2.0  # for one reading of all GPUs
END_S = 10.0  # the longest wait until the last line is written and the reading process has ended
MEMORY_SENSOR = 82  # NVML_FI_DEV_MEMORY_TEMP, a field
SENT, RECEIVED = 0, 1  # nvmlPcieUtilCounter_t


def throttle_percent(nvml: NVML, handle: GPUHandle, reasons: int) -> int:
    """Return 100 while a GPU's clock is lowered for one of the reasons, else 0."""
    return 100 if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & reasons else 0


def field_value(nvml: NVML, handle: GPUHandle, field: object) -> FieldNumber:
    """Return a GPU's value of an NVML field. Raises ValueError if the GPU does not have the field."""
    (field_reading,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if field_reading.nvmlReturn:
        raise ValueError("no such field")
    return field_reading.value


# NVML's fields for what a GPU has sent and received by all its links since its driver was loaded, in KiB.
# PCIe's fields (197, 198) have 32 bits, so 4.3 GB/s overflow them in a second. PCIe's throughput is read instead.
ALL_LINKS = 0xFFFFFFFF
COUNTERS = {"nvlink_sent_gb_per_s": 138, "nvlink_received_gb_per_s": 139}  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, RX


Read = Callable[[NVML, GPUHandle], Measured]  # takes NVML and a GPU; raises if the GPU does not tell


def increase(field: int) -> Read:
    """Return a function that reads how fast a GPU's counter increases, in GB/s, since the function was last called."""
    before = dict[int, tuple[float, int]]()

    def read(nvml: NVML, handle: GPUHandle) -> Measured:
        count = field_value(nvml, handle, (field, ALL_LINKS)).ullVal
        index, now = nvml.nvmlDeviceGetIndex(handle), (time.monotonic(), int(count))
        then, before[index] = before.get(index, now), now
        seconds, more = now[0] - then[0], now[1] - then[1]
        return round(more * 1024 / seconds / 1e9, 4) if seconds and more >= 0 else None

    return read


def unless_split(read: Read) -> Read:
    """Return `read` changed so that it returns None for a split card (MIG).

    NVML reports no load for such a card, or some drivers report 0. Its power is that of the whole card, which others
    may use, too.
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
    """Return the energy in J that GPUs have used since their driver was loaded.

    None if a GPU does not report it. The first `gpus` visible GPUs count, or all if it is None.
    """
    energies = energies_mj()[:gpus]
    known = [energy for energy in energies if energy is not None]
    return sum(known) / 1000 if known and len(known) == len(energies) else None


def column_names(gpus: int) -> list[str]:
    """Return the columns of a recording of `gpus` GPUs."""
    names = ["seconds", "cpu_percent", "memory_gib"]
    for index in range(gpus):
        names += [f"gpu{index}_{column}" for column in GPU_NAMES]
    return [*names, *(column.name for column in server_metrics.METRIC_COLUMNS)]


@contextmanager
def recording(
    path: Path, wanted: bool, prometheus_metrics: Callable[[], list[str]], gpus: int | None, remote: Remote
) -> Iterator[list[str]]:
    """Write one line a second to the CSV file `path` while the block runs, if `wanted`.

    Yield a list of what went wrong. The list is complete once the block has ended. Values that are not reported are
    left empty. `prometheus_metrics` returns the engine's metrics in Prometheus' text format. The first `gpus` visible
    GPUs are read, or all if None. `remote` returns the values of GPUs elsewhere, by GPU and column.
    """
    stop, troubles = threading.Event(), list[str]()

    def record() -> None:
        """Write a line a second until `stop` is set."""
        begin = time.monotonic()
        with path.open("w", newline="") as file, reading_gpus(gpus, troubles) as (count, read_gpus):
            table, far = csv.writer(file), sorted(remote())
            table.writerow(column_names(count + len(far)))
            psutil.cpu_percent()  # each call covers the time since the call before
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
    """Yield the number of visible GPUs that are read, and a function that reads all their columns.

    The GPUs are read in a separate process, since a driver's library that crashes takes its process with it. Values
    that do not come in time are None.
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
            while mine.poll():  # drop values that came too late
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
            process.join(timeout=READ_S)  # only after a join is the exit code known
        code = process.exitcode
        if code is not None:
            ended = signal_text(-code) if code < 0 else f"ended with code {code}"
            troubles.append(f"--extra-metrics: the process that reads the GPUs {ended}, so that values are missing")


def tell_gpus(asked: Connection, count: int) -> None:
    """Send the values of the GPUs at each request, until the other side is gone.

    This is the work of the reading process.
    """
    signal(SIGINT, SIG_IGN)  # Ctrl-C reaches this process, too, but the command ends it
    with suppress(OSError, EOFError), nvml_gpus() as (nvml, handles):
        # Counters start anew in each test, so their functions are made here.
        reads = GPU_COLUMNS | {name: increase(field) for name, field in COUNTERS.items()}
        while True:
            values = list[Measured]()
            if nvml:
                for gpu in handles[:count]:
                    values += [answer_or_none(partial(read, nvml, gpu)) for read in reads.values()]
            asked.send(values)  # the first values start the counters, so they are sent unasked
            asked.recv()
