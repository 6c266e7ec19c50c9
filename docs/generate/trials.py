"""The table of everything that was tried on a card, from the kept runs: a change, and the runs without and with it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import mean

from harness.core.formatting import Measured, number
from harness.core.tables import Table
from harness.results.outcome import Outcome
from harness.results.summary import Summary

PRODUCTS = Path(__file__).parents[1] / "runs" / "h200-products" / "products.json"
SHAPES = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336)}
Reader = Callable[[str], Summary]  # the summary of a kept run, by its folder's name


@dataclass(frozen=True)
class Trial:
    """One change: the kept runs without it and with it, which were one card's, and what became of it."""

    change: str
    without: Sequence[str]
    with_it: Sequence[str]
    outcome: str


PATCH = "a patch"
NOTHING = "nothing"
BELOW = "below 3 % in samples/s"
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
        NOTHING,
    ),
    Trial(
        "the KV cache written by Triton's kernel",
        ["off-3000-kv-vllm-vllm032", "off-3000-kv-vllm-again-vllm032"],
        ["off-3000-kv-triton-vllm032"],
        NOTHING,
    ),
    Trial(
        "`lm_head` in fp8",
        ["off-3000-head-bf16-profile-vllm032", "off-3000-head-bf16-again-vllm032"],
        ["off-3000-head-fp8-vllm032"],
        NOTHING,
    ),
    Trial("a single row by Triton", SINGLES, ["single-both-row-vllm032"], PATCH),
    Trial("a single row by Triton, before it was a patch", OTHER_HOST, ["single-both-row-host2-vllm032"], PATCH),
    Trial("the same without dependent launch", OTHER_HOST, ["single-both-gemv-host2-vllm032"], "slower"),
    Trial("dependent launch of Inductor's kernels alone", OTHER_HOST, ["single-both-pdl-host2-vllm032"], NOTHING),
    Trial("the KV cache written by Triton's kernel", SINGLES, ["single-both-kv-triton-vllm032"], BELOW),
    Trial("`lm_head` in fp8", SINGLES, ["single-both-head-fp8-turn-vllm032"], BELOW),
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
    "samples/s": lambda measures: measures.samples_per_sec,
    "TPOT p50, ms": lambda measures: measures.tpot_ms,
    "J per token": lambda measures: measures.joules_per_token,
}
COLUMNS = ["change", "test", "runs", *QUANTITIES, "what came of it", "day and host"]
MOST_DIGITS = 4


def mean_of(values: Sequence[Measured]) -> Measured:
    """The mean, None where one of the runs has no such value."""
    known = [value for value in values if value is not None]
    return mean(known) if known and len(known) == len(values) else None


def trial_table(read: Reader) -> Table:
    """A row for each trial: the means without and with the change, and the difference in percent."""
    return Table(COLUMNS, [trial_row(trial, read) for trial in TRIALS])


def trial_row(trial: Trial, read: Reader) -> list[str]:
    without, with_it = (Measures([read(name) for name in names]) for names in (trial.without, trial.with_it))
    (test,) = {outcome.details.scenario for outcome in (*without.tests, *with_it.tests)}
    hosts = sorted({host_of(summary) for summary in (*without.summaries, *with_it.summaries)})
    return [
        trial.change,
        SCENARIO_NAMES[test],
        f"{len(without.tests)}, {len(with_it.tests)}",
        *(compared(quantity(without), quantity(with_it)) for quantity in QUANTITIES.values()),
        trial.outcome,
        " and ".join(hosts),
    ]


def host_of(summary: Summary) -> str:
    """The day of a run, and what its host is known by: the processor's cores that it had."""
    return f"{summary.meta.started[:10]}, {summary.system.cores} cores"


SCENARIO_NAMES = {"offline": "Offline", "singlestream": "SingleStream", "interactive": "Interactive"}


def compared(before: Measured, after: Measured) -> str:
    """Two means and the change from one to the other in percent."""
    if before is None or after is None:
        return "–"
    change = 100 * (after / before - 1)
    return f"{number(before, MOST_DIGITS)}, {number(after, MOST_DIGITS)} ({change:+.1f} %)"


def spread_percent(values: Sequence[Measured]) -> str:
    """How far the largest is above the smallest, percent."""
    known = [value for value in values if value is not None]
    return number(100 * (max(known) / min(known) - 1), 2)


def fastest_algorithms() -> str:
    """How far cuBLASLt's fastest algorithm is ahead of torch's choice in a layer's products, by the number of rows."""
    products = json.loads(PRODUCTS.read_text())["products"]
    gains = []
    for rows in sorted({product["m"] for product in products}):
        chosen = fastest = 0.0
        for product in products:
            if product["m"] != rows:
                continue
            height, width = SHAPES[product["product"]]
            speeds = {name: held[0] for name, held in product["held_tflops_mhz"].items()}
            algorithms = [speed for name, speed in speeds.items() if name.startswith(("algo", "of"))]
            chosen += height * width / speeds["torch fast"]
            fastest += height * width / max(algorithms)
        gains.append(f"{number(100 * (chosen / fastest - 1), 2)} % at {number(rows)}")
    return ", ".join(gains)
