"""The interface of an engine to the benchmark, and what all engines share."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterator, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Self, TypeVar

from harness.config import mlperf
from harness.config.engine import EngineState
from harness.core import reading, schema
from harness.core.document import number
from harness.core.errors import EngineError, UsageError

# How answers came from servers, and what that says of our own figures: tokens, the server's cache, times.
SUMS = reading.names_in("client_tokens tokens messages first_tokens rushed is_whole is_capped is_bundled")
RUSH_S = 1e-4  # between two messages of one answer: those closer together left a buffer, not an engine's steps
SAME_COUNT = 0.02  # by which a server's count of tokens and ours may differ
CACHED_PERCENT = 1.0  # of the prompt tokens that may come from a server's cache without a word
WHOLE_SHARE = 0.1  # of the answers that may come in one message without a word
TEMPLATE_TOKENS = 64  # that a chat template may add to a prompt without a word


class TokenCounts(NamedTuple):
    """A server's own counts of the tokens of one answer; None where it does not give one."""

    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None  # of the prompt's, those that were not computed again


class Delivery(NamedTuple):
    """How an answer came over the wire."""

    tokens: int  # by whose count is the result (docs/reference/metrics.md)
    client_tokens: int = 0  # by this client's count
    first_tokens: int = 0  # that came at once with the first
    messages: int = 0  # that held tokens, where it was streamed
    usage: TokenCounts | None = None  # the server's own counts
    rushed: int = 0  # messages that came less than RUSH_S after the one before
    is_capped: bool = False  # it ended by length with fewer tokens than were asked for
    end: str = ""  # the server's word for its end where it is none of the usual ones
    model: str = ""  # that the server names beside it, where that is not the one that it named at first

    @property
    def is_whole(self) -> bool:
        """Whether it came in one message, so that it has no time per output token."""
        return self.messages == 1 and self.tokens > 1

    @property
    def is_bundled(self) -> bool:
        """Whether a buffer held it: whole, more than two messages' tokens at first, or half of the messages rushed.
        Messages of several tokens at even distances are an engine's steps."""
        late = self.first_tokens > 1 and self.first_tokens * self.messages > 2 * self.tokens
        return self.is_whole or late or (self.messages > 1 and 2 * self.rushed >= self.messages - 1)


@dataclass(slots=True)
class Exchange:
    """What an engine notes of a request that it sends on: when it was sent, by time.perf_counter, which the processes
    of a machine share, and how its answer came. One that sends nothing on leaves both as they are."""

    sent_at: float = field(default_factory=time.perf_counter)
    delivery: Delivery | None = None


