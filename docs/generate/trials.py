"""The table of everything that was tried on a card, from the runs in docs/runs: a change, and the runs without and with
it.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from pathlib import Path
from statistics import mean
from typing import Any

from harness.core.formatting import Measured, number
from harness.core.tables import Table
from harness.results.outcome import Outcome
from harness.results.summary import Summary

PRODUCTS = Path(__file__).parents[1] / "runs" / "h200-products" / "products.json"
# Rows and columns of the weights of each matrix product of a layer.
SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
ALGORITHM_PREFIXES = ("algo", "of")  # of the names of cuBLASLt's algorithms in products.json
SummaryReader = Callable[[str], Summary]  # returns the summary of a run, by the name of its folder


@dataclass(frozen=True)
class Trial:
    """One change: the runs without it and with it, on one card, and what came of it."""

    change: str
    without: Sequence[str]
    with_it: Sequence[str]
    outcome: str


# What came of a change.
PATCH = "a patch"
NO_EFFECT = "nothing"
SMALL_EFFECT = "below 3 % in samples/s"

# Equal runs, from which the scatter follows.
TURNS = tuple(f"off-3000-both-turn-{turn}-vllm032" for turn in range(1, 5))
SINGLES = tuple(f"single-both-turn-{turn}-vllm032" for turn in (1, 2))
OTHER_HOST = ("single-both-host2-vllm032",)
TRIALS = (
    Trial("fast accumulation", ["off-3000-base-vllm032"], ["off-3000-fast-vllm032"], PATCH),
    Trial(
        "activation by Inductor, beside fast accumulation",
        ["off-3000-fast-vllm032"],
        ["off-3000-both-vllm032", "off-3000-both-again-vllm032"],
        PATCH,
    ),
    Trial(
        "cuBLASLt's algorithms by FlashInfer's tuner",
        TURNS,
        [f"off-3000-cublaslt-turn-{turn}-vllm032" for turn in (1, 2, 3)],
        NO_EFFECT,
    ),
    Trial(
        "the KV cache written by Triton's kernel",
        ["off-3000-kv-vllm-vllm032", "off-3000-kv-vllm-again-vllm032"],
        ["off-3000-kv-triton-vllm032"],
        NO_EFFECT,
    ),
    Trial(
        "`lm_head` in fp8",
        ["off-3000-head-bf16-profile-vllm032", "off-3000-head-bf16-again-vllm032"],
        ["off-3000-head-fp8-vllm032"],
        NO_EFFECT,
    ),
    Trial("a single row by Triton", SINGLES, ["single-both-row-vllm032"], PATCH),
    Trial("a single row by Triton, before it was a patch", OTHER_HOST, ["single-both-row-host2-vllm032"], PATCH),
    Trial("the same without dependent launch", OTHER_HOST, ["single-both-gemv-host2-vllm032"], "slower"),
    Trial("dependent launch of Inductor's kernels alone", OTHER_HOST, ["single-both-pdl-host2-vllm032"], NO_EFFECT),
    Trial("the KV cache written by Triton's kernel", SINGLES, ["single-both-kv-triton-vllm032"], SMALL_EFFECT),
    Trial("`lm_head` in fp8", SINGLES, ["single-both-head-fp8-turn-vllm032"], SMALL_EFFECT),
    Trial(
        "a graph compiled for one token, `compile_sizes` [1]", SINGLES, ["single-both-compiled-vllm032"], "much slower"
    ),
    Trial(
        "KV cache by Triton and `lm_head` in fp8, beside the single row",
        ["single-both-row-vllm032"],
        ["single-both-row-kv-head-vllm032"],
        "slower",
    ),
    Trial(
        "FlashAttention 3 with full CUDA graphs",
        ["interactive-50-flashinfer-vllm032"],
        ["interactive-50-fa3-full-vllm032"],
        "more energy",
    ),
    Trial(
        "FlashAttention 3 with full CUDA graphs, another card",
        ["interactive-50-flashinfer-again-vllm032"],
        ["interactive-50-fa3-full-again-vllm032"],
        "more energy",
    ),
)


@dataclass(frozen=True)
class Measures:
    """The summaries of one side of a trial, and their means."""

    summaries: Sequence[Summary]

    @cached_property
    def tests(self) -> list[Outcome]:
        return [summary.run.performance for summary in self.summaries if summary.run.performance]

    @property
    def samples_per_sec(self) -> Measured:
        return mean_of([test.samples_per_sec for test in self.tests])

    @property
    def tpot_ms(self) -> Measured:
        return mean_of([test.tpot_ms.p50 for test in self.tests])

    @property
    def joules_per_token(self) -> Measured:
        return mean_of([test.joules_per_output_token for test in self.tests])


QUANTITIES: dict[str, Callable[[Measures], Measured]] = {
    "samples/s": attrgetter("samples_per_sec"),
    "TPOT p50, ms": attrgetter("tpot_ms"),
    "J per token": attrgetter("joules_per_token"),
}
COLUMNS = ["change", "test", "runs", *QUANTITIES, "what came of it", "day and host"]
DIGITS = 4  # significant digits of a mean
SCENARIO_NAMES = {"offline": "Offline", "singlestream": "SingleStream", "interactive": "Interactive"}


def mean_of(values: Sequence[Measured]) -> Measured:
    """Return the mean, or None if one of the runs has no such value."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def trial_table(read_summary: SummaryReader) -> Table:
    """Return the trials with the means without and with the change, and the difference in percent."""
    return Table(COLUMNS, [trial_row(trial, read_summary) for trial in TRIALS])


