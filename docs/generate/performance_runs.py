"""The runs in docs/runs that docs/evidence/performance.md shows, and how each is called there.

A run is named by its folder. Its settings are in its own files.
"""

from typing import NamedTuple

CARD = "NVIDIA H100 80GB HBM3"  # the card whose published results with vLLM are shown, by the driver's name
SCENARIOS = ("Offline", "Server", "Interactive")

# What the other cards of a host did during a run.
ANOTHER_RUN = "another run"
SAME_RUN = "the other test"
THREE_TESTS = "three more tests"
UNKNOWN = "not known"


class RunLabel(NamedTuple):
    """What was asked of a run, and what the other cards of its host did."""

    request: str
    other_cards: str


FULL_LENGTH_RUNS = {  # on one H200
    "full-offline-vllm032": RunLabel("Offline", SAME_RUN),
    "full-offline-fast-vllm032": RunLabel("Offline, fast accumulation", ANOTHER_RUN),
    "full-offline-both-vllm032": RunLabel("Offline, both patches", ANOTHER_RUN),
    "full-server-65-both-vllm032": RunLabel("Server, 65 queries/s, both patches, graphs to 2,048", SAME_RUN),
    "full-server-62.5-fast-vllm032": RunLabel("Server, 62.5 queries/s, fast accumulation, graphs to 2,048", UNKNOWN),
    "full-server-64-fast-vllm032": RunLabel("Server, 64 queries/s, fast accumulation, graphs to 2,048", ANOTHER_RUN),
    "full-server-61-vllm032": RunLabel("Server, 61 queries/s, graphs to 2,048", ANOTHER_RUN),
    "full-server-max-both-vllm032": RunLabel("Server, `max`, both patches, graphs to 2,048", "nothing"),
    "full-server-max-vllm032": RunLabel("Server, `max`, graphs to 1,024", ANOTHER_RUN),
    "full-interactive-55-both-cap208-vllm032": RunLabel("Interactive, 55 queries/s, both patches, cap 208", SAME_RUN),
    "full-interactive-57-both-cap208-vllm032": RunLabel(
        "Interactive, 57 queries/s, both patches, cap 208", THREE_TESTS
    ),
    "full-interactive-52-fast-cap208-vllm032": RunLabel(
        "Interactive, 52 queries/s, fast accumulation, cap 208", ANOTHER_RUN
    ),
    "full-interactive-max-both-cap208-vllm032": RunLabel("Interactive, `max`, both patches, cap 208", ANOTHER_RUN),
    "full-interactive-max-4096-graphs2048-vllm032": RunLabel("Interactive, `max`", ANOTHER_RUN),
    "full-interactive-53-4096-graphs2048-vllm032": RunLabel("Interactive, 53 queries/s", ANOTHER_RUN),
}
POOL_RUN = "full-pool-interactive-105-both-vllm032"  # on two H200s
POOL_RUNS = {POOL_RUN: RunLabel("Interactive, 105 queries/s, both patches, cap 208 each", THREE_TESTS)}
OVERLOADED_RUN = "full-interactive-57-both-cap208-vllm032"
INTERRUPTED_SEARCH = "h200-interactive-max"  # Its first full test is an attempt.

H100_RUNS = {  # at full length on one H100
    "h100-offline-both": RunLabel("Offline, both patches", SAME_RUN),
    "h100-offline": RunLabel("Offline", UNKNOWN),
    "h100-server": RunLabel("Server, 50 queries/s", SAME_RUN),
    "h100-interactive-48-both-cap208": RunLabel("Interactive, 48 queries/s, both patches, cap 208", SAME_RUN),
    "h100-interactive": RunLabel("Interactive, 40 queries/s", SAME_RUN),
}
H100_SINGLE_STREAM_RUN = "h100-single-both"
H100_PATCH_RUNS = ("h100-off-3000-both", "h100-off-3000-base")  # one card, 1,024 sequences, steps of 32,768

OFFLINE_RUNS = {
    "off-static-vllm024": "0.24.0: as a checkpoint comes",
    "off-torchmm-vllm024": "0.24.0: `linear_backend=torch` (cuBLASLt)",
    "off-2048x32k-vllm024": "0.24.0: 2,048 sequences, steps of 32,768",
    "off-kv16-vllm024": "0.24.0: KV cache in 16 bits",
    "off-triton-vllm024": "0.24.0: attention by Triton",
    "off-static-vllm032": "0.32.0: as a checkpoint comes",
    "off-torchmm-vllm032": "0.32.0: `linear_backend=torch`",
    "off-xqa-torch-vllm032": "0.32.0: the same, `attention_backend=FLASHINFER` (XQA)",
    "off-4000-vllm032": "0.32.0: the same, 2,048 sequences, steps of 32,768, graphs to 2,048",
}
# These ran one after the other on one card. The host's second card ran the two of SINGLE_STREAM_RUNS, then Interactive.
OFFLINE_PATCH_RUNS = {
    "off-3000-both-vllm032": "fast accumulation, activation by Inductor",
    "off-3000-fast-vllm032": "fast accumulation",
    "off-3000-both-again-vllm032": "both, again",
    "off-3000-base-vllm032": "vLLM as it is installed",
}
SINGLE_STREAM_RUNS = {"single-both-vllm032": "both", "single-base-vllm032": "vLLM as it is installed"}
TWO_GPU_RUN = "off-two-gpus-13368-vllm032"
ONE_GPU_RUN = "off-6684-vllm032"
# Two runs whose speeds show how much cards differ.
FIRST_CARD_RUN = "off-3000-fast-another-card-vllm032"
SECOND_CARD_RUN = "off-3072-fast-vllm032"

# MLPerf's reference implementation and this runner, by weights; all runs of a format of weights are of one card.
REFERENCE_IN_BATCHES = "reference, batches of 1,024"
UNTUNED = "this runner, vLLM's defaults"
REFERENCE_RUNS = {
    "fp8": {
        "reference, its batch of 16": "reference-bs16-fp8",
        REFERENCE_IN_BATCHES: "reference-bs1024-fp8",
        UNTUNED: "off-3072-default-vllm032",
        "this runner, tuned": "off-3072-fast-vllm032",
    },
    "bf16": {
        "reference, its batch of 16": "reference-bs16-bf16",
        REFERENCE_IN_BATCHES: "reference-bs1024-bf16",
        UNTUNED: "off-3072-bf16-vllm032",
        "this runner, tuned": "off-3072-bf16-16384-vllm032",
    },
}
# In bf16 on one card, one after the other: the reference, this runner, the reference.
REFERENCE_BEFORE = "reference-bs1024-bf16-before"
RUN_BETWEEN = "off-3072-bf16-between-vllm032"
REFERENCE_AFTER = "reference-bs1024-bf16-after"

SWEEP = "sweep-single-vllm032"
ISOLATION_SWEEPS = {"fp8 (static)": "sweep-isolation-fp8-vllm032", "bf16": "sweep-isolation-bf16-vllm032"}
