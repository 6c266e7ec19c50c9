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

# Bytes that kernels move for each token: the operation, a pattern of their names, how many values of the weights'
# precision, of the output's and of the KV cache's, and of which tokens. The operation alone reads and writes this once:
# gate and input, and their product; input and residual, and their sum and its norm; keys and values, and both again. No
# row has a norm without a residual, whose vectors may be any, nor attention whose kernel also reads prompts.
INNER = SHAPE["intermediate_size"]
MOVED_VALUES = (
    ("activation", r"(?i)^(?!triton_tem|.*fp4).*(silu|act_and_mul)", (2 * INNER, INNER, 0), "tokens_per_step"),
    ("norm", r"(?i)^(?!triton_tem|.*fp4).*add_?rms_?norm", (3 * HIDDEN_SIZE, HIDDEN_SIZE, 0), "tokens_per_step"),
    ("KV cache write", "reshape_and_cache", (2 * KV_SIZE, 0, 2 * KV_SIZE), "tokens_per_step"),
    ("attention of decode", "kernel_mha|BatchDecode", (0, 0, 2 * KV_SIZE), "read_per_step"),
)
IN_8_BITS = "quant|clamp|fp8"  # in the name of a kernel: so it writes


def with_traffic(profile: Profile, plan: Plan) -> Profile:
    """Return the profile with the bytes that its largest kernels move.

    Holds for a model of Llama-3.1-8B's shape that each GPU holds whole; any other profile is returned as it is. Each
    call counts with the mean tokens of a step.
    """
    card, state = card_of([gpu.name for gpu in nvml.gpus()]), plan.engine_state
    if card is None or not plan.reference_model or plan.tensor_parallel_size > 1 or state.speculation:
        return profile
    width = BYTES_PER_WEIGHT[plan.config.precision]
    cached = 1 if state.kv_cache_dtype.startswith("fp8") else width

    def moved(share: Share) -> Share:
        for operation, pattern, values, per_step in MOVED_VALUES:
            tokens = getattr(profile, per_step)
            if not (tokens and share.ms and re.search(pattern, share.name)):
                continue
            written = 1 if re.search(IN_8_BITS, share.name) else width
            size = sum(map(mul, values, (width, written, cached)))
            speed = size * tokens * share.calls / share.ms / 1e9
            percent = 100 * speed / card.memory
            traffic = dict(operation=operation, bytes_per_token=size, tb_per_s=speed, memory_percent=percent)
            return share.model_copy(update=traffic)
        return share

    return profile.model_copy(update={"largest": [*map(moved, profile.largest)], "memory_tb_per_s": card.memory})
