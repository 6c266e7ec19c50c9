"""The machine and the engine while a test runs: one line a second in a CSV file."""

import contextlib
import csv
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness.common.system import ask, cards
from harness.engines import prometheus

# The reasons for which a GPU's clock is held down, as bits of NVML's answer (nvmlClocksEventReasons in nvml.h).
POWER_CAPPED = 0x4 | 0x80  # the power limit in software, a power brake
TOO_HOT = 0x8 | 0x20 | 0x40  # hardware slowdown, thermal slowdown by software and by hardware
SM_CLOCK, MEMORY_CLOCK, GPU_SENSOR = 1, 2, 0
MEMORY_SENSOR = 82  # NVML_FI_DEV_MEMORY_TEMP, a field


def held(nvml: Any, card: Any, reasons: int) -> int:
    """100 while a GPU's clock is held down for one of the reasons, else 0."""
    return 100 if nvml.nvmlDeviceGetCurrentClocksThrottleReasons(card) & reasons else 0


def memory_temperature(nvml: Any, card: Any) -> int:
    """Degrees Celsius. Raises ValueError where the GPU has no such sensor."""
    (field,) = nvml.nvmlDeviceGetFieldValues(card, [MEMORY_SENSOR])
    if field.nvmlReturn:
        raise ValueError("no sensor")
    return int(field.value.uiVal)


GPU_COLUMNS: dict[str, Callable[[Any, Any], float]] = {
    "load_percent": lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).gpu,
    "memory_gib": lambda nvml, card: round(nvml.nvmlDeviceGetMemoryInfo(card).used / 2**30, 2),
    "power_w": lambda nvml, card: round(nvml.nvmlDeviceGetPowerUsage(card) / 1000),
    "clock_mhz": lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, SM_CLOCK),
    "temperature_c": lambda nvml, card: nvml.nvmlDeviceGetTemperature(card, GPU_SENSOR),
    "memory_load_percent": lambda nvml, card: nvml.nvmlDeviceGetUtilizationRates(card).memory,
    "memory_clock_mhz": lambda nvml, card: nvml.nvmlDeviceGetClockInfo(card, MEMORY_CLOCK),
    "memory_temperature_c": lambda nvml, card: memory_temperature(nvml, card),
    "power_capped_percent": lambda nvml, card: held(nvml, card, POWER_CAPPED),
    "too_hot_percent": lambda nvml, card: held(nvml, card, TOO_HOT),
}


def joules(gpus: int | None) -> float | None:
    """The energy that the first visible GPUs (None: all) have taken since their driver was loaded; None where they do
    not report it."""
    with cards() as (nvml, handles):
        energies = [ask(nvml.nvmlDeviceGetTotalEnergyConsumption, card) for card in handles[:gpus]]
    return sum(energies) / 1000 if energies and None not in energies else None


@contextlib.contextmanager
def recording(path: Path, wanted: bool, expose: Callable[[], list[str]], gpus: int | None = None) -> Iterator[None]:
    """Writes one line a second to the CSV file `path` while the block runs, if `wanted`.

    `expose` gives the engine's own metrics, in Prometheus' text format; of the visible GPUs the first count (None:
    all).
    """
    if not wanted:
        yield
        return
    stop = threading.Event()
    recorder = threading.Thread(target=record, args=(path, stop, expose, gpus), daemon=True)
    recorder.start()
    try:
        yield
    finally:
        stop.set()
        recorder.join(timeout=2)


def record(path: Path, stop: threading.Event, expose: Callable[[], list[str]] = list, gpus: int | None = None) -> None:
    """Samples machine and engine until `stop` is set; what one does not tell is left empty."""
    import psutil

    begin, engine = time.monotonic(), prometheus.Reader()
    with path.open("w", newline="") as file, cards() as (nvml, handles):
        table, handles = csv.writer(file), handles[:gpus]
        names = [f"gpu{index}_{column}" for index in range(len(handles)) for column in GPU_COLUMNS]
        columns = [column.name for column in prometheus.COLUMNS]
        table.writerow(["seconds", "cpu_percent", "memory_gib", *names, *columns])
        psutil.cpu_percent()  # which tells of the time since it was last called
        engine.values(0.0, expose())
        while not stop.wait(1.0):
            seconds = time.monotonic() - begin
            machine = [round(seconds, 1), psutil.cpu_percent(), round(psutil.virtual_memory().used / 2**30, 2)]
            told = [ask(partial(read, nvml), card) for card in handles for read in GPU_COLUMNS.values()]
            table.writerow([*machine, *told, *engine.values(seconds, expose())])
            file.flush()
