"""What a benchmark asks of an engine, and who answers: one row in BACKENDS for each engine.

    vllm    vLLM in this process; beside it vllm_refusals (its own words), profiler, hosts
    openai  servers; beside it completions (their API), client (a request), client_processes (many clients)

Both run on a `loop` of their own, and `prometheus` reads what they tell of themselves. Token ids go in, token ids come
out.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from harness import rules

if TYPE_CHECKING:
    from harness.plan import Plan

Result = TypeVar("Result")


@dataclass(frozen=True)
class Sampling:
    """How answers are generated: greedy, as MLPerf asks, unless a test plants a fault.

    `exact`: as many tokens as a request allows, whatever the model says.
    """

    max_new_tokens: int = rules.MAX_NEW_TOKENS
    min_new_tokens: int = rules.MIN_NEW_TOKENS
    temperature: float = 0.0
    exact: bool = False

    def of(self, max_new_tokens: int | None) -> "Sampling":
        """The sampling of one request; None: as long as all."""
        most = max_new_tokens or self.max_new_tokens
        return replace(self, max_new_tokens=most, min_new_tokens=most if self.exact else self.min_new_tokens)


GREEDY = Sampling()


@dataclass(frozen=True)
class Running:
    """What the engine makes of its arguments and the checkpoint; only the engine itself knows."""

    precision: str | None = None  # None: as configured
    quantization: str = "none"
    quantized_checkpoint: bool = False  # with scales from whoever made it
    kv_cache_dtype: str = "auto"
    prefix_caching: bool | None = False  # None: cannot be seen
    speculation: str | None = None  # the method
    kv_connector: str | None = None  # what else may hold attention caches, or make them up


class Engine(Protocol):
    """One engine: `start` it, `spawn` coroutines on its loop from any thread, `close` it."""

    name: str
    version: str
    args: dict[str, Any]
    sampling: Sampling
    start_s: float
    heard_at: float  # when it last answered anything, by time.monotonic
    cautions: list[str]  # once started: what its user should know of its settings
    loop: asyncio.AbstractEventLoop

    def start(self, watch: Callable[[], None] = ...) -> None:
        """Gets the engine ready; `watch` is called while waiting. Raises EngineError, UsageError."""

    def spawn(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Runs a coroutine on the engine's loop, from any thread."""

    def wait(self, future: "Future[Result]", watch: Callable[[], None]) -> Result:
        """The future's result, or what the work raised; calls `watch` while it waits, which may raise."""

    async def generate(self, prompt: list[int], max_new_tokens: int | None = None) -> Sequence[int]:
        """The whole answer's token ids, at most as many as `sampling` or the request says. Raises EngineError."""

    def stream(self, prompt: list[int], max_new_tokens: int | None = None) -> AsyncIterator[Sequence[int]]:
        """The same as they come: the first at once. Raises EngineError."""

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache, between tests. Raises EngineError."""

    async def profile(self, on: bool) -> None:
        """Turns the engine's own profiler on, or off, which writes its trace. Raises EngineError."""

    @property
    def running(self) -> Running:
        """What the engine made of its arguments and the checkpoint."""

    @property
    def concurrency(self) -> int:
        """Most requests computed at once, over all replicas."""

    def expose(self) -> list[str]:
        """Its own metrics in Prometheus' text format, a text for each server; none where it keeps none. From any thread
        but its own."""

    def told(self) -> Counter[str]:
        """What servers counted themselves so far, as facts.ServerUse names it; empty for an engine in this process."""

    @property
    def failure(self) -> str | None:
        """Why the engine will answer no more; None while it lives."""

    def close(self) -> None:
        """Stops the engine and every process it started; returns within a few seconds even if it hangs."""


BACKENDS = {  # each module has create(plan, traces) -> Engine
    "vllm": "harness.engines.vllm",
    "openai": "harness.engines.openai",
}


def sampling_of(plan: "Plan") -> Sampling:
    """How a run's answers are generated; its longest one, where requests differ."""
    return Sampling(plan.max_new_tokens, exact=plan.asked is not None and plan.asked.exact)


def create(plan: "Plan", traces: Path) -> Engine:
    """The engine of `--backend`, not started yet; its profiler, with --profile, leaves traces in that folder."""
    made: Engine = import_module(BACKENDS[plan.config.backend]).create(plan, traces)
    return made
