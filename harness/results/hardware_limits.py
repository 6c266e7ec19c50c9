"""The shares of its GPUs' arithmetic and memory bandwidth that an Offline test reached, by their data sheets."""

from harness.config import models
from harness.config.models import SHAPE
from harness.config.plan import Plan
from harness.loadgen.test_run import TestRun
from harness.results.data_sheets import card_of
from harness.results.records import RunFacts

LAYERS, HIDDEN_SIZE = SHAPE["num_hidden_layers"], SHAPE["hidden_size"]
KV_SIZE = SHAPE["num_key_value_heads"] * (HIDDEN_SIZE // SHAPE["num_attention_heads"])
KV_VALUES = 2 * LAYERS * KV_SIZE  # values of the KV cache for a token
LINEAR = LAYERS * HIDDEN_SIZE * (2 * HIDDEN_SIZE + 2 * KV_SIZE + 3 * SHAPE["intermediate_size"])
OUTPUT_LAYER = SHAPE["vocab_size"] * HIDDEN_SIZE


def peak_shares(test: TestRun, facts: RunFacts) -> tuple[float, float] | None:
    """Return the shares of the GPUs' peak arithmetic and memory bandwidth that an Offline test reached, in percent.

    The share of the bandwidth is a lower bound. None if the formula does not fit: another scenario or model,
    speculation, prefix caching, fp32, GPUs of other hosts, or a card without a data sheet here.
    """
    plan, engine_state, seconds = facts.plan, facts.plan.engine_state, test.result.duration_s
    if not (facts.concurrency and seconds and test.answered_requests and plan.reference_model) or test.result.ttft_ms:
        return None
    is_other = plan.config.has_other_hosts or plan.config.precision == "fp32" or engine_state.speculation
    if is_other or engine_state.prefix_caching is not False:
        return None
    gpus = facts.system.gpus[: plan.tensor_parallel_size * plan.data_parallel_size]
    card, bits = card_of(gpus), bits_of_linear_layers(plan)
    if card is None:
        return None
    peak = {16: card.bf16, 8: card.fp8}.get(bits)
    if not peak:
        return None
    whole = 1e12 * len(gpus) * seconds / 100
    pairs = [(request.prompt_tokens, request.output_tokens) for request in test.answered_requests]
    new = sum(wrote for _, wrote in pairs)
    attention = 4 * LAYERS * HIDDEN_SIZE * sum(sum(pair) ** 2 / 2 for pair in pairs)
    operations = 2 * LINEAR * sum(map(sum, pairs)) + 2 * OUTPUT_LAYER * new + attention
    earlier = sum(wrote * (read + wrote / 2) for read, wrote in pairs)
    weights = LINEAR * bits / 8 + 2 * OUTPUT_LAYER
    steps = new / facts.concurrency
    kv_bytes = 1 if engine_state.kv_cache_dtype.startswith("fp8") else 2
    bytes_read = KV_VALUES * kv_bytes * earlier + plan.data_parallel_size * steps * weights
    return operations / (peak * whole), bytes_read / (card.memory * whole)


def bits_of_linear_layers(plan: Plan) -> int:
    """Return the bits of a weight in the linear layers; 0 if not known."""
    quantization, model = plan.engine_state.quantization, plan.config.model
    if quantization == "none":
        return 16
    is_known = model in models.QUANTIZED or models.source_model(model)  # another checkpoint may have any number of bits
    return 8 if quantization == "fp8" or is_known else 0
