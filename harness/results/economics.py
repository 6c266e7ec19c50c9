"""What a measured rate costs, how near it is to what the hardware can do, and the published results."""

import re
from functools import cache
from typing import Any, Literal, NamedTuple

from pydantic import AliasChoices, Field

from harness.config import mlperf, models
from harness.config.models import SHAPE
from harness.config.plan import Plan
from harness.core import csv_files, data_tables
from harness.core.schema import Measured, Model
from harness.loadgen.outcome import Capacity, Cost, RunFacts
from harness.loadgen.test_run import TestRun


# How close an Offline test was to what its GPUs can do: the share of their arithmetic and of their memory bandwidth.
#
# Arithmetic: two operations for each weight of the linear layers and token, input and output; the output layer for
# output tokens alone; and attention, four operations for each layer, hidden dimension and earlier token. Bandwidth,
# from below: each output token reads the attention cache of all tokens before it, and each step of the engine reads the
# weights, of which there are at least as many as output tokens, divided by the requests that can be computed at once.
class Card(NamedTuple):
    """Peak rates of a GPU: dense 16-bit and 8-bit floating point, 10^12 operations/s; memory, 10^12 bytes/s."""

    bf16: float
    fp8: Measured
    memory: float


# By NVML's whole name, so that a MIG slice is none; from NVIDIA's data sheets, without sparsity.
CARDS = {
    name: Card(*map(csv_files.finite, rates))  # type: ignore[arg-type]
    for name, *rates in map(dict.values, data_tables.table_beside(__file__, "cards.csv"))
}
LAYERS, HIDDEN = SHAPE["num_hidden_layers"], SHAPE["hidden_size"]
KV_SIZE = SHAPE["num_key_value_heads"] * (HIDDEN // SHAPE["num_attention_heads"])
KV_VALUES = 2 * LAYERS * KV_SIZE  # of a token
LINEAR = LAYERS * HIDDEN * (2 * HIDDEN + 2 * KV_SIZE + 3 * SHAPE["intermediate_size"])
OUTPUT_LAYER = SHAPE["vocab_size"] * HIDDEN


class Economics(Model):
    """What the rate costs, and how close it is to what the hardware can do."""

    joules_per_output_token: Measured = None
    """`gpu_joules` over the output tokens."""
    cost: Cost | None = None
    capacity: Capacity | None = None
    mfu_percent: Measured = Field(default=None, validation_alias=AliasChoices("mfu_percent", "arithmetic_percent"))
    """Model FLOPs utilization: Offline, of the GPUs' peak; null where the model or the GPU is not known."""
    mbu_percent: Measured = Field(default=None, validation_alias=AliasChoices("mbu_percent", "bandwidth_percent"))
    """Model bandwidth utilization: at least this share of the GPUs' memory bandwidth; null as for MFU."""

    @staticmethod
    def of(test: TestRun, facts: RunFacts) -> dict[str, Any]:
        plan, log, counted, total = facts.plan, test.result, test.counted_result, test.total_tokens_per_sec
        here = plan.config.may_see_gpus and not plan.config.has_other_hosts
        joules = test.machine.gpu_joules if here else None
        arithmetic, bandwidth = peak_shares(test, facts) or (None, None)
        if (part := test.window) and part.requests:  # the result of a fixed concurrency is without its ramps
            total = part.total_tokens_per_sec
        return dict(
            joules_per_output_token=joules / test.total_new_tokens if joules and test.total_new_tokens else None,
            cost=cost(plan.config.price_per_hour, counted.tokens_per_sec, total, counted.samples_per_sec),
            capacity=capacity(plan, log.samples_per_sec) if log.valid or not plan.pattern.is_rated else None,
            mfu_percent=arithmetic,
            mbu_percent=bandwidth,
        )


def peak_shares(test: TestRun, facts: RunFacts) -> tuple[float, float] | None:
    """Percent of the arithmetic, and at least so many of the bandwidth, of an Offline test of the reference model, all
    of it computed as the formula has it, on the GPUs of this host; else None, as on a card that is not known here."""
    plan, engine_state, seconds = facts.plan, facts.plan.engine_state, test.result.duration_s
    if not (facts.concurrency and seconds and test.answered and plan.reference_model) or test.result.ttft_ms:
        return None
    is_other = plan.config.has_other_hosts or plan.config.precision == "fp32" or engine_state.speculation
    if is_other or engine_state.prefix_caching is not False:
        return None
    model = plan.config.model
    is_known = model in models.QUANTIZED or models.made_of(model)  # another checkpoint may have any number of bits
    bits = {"none": 16, "fp8": 8}.get(engine_state.quantization, 8 if is_known else 0)  # of the linear layers
    gpus = facts.system.gpus[: plan.tensor_parallel_size * plan.data_parallel_size]
    card = CARDS.get("".join(set(gpus)))  # none of unlike GPUs
    peak = {16: card.bf16, 8: card.fp8}.get(bits) if card else None
    if not (card and peak):
        return None
    whole = 1e12 * len(gpus) * seconds / 100
    pairs = [(each.prompt_tokens, each.output_tokens) for each in test.answered]
    new = sum(wrote for _, wrote in pairs)
    attention = 4 * LAYERS * HIDDEN * sum(sum(pair) ** 2 / 2 for pair in pairs)
    operations = 2 * LINEAR * sum(map(sum, pairs)) + 2 * OUTPUT_LAYER * new + attention
    earlier = sum(wrote * (read + wrote / 2) for read, wrote in pairs)
    weights = LINEAR * bits / 8 + 2 * OUTPUT_LAYER
    steps, kv_bytes = new / facts.concurrency, 1 if engine_state.kv_cache_dtype.startswith("fp8") else 2
    bytes_read = KV_VALUES * kv_bytes * earlier + plan.data_parallel_size * steps * weights
    return operations / (peak * whole), bytes_read / (card.memory * whole)


def capacity(plan: Plan, rate: Measured) -> Capacity | None:
    """Cost and energy at a rate of samples/s; for MLPerf's whole set where the samples were MLPerf's."""
    if not rate:
        return None
    other = plan.request_set or plan.config.model_spec.deviation or plan.max_new_tokens != mlperf.MAX_NEW_TOKENS
    full = plan.config.official_samples / rate if plan.official_data and not other else None
    return Capacity(requests_per_hour=3600 * rate, requests_per_day=86400 * rate, full_set_s=full)


def cost(price_per_hour: Measured, output: Measured, total: Measured, rate: Measured) -> Cost | None:
    """What a machine at this price an hour takes for its tokens and requests; rates are per second."""
    if price_per_hour is None:
        return None
    second = price_per_hour / 3600
    return Cost(
        price_per_hour=price_per_hour,
        per_million_output_tokens=1e6 * second / output if output else None,
        per_million_tokens=1e6 * second / total if total else None,
        per_thousand_requests=1e3 * second / rate if rate else None,
    )


# What MLPerf has published of this benchmark (rounds 5.1 to 6.1): points in samples/s per accelerator.
Unit = Literal["samples/s", "tokens/s"]
SEVERAL = " and "  # in the name of a system of unlike accelerators, of which none has a share
# What a driver calls a card, and what published results call it.
ACCELERATORS = {
    "NVIDIA H200": "NVIDIA H200-SXM-141GB",
    "NVIDIA H200 NVL": "NVIDIA H200-NVL-141GB",
    "NVIDIA H100 80GB HBM3": "NVIDIA H100-SXM-80GB",
    "NVIDIA B200": "NVIDIA B200-SXM-180GB",
}


class Published(NamedTuple):
    """One published result: a second's samples and output tokens of one of its accelerators, of a system without any
    of all its processors (`accelerators` 0); None where it does not give them."""

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
        """Of what a rate is the share, in words: eight accelerators stand behind one balancer."""
        return f"a share of a pool of {self.accelerators}" if self.accelerators > 1 else ""

    def rate(self, unit: Unit) -> float:
        return (self.samples_per_sec if unit == "samples/s" else self.tokens_per_sec) or 0.0


@cache
def published() -> tuple[Published, ...]:
    """Every row of accelerators of one kind, or of none."""
    found = []
    for cells in data_tables.table_beside(__file__, "published.csv"):
        count, name = int(cells["accelerators"] or 0), cells["accelerator"] or as_marked(cells["processor"])
        if SEVERAL not in name:
            own: dict[str, Any] = {name: cells.get(name) for name in Published._fields}
            for rate in ("samples_per_sec", "tokens_per_sec"):
                own[rate] = float(cells[rate]) / max(1, count) if cells[rate] else None
            found.append(Published(**own | {"device": name, "accelerators": count}))
    return tuple(found)


def as_marked(processor: str) -> str:
    """A processor as its maker writes it, whichever way a system does."""
    return re.sub(r"(?i)intel(?:\(r\))? xeon(?:\(r\))?", "Intel Xeon", processor)


def results_of(scenario: str, unit: Unit = "samples/s", on_cpu: bool = False) -> list[Published]:
    """The results of a scenario, as MLPerf writes it, that give this unit; the fastest first."""
    found = [each for each in published() if each.scenario == scenario and (not each.accelerators) == on_cpu]
    return sorted((each for each in found if each.rate(unit)), key=lambda each: each.rate(unit), reverse=True)
