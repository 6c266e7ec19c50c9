"""Limits that a card's data sheet and a model's shape set, computed before a run and compared with its results.

A request alone reads all weights and its KV cache for each token, so memory bandwidth bounds its tokens/s. Offline does
the arithmetic of each sample once, so the peak rate bounds its samples/s. What the weights leave of the memory bounds
how many sequences the KV cache holds. All three are upper bounds: each product counts at the rate of the weights'
format.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple, Self

from harness.config import checkpoint, quantization
from harness.config.engine import BYTES_PER_WEIGHT, EngineConfig
from harness.config.parallelism import parallelism
from harness.config.pretrained import ModelShape, load_shape
from harness.config.run import RunConfig
from harness.core.file_limits import GIB
from harness.core.formatting import Measured, number, plural
from harness.core.nvml import GPU
from harness.core.schema import FrozenModel
from harness.results.data_sheets import card_of

ASSUMED_PROMPT = 766  # tokens, about the mean of MLPerf's articles; used if the samples were not read
PREFIX = "limit, computed, not measured: "
TABLE = "harness/results/cards.csv"
# Arguments of vLLM's engine that make a limit void, the field of that limit, and the quantity that it bounds.
UNBOUNDING_ARGUMENTS = (
    ("speculative_config", "bytes_per_s", "one request's tokens/s"),
    ("enable_prefix_caching", "flops_per_s", "Offline's samples/s"),
    ("pipeline_parallel_size", "flops_per_s", "Offline's samples/s"),
    ("pipeline_parallel_size", "bytes_per_s", "one request's tokens/s"),
    ("pipeline_parallel_size", "cache_bytes", "the number of sequences"),
    ("cpu_offload_gb", "bytes_per_s", "one request's tokens/s"),
    ("cpu_offload_gb", "cache_bytes", "the number of sequences"),
    ("kv_cache_memory_bytes", "cache_bytes", "the number of sequences"),
    ("num_gpu_blocks_override", "cache_bytes", "the number of sequences"),
)
ARITHMETIC_BITS = {16: "bf16", 8: "fp8"}  # bits of the matrix products, and the column of the data sheet


class MeanLengths(NamedTuple):
    """Mean tokens of a prompt and of its answer. `is_assumed` tells that the prompts were not read."""

    prompt: float
    answer: float
    is_assumed: bool = False

    @property
    def text(self) -> str:
        """The lengths in words, which say if those of the prompts are only assumed."""
        prompts = f"prompts of {number(self.prompt, 3)} tokens"
        if self.is_assumed:
            prompts += " (assumed)"
        return f"{prompts}, answers of {number(self.answer, 3)}"


def weights_of_layer(shape: ModelShape) -> int:
    """Return the number of weights in the matrices of one layer: attention and feed-forward."""
    # Queries and outputs have a matrix for each attention head, keys and values one for each key-value head.
    heads = shape.num_attention_heads + shape.num_key_value_heads
    attention = 2 * shape.hidden_size * checkpoint.head_width(shape) * heads
    feed_forward = 3 * shape.hidden_size * shape.intermediate_size  # the gate, up and down projections
    return attention + feed_forward


class CardLimits(FrozenModel):
    """The quantities that the limits of a run follow from: its model's work, and its GPUs."""

    arithmetic: str = ""
    """The format of the matrix products, bf16 or fp8; empty where the checkpoint does not tell."""
    layer_parameters: int
    output_parameters: int
    attention_width: int
    """Layers x attention heads x width of a head."""
    weight_bytes: int
    """Bytes of the weights that are read for a token: all but the input embeddings."""
    kv_bytes: float
    """Bytes of a token in the KV cache."""
    flops_per_s: Measured = None
    """Peak operations a second of all GPUs."""
    bytes_per_s: Measured = None
    """Memory bandwidth of the GPUs of one replica."""
    cache_bytes: Measured = None
    """Memory for the KV cache in all replicas: what the weights leave of the memory that vLLM may use."""
    missing: tuple[str, ...] = ()
    """Why a limit is not computed, in words, each with what is not known or does not fit."""

    @classmethod
    def of(cls, config: EngineConfig, gpus: Sequence[GPU]) -> Self:
        """Return the limits that the GPUs' data sheet sets for a model.

        A limit is None if a fact is missing, which `missing` names, or if the limit does not apply. Raises UsageError
        if the model's config cannot be read.
        """
        shape, stored_bytes = load_shape(config), checkpoint.weight_bytes(config)
        gpus_per_copy, copies = parallelism(config, gpus, stored_bytes)
        used_gpus = gpus[: gpus_per_copy * copies]  # The engine uses the first ones.
        names = sorted({gpu.name for gpu in used_gpus})
        card, arithmetic = card_of(names), arithmetic_of(config)
        bytes_per_s = peak = flops_per_s = None
        if card:
            # `card.memory` is the bandwidth of the memory in TB/s. A request runs on the GPUs of one copy of the model.
            bytes_per_s = 1e12 * card.memory * gpus_per_copy
            peak = getattr(card, arithmetic) if arithmetic else None
        if peak:
            flops_per_s = 1e12 * peak * len(used_gpus)  # An Offline test keeps all copies busy.
        cache_bytes_of_copy = room_for_cache(config, used_gpus, gpus_per_copy, stored_bytes)
        missing = missing_facts(names, arithmetic, has_sheet=card is not None, has_peak=peak is not None)
        limits = cls(
            arithmetic=arithmetic,
            layer_parameters=shape.num_hidden_layers * weights_of_layer(shape),
            output_parameters=shape.vocab_size * shape.hidden_size,
            attention_width=shape.num_hidden_layers * shape.num_attention_heads * checkpoint.head_width(shape),
            weight_bytes=int(stored_bytes - unread_bytes(shape, config)),
            kv_bytes=checkpoint.cache_bytes(config, 1),  # the keys and values of a single token
            flops_per_s=flops_per_s,
            bytes_per_s=bytes_per_s,
            cache_bytes=None if cache_bytes_of_copy is None else cache_bytes_of_copy * copies,
            missing=tuple(missing),
        )
        return limits.without(config.engine_args)  # without those that an engine argument makes void

    def without(self, engine_args: Mapping[str, object]) -> Self:
        """Return these limits without those that an engine argument makes void, with the reasons added to `missing`."""
        changes: dict[str, object] = {}
        missing = list(self.missing)
        for argument, field, quantity in UNBOUNDING_ARGUMENTS:
            if engine_args.get(argument):
                changes[field] = None
                missing.append(f"{quantity} has no limit with --engine-arg {argument}")
        return self.model_copy(update={**changes, "missing": tuple(missing)})

    def sample_flops(self, lengths: MeanLengths) -> float:
        """Return the arithmetic operations of a prompt and its answer. A product counts as two: multiply and add."""
        tokens = lengths.prompt + lengths.answer
        layers = 2 * self.layer_parameters * tokens
        output_layer = 2 * self.output_parameters * lengths.answer  # This layer computes only the tokens of the answer.
        pairs = tokens**2 / 2  # of a token and a token before it
        attention = 2 * 2 * self.attention_width * pairs  # For a pair, it multiplies with the key and with the value.
        return layers + output_layer + attention

    def token_bytes(self, lengths: MeanLengths) -> float:
        """Return the bytes read for one token of a single running request, in the middle of its answer."""
        return self.weight_bytes + self.kv_bytes * (lengths.prompt + lengths.answer / 2)

    def request_tokens_per_s(self, lengths: MeanLengths) -> Measured:
        """Return the most output tokens/s of a request that runs alone; None if the bandwidth is not known."""
        if not self.bytes_per_s:
            return None
        return self.bytes_per_s / self.token_bytes(lengths)

    def samples_per_s(self, lengths: MeanLengths) -> Measured:
        """Return the most samples/s of Offline; None if the peak rate is not known."""
        if not self.flops_per_s:
            return None
        return self.flops_per_s / self.sample_flops(lengths)

    def sequences(self, lengths: MeanLengths) -> Measured:
        """Return the most sequences that the KV cache holds; None if its memory is not known."""
        if self.cache_bytes is None:
            return None
        return self.cache_bytes / (self.kv_bytes * (lengths.prompt + lengths.answer))

    def lines(self, lengths: MeanLengths) -> Iterator[str]:
        """Yield a line for each known limit, with what it follows from, then a line for each missing fact.

        `lengths` are the mean lengths of prompts and answers.
        """
        speed = self.request_tokens_per_s(lengths)
        if speed and self.bytes_per_s:
            bandwidth, token_bytes = self.bytes_per_s / 1e12, self.token_bytes(lengths) / 1e9
            yield (
                f"{PREFIX}one request at most {number(speed, 3)} tokens/s: {number(bandwidth, 3)} TB/s, "
                f"{number(token_bytes, 3)} GB a token"
            )
        rate = self.samples_per_s(lengths)
        if rate and self.flops_per_s:
            peak, sample_flops = self.flops_per_s / 1e12, self.sample_flops(lengths) / 1e12
            yield (
                f"{PREFIX}Offline at most {number(rate, 3)} samples/s: {number(peak)} TFLOP/s in "
                f"{self.arithmetic}, {number(sample_flops, 3)} TFLOP a sample, {lengths.text}"
            )
        count = self.sequences(lengths)
        if count is not None and self.cache_bytes is not None:
            yield (
                f"{PREFIX}the KV cache holds at most {plural(round(count), 'sequence')} of such lengths: "
                f"{number(self.cache_bytes / GIB, 3)} GiB beside the weights"
            )
        for fact in self.missing:
            yield f"limit not computed: {fact}"


