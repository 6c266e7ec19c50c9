"""Ways to send requests: in batches, at random times, with a fixed number in flight, or at recorded times."""

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from itertools import chain, islice
from math import inf
from operator import attrgetter
from typing import Generic, NamedTuple, Protocol, TypeVar

from harness.config.patterns import LoadPattern
from harness.engines.answer_delivery import Exchange
from harness.engines.protocol import TokenStream
from harness.loadgen.requests import Request
from harness.workloads.sample_library import Prompt

SentItem = TypeVar("SentItem")  # a request of a test, or a prompt of a trial
AnswerOne = Callable[[SentItem], Coroutine[object, object, None]]  # sends an item, and returns when it is answered
Turn = Callable[[SentItem], tuple[int, int, int]]  # an item's round, its conversation, and its place in that


class Batches(NamedTuple, Generic[SentItem]):
    """Offline, SingleStream, MultiStream: `size` items at a time, the next when all are answered.

    If `size` is None, all are sent at once. `order`, if given, is the key by which the items are sorted.
    """

    size: int | None = None
    order: Callable[[SentItem], tuple[int, int]] | None = None

    async def send(self, items: Iterable[SentItem], answer: AnswerOne[SentItem]) -> Sequence[SentItem]:
        """Send the items batch by batch, each when the one before is answered. Without a size, all are one batch.

        Returns no items: every sender returns those that it did not send, and this one sends all.
        """
        if self.order:
            items = sorted(items, key=self.order)
        source = iter(items)
        while batch := list(islice(source, self.size)):
            await asyncio.gather(*map(answer, batch))
        return ()


class RandomArrivals(NamedTuple):
    """Server, Interactive: a Poisson process with a mean rate, in items a second."""

    rate: float
    seed: int

    async def send(self, items: Iterable[SentItem], answer: AnswerOne[SentItem]) -> Sequence[SentItem]:
        """Send the items at random intervals with the mean 1 / `rate` seconds, and wait for all answers.

        Returns no items: every sender returns those that it did not send, and this one sends all.
        """
        intervals = random.Random(self.seed)
        async with tasks() as group:
            for item in items:
                group.create_task(answer(item))
                await asyncio.sleep(intervals.expovariate(self.rate))
        return ()


class FixedConcurrency(NamedTuple, Generic[SentItem]):
    """Fixed concurrency: `at_once` items in flight, the next as soon as one is answered.

    After `seconds`, and at least `fewest` items, no more are sent. `turn`, if given, returns an item's round, its
    conversation in the round, and its place there. The items of a conversation are then sent one after another, and a
    round that was begun is sent whole.
    """

    at_once: int
    seconds: float = inf
    fewest: int = 0
    turn: Turn[SentItem] | None = None

    async def send(self, items: Iterable[SentItem], answer: AnswerOne[SentItem]) -> Sequence[SentItem]:
        """Send the items, `at_once` of them at a time, until the time is over. Return the items that were not sent.

        A round, which is one use of all conversations, is sent whole.
        """
        source = self.conversations_by_round(items)
        unsent = list[SentItem]()
        end = time.perf_counter() + self.seconds
        sent, latest_round = 0, -1

        async def send_one_by_one() -> None:
            """Take conversations from the source that all such tasks share, and send their items one after another."""
            nonlocal sent, latest_round
            for round, conversation in source:
                is_over = sent >= self.fewest and time.perf_counter() >= end
                is_new_round = round > latest_round
                if is_over and is_new_round:  # The present round goes on after its time, but no new one is begun.
                    unsent.extend(conversation)
                    return
                latest_round = max(latest_round, round)
                for item in conversation:
                    sent += 1
                    await answer(item)

        async with tasks() as group:
            for _ in range(self.at_once):
                group.create_task(send_one_by_one())
        never_taken = chain.from_iterable(conversation for _round, conversation in source)
        return [*unsent, *never_taken]

    def conversations_by_round(self, items: Iterable[SentItem]) -> Iterator[tuple[int, Sequence[SentItem]]]:
        """Return the items of each conversation, with the number of its round.

        Without conversations, each item is a conversation and a round of its own, so the sending may end before any.
        """
        if self.turn is None:
            return ((number, (item,)) for number, item in enumerate(items))
        conversations = items_by_conversation(items, self.turn)
        rounds = [self.turn(conversation[0])[0] for conversation in conversations]
        return zip(rounds, conversations, strict=True)


class TimedArrivals(NamedTuple):
    """Arrivals of the user's own: each request is sent at its time, even if earlier ones are not answered yet.

    `times` are in seconds since the first request. They are those of the requests in the order of issue, or, if
    `by_sample`, in the order of the samples: each sample of a trace has its own time.
    """

    times: Sequence[float]
    by_sample: bool

    async def send(self, items: Iterable[Request], answer: AnswerOne[Request]) -> Sequence[Request]:
        """Send each request at its time, note the time in it as `issued_s`, and wait for all answers.

        Returns no requests: every sender returns those that it did not send, and this one sends all.
        """
        start = time.perf_counter()
        if self.by_sample:  # The times are in the order of the samples.
            items = sorted(items, key=attrgetter("sample"))
        async with tasks() as group:
            for request, due_s in zip(items, self.times, strict=True):  # LoadGen issued one request for each time
                due = start + due_s
                request.issued_s = due
                while (left_s := due - time.perf_counter()) > 0:  # a timer may end up to a millisecond early
                    await asyncio.sleep(left_s)
                group.create_task(answer(request))
        return ()


Sender = Batches[SentItem] | RandomArrivals | FixedConcurrency[SentItem]
RequestSender = Sender[Request] | TimedArrivals


@asynccontextmanager
async def tasks() -> AsyncIterator[asyncio.TaskGroup]:
    """Yield a group of tasks, and wait for them. If tasks fail, raise the first error instead of an exception group."""
    try:
        async with asyncio.TaskGroup() as group:
            yield group
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


def items_by_conversation(items: Iterable[SentItem], turn: Turn[SentItem]) -> list[list[SentItem]]:
    """Return the items of each conversation in each round as a list, in the order in which they are to be sent.

    `turn` returns an item's round (one use of all conversations), its conversation, and its place there.
    """
    by_conversation = defaultdict[tuple[int, int], list[SentItem]](list)
    for item in items:
        round, conversation, _ = turn(item)
        by_conversation[round, conversation].append(item)
    return [sorted(items_of_one, key=turn) for items_of_one in by_conversation.values()]


class StreamingEngine(Protocol):
    """An engine, or a wrapper of one, that answers a prompt as `Engine.stream` does."""

    def stream(
        self, prompt: list[int], max_new_tokens: int | None, exchange: Exchange | None, is_whole: bool, /
    ) -> TokenStream:
        """Yield the token ids of an answer as they come; with `is_whole`, all at once.

        None for `max_new_tokens` is the engine's own limit. A server's delivery is noted in `exchange`, if given.
        """
        ...


async def ask(engine: StreamingEngine, prompt: Prompt, pattern: LoadPattern) -> None:
    """Send one prompt outside LoadGen's tests, and wait for its answer, which is dropped. Raises EngineError.

    The answer comes streamed or whole, as in a test with this load pattern, so that the engine works as in the test.
    """
    tokens, max_new_tokens = prompt
    exchange, is_whole = None, not pattern.is_streamed
    async for _ in engine.stream(tokens, max_new_tokens, exchange, is_whole):
        pass
