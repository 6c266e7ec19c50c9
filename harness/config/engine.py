"""The flags of the model and its engine, each defined once: name, type, default, help, what it affects."""

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator

from harness.config import models
from harness.config.flags import (
    ENGINE,
    MODEL,
    OUTPUT,
    Auto,
    Context,
    Count,
    Rules,
    Seconds,
    Settings,
    Share,
    above_0,
    flag,
)
from harness.core.coerce import as_flag, require
from harness.core.errors import UsageError
from harness.core.reading import TooLargeError, from_yaml

GPU_MEMORY_SHARE = 0.9
BYTES_PER_WEIGHT = {"fp16": 2, "bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class EngineState:
    """What the engine makes of its arguments and the checkpoint; only the engine itself knows."""

    precision: str | None = None  # None: as configured
    quantization: str = "none"
    quantized_checkpoint: bool = False  # with scales from whoever made it
    kv_cache_dtype: str = "auto"
    prefix_caching: bool | None = False  # None: behind an endpoint
    cache_counted: bool = False  # whether a server tells how many prompt tokens came from its cache
    speculation: str | None = None  # the method
    effective_max_num_seqs: int | None = None  # the value of `auto`; None: not known
    effective_max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_connector: str | None = None  # what else may hold attention caches, or make them up
    other_model: str = ""  # that a server serves, where that is surely not the one that was named


def is_pair(text: str) -> str:
    require(text.partition("=")[0].isidentifier() and "=" in text, "--engine-arg", "KEY=VALUE", text)
    return text


Pair = Annotated[str, AfterValidator(is_pair)]
Names = Annotated[
    tuple[str, ...], AfterValidator(lambda texts: tuple(sorted({name for text in texts for name in text.split(",")})))
]
Copies = Annotated[int, above_0(10**4)]


class EngineConfig(Settings):
    """The model and how vLLM runs it: the flags that `run.py` and `mmlu.py` share."""

    model: str = flag(models.DEFAULT_MODEL, MODEL, "answers", rank=4)
    """Hugging Face repository, local folder, llama3.1-8b-instruct, or demo (tiny; no GPU, token or download)."""
    backend: Literal["auto", "vllm", "openai", "echo"] = flag("auto", MODEL, "answers")
    """vllm: in this process; openai: a running server with an OpenAI API; echo: computes nothing and answers at once,
    to try the harness. auto: openai with --endpoint, else vllm."""
    precision: Literal["fp16", "bf16", "fp32"] = flag("bf16", MODEL, "answers")
    """Number format of weights and activations."""
    quantization: str = flag("none", MODEL, "answers", rank=12)
    """none; fp8 (half the weights' memory, and the GPU's faster 8-bit arithmetic); or another of vLLM's methods."""
    kv_cache_dtype: Literal["auto", "fp8"] = flag("auto", MODEL, "answers", rank=13)
    """fp8 halves the memory of each request's attention cache, so that more fit at once."""
    load_format: str = flag("auto", MODEL, "answers")
    """How vLLM loads weights. dummy: near-zero weights, which overstate the speed."""
    trust_remote_code: bool = flag(False, MODEL, "answers")
    """Run Python code that comes with the model. Off unless given."""

    tensor_parallel_size: Copies | Auto = flag("auto", ENGINE, "speed", rank=15)
    """GPUs one copy of the model is split over. auto: as few as hold the model."""
    data_parallel_size: Copies | Auto = flag("auto", ENGINE, "speed")
    """Copies of the model that share the load. auto: as many as the visible GPUs hold."""

    max_model_len: Context | Auto = flag("auto", ENGINE, "answers")
    """Longest prompt plus answer, in tokens. auto: 2668 (every sample fits); demo: 1024."""
    gpu_memory_utilization: Share | Auto = flag("auto", ENGINE, "speed")
    """Share of each GPU's memory that vLLM may take. auto: 0.9; on a CPU a quarter of what is free."""
    max_num_seqs: Count | None = flag(None, ENGINE, "speed", rank=16)
    """Maximum requests computed at once. Unset: vLLM decides."""
    max_num_batched_tokens: Context | None = flag(None, ENGINE, "speed", rank=17)
    """Maximum tokens in one engine step. Unset: vLLM decides."""
    engine_arg: tuple[Pair, ...] = flag((), ENGINE, "answers", metavar="KEY=VALUE", rank=18)
    """Any other argument of vLLM's engine (repeatable), as in enable_prefix_caching=false."""
    engine_patch: Names = flag((), ENGINE, "answers", metavar="NAME[,NAME...]")
    """Change vLLM where it loses speed: fast-accumulation, inductor-activation (docs/quantization.md)."""

    stall_timeout: Seconds = flag(300.0, ENGINE, "nothing")
    """End the run after this many seconds without a response, or after 20 times the longest wait so far if that is
    longer."""

    mlflow: bool = flag(False, OUTPUT, "nothing")
    """Log the result to MLflow: to MLFLOW_TRACKING_URI, or else to mlflow.db in the results folder."""

    RULES: ClassVar[Rules] = {
        "--engine-arg {run.doublet[0]}: use {run.doublet[1]}.": lambda run: run.doublet,
        "--engine-patch changes vLLM: remove it, or --backend {run.backend}.": lambda run: (
            run.engine_patch and run.backend == "echo"
        ),
        "--engine-patch takes the place of --engine-arg worker_extension_cls: remove one of them.": lambda run: (
            run.engine_patch and "worker_extension_cls" in run.engine_args
        ),
        "--engine-patch reaches the workers of this host alone: remove it, or the other hosts.": lambda run: (
            run.engine_patch and run.has_other_hosts
        ),
    }

    @property
    def doublet(self) -> tuple[str, str] | None:
        """An engine argument that has a flag, and that flag."""
        flags = {name: name for name in type(self).model_fields} | {"dtype": "precision"}
        return next(((name, as_flag(flags[name])) for name in self.engine_args if name in flags), None)

    @property
    def model_spec(self) -> models.ModelSpec:
        """What belongs to the model: path, context, data."""
        return models.model(self.model)

    @property
    def memory_share(self) -> float:
        return GPU_MEMORY_SHARE if self.gpu_memory_utilization == "auto" else self.gpu_memory_utilization

    @property
    def model_path(self) -> str:
        """What Hugging Face loaders take: a repository name or a folder."""
        return self.model_spec.path

    @property
    def engine_args(self) -> dict[str, object]:
        """`engine_arg` by key, values read as YAML (so 8, true, {"mode": 3} and text all work)."""
        pairs = (pair.partition("=") for pair in self.engine_arg)
        return {key: self.argument(key, text) for key, _, text in pairs}

    @staticmethod
    def argument(key: str, text: str) -> object:
        """The value of one. Raises UsageError for one that has no end."""
        try:
            return from_yaml(text)
        except TooLargeError as error:
            raise UsageError(f"--engine-arg {key}: {error}.") from None

    @property
    def has_other_hosts(self) -> bool:
        """Whether vLLM takes GPUs of other hosts, by Ray or by its own means: those seen here are a part of them."""
        ray = "ray" in map(self.engine_args.get, ("data_parallel_backend", "distributed_executor_backend"))
        return ray or not {"data_parallel_size_local", "nnodes"}.isdisjoint(self.engine_args)

    @property
    def least_context(self) -> int:
        """The longest prompt plus answer, in tokens, as far as it is known before a workload is read."""
        return self.model_spec.context if self.max_model_len == "auto" else self.max_model_len

    @property
    def has_dummy_weights(self) -> bool:
        return self.load_format == "dummy"
