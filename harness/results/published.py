"""The results that MLPerf has published of this benchmark, rounds 5.1 to 6.1, in samples/s per accelerator."""

import re
from functools import cache
from typing import Any, Literal, NamedTuple

from harness.core import data_tables
from harness.core.formatting import Measured

# The results that MLPerf has published of this benchmark (rounds 5.1 to 6.1): points in samples/s per accelerator.
Unit = Literal["samples/s", "tokens/s"]
SEVERAL = " and "  # in the name of a system of unlike accelerators, of which none has a share
# Names of a card: the driver's, and the one in published results.
ACCELERATORS = {
    "NVIDIA H200": "NVIDIA H200-SXM-141GB",
    "NVIDIA H200 NVL": "NVIDIA H200-NVL-141GB",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100-SXM-80GB",
    "NVIDIA B200": "NVIDIA B200-SXM-180GB",
}


class Published(NamedTuple):
    """One published result: a second's samples and output tokens of one of its accelerators, of a system without any
    of all its processors (`accelerators` 0); None where it does not give them.
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
        return "vllm" in self.software.lower() and not self.software.startswith("TensorRT")

    @property
    def share(self) -> str:
        """The machine of which a rate is a share, in words: eight accelerators stand behind one balancer."""
        return f"a share of a pool of {self.accelerators}" if self.accelerators > 1 else ""

    def rate(self, unit: Unit) -> float:
        return (self.samples_per_sec if unit == "samples/s" else self.tokens_per_sec) or 0.0


@cache
def published() -> tuple[Published, ...]:
    """Every row of accelerators of one kind, or of none."""
    rows = []
    for cells in data_tables.table_beside(__file__, "published.csv"):
        count, name = int(cells["accelerators"] or 0), cells["accelerator"] or as_marked(cells["processor"])
        if SEVERAL not in name:
            cells_of_row: dict[str, Any] = {name: cells.get(name) for name in Published._fields}
            for rate in ("samples_per_sec", "tokens_per_sec"):
                cells_of_row[rate] = float(cells[rate]) / max(1, count) if cells[rate] else None
            rows.append(Published(**cells_of_row | {"device": name, "accelerators": count}))
    return tuple(rows)


def as_marked(processor: str) -> str:
    """A processor as its maker writes it, whichever way a system does."""
    return re.sub(r"(?i)intel(?:\(r\))? xeon(?:\(r\))?", "Intel Xeon", processor)


def results_of(scenario: str, unit: Unit = "samples/s", on_cpu: bool = False) -> list[Published]:
    """The results of a scenario, as MLPerf writes it, that give this unit; the fastest first."""
    matching = [result for result in published() if result.scenario == scenario and (not result.accelerators) == on_cpu]
    return sorted(
        (result for result in matching if result.rate(unit)), key=lambda result: result.rate(unit), reverse=True
    )
