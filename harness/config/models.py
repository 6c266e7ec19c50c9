"""The models known by a short name, the published checkpoints, and what changes a model."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

from harness.config.mlperf import (
    LONGEST_PROMPT,
    MAX_NEW_TOKENS,
    OFFICIAL_TASKS,
    SCENARIOS,
    SCORES,
    ReferenceScores,
    Task,
)
from harness.core.locations import ROOT
from harness.core.reading import DAMAGED, read_text
from harness.core.word_list import names_in

DEMO = ROOT / "demo"

SHAPE = {  # Llama-3.1-8B, from its config.json
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
}
# vLLM's arguments that change only its speed, not its answers. With any other argument, the result may be that of
# another model.
SPEED_ARGS = names_in(
    """
    aggregate_engine_logging async_scheduling attention_backend attention_config block_size compilation_config
    cpu_distributed_timeout_seconds cpu_offload_gb cudagraph_capture_sizes cudagraph_metrics data_parallel_address
    data_parallel_backend data_parallel_rpc_port data_parallel_size_local device_ids disable_cascade_attn
    disable_custom_all_reduce disable_hybrid_kv_cache_manager disable_log_stats disable_nccl_for_dp_synchronization
    distributed_executor_backend distributed_timeout_seconds download_dir enable_chunked_prefill
    enable_flashinfer_autotune enable_layerwise_nvtx_tracing enable_log_requests enable_mfu_metrics
    enable_prefix_caching enable_shm_tensor_arena enforce_eager gpu_memory_utilization ir_op_priority
    jit_monitor_mode jit_monitor_verbose kernel_config kv_cache_memory_bytes kv_cache_metrics
    kv_cache_metrics_sample kv_transfer_config linear_backend log_config_file log_level logging_config
    long_prefill_token_threshold long_prefill_token_threshold_adaptive master_addr master_port
    max_cudagraph_capture_size max_num_active_seqs max_num_queued_reqs max_num_queued_tokens
    max_num_scheduled_tokens max_parallel_loading_workers ubatch_size model_impl nnodes node_rank
    num_gpu_blocks_override numa_bind numa_bind_cpus numa_bind_nodes optimization_level otlp_traces_endpoint
    performance_mode pipeline_parallel_size prefill_schedule_interval prefix_caching_hash_algo profiler_config
    pt_load_map_location ray_workers_use_nsight safetensors_load_strategy safetensors_prefetch_block_size
    safetensors_prefetch_num_threads scheduler_reserve_full_isl scheduling_policy shutdown_timeout
    speculative_config stream_interval use_tqdm_on_load watermark worker_extension_cls
    """
)


class ModelSpec(NamedTuple):
    """A model with its data: what `--model` names in short.

    `data` and `mmlu` are local files and folders, None where they come from the hub; `context` and `mmlu_context` are
    the longest prompt plus answer, in tokens; `deviation` says why results of it are not results of Llama-3.1-8B.
    """

    path: str
    context: int = LONGEST_PROMPT + MAX_NEW_TOKENS
    mmlu_context: int = 4096
    positions: int | None = None  # the longest context that the model knows, if a user could ask for a longer one
    data: Path | None = None
    mmlu: Path | None = None
    # vLLM on a CPU needs these for a model so small that its defaults make no sense.
    cache_bytes: int | None = None
    sequences: int | None = None
    deviation: str = ""
    references: Path | None = None  # scores and sample counts by category, as in OFFICIAL_TASKS
    min_duration_s: Mapping[str, float] = {}  # seconds by scenario

    def task(self, category: str, scenario: str) -> Task:
        """Return the number of samples in a category, the reference scores for the answers, and the minimum duration.

        `category` is a key of OFFICIAL_TASKS.
        """
        if self.references is None:
            return replace(OFFICIAL_TASKS[category], min_duration_s=SCENARIOS[scenario].min_duration_s)
        measured = json.loads(read_text(self.references))[category]
        scores = {name: measured[name] for name in SCORES}
        return Task(measured["samples"], ReferenceScores(**scores), self.min_duration_s[scenario])


DEFAULT_MODEL = "llama3.1-8b-instruct"
MODELS = {
    DEFAULT_MODEL: ModelSpec("meta-llama/Llama-3.1-8B-Instruct"),
    "demo": ModelSpec(
        str(DEMO / "model"),
        context=1024,
        mmlu_context=1024,
        positions=1024,
        data=DEMO / "cnn_eval.json",
        mmlu=DEMO / "mmlu",
        cache_bytes=2**30,
        sequences=64,  # a CPU is as fast with 64 as with more, and shows several rounds
        deviation="the demo model",
        references=DEMO / "reference.json",
        min_duration_s={name: rules.pattern.demo_s for name, rules in SCENARIOS.items()},
    ),
}
# Published checkpoints of the reference model, quantized by their makers: 8-bit weights for 8-bit arithmetic.
QUANTIZED = (
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
    "nvidia/Llama-3.1-8B-Instruct-FP8",
)


QUANTIZE_JSON = "quantize.json"  # the note in a checkpoint that was made as docs/quantization.md has it


@cache
def model(name: str) -> ModelSpec:
    """Return the facts about a model, given its short name, a folder or a hub repository.

    A folder that was quantized from a model with a short name has the facts of that model, except its path. Any other
    folder or repository has the defaults of ModelSpec.
    """
    if name in MODELS:
        return MODELS[name]
    return MODELS.get(source_model(name), ModelSpec(name))._replace(path=name)


def source_model(name: str) -> str:
    """Return the name of the model from which a folder was quantized, by its quantize.json.

    Empty if that file is missing or damaged, for example because `name` is no folder.
    """
    try:
        return str(json.loads(read_text(Path(name) / QUANTIZE_JSON))["model"])
    except (OSError, *DAMAGED):
        return ""
