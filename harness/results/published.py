"""The results that MLPerf has published of this benchmark, rounds 5.1 to 6.1, in samples/s per accelerator."""

import re
from collections.abc import Mapping
from functools import cache
from operator import methodcaller
from typing import Literal, NamedTuple

from harness.core import data_tables
from harness.core.formatting import Measured

Unit = Literal["samples/s", "tokens/s"]
# In the device of a system with several kinds of accelerators: the rate of each kind is not known.
UNLIKE_DEVICES_MARK = " and "
# Names of a card: the driver's, and the one in published results.
ACCELERATORS = {
    "NVIDIA H200": "NVIDIA H200-SXM-141GB",
    "NVIDIA H200 NVL": "NVIDIA H200-NVL-141GB",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100-SXM-80GB",
    "NVIDIA B200": "NVIDIA B200-SXM-180GB",
}
VERSIONS_BY_MODEL = re.compile(r"(?P<name>\w+): .*\bllama3\.1-8b: (?P<version>[^,]+).*")


class Published(NamedTuple):
    """One published result. Its samples and output tokens per second are those of one accelerator; for a system without
    accelerators (`accelerators` 0), of all its processors. None if the result does not give them.
    """

    round: str
    scenario: str
    submitter: str
    device: str
    accelerators: int
    software: str
    weights: str
    samples_per_sec: Measured
    tokens_per_sec: Measured
    source: str

    @property
    def is_vllm(self) -> bool:
        """Tell whether vLLM computed the result. Some results of TensorRT-LLM name vLLM among their software."""
        return "vllm" in self.software.lower() and not self.software.startswith("TensorRT")

    @property
    def share(self) -> str:
        """A note that the rate is a share of the rate of several accelerators; empty for one accelerator or none."""
        if self.accelerators <= 1:
            return ""
        return f"a share of a pool of {self.accelerators}"

    def rate(self, unit: Unit) -> float:
        """Return the rate per accelerator in this unit; 0 if the result does not give it."""
        if unit == "samples/s":
            return self.samples_per_sec or 0.0
        return self.tokens_per_sec or 0.0


@cache
def published() -> tuple[Published, ...]:
    """Return all published results, without those of systems with several kinds of accelerators.

    The rate of each kind is not known for these.
    """
    rows = [as_published(cells) for cells in data_tables.table_beside(__file__, "published.csv")]
    return tuple(row for row in rows if UNLIKE_DEVICES_MARK not in row.device)


def as_published(cells: Mapping[str, str]) -> Published:
    """Return the result in a row of published.csv, with rates per accelerator.

    A system without accelerators has its processor as device.
    """
    count = int(cells["accelerators"] or 0)
    return Published(
        round=cells["round"],
        scenario=cells["scenario"],
        submitter=cells["submitter"],
        device=cells["accelerator"] or maker_spelling(cells["processor"]),
        accelerators=count,
        software=software_of_model(cells["software"]),
        weights=cells["weights"],
        samples_per_sec=rate_of_one(cells["samples_per_sec"], count),
        tokens_per_sec=rate_of_one(cells["tokens_per_sec"], count),
        source=cells["source"],
    )


def software_of_model(software: str) -> str:
    """Return the software of a result without the versions that it names for other models.

    Some systems list a version for each model, as in "PyTorch: rgat: 2.7.0, llama3.1-8b: 2.8.0".
    """
    listed = VERSIONS_BY_MODEL.fullmatch(software)
    if listed is None:
        return software
    return f"{listed['name']} {listed['version']}"


def rate_of_one(cell: str, accelerators: int) -> Measured:
    """Return the rate per accelerator from a cell with the rate of the whole system; None for an empty cell."""
    if not cell:
        return None
    if not accelerators:  # The processor computes, so the system counts as a whole.
        return float(cell)
    return float(cell) / accelerators


def maker_spelling(processor: str) -> str:
    """Return the maker's spelling of a processor's name. Systems spell it in different ways."""
    return re.sub(r"(?i)intel(?:\(r\))? xeon(?:\(r\))?", "Intel Xeon", processor)


def results_of(scenario: str, unit: Unit = "samples/s", on_cpu: bool = False) -> list[Published]:
    """Return the published results of a scenario that have a rate in this unit, fastest first.

    `on_cpu` asks for systems without accelerators; else only those with accelerators are returned.
    """
    matching = []
    for result in published():
        is_on_cpu = not result.accelerators
        if result.scenario == scenario and is_on_cpu == on_cpu and result.rate(unit):
            matching.append(result)
    return sorted(matching, key=methodcaller("rate", unit), reverse=True)
