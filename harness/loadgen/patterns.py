"""How requests are sent: one `send` for each load pattern, for LoadGen's queries, for trials and under the profiler.

LoadGen itself paces Server and SingleStream: there the system under test sends each query as it comes.
"""

import asyncio
import math
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, Generic, Protocol, TypeVar

from harness.common.errors import LoadGenError

Item = TypeVar("Item")
Answer = Callable[[Item], Coroutine[Any, Any, None]]  # sends one request, and returns when it is answered
Turn = Callable[[Item], tuple[int, int, int]]  # an item's round, its conversation, and its place in that


class Sender(Protocol[Item]):
    """A way of sending."""

    async def send(self, items: Iterable[Item], answer: Answer[Item]) -> Sequence[Item]:
        """Sends items, which may have no end, at its own pace, and waits for their answers; returns those that were
        not sent. Raises what an answer raised."""


@dataclass(frozen=True)
class Batches(Generic[Item]):
    """Offline, SingleStream, MultiStream: `size` items at a time, the next when all are answered; None: all at once.

    With `order`, the longest first within each pass of so many items: MLPerf forbids sorting beyond its end.
    """

    size: int | None = None
    order: Callable[[Item], Any] | None = None

    async def send(self, items: Iterable[Item], answer: Answer[Item]) -> Sequence[Item]:
        for batch in batches(sorted(items, key=self.order) if self.order else items, self.size):
            await asyncio.gather(*map(answer, batch))
        return ()


@dataclass(frozen=True)
class RandomArrivals(Generic[Item]):
    """Server, Interactive: a Poisson process with a mean rate, in items a second."""

    rate: float
    seed: int

    async def send(self, items: Iterable[Item], answer: Answer[Item]) -> Sequence[Item]:
        chance = random.Random(self.seed)
        with raising_first():
            async with asyncio.TaskGroup() as group:
                for item in items:
                    group.create_task(answer(item))
                    await asyncio.sleep(chance.expovariate(self.rate))
        return ()


@dataclass(frozen=True)
class InFlight(Generic[Item]):
    """Fixed concurrency: so many items in flight, the next as soon as one is answered; None: all.

    After `seconds`, and `least` items, no more are sent. `turn` gives an item's round, its conversation in the round,
    and its place there: the items of a conversation follow one another, and a round that was begun is sent whole.
    """

    at_once: int | None = None
    seconds: float = math.inf
    least: int = 0
    turn: Turn[Item] | None = None

    async def send(self, items: Iterable[Item], answer: Answer[Item]) -> Sequence[Item]:
        talks: Iterable[Sequence[Item]] = conversations(items, self.turn) if self.turn else ((item,) for item in items)
        if self.at_once is None:
            talks = list(talks)
        workers, source, unsent = self.at_once or len(list(talks)), iter(talks), list[Item]()
        end, sent, latest = time.perf_counter() + self.seconds, 0, -1.0

        async def follow() -> None:
            nonlocal sent, latest
            for talk in source:
                round = self.turn(talk[0])[0] if self.turn else math.inf
                if sent >= self.least and time.perf_counter() >= end and round > latest:
                    unsent.extend(talk)
                    return
                latest = max(latest, round) if self.turn else latest
                for item in talk:
                    sent += 1
                    await answer(item)

        with raising_first():
            async with asyncio.TaskGroup() as group:
                for _ in range(workers):
                    group.create_task(follow())
        return [*unsent, *(item for talk in source for item in talk)]


@dataclass(frozen=True)
class AtTimes(Generic[Item]):
    """Arrivals of the user's own: each item at its time, in seconds since the first, answered or not those before it.

    `note` gets each item with the time at which it is due, by time.perf_counter. `arrange` brings the items into the
    order of their times.
    """

    times: Sequence[float]
    note: Callable[[Item, float], None]
    arrange: Callable[[Iterable[Item]], Sequence[Item]]

    async def send(self, items: Iterable[Item], answer: Answer[Item]) -> Sequence[Item]:
        ordered, zero = self.arrange(items), time.perf_counter()
        if len(ordered) != len(self.times):
            raise LoadGenError(f"LoadGen issued {len(ordered):,} samples; the schedule has {len(self.times):,}.")
        with raising_first():
            async with asyncio.TaskGroup() as group:
                for item, due in zip(ordered, self.times, strict=True):
                    self.note(item, zero + due)
                    while (left := zero + due - time.perf_counter()) > 0:  # a timer may end up to a millisecond early
                        await asyncio.sleep(left)
                    group.create_task(answer(item))
        return ()


@contextmanager
def raising_first() -> Iterator[None]:
    """Raises the first error of a group of tasks instead of the group's own."""
    try:
        yield
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


def conversations(items: Iterable[Item], turn: Turn[Item]) -> list[list[Item]]:
    """The items of each conversation in order, the conversations in the order in which their first item came."""
    found: dict[tuple[int, int], list[Item]] = {}
    for item in items:
        found.setdefault(turn(item)[:2], []).append(item)
    return [sorted(talk, key=turn) for talk in found.values()]


def first_turns_first(items: Iterable[Item], turn: Turn[Item]) -> list[Item]:
    """The items of each round: all first turns before all second ones."""
    places = [(turn(item)[0], place, item) for talk in conversations(items, turn) for place, item in enumerate(talk)]
    return [item for *_, item in sorted(places, key=lambda place: place[:2])]


def batches(items: Iterable[Item], size: int | None) -> Iterator[Sequence[Item]]:
    """Consecutive slices of `size` items, or all; the last may be shorter."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch
