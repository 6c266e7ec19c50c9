"""The interface of an engine to the benchmark, and what all engines share."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import Future, wait
from typing import NamedTuple, TypeVar

from harness.config import mlperf
from harness.config.engine import EngineState
from harness.core.errors import EngineError, UsageError
from harness.engines.answer_delivery import Exchange


class MessagePrompt(list[int]):
    """A conversation as token ids, which any engine can read and by which its length is counted. A server of the chat
    API gets the `messages` instead, with the text of `salt` before the first of them.
    """

    def __init__(self, tokens: Sequence[int], messages: Sequence[Mapping[str, str]], salt: Sequence[int] = ()) -> None:
        """Keep the messages beside their token ids. `salt` are random tokens that make the prompt unlike any other."""
        super().__init__(tokens)
        self.messages, self.salt = tuple(messages), tuple(salt)


TokenStream = AsyncIterator[Sequence[int]]  # the ids of an answer, as they come
Result = TypeVar("Result")
WATCH_INTERVAL_S = 0.1  # between two calls of `watch` while a coroutine runs


class Sampling(NamedTuple):
    """The settings by which answers are generated: greedy, as MLPerf asks, unless a test of this program plants a
    fault. `exact`: an answer has as many tokens as it may, even if the model would end it earlier.
    """

    max_new_tokens: int = mlperf.MAX_NEW_TOKENS
    min_new_tokens: int = mlperf.MIN_NEW_TOKENS
    temperature: float = 0.0
    exact: bool = False

    def for_request(self, max_new_tokens: int | None) -> "Sampling":
        """Return the sampling of one request, with its own `max_new_tokens` if that is not None.

        If answers must have exactly that length (`exact`), the fewest tokens are the same number.
        """
        most = max_new_tokens or self.max_new_tokens
        fewest = most if self.exact else self.min_new_tokens
        return self._replace(max_new_tokens=most, min_new_tokens=fewest)


GREEDY = Sampling()


class ChoiceLogprobs(NamedTuple):
    """The log-probability of each token that was allowed, and how many tokens of the prompt came from the prefix cache,
    None if unknown.
    """

    logprobs: tuple[float, ...]
    cached_tokens: int | None


class Engine:
    """One engine, with a loop on its own thread: `start` it, `spawn` coroutines from any thread, `close` it."""

    name, version = "", ""
    starting, ready = "", ""  # messages for the beginning and the end of its start, in place of the usual ones

    def __init__(self, args: dict[str, object] | None = None, sampling: Sampling = GREEDY) -> None:
        """Make an engine that is not started yet. `args` are its arguments, as the run's record has them."""
        self.args, self.sampling = args or {}, sampling
        self.start_s = 0.0  # how long the start took
        self.last_response_at = 0.0  # when it last answered anything, by time.monotonic
        self.kernels: dict[str, str] = {}  # once started: its attention backend and linear kernel, as far as known
        self.cautions: list[str] = []  # once started: what the user should know about its settings
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run_loop, name="engine", daemon=True)

    def _run_loop(self) -> None:
        """Run the loop, which a subclass may have replaced since the engine was made."""
        self.loop.run_forever()

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def spawn(self, work: Coroutine[object, object, Result]) -> "Future[Result]":
        """Start a coroutine on the loop from any thread. Return its future."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[object, object, Result], watch: Callable[[], None]) -> Result:
        """Run a coroutine on the loop, and return its result or raise its error.

        `watch` is called every WATCH_INTERVAL_S while the coroutine runs. An error that it raises ends the wait.
        """
        future = self.spawn(work)
        # `future.result` with a timeout would not tell the end of its wait from a TimeoutError of the coroutine.
        while not wait([future], timeout=WATCH_INTERVAL_S).done:
            watch()
        return future.result()

    def start(self, watch: Callable[[], None] = lambda: None) -> None:
        """Load the engine, and note how long that took. `watch` is called again and again meanwhile.

        Raises EngineError or UsageError, or an error of `watch`.
        """
        self._thread.start()
        begin = time.monotonic()
        self.run(self.load(), watch)
        self.start_s = time.monotonic() - begin

    async def load(self) -> None:
        """Load the engine, on its loop. Raises EngineError or UsageError."""

    def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> TokenStream:
        """Yield the answer's token ids as they are generated. The first ones are not held back.

        At most `max_new_tokens` ids come. If it is None, the engine's `sampling` sets the limit. With `is_whole`,
        nobody looks at the answer before its end, so all ids may come together at the end. An engine that sends the
        request to a server notes in `exchange` when it did so, and how the answer came. Raises EngineError, or
        EndpointError if a server fails.
        """
        raise NotImplementedError

    async def score_choices(self, prompt: list[int], choices: list[int]) -> ChoiceLogprobs:
        """Return the log-probabilities of the ids in `choices`, at most 20, as the next token.

        Only an engine that was made with `may_score` computes them. Raises EngineError. An engine that never computes
        them does not replace this method, which raises UsageError.
        """
        raise UsageError(f"--backend {self.name} does not compute probabilities.")

    async def reset_prefix_cache(self) -> None:
        """Empty the prefix cache between tests, if the engine has one and can empty it. Raises EngineError."""

    async def profile(self, on: bool) -> None:
        """Turn the engine's own profiler on, or turn it off, upon which it writes its trace. Raises EngineError."""
        raise EngineError(f"{self.name} has no profiler")

    @property
    def engine_state(self) -> EngineState:
        """The settings that the engine resolved from its arguments and the checkpoint."""
        return EngineState()

    @property
    def concurrency(self) -> int:
        """The most requests that all replicas together compute at once."""
        raise NotImplementedError

    def limit_in_flight(self, most: int) -> int:
        """Keep at most `most` requests in flight at all servers together, from the next test on.

        Further requests wait in this client. Return the limit for each server. Only a client of servers implements this
        method, since only a server may refuse a request.
        """
        raise NotImplementedError

    def prometheus_metrics(self) -> list[str]:
        """Return the engine's own metrics in Prometheus' text format, one text for each server.

        Empty if it has none. May be called from any thread except the engine's own.
        """
        return []

    @property
    def failure(self) -> str | None:
        """The reason why the engine can answer no more. None while it can."""
        return None

    @property
    def failure_text(self) -> str:
        """The text of `failure` after the engine's name. The name of a client of servers has their addresses."""
        return f"{self.name}: {self.failure or ''}"

    def close(self) -> None:
        """Stop the engine and every process that it started. Returns within a few seconds even if the engine hangs."""
        self.stop_loop()
