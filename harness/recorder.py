"""The machine while a test runs: one line a second in a CSV file."""

import contextlib
import csv
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from harness.system import ask, cards


def joules() -> float | None:
    """The energy that the visible GPUs have taken since their driver was loaded; None where they do not report it."""
    with cards() as (nvml, handles):
        known = [ask(nvml.nvmlDeviceGetTotalEnergyConsumption, card) for card in handles]
    return sum(known) / 1000 if known and None not in known else None


GPU_COLUMNS = ("load_percent", "memory_gib", "power_w")


@contextlib.contextmanager
def recording(path: Path, wanted: bool) -> Iterator[None]:
    """Writes one line a second to the CSV file `path` while the block runs, if `wanted`: load, memory and power."""
    if not wanted:
        yield
        return
    stop = threading.Event()
    recorder = threading.Thread(target=record, args=(path, stop), daemon=True)
    recorder.start()
    try:
        yield
    finally:
        stop.set()
        recorder.join(timeout=2)


def record(path: Path, stop: threading.Event) -> None:
    """Samples the machine until `stop` is set; what a GPU does not tell is left empty."""
    import psutil

    begin = time.monotonic()
    with path.open("w", newline="") as file, cards() as (nvml, handles):
        table = csv.writer(file)
        names = [f"gpu{index}_{column}" for index in range(len(handles)) for column in GPU_COLUMNS]
        table.writerow(["seconds", "cpu_percent", "memory_gib", *names])
        psutil.cpu_percent()  # which tells of the time since it was last called
        while not stop.wait(1.0):
            row = [round(time.monotonic() - begin, 1), psutil.cpu_percent()]
            row.append(round(psutil.virtual_memory().used / 2**30, 2))
            for card in handles:
                load = ask(nvml.nvmlDeviceGetUtilizationRates, card)
                memory = ask(nvml.nvmlDeviceGetMemoryInfo, card)
                power = ask(nvml.nvmlDeviceGetPowerUsage, card)
                row.append(load.gpu if load else None)
                row.append(round(memory.used / 2**30, 2) if memory else None)
                row.append(round(power / 1000) if power else None)
            table.writerow(row)
            file.flush()
