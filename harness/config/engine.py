"""The flags of the model and its engine, in this process or behind `--endpoint`: each defined once."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import AfterValidator

from harness.config import models
from harness.config.flags import ENGINE_TOPIC, MODEL_TOPIC, RESULTS_TOPIC, SERVER_TOPIC, Settings, flag
from harness.config.server_addresses import check_addresses
from harness.config.setting_types import Auto, Concurrency, Context, Count, Seconds, positive_bounds
from harness.core.errors import UsageError
from harness.core.given_values import flag_name, require
from harness.core.plain_numbers import decimal_number, whole_number
from harness.core.reading import TooLargeError, yaml_value
from harness.core.secrets import noted_secrets, secrets_in
from harness.core.word_list import names_in

GPU_MEMORY_SHARE = 0.9  # the share of each GPU's memory that --gpu-memory-utilization auto lets vLLM take
BYTES_PER_WEIGHT = {"fp16": 2, "bf16": 2, "fp32": 4}


@dataclass(frozen=True)
class EngineState:
    """The settings that the engine resolved from its arguments and the checkpoint; only the engine itself knows
    them.
    """

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
    kv_connector: str | None = None  # another place that may hold attention caches, or make them up
    other_model: str = ""  # the model that a server serves, if that is surely not the one that was named


def checked_engine_arg(text: str) -> str:
    """Return an engine argument (KEY=VALUE) unchanged. The secrets in its value are masked in all output from now on.

    Raises UsageError if the argument cannot be used.
    """
    key, equals, value = text.partition("=")
    require(key.isidentifier() and bool(equals), "--engine-arg", "KEY=VALUE", text)
    try:
        noted_secrets.update(secrets_in({key: yaml_value(value)}))
    except TooLargeError as error:  # for example because the value contains itself through a YAML alias
        raise UsageError(f"--engine-arg {key}: {error}.") from None
    return text


def split_names(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names in texts such as "A,B", each once and in alphabetical order.

    They are sorted so that the order in which the user gave them makes no difference.
    """
    names = set[str]()
    for text in texts:
        names.update(text.split(","))
    return tuple(sorted(names))


KeyValue = Annotated[str, AfterValidator(checked_engine_arg)]
Names = Annotated[tuple[str, ...], AfterValidator(split_names)]
Copies = Annotated[int, positive_bounds(10**4)]