def unread_bytes(shape: ModelShape, config: EngineConfig) -> float:
    """Return the bytes of the weights that are not read for a token: those of the input embeddings.

    A token reads a single row of them. Tied embeddings are also the output layer, all of which is read.
    """
    if shape.tie_word_embeddings:
        return 0.0
    return shape.vocab_size * shape.hidden_size * BYTES_PER_WEIGHT[config.precision]


def room_for_cache(config: EngineConfig, gpus: Sequence[GPU], gpus_per_copy: int, weight_bytes: float) -> Measured:
    """Return the bytes that the weights leave for the KV cache of one copy of the model, at least 0.

    `gpus` are those that the engine uses, and the smallest one decides. None without a GPU.
    """
    if not gpus:
        return None
    smallest_memory = min(gpu.memory for gpu in gpus)
    return max(0.0, config.memory_share * smallest_memory * gpus_per_copy - weight_bytes)


def run_limits(config: RunConfig, gpus: Sequence[GPU]) -> CardLimits | None:
    """Return the limits of a run's GPUs, or None if they do not apply.

    The limits apply if the engine is in this process and uses only GPUs of this machine.
    """
    if not gpus or not config.is_in_process or config.has_other_hosts:
        return None
    return CardLimits.of(config, gpus)


def arithmetic_of(config: EngineConfig) -> str:
    """Return the number format in which matrix products are computed: "bf16" or "fp8".

    Empty for any other format, and for a checkpoint that mixes formats.
    """
    stored = quantization.stored_formats(config)
    is_quantized_checkpoint = bool(stored)
    if not is_quantized_checkpoint and config.quantization == "none":
        bits_of_weights = 8 * BYTES_PER_WEIGHT[config.precision]
        return ARITHMETIC_BITS.get(int(bits_of_weights), "")
    if not is_quantized_checkpoint:  # The engine quantizes the weights itself.
        return "fp8" if config.quantization == "fp8" else ""
    if all(group.activations == quantization.WEIGHTS_ALONE for group in stored):
        return "bf16"  # Quantized weights are converted to bf16, the format of the activations.
    if all(group.name == "fp8" for group in stored):
        return "fp8"
    return ""


def missing_facts(names: Sequence[str], arithmetic: str, has_sheet: bool, has_peak: bool) -> Iterator[str]:
    """Yield a sentence on the first fact that is missing to compute the limits; nothing if all facts are known.

    `names` are the different models of the GPUs. `has_peak` tells that the data sheet has a rate of `arithmetic`, the
    format of matrix products, which may be empty.
    """
    if not names:
        yield "no GPU is visible, so arithmetic, memory and bandwidth are not known"
    elif len(names) > 1:
        yield f"{' and '.join(names)} are unlike GPUs, so one rate does not hold for all"
    elif not has_sheet:
        yield f"{names[0]} is not in {TABLE}, so its arithmetic and memory bandwidth are not known"
    elif not arithmetic:
        yield "in which format this checkpoint's matrix products are computed is not known, so Offline has no limit"
    elif not has_peak:
        yield f"{TABLE} has no {arithmetic} rate of {names[0]}, so Offline has no limit"
