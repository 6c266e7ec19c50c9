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
# Parameters of the linear layers: query and output, key and value, and three matrices of the feed-forward layer.
LINEAR_PARAMETERS = LAYERS * HIDDEN_SIZE * (2 * HIDDEN_SIZE + 2 * KV_SIZE + 3 * SHAPE["intermediate_size"])
OUTPUT_PARAMETERS = SHAPE["vocab_size"] * HIDDEN_SIZE


def peak_shares(test: TestRun, facts: RunFacts) -> tuple[float, float] | None:
    """Return the shares of the GPUs' peak arithmetic and memory bandwidth that an Offline test reached, in percent.

    The share of the bandwidth is a lower bound: it counts the least number of steps, each with all requests that fit.
    None if the formula does not fit: another scenario (which has a TTFT) or model, speculation, prefix caching, fp32,
    GPUs of other hosts, or a card without a data sheet here. None also if no request was answered or the time, the
    format of the weights, or whether prefixes were cached is not known.
    """
    plan, engine_state, seconds = facts.plan, facts.plan.engine_state, test.result.duration_s
    is_offline = not test.result.ttft_ms  # Any other scenario has a TTFT.
    if not (is_offline and plan.reference_model):
        return None
    if not (facts.concurrency and seconds and test.answered_requests):
        return None
    is_other = plan.config.has_other_hosts or plan.config.precision == "fp32" or engine_state.speculation
    may_cache_prefixes = engine_state.prefix_caching is not False  # None: not known
    if is_other or may_cache_prefixes:  # Each of these saves or adds work that the formula does not count.
        return None
    gpus = facts.system.gpus[: plan.tensor_parallel_size * plan.data_parallel_size]
    card, bits = card_of(gpus), bits_of_linear_layers(plan)
    if card is None:
        return None
    peak = {16: card.bf16, 8: card.fp8}.get(bits)
    if not peak:
        return None
    tokens = output_tokens = 0
    attended_tokens = 0.0  # summed over all tokens: the tokens that each attends to
    cached_tokens = 0.0  # summed over output tokens: the tokens whose keys and values each reads from the cache
    for request in test.answered_requests:
        read, written = request.prompt_tokens, request.output_tokens
        tokens += read + written
        output_tokens += written
        attended_tokens += (read + written) ** 2 / 2
        cached_tokens += written * (read + written / 2)
    # A product is two operations. Attention multiplies twice, with keys and with values.
    layer_operations = 2 * LINEAR_PARAMETERS * tokens + 2 * OUTPUT_PARAMETERS * output_tokens
    operations = layer_operations + 4 * LAYERS * HIDDEN_SIZE * attended_tokens
    weight_bytes = LINEAR_PARAMETERS * bits / 8 + 2 * OUTPUT_PARAMETERS  # the output layer has 16 bits
    steps = output_tokens / facts.concurrency
    kv_bytes = 1 if engine_state.kv_cache_dtype.startswith("fp8") else 2
    bytes_read = KV_VALUES * kv_bytes * cached_tokens + plan.data_parallel_size * steps * weight_bytes
    tera_per_percent = 1e12 * len(gpus) * seconds / 100  # the peaks are in 10^12 a second
    return operations / (peak * tera_per_percent), bytes_read / (card.memory * tera_per_percent)


def bits_of_linear_layers(plan: Plan) -> int:
    """Return the bits of a weight in the linear layers: 16 or 8; 0 if not known.

    Only quantized checkpoints that this program knows are sure to have 8 bits.
    """
    quantization, model = plan.engine_state.quantization, plan.config.model
    if quantization == "none":
        return 16
    # The checkpoints in QUANTIZED, and those made as docs/quantization.md says, have 8 bits; others any number.
    has_8_bits = model in models.QUANTIZED or models.source_model(model)
    return 8 if quantization == "fp8" or has_8_bits else 0
