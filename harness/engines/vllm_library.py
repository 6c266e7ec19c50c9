"""The parts of vLLM's engine that this program uses, as vLLM has them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import zmq
    from vllm import SamplingParams


class TokenLogprob(Protocol):
    """The log-probability of a token."""

    logprob: float


class AnswerOutput(Protocol):
    """A part of an answer; its log-probabilities are by token id, one mapping a token."""

    token_ids: Sequence[int]
    logprobs: Sequence[Mapping[int, TokenLogprob]]


class RequestOutput(Protocol):
    """A step of a request. `outputs` has one item for each answer to the request, so here it has one."""

    outputs: Sequence[AnswerOutput]
    num_cached_tokens: int | None


class ModelConfig(Protocol):
    """The model, and how its weights are quantized on loading."""

    hf_config: object
    quantization: str | None
    quantization_config: object
    is_quantized: bool
    is_moe: bool


class CacheConfig(Protocol):
    """The cache of keys and values."""

    cache_dtype: str
    enable_prefix_caching: bool | None
    block_size: int


class SchedulerConfig(Protocol):
    """The most that a step computes."""

    max_num_seqs: int
    max_num_batched_tokens: int


class ParallelConfig(Protocol):
    """The number of replicas."""

    data_parallel_size: int


class SpeculativeConfig(Protocol):
    """The method of speculative decoding."""

    method: str


class TransferConfig(Protocol):
    """The other place for the cache."""

    kv_connector: str | None


class EngineSettings(Protocol):
    """All that vLLM resolved from its arguments and the checkpoint."""

    model_config: ModelConfig
    cache_config: CacheConfig
    scheduler_config: SchedulerConfig
    parallel_config: ParallelConfig
    speculative_config: SpeculativeConfig | None
    kv_transfer_config: TransferConfig | None


class EngineManager(Protocol):
    """The engine's processes on this machine."""

    def finished_procs(self) -> Mapping[str, int]:
        """Return the exit codes of the processes that ended, by name."""


class EngineResources(Protocol):
    """The sockets and processes of vLLM's client."""

    engine_manager: EngineManager
    input_socket: "zmq.Socket[bytes]"


class EngineClient(Protocol):
    """vLLM's client in this process, which talks to its engines."""

    resources: EngineResources


class AsyncEngine(Protocol):
    """vLLM's AsyncLLM."""

    vllm_config: EngineSettings
    engine_core: EngineClient
    output_handler: "asyncio.Task[None] | None"

    @property
    def errored(self) -> bool: ...

    def generate(
        self, prompt: object, sampling_params: "SamplingParams", request_id: str, /
    ) -> AsyncIterator[RequestOutput]: ...

    def collective_rpc(self, method: str, timeout: float) -> Awaitable[Sequence[Mapping[str, str]]]: ...

    def reset_prefix_cache(self) -> Awaitable[bool]: ...

    def start_profile(self) -> Awaitable[None]: ...

    def stop_profile(self) -> Awaitable[None]: ...

    def shutdown(self) -> None: ...
