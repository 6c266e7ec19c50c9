"""The machine and the engine while a test runs: one line a second in a CSV file."""

import csv
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
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
from harness.loadgen.background_load import OthersMeter

# The reasons for which a GPU's clock is lowered, as bits of NVML's answer (nvmlClocksEventReasons in nvml.h).
POWER_CAPPED = 0x4 | 0x80  # the power limit in software, a power brake
TOO_HOT = 0x8 | 0x20 | 0x40  # hardware slowdown, thermal slowdown by software and by hardware
GPUs = dict[str, dict[str, float]]  # values by GPU, which is named by its page, host and number, and by column
Remote = Callable[[], GPUs]
MEMORY_CLOCK, GPU_SENSOR = 2, 0  # NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU
READ_TIMEOUT_S = 2.0  # the time limit of one reading of all GPUs
RECORDER_TIMEOUT_S = 10.0  # the longest wait until the last line is written and the reading process has ended
MEMORY_SENSOR = 82  # NVML_FI_DEV_MEMORY_TEMP, a field
PCIE_SENT, PCIE_RECEIVED = 0, 1  # nvmlPcieUtilCounter_t


def throttle_percent(nvml: NVML, handle: GPUHandle, reasons: int) -> int:
    """Return 100 if a GPU's clock is now lowered for one of the reasons (bits), else 0.

    The mean of such readings is the share of time in percent.
    """
    current_reasons = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return 100 if current_reasons & reasons else 0


def field_value(nvml: NVML, handle: GPUHandle, field: object) -> FieldNumber:
    """Return a GPU's value of an NVML field, a C union of numbers. Raises ValueError if the GPU lacks the field."""
    (field_reading,) = nvml.nvmlDeviceGetFieldValues(handle, [field])
    if field_reading.nvmlReturn:
        raise ValueError("no such field")
    return field_reading.value


# NVML's fields for what a GPU has sent and received by all its links since its driver was loaded, in KiB.
# PCIe's fields (197, 198) have 32 bits, so 4.3 GB/s overflow them in a second. PCIe's throughput is read instead.
ALL_LINKS = 0xFFFFFFFF
COUNTERS = {"nvlink_sent_gb_per_s": 138, "nvlink_received_gb_per_s": 139}  # NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, RX


GpuQuery = Callable[[NVML, GPUHandle], Measured]  # raises an exception if the GPU has no answer


def counter_rate(field: int) -> GpuQuery:
    """Return a function that reads how fast a GPU's counter, an NVML field in KiB, increases since its last call, in
    GB/s.

    The function gives None at its first call for a GPU, and after a reset.
    """
    before = dict[int, tuple[float, int]]()  # the time and the count of the last call, by GPU

    def read(nvml: NVML, handle: GPUHandle) -> Measured:
        """Return the rate since the last call for this GPU, and note the time and the count for the next."""
        count = int(field_value(nvml, handle, (field, ALL_LINKS)).ullVal)
        index = nvml.nvmlDeviceGetIndex(handle)
        now_s = time.monotonic()
        then_s, count_then = before.get(index, (now_s, count))
        before[index] = now_s, count
        seconds, kib = now_s - then_s, count - count_then
        if not seconds or kib < 0:  # the first call for this GPU, or a counter that was reset
            return None
        return round(kib * 1024 / seconds / 1e9, 4)

    return read


def null_if_split(read: GpuQuery) -> GpuQuery:
    """Return a function that reads a value as `read` does, but returns None for a split GPU (MIG).

    For a split GPU, drivers report no load, and the power of the whole card.
    """

    def read_unless_split(nvml: NVML, handle: GPUHandle) -> Measured:
        """Return the value that `read` returns for a GPU; None if the GPU is split (MIG)."""
        if is_split(nvml, handle):
            return None
        return read(nvml, handle)

    return read_unless_split


