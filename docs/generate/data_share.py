"""How much of a matrix product's speed and energy is its data: a table of what `benchmarks.weight_data` left."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from harness.core.formatting import number
from harness.core.tables import Table

KEPT = Path(__file__).parents[1] / "runs" / "h200-weight-data" / "weight_data.json"
BASE = ("random", "Gaussian")  # weights and activations that the others are compared with
COLUMNS = (
    "format",
    "rows",
    "weights",
    "activations",
    "TFLOP/s",
    "of random, %",
    "SM clock, MHz",
    "W",
    "J per TFLOP",
    "of random, %",
)


@dataclass(frozen=True)
class Product:
    """The products of a layer with one kind of data; `speed` and `energy` are percent above the base's."""

    format: str
    rows: int
    weights: str
    activations: str
    tflops: float
    speed: float
    sm_mhz: float
    watts: float
    joules_per_tflop: float
    energy: float


def products() -> list[Product]:
    """All cases, the base's two measurements of each format and number of rows as their mean."""
    cases = json.loads(KEPT.read_text())["cases"]
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for case in cases:
        key = (case["format"], str(case["rows"]), case["weights"], case["activations"])
        groups.setdefault(key, []).append(case)
    return list(compared(groups))


def compared(groups: dict[tuple[str, ...], list[dict[str, Any]]]) -> Iterator[Product]:
    for (number_format, rows, weights, activations), cases in groups.items():
        base = groups[number_format, rows, *BASE]
        tflops, joules = (mean_of(cases, name) for name in ("tflops", "joules_per_tflop"))
        yield Product(
            number_format,
            int(rows),
            weights,
            activations,
            tflops,
            100 * (tflops / mean_of(base, "tflops") - 1),
            mean_of(cases, "sm_mhz"),
            mean_of(cases, "watts"),
            joules,
            100 * (joules / mean_of(base, "joules_per_tflop") - 1),
        )


def mean_of(cases: Sequence[dict[str, Any]], name: str) -> float:
    return float(mean(case[name] for case in cases))


def table() -> Table:
    rows = [
        [
            product.format,
            number(product.rows),
            product.weights,
            product.activations,
            number(product.tflops),
            f"{product.speed:+.1f}",
            number(product.sm_mhz),
            number(product.watts, 3),
            number(product.joules_per_tflop),
            f"{product.energy:+.1f}",
        ]
        for product in products()
    ]
    return Table(COLUMNS, rows)


def span(measure: str, weights: str, formats: Sequence[str] = ("fp8", "bf16")) -> str:
    """The least and the most of a percentage over activations and rows: +15 to +18."""
    values = [getattr(one, measure) for one in products() if one.weights == weights and one.format in formats]
    return f"{min(values):+.1f} to {max(values):+.1f} %"


def most_between_random_and_trained(measure: str) -> str:
    """The largest distance of trained weights from random ones with the same activations, percentage points."""
    values = {(one.format, one.rows, one.activations, one.weights): getattr(one, measure) for one in products()}
    distances = [abs(value - values[*key[:3], "trained"]) for key, value in values.items() if key[3] == "random"]
    return number(max(distances), 2)
