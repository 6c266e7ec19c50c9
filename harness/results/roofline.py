"""How close an Offline test was to what its GPUs can do: the share of their arithmetic and of their memory bandwidth.

Arithmetic: two operations for each weight of the linear layers and token, input and output; the output layer for
output tokens alone; and attention, four operations for each layer, hidden dimension and earlier token. Bandwidth, from
below: each output token reads the attention cache of all tokens before it, and each step of the engine reads the
weights, of which there are at least as many as output tokens, divided by the requests that can be computed at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.config.models import SHAPE


@dataclass(frozen=True)
class Card:
    """Peak rates of a GPU: dense 16-bit and 8-bit floating point, 10^12 operations/s; memory, 10^12 bytes/s."""

    bf16: float
    fp8: float | None
    memory: float


CARDS = {  # by NVML's whole name, so that a MIG slice is none; from NVIDIA's data sheets, without sparsity
    "NVIDIA GB200": Card(2500, 5000, 8.0),
    "NVIDIA B200": Card(2250, 4500, 8.0),
    "NVIDIA GH200 144G HBM3e": Card(989.5, 1979, 4.9),
    "NVIDIA GH200 480GB": Card(989.5, 1979, 4.0),
    "NVIDIA H200 NVL": Card(835.5, 1671, 4.8),
    "NVIDIA H200": Card(989.5, 1979, 4.8),
    "NVIDIA H100 PCIe": Card(756, 1513, 2.0),
    "NVIDIA H100 NVL": Card(835.5, 1671, 3.9),
    "NVIDIA H100 80GB HBM3": Card(989.5, 1979, 3.35),
    "NVIDIA A100-SXM4-80GB": Card(312, None, 2.039),
    "NVIDIA A100 80GB PCIe": Card(312, None, 1.935),
    "NVIDIA A100-SXM4-40GB": Card(312, None, 1.555),
    "NVIDIA A100-PCIE-40GB": Card(312, None, 1.555),
    "NVIDIA A30": Card(165, None, 0.933),
    "NVIDIA L40S": Card(362, 733, 0.864),
    "NVIDIA L40": Card(181, 362, 0.864),
    "NVIDIA L4": Card(121, 242.5, 0.3),
}
HEAD_SIZE = SHAPE["hidden_size"] // SHAPE["num_attention_heads"]
KV_VALUES = 2 * SHAPE["num_hidden_layers"] * SHAPE["num_key_value_heads"] * HEAD_SIZE  # of a token
LINEAR = SHAPE["num_hidden_layers"] * (
    2 * SHAPE["hidden_size"] ** 2
    + 2 * SHAPE["hidden_size"] * SHAPE["num_key_value_heads"] * HEAD_SIZE
    + 3 * SHAPE["hidden_size"] * SHAPE["intermediate_size"]
)
OUTPUT_LAYER = SHAPE["vocab_size"] * SHAPE["hidden_size"]


@dataclass(frozen=True)
class OfflineLoad:
    """What was computed, on what: `prompts` and `answers` are tokens of each request, `seconds` for all of them."""

    gpus: Sequence[str]
    bits: int | None  # of weights and activations in the linear layers; None where they are not known
    kv_cache_dtype: str
    replicas: int
    concurrency: int  # most requests at once, over all replicas
    prompts: Sequence[int]
    answers: Sequence[int]
    seconds: float


def bits(quantization: str, known_checkpoint: bool) -> int | None:
    """Of weights and activations in the linear layers. A checkpoint's own format may have any number of them: 8 in
    those that are known here."""
    if quantization in ("none", "fp8"):
        return 16 if quantization == "none" else 8
    return 8 if known_checkpoint else None


def operations(prompts: Sequence[int], answers: Sequence[int]) -> float:
    """The arithmetic of these requests on Llama-3.1-8B."""
    tokens, new = sum(prompts) + sum(answers), sum(answers)
    earlier = sum((read + wrote) ** 2 / 2 for read, wrote in zip(prompts, answers, strict=True))
    attention = 4 * SHAPE["num_hidden_layers"] * SHAPE["hidden_size"] * earlier
    return 2 * LINEAR * tokens + 2 * OUTPUT_LAYER * new + attention


def bytes_read(load: OfflineLoad) -> float:
    """The least that decoding these requests reads from memory."""
    kv_bytes = 1 if load.kv_cache_dtype.startswith("fp8") else 2
    weights = LINEAR * (load.bits or 16) / 8 + 2 * OUTPUT_LAYER
    earlier = sum(wrote * (read + wrote / 2) for read, wrote in zip(load.prompts, load.answers, strict=True))
    steps = sum(load.answers) / load.concurrency
    return KV_VALUES * kv_bytes * earlier + load.replicas * steps * weights


def shares(load: OfflineLoad) -> tuple[float, float] | None:
    """Percent of the arithmetic, and at least so many of the bandwidth; None on a card that is not known here."""
    card = CARDS.get(load.gpus[0]) if load.gpus else None
    peak = {16: card.bf16, 8: card.fp8}.get(load.bits or 0) if card else None
    if card is None or peak is None or len(set(load.gpus)) > 1 or not load.seconds:
        return None
    whole = 1e12 * len(load.gpus) * load.seconds / 100
    return operations(load.prompts, load.answers) / (peak * whole), bytes_read(load) / (card.memory * whole)
