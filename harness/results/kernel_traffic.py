"""The bytes that kernels move for each token, and so how near they are to the memory's bandwidth."""

import re
from operator import mul

from harness.config.engine import BYTES_PER_WEIGHT
from harness.config.models import SHAPE
from harness.config.plan import Plan
from harness.core import nvml
from harness.results.data_sheets import card_of
from harness.results.hardware_limits import HIDDEN_SIZE, KV_SIZE
from harness.results.kernel_profile import Profile, Share

FEED_FORWARD_SIZE = SHAPE["intermediate_size"]
# The values that a kernel moves for each token. A row has the operation, a pattern of the kernel's name, the number of
# values in the precision of the weights, of the output and of the KV cache, and the field with the tokens of a
# step. The values are those that the operation must read and write once: gate and input, and their product; input and
# residual, and their sum and its norm; keys and values, read and written. A norm without a residual has no row, because
# its vectors may have any size; nor has attention whose kernel also reads prompts.
MOVED_VALUES = (
    (
        "activation",
        r"(?i)^(?!triton_tem|.*fp4).*(silu|act_and_mul)",
        (2 * FEED_FORWARD_SIZE, FEED_FORWARD_SIZE, 0),
        "tokens_per_step",
    ),
    ("norm", r"(?i)^(?!triton_tem|.*fp4).*add_?rms_?norm", (3 * HIDDEN_SIZE, HIDDEN_SIZE, 0), "tokens_per_step"),
    ("KV cache write", "reshape_and_cache", (2 * KV_SIZE, 0, 2 * KV_SIZE), "tokens_per_step"),
    ("attention of decode", "kernel_mha|BatchDecode", (0, 0, 2 * KV_SIZE), "read_per_step"),
)
WRITES_8_BITS = "quant|clamp|fp8"  # a pattern of the names of kernels whose output has 8 bits


def with_traffic(profile: Profile, plan: Plan) -> Profile:
    """Return the profile with the bytes that its largest kernels move, as far as they are known.

    Sizes are known for a model of Llama-3.1-8B's shape that each GPU holds whole, without speculation, on a GPU with a
    data sheet here; any other profile is returned as it is. Each call counts with the mean tokens of a step. A kernel
    that no row of MOVED_VALUES describes stays as it is.
    """
    card, state = card_of([gpu.name for gpu in nvml.gpus()]), plan.engine_state
    if card is None or not plan.reference_model or plan.tensor_parallel_size > 1 or state.speculation:
        return profile
    weight_bytes = BYTES_PER_WEIGHT[plan.config.precision]
    cache_bytes = 1 if state.kv_cache_dtype.startswith("fp8") else weight_bytes

    def with_bytes(share: Share) -> Share:
        """Return a kernel's share with its traffic, by the first row of MOVED_VALUES that describes the kernel."""
        for operation, pattern, values, tokens_field in MOVED_VALUES:
            tokens = getattr(profile, tokens_field)
            if not (tokens and share.ms and re.search(pattern, share.name)):
                continue
            output_bytes = 1 if re.search(WRITES_8_BITS, share.name) else weight_bytes
            # The values of a row are in the precision of the weights, of the output and of the KV cache.
            size = sum(map(mul, values, (weight_bytes, output_bytes, cache_bytes)))
            tb_per_s = size * tokens * share.calls / share.ms / 1e9  # from bytes a millisecond
            percent = 100 * tb_per_s / card.memory
            traffic = dict(operation=operation, bytes_per_token=size, tb_per_s=tb_per_s, memory_percent=percent)
            return share.model_copy(update=traffic)
        return share

    largest = [with_bytes(share) for share in profile.largest]
    return profile.model_copy(update={"largest": largest, "memory_tb_per_s": card.memory})