GPU_COLUMNS: dict[str, GpuQuery] = {
    "load_percent": null_if_split(lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
    "memory_gib": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30, 2),
    "power_w": null_if_split(lambda nvml, handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000)),
    "clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK),
    "max_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK),
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, GPU_SENSOR),
    "memory_load_percent": null_if_split(lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).memory),
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, MEMORY_CLOCK),
    "memory_temperature_c": lambda nvml, handle: field_value(nvml, handle, MEMORY_SENSOR).uiVal,
    "power_capped_percent": lambda nvml, handle: throttle_percent(nvml, handle, POWER_CAPPED),
    "too_hot_percent": lambda nvml, handle: throttle_percent(nvml, handle, TOO_HOT),
    "pcie_sent_gb_per_s": lambda nvml, handle: nvml.nvmlDeviceGetPcieThroughput(handle, PCIE_SENT) / 1e6,  # over 20 ms
    "pcie_received_gb_per_s": lambda nvml, handle: nvml.nvmlDeviceGetPcieThroughput(handle, PCIE_RECEIVED) / 1e6,
}


NAMES_PER_GPU = (*GPU_COLUMNS, *COUNTERS)


def joules(gpus: int | None) -> Measured:
    """Return the energy in J that the first `gpus` visible GPUs, or all if None, used since their driver was loaded.

    None if a GPU does not report its energy, or if there is no GPU.
    """
    energies = energies_mj()[:gpus]
    known = [energy for energy in energies if energy is not None]
    if not known or len(known) < len(energies):
        return None
    return sum(known) / 1000


def column_names(gpus: int) -> list[str]:
    """Return the columns of a recording: the time, the machine, each of `gpus` GPUs, and the engine's metrics."""
    names = ["seconds", "cpu_percent", "others_cpu_percent", "memory_gib"]
    for index in range(gpus):
        names += [f"gpu{index}_{column}" for column in NAMES_PER_GPU]
    return [*names, *(column.name for column in server_metrics.METRIC_COLUMNS)]


def remote_cells(values: GPUs, gpus: Iterable[str]) -> list[Measured]:
    """Return the cells of GPUs elsewhere in a row of machine.csv, in the order of `gpus`.

    They are None for a GPU that did not answer.
    """
    cells: list[Measured] = []
    for gpu in gpus:
        values_of_gpu = values.get(gpu, {})
        cells += [values_of_gpu.get(column) for column in NAMES_PER_GPU]
    return cells


@dataclass
class MachineRecorder:
    """Writes what the machine and the engine do to a CSV file, a line a second. The fields are explained at
    `record_machine`.
    """

    path: Path
    prometheus_metrics: Callable[[], list[str]]
    gpus: int | None
    remote: Remote
    endpoints: Sequence[str]
    stop: threading.Event = field(default_factory=threading.Event)
    troubles: list[str] = field(default_factory=list)  # messages about what went wrong

    def record(self) -> None:
        """Write a line a second until `stop` is set."""
        begin = time.monotonic()
        with self.path.open("w", newline="") as file, gpu_reader(self.gpus, self.troubles) as (count, read_gpus):
            table = csv.writer(file)
            remote_gpus = sorted(self.remote())
            table.writerow(column_names(count + len(remote_gpus)))
            psutil.cpu_percent()  # each call covers the time since the previous call
            others = OthersMeter(self.endpoints)
            last_s, last_metrics = 0.0, server_metrics.metric_values(self.prometheus_metrics())
            while not self.stop.wait(1.0):
                seconds = time.monotonic() - begin
                metrics = server_metrics.metric_values(self.prometheus_metrics())
                cells: list[Measured] = [round(seconds, 1), psutil.cpu_percent(), others.percent()]
                cells.append(round(psutil.virtual_memory().used / 2**30, 2))
                cells += read_gpus()
                cells += remote_cells(self.remote(), remote_gpus)
                cells += server_metrics.metric_cells(last_metrics, metrics, seconds - last_s)
                table.writerow(cells)
                last_s, last_metrics = seconds, metrics
                file.flush()  # The lines so far are kept even if the process is killed.


