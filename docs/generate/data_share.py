"""The table of how much data changes the speed and energy of matrix products, from the file that
`benchmarks.weight_data` wrote.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, Literal, NamedTuple

from harness.core.formatting import number
from harness.core.tables import Table

MEASUREMENTS = Path(__file__).parents[1] / "runs" / "h200-weight-data" / "weight_data.json"
BASE = ("random", "Gaussian")  # the weights and activations with which all others are compared
Measure = Literal["speed", "energy"]
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
    """The products of a layer with one kind of data; `speed` and `energy` are percent above those of the base."""

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


class CaseKey(NamedTuple):
    """What tells cases apart."""

    format: str
    rows: int
    weights: str
    activations: str


Measurement = Mapping[str, Any]  # an entry of the file's "cases"


def products() -> list[Product]:
    """Return all cases. One that was measured several times, as the base was, has the means of its measurements."""
    measurements: dict[CaseKey, list[Measurement]] = {}
    for case in json.loads(MEASUREMENTS.read_text())["cases"]:
        key = CaseKey(case["format"], case["rows"], case["weights"], case["activations"])
        measurements.setdefault(key, []).append(case)
    return [product_of(key, measurements) for key in measurements]


def product_of(key: CaseKey, measurements: Mapping[CaseKey, Sequence[Measurement]]) -> Product:
    cases = measurements[key]
    base_cases = measurements[CaseKey(key.format, key.rows, *BASE)]
    tflops, joules = mean_of(cases, "tflops"), mean_of(cases, "joules_per_tflop")
    return Product(
        format=key.format,
        rows=key.rows,
        weights=key.weights,
        activations=key.activations,
        tflops=tflops,
        speed=100 * (tflops / mean_of(base_cases, "tflops") - 1),
        sm_mhz=mean_of(cases, "sm_mhz"),
        watts=mean_of(cases, "watts"),
        joules_per_tflop=joules,
        energy=100 * (joules / mean_of(base_cases, "joules_per_tflop") - 1),
    )


def mean_of(cases: Sequence[Measurement], name: str) -> float:
    return float(mean(case[name] for case in cases))


def table() -> Table:
    return Table(COLUMNS, [table_row(product) for product in products()])


def table_row(product: Product) -> list[str]:
    return [
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


def span(measure: Measure, weights: str, formats: Sequence[str] = ("fp8", "bf16")) -> str:
    """Return the range of a measure over activations and numbers of rows, such as "+15.2 to +18.0 %"."""
    values = [
        getattr(product, measure) for product in products() if product.weights == weights and product.format in formats
    ]
    return f"{min(values):+.1f} to {max(values):+.1f} %"


def most_between_random_and_trained(measure: Measure) -> str:
    """Return the largest difference between random and trained weights with equal activations, in percentage points."""
    values = {}
    for product in products():
        key = CaseKey(product.format, product.rows, product.weights, product.activations)
        values[key] = getattr(product, measure)
    differences = []
    for key, value in values.items():
        if key.weights == "random":
            trained_value = values[key._replace(weights="trained")]
            differences.append(abs(value - trained_value))
    return number(max(differences), 2)
