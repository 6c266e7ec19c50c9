"""The bytes that kernels move for each token, and so how near they are to the memory's bandwidth."""

import re
from typing import NamedTuple

from harness.config.engine import BYTES_PER_WEIGHT
from harness.config.models import SHAPE
from harness.config.plan import Plan
from harness.core import nvml
from harness.results.data_sheets import card_of
from harness.results.hardware_limits import HIDDEN_SIZE, KV_SIZE
from harness.results.kernel_profile import Profile, Share

FEED_FORWARD_SIZE = SHAPE["intermediate_size"]


class MovedValues(NamedTuple):
    """The values that a kernel moves for each token: those that its operation must read and write once."""

    operation: str
    pattern: str  # a regular expression for the kernel's name
    weights: int  # the number of values in the precision of the weights
    outputs: int  # the number of values in the precision of the output
    cached: int  # the number of values in the precision of the KV cache
    tokens_field: str = "tokens_per_step"  # the field of Profile with the tokens of a step


# A norm without a residual has no row, because its vectors may have any size; nor has attention whose kernel also reads
# prompts.
MOVED_VALUES = (
    # gate and input, and their product
    MovedValues(
        "activation",
        r"(?i)^(?!triton_tem|.*fp4).*(silu|act_and_mul)",
        weights=2 * FEED_FORWARD_SIZE,
        outputs=FEED_FORWARD_SIZE,
        cached=0,
    ),
    # input and residual, and their sum and its norm
    MovedValues(
        "norm", r"(?i)^(?!triton_tem|.*fp4).*add_?rms_?norm", weights=3 * HIDDEN_SIZE, outputs=HIDDEN_SIZE, cached=0
    ),
    # keys and values, read and written
    MovedValues("KV cache write", "reshape_and_cache", weights=2 * KV_SIZE, outputs=0, cached=2 * KV_SIZE),
    MovedValues(
        "attention of decode",
        "kernel_mha|BatchDecode",
        weights=0,
        outputs=0,
        cached=2 * KV_SIZE,
        tokens_field="read_per_step",
    ),
)
WRITES_8_BITS = "quant|clamp|fp8"  # a pattern of the names of kernels whose output has 8 bits


def with_traffic(profile: Profile, plan: Plan) -> Profile:
    """Return the profile with the bytes that its largest kernels move, as far as they are known."""
    card, state = card_of([gpu.name for gpu in nvml.gpus()]), plan.engine_state
    # The bytes follow only from the shape of Llama-3.1-8B on a single GPU, without speculation.
    has_known_shape = plan.reference_model and plan.tensor_parallel_size <= 1 and not state.speculation
    if card is None or not has_known_shape:
        return profile
    weight_bytes = BYTES_PER_WEIGHT[plan.config.precision]
    cache_bytes = 1 if state.kv_cache_dtype.startswith("fp8") else weight_bytes
    largest = []
    for share in profile.largest:
        row = row_of_kernel(share, profile)
        if row and share.ms:
            output_bytes = 1 if re.search(WRITES_8_BITS, share.name) else weight_bytes
            # A row has the values that a kernel moves for each token.
            size = row.weights * weight_bytes + row.outputs * output_bytes + row.cached * cache_bytes
            # A call handles the tokens of one step, in one layer.
            bytes_moved = size * getattr(profile, row.tokens_field) * share.calls
            tb_per_s = bytes_moved / share.ms / 1e9  # from bytes a millisecond
            percent = 100 * tb_per_s / card.memory
            traffic = dict(operation=row.operation, bytes_per_token=size, tb_per_s=tb_per_s, memory_percent=percent)
            largest.append(share.model_copy(update=traffic))
        else:  # The bytes that this kernel moves are not known.
            largest.append(share)
    return profile.model_copy(update={"largest": largest, "memory_tb_per_s": card.memory})


def row_of_kernel(share: Share, profile: Profile) -> MovedValues | None:
    """Return the first row of MOVED_VALUES that describes a kernel and whose tokens of a step are known.

    None if there is no such row.
    """
    for row in MOVED_VALUES:
        is_described = re.search(row.pattern, share.name)
        if is_described and getattr(profile, row.tokens_field):
            return row
    return None
