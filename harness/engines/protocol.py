"""The interface of an engine to the benchmark, and what all engines share."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from harness.common.errors import EngineError, UsageError
from harness.config import mlperf
from harness.config.engine import EngineState
from harness.runs.delivery import Exchange

Result = TypeVar("Result")
EVERY_S = 0.1


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


class Engine:
    """One engine, with a loop on its own thread: `start` it, `spawn` coroutines from any thread, `close` it."""

    name, version, starting, ready = "", "", "", ""  # the last two: words for its start and its end, if it has any

    def __init__(self, args: dict[str, object] | None = None, sampling: Sampling = GREEDY) -> None:
        self.args, self.sampling = args or {}, sampling
        self.start_s = 0.0
        self.last_response_at = 0.0  # when it last answered anything, by time.monotonic
        self.kernels: dict[str, str] = {}  # once started: its attention backend and linear kernel, as far as it tells
        self.cautions: list[str] = []  # once started: what its user should know of its settings
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="engine", daemon=True)

    def _serve(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    def open_loop(self) -> None:
        self._thread.start()

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Runs a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def wait(self, future: "Future[Result]", watch: Callable[[], None]) -> Result:
        """The future's result, or what the work raised, a TimeoutError included; calls `watch` while it waits, which
        may raise."""
        while not wait([future], timeout=EVERY_S).done:
            watch()
        return future.result()

    def start(self, watch: Callable[[], None] = lambda: None) -> None:
        """Gets the engine ready; `watch` is called while waiting. Raises EngineError, UsageError."""
        self.open_loop()

    async def generate(
        self, prompt: list[int], max_new_tokens: int | None = None, exchange: Exchange | None = None
    ) -> Sequence[int]:
        """The whole answer's token ids, at most as many as `sampling` or the request says. An engine that sends the
        request on notes in `exchange` when it did, and how the answer came. Raises EngineError."""
        return [token async for tokens in self.stream(prompt, max_new_tokens, exchange) for token in tokens]

    def stream(
        self, prompt: list[int], max_new_tokens: int | None = None, exchange: Exchange | None = None
    ) -> AsyncIterator[Sequence[int]]:
        """The same as they come: the first at once. Raises EngineError."""
        raise NotImplementedError

    async def score_choices(self, prompt: list[int], choices: list[int]) -> ChoiceLogprobs:
        """The next token, restricted to the ids in `choices` (at most 20), of an engine made for that. Raises
        EngineError, and UsageError where the engine cannot."""
        raise UsageError(f"--backend {self.name} does not compute probabilities.")

    async def reset_prefix_cache(self) -> None:
        """Empties the prefix cache, between tests, where it has one and a say in it. Raises EngineError."""

    async def profile(self, on: bool) -> None:
        """Turns the engine's own profiler on, or off, which writes its trace. Raises EngineError."""
        raise EngineError(f"{self.name} has no profiler")

    @property
    def engine_state(self) -> EngineState:
        """What the engine made of its arguments and the checkpoint."""
        return EngineState()

    @property
    def concurrency(self) -> int:
        """Most requests computed at once, over all replicas."""
        raise NotImplementedError

    def prometheus_metrics(self) -> list[str]:
        """Its own metrics in Prometheus' text format, a text for each server; none where it keeps none. From any thread
        but its own."""
        return []

    @property
    def failure(self) -> str | None:
        """Why the engine will answer no more; None while it lives."""
        return None

    def close(self) -> None:
        """Stops the engine and every process it started; returns within a few seconds even if it hangs."""
        self.stop_loop()