@contextmanager
def record_machine(
    path: Path,
    wanted: bool,
    prometheus_metrics: Callable[[], list[str]],
    gpus: int | None,
    remote: Remote,
    endpoints: Sequence[str] = (),
) -> Iterator[list[str]]:
    """Write one line a second to the CSV file `path` while the block runs; nothing unless `wanted`.

    Yield the messages about what went wrong, complete once the block has ended. `prometheus_metrics` returns the
    metrics of each server. `gpus` is how many of the visible GPUs are read, all if None. `remote` returns the values of
    GPUs elsewhere, by GPU and column. The servers behind `endpoints` do not count as other programs.
    """
    recorder = MachineRecorder(path, prometheus_metrics, gpus, remote, endpoints)
    if not wanted:
        yield recorder.troubles
        return
    # The thread is a daemon, so that a reading that hangs does not keep the process.
    thread = threading.Thread(target=recorder.record, daemon=True)
    thread.start()
    try:
        yield recorder.troubles
    finally:  # The recording ends with the block, also if the block raised an error.
        recorder.stop.set()
        thread.join(timeout=RECORDER_TIMEOUT_S)  # A reading that hangs is not waited for any longer.


@contextmanager
def gpu_reader(most: int | None, troubles: list[str]) -> Iterator[tuple[int, Callable[[], list[Measured]]]]:
    """Yield the number of visible GPUs that are read, at most `most`, and a function that reads all their columns.

    Values that do not come in time are None. If the process that reads the GPUs crashes, a message is added to
    `troubles`.
    """
    count = len(ask_gpus(name_of)[:most])
    spawn = multiprocessing.get_context("spawn")  # A fork of this process, which has threads, might hang.
    own_end, reader_end = spawn.Pipe()
    # A driver's library that crashes ends its process, so a separate process reads the GPUs.
    process = spawn.Process(target=serve_gpu_values, args=(reader_end, count), name="telemetry", daemon=True)
    if count:
        process.start()
    # The process has a copy of its end, which is now the only one. So the pipe is closed only when the process ends.
    reader_end.close()
    with closing(own_end):
        yield count, partial(requested_values, own_end, count * len(NAMES_PER_GPU))
        if count and is_closed(own_end):  # The process has ended by itself.
            process.join(timeout=READ_TIMEOUT_S)  # only after a join is the exit code known
        code = process.exitcode
        # The code is None if the process was not started, or still runs: such a process ends when its pipe is closed.
        if code is not None:
            troubles.append(
                f"--extra-metrics: the process that reads the GPUs {exit_text(code)}, so that values are missing"
            )


def requested_values(connection: Connection, value_count: int) -> list[Measured]:
    """Ask the process that reads the GPUs for all values, and return them.

    Each value is None if the process has ended, if it does not answer in READ_TIMEOUT_S, or if it has not `value_count`
    values.
    """
    with suppress(OSError, EOFError):  # The process has ended.
        discard_pending(connection)  # values that came too late
        connection.send(None)
        if connection.poll(READ_TIMEOUT_S):
            values = list[Measured](connection.recv())
            if len(values) == value_count:
                return values
    return [None] * value_count


def is_closed(connection: Connection) -> bool:
    """Return whether the other end of a pipe is closed. What waits in the pipe is discarded."""
    try:
        discard_pending(connection)
    except (OSError, EOFError):
        return True
    return False


def discard_pending(connection: Connection) -> None:
    """Read and discard what waits in a pipe. Raises OSError or EOFError if its other end is closed."""
    while connection.poll():
        connection.recv()


def exit_text(code: int) -> str:
    """Return how a process with this exit code ended, in words: by a signal if the code is negative."""
    if code < 0:
        return signal_text(-code)
    return f"ended with code {code}"


def serve_gpu_values(connection: Connection, count: int) -> None:
    """Send the values of the first `count` GPUs at each request, until the benchmark's process is gone.

    A value that a GPU does not report is None. Without NVML, there are no values.
    """
    signal(SIGINT, SIG_IGN)  # On Ctrl-C, the benchmark's process ends this one in good order.
    with suppress(OSError, EOFError), nvml_gpus() as (nvml, handles):
        # Counters start anew in each test, so their functions are made here.
        reads = GPU_COLUMNS | {name: counter_rate(field) for name, field in COUNTERS.items()}
        while True:
            values = list[Measured]()
            if nvml:
                for gpu in handles[:count]:
                    values += [answer_or_none(read, nvml, gpu) for read in reads.values()]
            # The first values are sent without a request. They only start the counters, and are discarded.
            connection.send(values)
            connection.recv()  # the next request; an error, which ends the loop, if the benchmark's process is gone
