"""The machine and the engine while a test runs: one line a second in a CSV file."""

import contextlib
import csv
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Self

from harness.common import files
from harness.common.errors import UsageError
from harness.common.system import nvml_gpus, query_or_none
from harness.engines import prometheus

# The reasons for which a GPU's clock is held down, as bits of NVML's answer (nvmlClocksEventReasons in nvml.h).
POWER_CAPPED = 0x4 | 0x80  # the power limit in software, a power brake
TOO_HOT = 0x8 | 0x20 | 0x40  # hardware slowdown, thermal slowdown by software and by hardware
FILE = "machine.csv"
Remote = Callable[[], dict[str, dict[str, float]]]
SM_CLOCK, MEMORY_CLOCK, GPU_SENSOR = 1, 2, 0
MEMORY_SENSOR = 82  # NVML_FI_DEV_MEMORY_TEMP, a field


def throttle_percent(nvml: Any, handle: Any, reasons: int) -> int:
    """100 while a GPU's clock is held down for one of the reasons, else 0."""
    return 100 if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) & reasons else 0


def memory_temperature(nvml: Any, handle: Any) -> int:
    """Degrees Celsius. Raises ValueError where the GPU has no such sensor."""
    (field,) = nvml.nvmlDeviceGetFieldValues(handle, [MEMORY_SENSOR])
    if field.nvmlReturn:
        raise ValueError("no sensor")
    return int(field.value.uiVal)


GPU_COLUMNS: dict[str, Callable[[Any, Any], float]] = {
    "load_percent": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).gpu,
    "memory_gib": lambda nvml, handle: round(nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30, 2),
    "power_w": lambda nvml, handle: round(nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    "clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, SM_CLOCK),
    "max_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, SM_CLOCK),
    "temperature_c": lambda nvml, handle: nvml.nvmlDeviceGetTemperature(handle, GPU_SENSOR),
    "memory_load_percent": lambda nvml, handle: nvml.nvmlDeviceGetUtilizationRates(handle).memory,
    "memory_clock_mhz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, MEMORY_CLOCK),
    "memory_temperature_c": lambda nvml, handle: memory_temperature(nvml, handle),
    "power_capped_percent": lambda nvml, handle: throttle_percent(nvml, handle, POWER_CAPPED),
    "too_hot_percent": lambda nvml, handle: throttle_percent(nvml, handle, TOO_HOT),
}


def joules(gpus: int | None) -> float | None:
    """The energy that the first visible GPUs (None: all) have taken since their driver was loaded; None where they do
    not report it."""
    with nvml_gpus() as (nvml, handles):
        energies = [query_or_none(nvml.nvmlDeviceGetTotalEnergyConsumption, handle) for handle in handles[:gpus]]
    return sum(energies) / 1000 if energies and None not in energies else None


@dataclass(frozen=True)
class Recording:
    """machine.csv: its seconds, and the columns of numbers beside them, None where one was not reported."""

    seconds: list[float]
    columns: dict[str, list[float | None]]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Empty where nothing was recorded. Raises UsageError for a damaged file."""
        columns = files.read_columns(path) if path.exists() else {}
        seconds = columns.pop("seconds", [])
        if None in seconds or (columns and not seconds):
            raise UsageError(f"{path}: a line has no seconds.")
        return cls([second for second in seconds if second is not None], columns)

    def __bool__(self) -> bool:
        return bool(self.columns)

    @property
    def durations(self) -> list[float]:
        """Seconds for which each line counts: since the one before, as a busy machine writes some lines late."""
        return [now - before for before, now in pairwise([0.0, *self.seconds])]

    @property
    def gpus(self) -> list[str]:
        return sorted({name.partition("_")[0] for name in self.columns if name.startswith("gpu")})

    def column(self, name: str) -> list[float | None]:
        """A column; one without values where it was not recorded."""
        return self.columns.get(name) or [None] * len(self.seconds)

    def highest(self, name: str) -> float:
        """The highest value that any GPU reported of a quantity; 0 for none."""
        return max((value or 0.0 for gpu in self.gpus for value in self.column(f"{gpu}_{name}")), default=0.0)


@contextlib.contextmanager
def recording(
    path: Path,
    wanted: bool,
    prometheus_metrics: Callable[[], list[str]],
    gpus: int | None = None,
    remote: Remote = dict,
) -> Iterator[None]:
    """Writes one line a second to the CSV file `path` while the block runs, if `wanted`.

    `prometheus_metrics` gives the engine's own metrics, in Prometheus' text format; of the visible GPUs the first count
    (None: all). `remote` gives what is reported of GPUs elsewhere, by GPU and column.
    """
    if not wanted:
        yield
        return
    stop = threading.Event()
    recorder = threading.Thread(
        target=record_telemetry, args=(path, stop, prometheus_metrics, gpus, remote), daemon=True
    )
    recorder.start()
    try:
        yield
    finally:
        stop.set()
        recorder.join(timeout=2)


def record_telemetry(
    path: Path,
    stop: threading.Event,
    prometheus_metrics: Callable[[], list[str]] = list,
    gpus: int | None = None,
    remote: Remote = dict,
) -> None:
    """Samples machine and engine until `stop` is set; what one does not tell is left empty."""
    import psutil

    begin, engine = time.monotonic(), prometheus.Reader()
    with path.open("w", newline="") as file, nvml_gpus() as (nvml, handles):
        table, handles, far = csv.writer(file), handles[:gpus], sorted(remote())
        names = [f"gpu{index}_{column}" for index in range(len(handles) + len(far)) for column in GPU_COLUMNS]
        columns = [column.name for column in prometheus.COLUMNS]
        table.writerow(["seconds", "cpu_percent", "memory_gib", *names, *columns])
        psutil.cpu_percent()  # which tells of the time since it was last called
        engine.values(0.0, prometheus_metrics())
        while not stop.wait(1.0):
            seconds = time.monotonic() - begin
            machine = [round(seconds, 1), psutil.cpu_percent(), round(psutil.virtual_memory().used / 2**30, 2)]
            told = [query_or_none(partial(read, nvml), handle) for handle in handles for read in GPU_COLUMNS.values()]
            now = remote()
            told += [now.get(gpu, {}).get(column) for gpu in far for column in GPU_COLUMNS]
            table.writerow([*machine, *told, *engine.values(seconds, prometheus_metrics())])
            file.flush()
