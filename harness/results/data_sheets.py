"""Peak rates of GPUs from NVIDIA's data sheets, without sparsity."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.core import csv_files, data_tables
from harness.core.formatting import Measured


class Card(NamedTuple):
    """Peak rates of a GPU: dense 16-bit and 8-bit floating point in 10^12 operations/s, memory in 10^12 bytes/s.

    `fp8` is None for a GPU that does not compute in 8 bits.
    """

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
    distinct_names = set(names)
    if len(distinct_names) != 1:
        return None
    return CARDS.get(distinct_names.pop())