class EngineConfig(Settings):
    """The model and how vLLM runs it: the flags that `run.py` and `mmlu.py` share."""

    model: str = flag(models.DEFAULT_MODEL, MODEL_TOPIC, "answers")
    """Hugging Face repository, local folder, llama3.1-8b-instruct, or demo (tiny; needs no GPU, HF_TOKEN or
    download)."""
    backend: Literal["auto", "vllm", "openai", "echo"] = flag("auto", MODEL_TOPIC, "answers")
    """vllm: in this process; openai: a running server with an OpenAI API; echo: computes nothing and answers at once,
    to try the harness. auto: openai with --endpoint, else vllm."""
    precision: Literal["fp16", "bf16", "fp32"] = flag("bf16", MODEL_TOPIC, "answers")
    """Number format of weights and activations: fp16 for GPUs older than the A100, as they lack bf16."""
    quantization: str = flag("none", MODEL_TOPIC, "answers")
    """none; fp8 (half the weights' memory, and the GPU's faster 8-bit arithmetic); or another of vLLM's methods."""
    kv_cache_dtype: Literal["auto", "fp8"] = flag("auto", MODEL_TOPIC, "answers")
    """fp8 halves the memory of each request's KV cache, so that more requests fit at once."""
    load_format: str = flag("auto", MODEL_TOPIC, "answers")
    """How vLLM loads weights. dummy: near-zero weights, which overstate the speed."""
    trust_remote_code: bool = flag(False, MODEL_TOPIC, "answers")
    """Run Python code that comes with the model. Off unless given."""

    tensor_parallel_size: Copies | Auto = flag("auto", ENGINE_TOPIC, "speed")
    """Number of GPUs that one copy of the model is split over; raise it if one GPU is too small. auto: as few as hold
    the model."""
    data_parallel_size: Copies | Auto = flag("auto", ENGINE_TOPIC, "speed")
    """Copies of the model that share the load. auto: as many as the visible GPUs hold."""

    max_model_len: Context | Auto = flag("auto", ENGINE_TOPIC, "answers")
    """Longest prompt plus answer, in tokens; lower it if memory runs out. auto: 2668 (every sample fits); demo:
    1024."""
    gpu_memory_utilization: Annotated[float, positive_bounds(1)] | Auto = flag("auto", ENGINE_TOPIC, "speed")
    """Share of each GPU's memory that vLLM may take; lower it if memory runs out at the start. auto: 0.9; on a CPU a
    quarter of what is free."""
    max_num_seqs: Count | None = flag(None, ENGINE_TOPIC, "speed")
    """Maximum requests computed at once; lower it if memory runs out or TPOT is over its limit. Unset: vLLM decides."""
    max_num_batched_tokens: Context | None = flag(None, ENGINE_TOPIC, "speed")
    """Maximum tokens in one engine step; raise it for Offline, lower it if TPOT is over its limit. Unset: vLLM
    decides."""
    engine_arg: tuple[KeyValue, ...] = flag((), ENGINE_TOPIC, "answers", metavar="KEY=VALUE")
    """Any other argument of vLLM's engine (repeatable), such as enable_prefix_caching=false."""
    engine_patch: Names = flag((), ENGINE_TOPIC, "answers", metavar="NAME[,NAME...]")
    """Change vLLM where it loses speed: fast-accumulation, inductor-activation, single-row
    (docs/patches.md)."""

    stall_timeout: Seconds = flag(300.0, ENGINE_TOPIC, "nothing")
    """End the run after this many seconds without a response, or after 20 times the longest wait so far if that is
    longer."""

    mlflow: bool = flag(False, RESULTS_TOPIC, "nothing")
    """Log the result to MLflow: to MLFLOW_TRACKING_URI, or else to mlflow.db in the results folder."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence for each --engine-arg that has a flag of its own, and for what excludes --engine-patch."""
        yield from super().problems()
        for name in self.engine_args:
            field = "precision" if name == "dtype" else name  # vLLM's dtype is the flag --precision here.
            if field in type(self).model_fields:
                yield f"--engine-arg {name}: use {flag_name(field)}."
        if self.engine_patch and self.backend == "echo":
            yield f"--engine-patch changes vLLM: remove it, or --backend {self.backend}."
        if self.engine_patch and "worker_extension_cls" in self.engine_args:
            yield "--engine-patch takes the place of --engine-arg worker_extension_cls: remove one of them."
        if self.engine_patch and self.has_other_hosts:
            yield "--engine-patch reaches the workers of this host alone: remove it, or the other hosts."

    @property
    def model_spec(self) -> models.ModelSpec:
        """The facts about the model: its path, its longest context, and its data."""
        return models.model(self.model)

    @property
    def memory_share(self) -> float:
        """The share of each GPU's memory that vLLM may take: --gpu-memory-utilization or, if that is auto, 0.9."""
        if self.gpu_memory_utilization == "auto":
            return GPU_MEMORY_SHARE
        return self.gpu_memory_utilization

    @property
    def model_path(self) -> str:
        """The name or folder that Hugging Face loaders take."""
        return self.model_spec.path

    @property
    def engine_args(self) -> dict[str, object]:
        """The engine arguments by key. Their values are read as YAML, so 8, true, {"mode": 3} and text all work."""
        arguments = {}
        for argument in self.engine_arg:
            key, text = argument.split("=", 1)
            arguments[key] = yaml_value(text)
        return arguments

    @property
    def has_other_hosts(self) -> bool:
        """Tell whether vLLM may use GPUs of other hosts, through Ray or by its own arguments for several nodes.

        The GPUs seen here are then only some of those that vLLM uses.
        """
        backends = (self.engine_args.get("data_parallel_backend"), self.engine_args.get("distributed_executor_backend"))
        has_node_arguments = not {"data_parallel_size_local", "nnodes"}.isdisjoint(self.engine_args)
        return "ray" in backends or has_node_arguments

    @property
    def least_context(self) -> int:
        """The context in tokens (the longest prompt plus answer) that the engine needs at least.

        That is --max-model-len or, if that is auto, what the model's usual samples need. A workload may need more.
        """
        if self.max_model_len == "auto":
            return self.model_spec.context
        return self.max_model_len

    @property
    def has_dummy_weights(self) -> bool:
        return self.load_format == "dummy"

    @property
    def loads_weights(self) -> bool:
        """Tell whether an engine in this process reads the model's weights."""
        return self.backend in ("auto", "vllm") and not self.has_dummy_weights


# Settings that only an engine in this process can obey: a server was started with its own.
IN_PROCESS_FLAGS = names_in(
    """
    precision quantization kv_cache_dtype load_format tensor_parallel_size data_parallel_size gpu_memory_utilization
    max_num_seqs max_num_batched_tokens engine_arg engine_patch profile
    """
)
ENDPOINT_FLAGS = names_in(
    """
    endpoint_api request_timeout wait_ready max_in_flight max_failed metrics_url telemetry_url served_model_name
    new_connections
    """
)


