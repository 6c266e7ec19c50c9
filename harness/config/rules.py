"""What MLPerf fixes for Llama-3.1-8B, as rows: scenarios, tasks, limits, seeds; and the models known by a short name.

Sources: the constants of the official submission checker (tools/submission in mlcommons/inference), the
`mlperf.conf` built into the LoadGen wheel, and the benchmark's README (language/llama3.1-8b).
"""

import json
from dataclasses import dataclass, field, fields, replace
from functools import cache
from pathlib import Path
from typing import Literal

from harness.common.early_stopping import least_queries
from harness.common.paths import ROOT

DEMO = ROOT / "demo"

PROMPT = (
    "Summarize the following news article in 128 tokens. Please output the summary only, "
    "without any other text.\n\nArticle:\n{input}\n\nSummary:"
)
MAX_NEW_TOKENS = 128
MIN_NEW_TOKENS = 1
STREAMED_LEAST = 2  # tokens of an answer that has a time per output token
EDGE_SHUFFLE_SEED = 42
SHAPE = {  # Llama-3.1-8B, from its config.json
    **{"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "vocab_size": 128256},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072},
}
LONGEST_PROMPT = 2540  # tokens, of the 13,368 official samples
MEAN_PROMPT = 778  # about, of either set
FEW = 30  # samples of a part below which a bootstrap says too little: of one sample, the interval is a point
MIN_DURATION_S = 600.0
LIMIT_PERCENTILE = 0.99  # that latency limits hold for
MULTISTREAM_PERCENTILE = 0.9  # as SingleStream's; LoadGen's own for MultiStream is 0.99
SURE_QUERIES = least_queries(LIMIT_PERCENTILE)  # before LoadGen believes the percentile, if none is over the limit
SURE_P90_QUERIES = least_queries(MULTISTREAM_PERCENTILE, over=1)  # an estimate leaves the slowest out; of 0.99: 662


@dataclass(frozen=True)
class Limits:
    """99th-percentile limits that make a run VALID, in milliseconds."""

    ttft_ms: float
    tpot_ms: float


@dataclass(frozen=True)
class Scenario:
    """One scenario of the benchmark.

    `pace` says who decides when a query is sent: LoadGen sends all of them at once, at random times at a fixed mean
    rate, or each when the one before is answered; at fixed concurrency it hands over all of them at once, and so many
    are sent on at a time. `several`: a query may hold several samples. `unofficial` says why
    the benchmark has no such scenario.
    """

    name: str
    loadgen: str  # LoadGen's name of it: Interactive is its Server under another model name, with tighter limits
    categories: tuple[str, ...]
    pace: Literal["all at once", "fixed rate", "one by one", "fixed concurrency"]
    headline: str  # the metric that is its result
    limits: Limits | None = None
    offline_share: float | None = None  # of the Offline rate that `auto` sends
    search_share: float | None = None  # of the Offline rate at which a search begins
    loadgen_model: str = "llama3_1-8b"  # in the datacenter category
    several: bool = False
    unofficial: str = ""
    min_duration_s: float = MIN_DURATION_S

    @property
    def streaming(self) -> bool:
        """Whether the time of each first token is measured."""
        return self.pace != "all at once"

    @property
    def fixed_rate(self) -> bool:
        """Whether LoadGen sends queries at a given rate, so that the speed follows from the rate."""
        return self.pace == "fixed rate"

    @property
    def capped(self) -> bool:
        """Whether no more than a given number of requests is in flight."""
        return self.pace == "fixed concurrency"

    @property
    def reported(self) -> bool:
        """Whether each first token is reported to LoadGen."""
        return self.streaming and not self.capped

    @property
    def planned_by_rate(self) -> bool:
        """Whether LoadGen plans by a rate, rather than by a latency."""
        return self.pace != "one by one"


# vLLM's arguments that decide how fast it computes, and not what: any other makes a result another model's.
SPEED_ARGS = {
    *("aggregate_engine_logging", "async_scheduling", "attention_backend", "attention_config", "block_size"),
    *("compilation_config", "cpu_distributed_timeout_seconds", "cpu_offload_gb", "cudagraph_capture_sizes"),
    *("cudagraph_metrics", "data_parallel_address", "data_parallel_backend", "data_parallel_rpc_port"),
    *("data_parallel_size_local", "device_ids", "disable_cascade_attn", "disable_custom_all_reduce"),
    *("disable_hybrid_kv_cache_manager", "disable_log_stats", "disable_nccl_for_dp_synchronization"),
    *("distributed_executor_backend", "distributed_timeout_seconds", "download_dir", "enable_chunked_prefill"),
    *("enable_flashinfer_autotune", "enable_layerwise_nvtx_tracing", "enable_log_requests", "enable_mfu_metrics"),
    *("enable_prefix_caching", "enable_shm_tensor_arena", "enforce_eager", "gpu_memory_utilization"),
    *("ir_op_priority", "jit_monitor_mode", "jit_monitor_verbose", "kernel_config", "kv_cache_memory_bytes"),
    *("kv_cache_metrics", "kv_cache_metrics_sample", "kv_transfer_config", "linear_backend", "log_config_file"),
    *("log_level", "logging_config", "long_prefill_token_threshold", "long_prefill_token_threshold_adaptive"),
    *("master_addr", "master_port", "max_cudagraph_capture_size", "max_num_scheduled_tokens"),
    *("max_parallel_loading_workers", "model_impl", "nnodes", "node_rank", "num_gpu_blocks_override", "numa_bind"),
    *("numa_bind_cpus", "numa_bind_nodes", "optimization_level", "otlp_traces_endpoint", "performance_mode"),
    *("pipeline_parallel_size", "prefill_schedule_interval", "prefix_caching_hash_algo", "profiler_config"),
    *("pt_load_map_location", "ray_workers_use_nsight", "safetensors_load_strategy"),
    *("safetensors_prefetch_block_size", "safetensors_prefetch_num_threads", "scheduler_reserve_full_isl"),
    *("scheduling_policy", "shutdown_timeout", "speculative_config", "stream_interval", "use_tqdm_on_load"),
    *("watermark", "worker_extension_cls"),
}
SERVER_LIMITS = Limits(2000, 100)
# Random arrivals come in bursts: Server's share leaves room for them. Interactive's TPOT limit is the tighter one.
SCENARIO = {
    row.name: row
    for row in (
        Scenario("offline", "Offline", ("datacenter", "edge"), "all at once", "tokens_per_sec"),
        Scenario("server", "Server", ("datacenter",), "fixed rate", "tokens_per_sec", SERVER_LIMITS, 0.8, 0.9),
        Scenario(
            *("interactive", "Server", ("datacenter",), "fixed rate", "tokens_per_sec", Limits(500, 30), 0.6, 0.7),
            loadgen_model="llama3_1-8b-interactive",
        ),
        Scenario("singlestream", "SingleStream", ("edge",), "one by one", "latency_p90_ms"),
        Scenario(
            *("multistream", "MultiStream", ("datacenter", "edge"), "one by one", "latency_p90_ms"),
            several=True,
            unofficial="MultiStream is no scenario of this benchmark",
        ),
        Scenario(
            *("concurrency", "Offline", ("datacenter", "edge"), "fixed concurrency", "tokens_per_sec", SERVER_LIMITS),
            unofficial="a fixed concurrency is no scenario of this benchmark",
            min_duration_s=120.0,
        ),
    )
}
CATEGORIES = ("datacenter", "edge")
UNOFFICIAL_BACKENDS = {"echo": "the echo engine computes nothing"}
SCENARIOS = {one: tuple(row.name for row in SCENARIO.values() if one in row.categories) for one in CATEGORIES}


def loadgen_model(category: str, scenario: str) -> str:
    """The model name under which `mlperf.conf` keeps this benchmark's settings."""
    return "llama3_1-8b-edge" if category == "edge" else SCENARIO[scenario].loadgen_model


@dataclass(frozen=True)
class Seeds:
    """LoadGen's random seeds, drawn anew for each MLPerf round."""

    qsl: int
    sample_index: int
    schedule: int


SEEDS = {
    "5.1": Seeds(1780908523862526354, 14771362308971278857, 18209322760996052031),
    "6.0": Seeds(2465351861681999779, 14276810075590677512, 3936089224930324775),
    "6.1": Seeds(2085463073848966840, 2747215439041700203, 16159082839903944936),
}


@dataclass(frozen=True)
class Scores:
    """ROUGE F1 x100 (mean over samples) and gen_len (characters, summed over samples)."""

    rouge1: float
    rouge2: float
    rougeL: float
    rougeLsum: float
    gen_len: float


ROUGE = tuple(field.name for field in fields(Scores) if field.name.startswith("rouge"))
SCORES = {name: name.replace("rouge", "ROUGE-") for name in (*ROUGE, "gen_len")}  # as people write them
SAMPLE_SCORES = ROUGE  # the means over samples
SHORT_SCORES = ("rouge1", "rougeL")  # where there is no room for all; the first where there is room for one


@dataclass(frozen=True)
class Task:
    """One category of the benchmark: how many samples, and what the reference model scores on them."""

    samples: int
    reference: Scores
    min_duration_s: float = MIN_DURATION_S


OFFICIAL = {
    "datacenter": Task(13368, Scores(38.7792, 15.9075, 24.4957, 35.7930, 8167644)),
    "edge": Task(5000, Scores(39.0600, 16.1147, 24.6375, 36.1240, 3051113)),
}


@dataclass(frozen=True)
class Small:
    """vLLM's settings on a CPU for a model so small that its defaults make no sense."""

    cache_bytes: int
    sequences: int


@dataclass(frozen=True)
class Model:
    """A model with its data: what `--model` names in short.

    `data` and `mmlu` are local files and folders, None where they come from the hub; `context` and `mmlu_context` are
    the longest prompt plus answer, in tokens; `reservation` says why results of it are no results of Llama-3.1-8B.
    """

    path: str
    context: int = LONGEST_PROMPT + MAX_NEW_TOKENS
    mmlu_context: int = 4096
    positions: int | None = None  # the longest context the model knows, where that is less than a user may ask for
    data: Path | None = None
    mmlu: Path | None = None
    small: Small | None = None
    reservation: str = ""
    references: Path | None = None  # scores and sample counts by category, as OFFICIAL has them
    min_duration_s: dict[str, float] = field(default_factory=dict, hash=False)  # by scenario

    def task(self, category: str, scenario: str) -> Task:
        """What is asked of this model in a category, and what it is held against."""
        if self.references is None:
            return replace(OFFICIAL[category], min_duration_s=SCENARIO[scenario].min_duration_s)
        measured = json.loads(self.references.read_text())[category]
        scores = Scores(**{name: measured[name] for name in (*ROUGE, "gen_len")})
        return Task(measured["samples"], scores, self.min_duration_s[scenario])


DEFAULT_MODEL = "llama3.1-8b-instruct"
MODELS = {
    DEFAULT_MODEL: Model("meta-llama/Llama-3.1-8B-Instruct"),
    "demo": Model(
        str(DEMO / "model"),
        context=1024,
        mmlu_context=1024,
        positions=1024,
        data=DEMO / "cnn_eval.json",
        mmlu=DEMO / "mmlu",
        small=Small(cache_bytes=2**30, sequences=64),  # a CPU is as fast with 64 as with more, and shows several rounds
        reservation="the demo model",
        references=DEMO / "reference.json",
        min_duration_s={name: 20.0 if row.streaming else 10.0 for name, row in SCENARIO.items()},
    ),
}
# Published checkpoints of the reference model, quantized by their makers.
QUANTIZED = (
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8",
    "RedHatAI/Meta-Llama-3.1-8B-Instruct-FP8-dynamic",
    "nvidia/Llama-3.1-8B-Instruct-FP8",
)


QUANTIZE_JSON = "quantize.json"  # in a folder that `python -m harness.quantize` made


@cache
def model(name: str) -> Model:
    """The row of a short name, or of the model that a quantized folder was made of; any other name is a hub
    repository or a folder with MLPerf's own data."""
    row = MODELS.get(name) or MODELS.get(made_of(name))
    return Model(name) if row is None else row if name in MODELS else replace(row, path=name)


def made_of(name: str) -> str:
    """The model that a quantized folder was made of; empty for anything else."""
    try:
        return str(json.loads((Path(name) / QUANTIZE_JSON).read_text())["model"])
    except (OSError, ValueError, LookupError, TypeError):
        return ""


def in_eight_bits(name: str) -> bool:
    """Whether a checkpoint is known to hold 8-bit weights for 8-bit arithmetic: a published one, or one made here."""
    return name in QUANTIZED or bool(made_of(name))


@dataclass(frozen=True)
class Bounds:
    """What a score must keep to: floors for ROUGE, a corridor for gen_len."""

    floor: dict[str, float]
    gen_len: tuple[float, float]


GATE = {False: 0.99, True: 0.999}  # share of the reference that each ROUGE score must reach, by high accuracy or not


def bounds(reference: Scores, high_accuracy: bool = False) -> Bounds:
    """ROUGE at least 0.99 of the reference (0.999 for high accuracy), gen_len within 10 % of it."""
    floor = {name: GATE[high_accuracy] * getattr(reference, name) for name in ROUGE}
    return Bounds(floor, (0.9 * reference.gen_len, 1.1 * reference.gen_len))
