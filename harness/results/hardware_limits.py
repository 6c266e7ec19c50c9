"""The shares of its GPUs' arithmetic and memory bandwidth that an Offline test reached, by their data sheets."""

from collections.abc import Sequence
from typing import NamedTuple

from harness.config import models
from harness.config.models import SHAPE
from harness.config.plan import Plan
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun
from harness.results.data_sheets import card_of
from harness.results.records import RunFacts

LAYERS, HIDDEN_SIZE = SHAPE["num_hidden_layers"], SHAPE["hidden_size"]
KV_SIZE = SHAPE["num_key_value_heads"] * (HIDDEN_SIZE // SHAPE["num_attention_heads"])
KV_VALUES = 2 * LAYERS * KV_SIZE  # values of the KV cache for a token
# Parameters of the linear layers: query and output, key and value, and three matrices of the feed-forward layer.
LINEAR_PARAMETERS = LAYERS * HIDDEN_SIZE * (2 * HIDDEN_SIZE + 2 * KV_SIZE + 3 * SHAPE["intermediate_size"])
OUTPUT_PARAMETERS = SHAPE["vocab_size"] * HIDDEN_SIZE


class TokenSums(NamedTuple):
    """The tokens of a test's requests, summed over all requests."""

    tokens: int  # of prompts and answers
    output_tokens: int
    attended_tokens: float  # summed over all tokens: the tokens that each attends to
    cached_tokens: float  # summed over output tokens: the tokens whose keys and values each reads from the cache


def token_sums(requests: Sequence[Request]) -> TokenSums:
    """Return the sums of the tokens of requests, by which their arithmetic and their bytes are computed."""
    tokens = output_tokens = 0
    attended_tokens = cached_tokens = 0.0
    for request in requests:
        prompt, answer = request.prompt_tokens, request.output_tokens
        tokens += prompt + answer
        output_tokens += answer
        # A token attends to all tokens before it: on average to half of the prompt and answer.
        attended_tokens += (prompt + answer) * (prompt + answer) / 2
        # A token of the answer reads the whole prompt and, on average, half of the answer.
        cached_tokens += answer * (prompt + answer / 2)
    return TokenSums(tokens, output_tokens, attended_tokens, cached_tokens)


def do_formulas_fit(test: TestRun, plan: Plan) -> bool:
    """Tell whether the formulas of `peak_shares` fit a test: an Offline test of the reference model on this host.

    Drafted tokens add work that the formulas do not count, cached prefixes save some, and fp32 has other peaks.
    """
    is_offline = not test.result.ttft_ms  # Any other scenario has a TTFT.
    if not (is_offline and plan.reference_model):
        return False
    engine_state = plan.engine_state
    may_cache_prefixes = engine_state.prefix_caching is not False  # None: not known
    if may_cache_prefixes or engine_state.speculation:
        return False
    return not plan.config.has_other_hosts and plan.config.precision != "fp32"


def peak_shares(test: TestRun, facts: RunFacts) -> tuple[float, float] | None:
    """Return the shares of the GPUs' peak arithmetic and memory bandwidth that an Offline test reached, in percent.

    None if the formulas do not fit the run, or if they need a fact that is not known.
    """
    plan, seconds = facts.plan, test.result.duration_s
    if not do_formulas_fit(test, plan):
        return None
    if not (facts.concurrency and seconds and test.answered_requests):
        return None
    gpus = facts.system.gpus[: plan.tensor_parallel_size * plan.data_parallel_size]  # The engine uses the first ones.
    card, bits = card_of(gpus), bits_of_linear_layers(plan)
    if card is None:
        return None
    peak = {16: card.bf16, 8: card.fp8}.get(bits)
    if not peak:
        return None
    sums = token_sums(test.answered_requests)
    gpu_seconds = len(gpus) * seconds
    possible_operations = 1e12 * peak * gpu_seconds
    possible_bytes = 1e12 * card.memory * gpu_seconds
    bytes_read = bytes_read_for(sums, plan, facts.concurrency, bits)
    return 100 * operations_of(sums) / possible_operations, 100 * bytes_read / possible_bytes


def operations_of(sums: TokenSums) -> float:
    """Return the arithmetic operations that the model needs for these tokens. A product is two operations."""
    layer_operations = 2 * LINEAR_PARAMETERS * sums.tokens + 2 * OUTPUT_PARAMETERS * sums.output_tokens
    # Attention multiplies twice, with keys and with values.
    return layer_operations + 4 * LAYERS * HIDDEN_SIZE * sums.attended_tokens


def bytes_read_for(sums: TokenSums, plan: Plan, concurrency: int, bits: int) -> float:
    """Return the bytes of weights and KV cache that the engine reads, at the least, to generate these tokens.

    `concurrency` is the number of request slots in all copies of the model, and `bits` the size of a weight in the
    linear layers.
    """
    # A step gives each running request one token. If all slots were always in use, the steps were as few as possible,
    # so the bytes are a lower bound.
    steps = sums.output_tokens / concurrency
    # In each step, each copy of the model reads all its weights, whatever number of its slots is in use.
    weight_bytes = LINEAR_PARAMETERS * bits / 8 + 2 * OUTPUT_PARAMETERS  # the output layer has 16 bits
    bytes_of_value = 1 if plan.engine_state.kv_cache_dtype.startswith("fp8") else 2  # in the KV cache
    return KV_VALUES * bytes_of_value * sums.cached_tokens + plan.data_parallel_size * steps * weight_bytes


def bits_of_linear_layers(plan: Plan) -> int:
    """Return the bits of a weight in the linear layers: 16 or 8; 0 if not known."""
    quantization, model = plan.engine_state.quantization, plan.config.model
    if quantization == "none":
        return 16
    # Published checkpoints, and those that the user made with this program, have 8 bits. Others may have any number.
    is_known_checkpoint = model in models.QUANTIZED or models.source_model(model)
    if quantization == "fp8" or is_known_checkpoint:
        return 8
    return 0