class ServerFlags(EngineConfig):
    """The model, and the engine that serves it: in this process, or a server that already runs."""

    endpoint: tuple[str, ...] = flag((), SERVER_TOPIC, "answers", metavar="URL")
    """Address of a running server, such as http://host:8000/v1 (repeatable: they share the load). Its key, if any, is
    OPENAI_API_KEY in the environment."""
    request_timeout: Seconds = flag(600.0, SERVER_TOPIC, "nothing")
    """Seconds after which an unfinished request fails."""
    wait_ready: Annotated[float, positive_bounds(24 * 3600)] | None = flag(None, SERVER_TOPIC, "nothing")
    """Seconds to wait for a server that is still loading. Unset: none."""
    max_in_flight: Concurrency = flag(1024, SERVER_TOPIC, "speed")
    """Maximum concurrent requests per endpoint; others wait in the client."""

    served_model_name: str = flag("", SERVER_TOPIC, "answers", metavar="NAME")
    """Name of the model on the server, if it differs from --model, whose tokenizer is used."""
    new_connections: bool = flag(False, SERVER_TOPIC, "speed")
    """Open a connection for each request: a balancer of connections keeps all requests of one with one replica."""

    def problems(self) -> Iterator[str]:
        """Yield a sentence if backend and endpoint contradict each other, or if flags have no effect with them."""
        yield from super().problems()
        if self.backend == "openai" and not self.endpoint:
            yield "--backend openai needs the address of a server: --endpoint http://host:8000/v1."
        if self.backend != "openai" and self.endpoint:
            yield f"--backend {self.backend} runs in this process: remove --endpoint, or use --backend openai."
        ineffective = self.ineffective_flags
        if ineffective and self.endpoint:
            yield f"{ineffective}: only for an engine in this process; the server of --endpoint has its own settings."
        elif ineffective:
            yield f"{ineffective}: only with --endpoint."

    def implications(self, given: frozenset[str]) -> dict[str, object]:
        """Return the backend in place of auto, and the addresses of the endpoints without a slash at their end.

        The backend is a server's (openai) if there is an endpoint, else vLLM. Raises UsageError for an unusable
        address.
        """
        backend = self.backend
        if backend == "auto":
            backend = "openai" if self.endpoint else "vllm"
        return {"backend": backend, "endpoint": check_addresses(self.endpoint)}

    @property
    def ineffective_flags(self) -> str:
        """The flags that were given but have no effect, as one text. Empty if there are none.

        With an endpoint, flags for an engine in this process have no effect; without one, flags for an endpoint.
        """
        names = IN_PROCESS_FLAGS if self.endpoint else ENDPOINT_FLAGS
        return ", ".join(flag_name(name) for name in names if name in self.named_settings)

    @property
    def is_in_process(self) -> bool:
        """Tell whether this process and the processes that it starts compute the answers, on this machine's GPUs."""
        return self.backend == "vllm"


class EndpointFlags(ServerFlags):
    endpoint_api: Literal["completions", "chat"] = flag("completions", SERVER_TOPIC, "answers")
    """chat: send each prompt as a user's message. The server's chat template adds to it."""
    max_failed: str = flag("0", SERVER_TOPIC, "nothing")
    """Requests that may fail in a test: N or N%. They are counted and left out of latencies and tokens; never
    comparable with MLPerf. 0: the first failure ends the run."""
    metrics_url: tuple[str, ...] = flag((), SERVER_TOPIC, "nothing", metavar="URL")
    """Address of the server's Prometheus metrics, as in http://host:9090/metrics (repeatable). Unset: /metrics beside
    each --endpoint."""
    telemetry_url: tuple[str, ...] = flag((), SERVER_TOPIC, "nothing", metavar="URL")
    """DCGM exporter page of the server's GPUs, as in http://host:9400/metrics?gpu=0,1 or ?host=NAME (repeatable): GPU
    columns such as power and energy. Implies --extra-metrics."""


MANY_REQUESTS = 10**9  # so many requests that even a small share of them is at least one request


def allows_failures(max_failed: str) -> bool:
    """Return whether --max-failed allows any request to fail. Raises UsageError if the value is neither N nor N%."""
    return failure_allowance(max_failed, MANY_REQUESTS) > 0


def failure_allowance(max_failed: str, requests: int) -> int:
    """Return how many of a test's `requests` may fail, by the value of --max-failed: N requests, or N% of all.

    Raises UsageError for any other value, and for a number or share that no test can have.
    """
    if max_failed.endswith("%"):
        percent = decimal_number(max_failed.removesuffix("%"))
        if percent is not None and percent <= 100:
            return int(requests * percent / 100)
    else:
        count = whole_number(max_failed)
        if count is not None and count <= 2**40:  # far more requests than any test has
            return count
    raise UsageError(
        f"--max-failed takes a number of requests, as in 5, or a share of them, as in 1%; got {max_failed!r}."
    )