class ServerUse(schema.Model):
    """server.json: a test's answers by their servers' own counts, null where an answer came without, and by ours. Sums.

    `sent_tokens` are those of the prompts, `client_tokens` those of the answers as this client counts them, `tokens`
    those of the result; the others are the fields of `Delivery`; `bundled`, `whole` and `capped` count answers.
    """

    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    """Of the prompt tokens, those that were not computed again."""
    output_tokens: int | None = None
    cache_hit_percent: float | None = None
    """Prompt tokens from the servers' prefix caches, by their own metrics before and after the test."""
    answers: int = 0
    uncounted: int = 0
    """Answers without `usage` where others had one."""
    sent_tokens: int = 0
    client_tokens: int = 0
    tokens: int = 0
    messages: int = 0
    first_tokens: int = 0
    rushed: int = 0
    bundled: int = 0
    whole: int = 0
    capped: int = 0
    ends: dict[str, int] = {}
    """Answers by the server's word for their end, where it is none of the usual ones."""
    models: list[str] = []
    """That answered beside the one that the server named at first."""
    has_template: bool = False
    """Whether the server puts each prompt into a chat template."""
    replicas: tuple[int, int] = (0, 0)
    """How many computed no token in the test, and how many there are, by their metrics; 0 of 0 where those do not
    tell."""

    @classmethod
    def of(cls, found: Collection[Delivery], sent_tokens: int = 0, **known: Any) -> Self:
        counted = [each.usage for each in found if each.usage]
        usages = counted if counted and len(counted) == len(found) else [TokenCounts()]
        columns = zip(TokenCounts._fields, zip(*usages, strict=True), strict=True)
        known |= {name: None if None in counts else sum(filter(None, counts)) for name, counts in columns}
        return cls(
            uncounted=len(found) - len(counted) if counted else 0,
            answers=len(found),
            sent_tokens=sent_tokens,
            ends=Counter(each.end for each in found if each.end),
            models=sorted({each.model for each in found if each.model}),
            **{name.removeprefix("is_"): sum(getattr(each, name) for each in found) for name in SUMS},
            **known,
        )

    @property
    def cached_percent(self) -> float | None:
        """Of the prompt tokens, by `usage` or by the server's metrics, whichever has more; null where neither tells."""
        shares = [] if self.cache_hit_percent is None else [self.cache_hit_percent]
        if self.cached_tokens is not None and self.prompt_tokens:
            shares.append(100 * self.cached_tokens / self.prompt_tokens)
        return max(shares, default=None)

    @property
    def is_buffered(self) -> bool:
        """Whether TTFT and TPOT are those of a buffer on the way, or in the server: of half of the answers."""
        return self.messages > 0 and 2 * self.bundled >= self.answers

    @property
    def disagreements(self) -> Iterator[str]:
        """What the wire shows and this program's own figures do not, in words."""
        each = max(1, self.answers)
        counted, came = self.output_tokens, self.client_tokens
        if counted is not None and abs(counted - came) > SAME_COUNT * came:
            more = number(100 * (came - counted) / max(1, counted), 3, "+")
            yield (
                f"`usage` has {number(counted / each)} tokens an answer, {number(came / each)} are counted here "
                f"({more} %): the result is by {'`usage`' if self.tokens == counted else 'what came'}"
            )
        if self.uncounted and self.tokens != came:
            yield f"{self.uncounted:,} of {self.answers:,} answers had no `usage`: their text was counted instead"
        read, sent, spare = self.prompt_tokens, self.sent_tokens, TEMPLATE_TOKENS * self.answers * self.has_template
        if read is not None and sent and not (1 - SAME_COUNT) * sent <= read <= (1 + SAME_COUNT) * sent + spare:
            yield (
                f"by `usage` the server read {number(100 * read / sent, 3)} % of the prompt tokens that were sent: "
                f"it may {'truncate prompts' if read < sent else 'add to them'}"
            )
        if self.capped:
            yield (
                f"{self.capped:,} of {self.answers:,} answers ended by length with fewer tokens than were asked for: "
                "the server has a cap of its own"
            )
        if self.models:
            yield f"answers came from {', '.join(self.models)}: the server changed its model during the test"
        idle, replicas = self.replicas
        if 0 < idle < replicas <= self.answers:
            yield (
                f"{idle:,} of {replicas:,} replicas computed nothing, by their metrics: --new-connections spreads "
                "requests behind a balancer"
            )
        if (self.cached_percent or 0.0) > CACHED_PERCENT:
            yield f"{number(self.cached_percent, 3)} % of the prompt came from the server's cache"
        if self.whole >= max(1, WHOLE_SHARE * self.answers):
            yield f"{self.whole:,} of {self.answers:,} answers came in one message and have no TPOT"
        if self.is_buffered:
            counts = (self.tokens, self.messages, self.first_tokens, self.rushed)
            tokens, messages, first, rushed = (number(count / each, 3) for count in counts)
            yield (
                f"TTFT and TPOT do not describe the engine: {number(100 * self.bundled / each, 3)} % of the answers "
                f"came in bursts (mean: {tokens} tokens in {messages} messages, {first} at first, {rushed} messages at "
                "once)"
            )

    @property
    def notes(self) -> list[str]:
        """What is worth a line and doubts no number."""
        return [
            f"{count:,} answers ended with finish_reason {word!r}, which is taken as `stop`"
            for word, count in self.ends.items()
        ]


Tokens = AsyncIterator[Sequence[int]]  # the ids of an answer, as they come
Result = TypeVar("Result")
EVERY_S = 0.1


class Sampling(NamedTuple):
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
        return self._replace(max_new_tokens=most, min_new_tokens=most if self.exact else self.min_new_tokens)


GREEDY = Sampling()


class ChoiceLogprobs(NamedTuple):
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
        self._thread = threading.Thread(target=lambda: self.loop.run_forever(), name="engine", daemon=True)

    def stop_loop(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)

    def spawn(self, work: Coroutine[Any, Any, Result]) -> "Future[Result]":
        """Runs a coroutine on the loop, from any thread."""
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, Result], watch: Callable[[], None]) -> Result:
        """What a coroutine on the loop returns, or what it raised, a TimeoutError included; calls `watch` while it
        waits, which may raise."""
        future = self.spawn(work)
        while not wait([future], timeout=EVERY_S).done:
            watch()
        return future.result()

    def start(self, watch: Callable[[], None] = lambda: None) -> None:
        """Gets the engine ready; `watch` is called while waiting. Raises EngineError, UsageError."""
        self._thread.start()
        begin = time.monotonic()
        self.run(self.load(), watch)
        self.start_s = time.monotonic() - begin

    async def load(self) -> None:
        """What its start takes, on its loop. Raises EngineError, UsageError."""

    def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> Tokens:
        """The answer's token ids as they come, the first at once, at most as many as `sampling` or the request says;
        `is_whole`: nobody looks before the end. An engine that sends the request on notes in `exchange` when it did,
        and how the answer came. Raises EngineError."""
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

    def limit_in_flight(self, most: int) -> int:
        """Keeps at most so many requests at the servers from the next test on, and the others waiting in this client;
        returns how many that is for each server. Only of a client of servers, which may refuse a request."""
        raise NotImplementedError

    def prometheus_metrics(self) -> list[str]:
        """Its own metrics in Prometheus' text format, a text for each server; none where it keeps none. From any thread
        but its own."""
        return []

    @property
    def failure(self) -> str | None:
        """Why the engine will answer no more; None while it lives."""
        return None

    @property
    def ended(self) -> str:
        """The same with which engine it is: a client's name holds its addresses."""
        failure = self.failure or ""
        return failure if failure.startswith(self.name) else f"{self.name}: {failure}"

    def close(self) -> None:
        """Stops the engine and every process it started; returns within a few seconds even if it hangs."""
        self.stop_loop()
