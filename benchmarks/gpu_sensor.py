"""A GPU's clock, energy and temperature while a benchmark runs, as NVML reports them."""

import threading
import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

SAMPLE_S = 0.02  # between two readings


@dataclass(frozen=True)
class Reading:
    """What NVML reported at one time of `time.perf_counter`. The energy counts from when the driver was loaded."""

    at: float
    sm_mhz: float
    joules: float
    celsius: float


class Sensor:
    """Reads the first GPU in a thread. Without a GPU or NVML, there are no readings."""

    def __init__(self, device: str) -> None:
        self.readings: list[Reading] = []
        self.handle: Any = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        if device == "cuda":
            try:
                import pynvml

                pynvml.nvmlInit()
                uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}"
                self.nvml, self.handle = pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
            except Exception as error:  # An image may lack the library, and a driver may refuse.
                print(f"no clock and no energy: {error}")

    def __enter__(self) -> "Sensor":
        if self.handle:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()

    def _sample(self) -> None:
        nvml, handle = self.nvml, self.handle
        while not self._stop.wait(SAMPLE_S):
            joules = nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3
            clock = nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)
            celsius = nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)
            self.readings.append(Reading(time.perf_counter(), clock, joules, celsius))


def mean_power(readings: list[Reading]) -> float | None:
    """Return the mean power in watts, or None if the counter of energy changed less than twice.

    The counter changes less often than it is read, so the power is that between its first and its last change.
    """
    changes = [reading for before, reading in pairwise(readings) if reading.joules != before.joules]
    if len(changes) < 2:
        return None
    first, last = changes[0], changes[-1]
    return (last.joules - first.joules) / (last.at - first.at)
