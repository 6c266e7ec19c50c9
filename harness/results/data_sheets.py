"""Peak rates of GPUs from NVIDIA's data sheets, without sparsity."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.core import csv_files, data_tables
from harness.core.formatting import Measured


class Card(NamedTuple):
    """Peak rates of a GPU: dense 16-bit and 8-bit floating point, 10^12 operations/s; memory, 10^12 bytes/s."""

    bf16: float
    fp8: Measured
    memory: float


# Cards by NVML's whole name, so that a MIG slice is none.
CARDS = {
    name: Card(*map(csv_files.finite, rates))  # type: ignore[arg-type]
    for name, *rates in map(dict.values, data_tables.table_beside(__file__, "cards.csv"))
}


def card_of(names: Sequence[str]) -> Card | None:
    """The card that all these GPUs are; None of unlike GPUs, of one that is not in the table, and of none."""
    return CARDS.get("".join(set(names)))
