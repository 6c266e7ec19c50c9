"""The interface of an engine to the benchmark."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from harness.config import mlperf
from harness.config.engine import EngineState
from harness.runs.delivery import Exchange

Result = TypeVar("Result")


@dataclass(frozen=True)
class Sampling:
    """How answers are generated: greedy, as MLPerf asks, unless a test plants a fault.

    `exact`: as many tokens as a request allows, whatever the model says.
    """

    max_new_tokens: int = mlperf.MAX_NEW_TOKENS
    min_new_tokens: int = mlperf.MIN_NEW_TOKENS
    temperature: float = 0.0
    exact: bool = False

    def of(self, max_new_tokens: int | None) -> "Sampling":
        """The sampling of one request; None: as long as all."""
        most = max_new_tokens or self.max_new_tokens
        return replace(self, max_new_tokens=most, min_new_tokens=most if self.exact else self.min_new_tokens)


GREEDY = Sampling()


@dataclass(frozen=True, slots=True)
class ChoiceLogprobs:
    """The log-probability of each token allowed, and how many tokens of the prompt came from the prefix cache; None
    where a server does not tell."""

    logprobs: tuple[float, ...]
    cached_tokens: int | None


class Engine(Protocol):
    """One engine: `start` it, `spawn` coroutines on its loop from any thread, `close` it."""

    name: str
    version: str
    args: dict[str, object]
    sampling: Sampling
    start_s: float
    last_response_at: float  # when it last answered anything, by time.monotonic
    kernels: dict[str, str]  # once started: its attention backend and linear kernel, as far as it tells
    cautions: list[str]  # once started: what its user should know of its settings
    loop: asyncio.AbstractEventLoop

    def start(self, watch: Callable[[], None] = ...) -> None:
        """Gets the engine ready; `watch` is called while waiting. Raises EngineError, UsageError."""

    def spawn(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Runs a coroutine on the engine's loop, from any thread."""

    def wait(self, future: "Future[Result]", watch: Callable[[], None]) -> Result:
        """The future's result, or what the work raised; calls `watch` while it waits, which may raise."""

    async def generate(
        self, prompt: list[int], max_new_tokens: int | None = None, exchange: Exchange | None = None
    ) -> Sequence[int]:
        """The whole answer's token ids, at most as many as `sampling` or the request says. An engine that sends the
        request on notes in `exchange` when it did, and how the answer came. Raises EngineError."""

    def stream(
        self, prompt: list[int], max_new_tokens: int | None = None, exchange: Exchange | None = None
    ) -> AsyncIterator[Sequence[int]]:
        """The same as they come: the first at once. Raises EngineError."""

    async def score_choices(self, prompt: list[int], choices: list[int]) -> ChoiceLogprobs:
        """The next token, restricted to the ids in `choices` (at most 20), of an engine made for that. Raises
        EngineError, and UsageError where the engine cannot."""

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache, between tests. Raises EngineError."""

    async def profile(self, on: bool) -> None:
        """Turns the engine's own profiler on, or off, which writes its trace. Raises EngineError."""

    @property
    def engine_state(self) -> EngineState:
        """What the engine made of its arguments and the checkpoint."""

    @property
    def concurrency(self) -> int:
        """Most requests computed at once, over all replicas."""

    def prometheus_metrics(self) -> list[str]:
        """Its own metrics in Prometheus' text format, a text for each server; none where it keeps none. From any thread
        but its own."""

    @property
    def failure(self) -> str | None:
        """Why the engine will answer no more; None while it lives."""

    def close(self) -> None:
        """Stops the engine and every process it started; returns within a few seconds even if it hangs."""