def trial_row(trial: Trial, read_summary: SummaryReader) -> list[str]:
    """Return the row of a trial. Fails if its runs are not of one scenario."""
    without = Measures([read_summary(name) for name in trial.without])
    with_it = Measures([read_summary(name) for name in trial.with_it])
    (scenario,) = {test.details.scenario for test in (*without.tests, *with_it.tests)}
    hosts = {day_and_host(summary) for summary in (*without.summaries, *with_it.summaries)}
    changes = [change_text(quantity(without), quantity(with_it)) for quantity in QUANTITIES.values()]
    return [
        trial.change,
        SCENARIO_NAMES[scenario],
        f"{len(without.tests)}, {len(with_it.tests)}",
        *changes,
        trial.outcome,
        " and ".join(sorted(hosts)),
    ]


def day_and_host(summary: Summary) -> str:
    """Return the day of a run, and the number of the host's cores, by which hosts are told apart."""
    return f"{summary.meta.started[:10]}, {summary.system.cores} cores"


def change_text(before: Measured, after: Measured) -> str:
    """Return two means, and the change from one to the other in percent. A dash if one is not known."""
    if before is None or after is None:
        return "–"
    change = 100 * (after / before - 1)
    return f"{number(before, DIGITS)}, {number(after, DIGITS)} ({change:+.1f} %)"


def spread_percent(values: Sequence[Measured]) -> str:
    """Return how far the largest value is above the smallest, in percent."""
    known = [value for value in values if value is not None]
    return number(100 * (max(known) / min(known) - 1), 2)


def fastest_algorithms() -> str:
    """Return how far cuBLASLt's fastest algorithms are ahead of torch's choice in a layer, by the number of rows."""
    products = json.loads(PRODUCTS.read_text())["products"]
    gains = []
    for rows in sorted({product["m"] for product in products}):
        products_of_rows = [product for product in products if product["m"] == rows]
        gain = algorithm_gain(products_of_rows)
        gains.append(f"{number(100 * gain, 2)} % at {number(rows)}")
    return ", ".join(gains)


def algorithm_gain(products: Sequence[Mapping[str, Any]]) -> float:
    """Return how far the fastest algorithm of each product is ahead of torch's choice in a layer, as a share.

    `products` are those of a layer with one number of rows, each with the speeds of all algorithms that were measured.
    """
    torch_time = fastest_time = 0.0  # of a layer, in a unit that cancels out
    for product in products:
        height, width = SHAPES[product["product"]]
        speeds = {name: measures[0] for name, measures in product["held_tflops_mhz"].items()}  # TFLOP/s
        algorithm_speeds = [speed for name, speed in speeds.items() if name.startswith(ALGORITHM_PREFIXES)]
        torch_time += height * width / speeds["torch fast"]
        fastest_time += height * width / max(algorithm_speeds)
    return torch_time / fastest_time - 1
