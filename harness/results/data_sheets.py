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


# Cards by NVML's whole name. A MIG slice has another name, so it is not taken for a whole card.
CARDS = {
    name: Card(*map(csv_files.finite_number, rates))  # type: ignore[arg-type]
    for name, *rates in map(dict.values, data_tables.table_beside(__file__, "cards.csv"))
}


def card_of(names: Sequence[str]) -> Card | None:
    """Return the data sheet of these GPUs.

    None if they differ, if there are none, or if their name is not in the table.
    """
    return CARDS.get("".join(set(names)))
