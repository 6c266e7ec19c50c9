"""What MLPerf has published of this benchmark (rounds 5.1 to 6.1): points in samples/s per accelerator.

Samples, since a harness counts 128 or 129 tokens of the same answer. The source of each row stands in the file.
"""

import csv
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from harness.core import errors, reading

FILE = Path(__file__).with_suffix(".csv")
SEVERAL = " and "  # in the name of a system of unlike accelerators, of which none has a share
# What a driver calls a card, and what published results call it.
ACCELERATORS = {
    "NVIDIA H200": "NVIDIA H200-SXM-141GB",
    "NVIDIA H200 NVL": "NVIDIA H200-NVL-141GB",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100-SXM-80GB",
    "NVIDIA B200": "NVIDIA B200-SXM-180GB",
    "NVIDIA L40S": "NVIDIA L40S",
}


class Published(NamedTuple):
    """One published result: samples/s of one of its accelerators."""

    round: str
    scenario: str
    submitter: str
    accelerator: str
    accelerators: int
    software: str
    weights: str
    samples_per_sec: float
    source: str

    @property
    def is_vllm(self) -> bool:
        return "vllm" in self.software.lower() and not self.software.startswith("TensorRT")


@cache
def published() -> tuple[Published, ...]:
    """Every row that has samples/s and accelerators of one kind."""
    found = []
    with reading.open_regular(FILE) as file:
        for cells in csv.DictReader(file):
            rate, count, name = cells["samples_per_sec"], cells["accelerators"], cells["accelerator"]
            if rate and count and name and SEVERAL not in name:
                own: dict[str, Any] = {name: cells[name] for name in Published._fields}
                own |= {"accelerators": int(count), "samples_per_sec": float(rate) / int(count)}
                found.append(Published(**own))
    return tuple(found)


def results_of(scenario: str) -> list[Published]:
    """The results of a scenario, as MLPerf writes it; the fastest first."""
    found = [each for each in published() if each.scenario == scenario]
    return sorted(found, key=lambda each: each.samples_per_sec, reverse=True)


def points(scenario: str, accelerator: str) -> list[Published]:
    """Those on a kind of accelerator, as a driver or MLPerf calls it."""
    name = ACCELERATORS.get(accelerator, accelerator)
    return [each for each in results_of(scenario) if each.accelerator == name]


def fastest(scenario: str, accelerator: str) -> Published:
    """The first of them. Raises UsageError where there is none."""
    if found := points(scenario, accelerator):
        return found[0]
    there = ", ".join(sorted({each.accelerator for each in results_of(scenario)})) or "none"
    raise errors.UsageError(f"no {scenario} result is published for {accelerator!r}; known accelerators: {there}")
