"""How requests are sent: one `send` for each load pattern, for LoadGen's queries, for trials and under the profiler.

LoadGen itself paces Server and SingleStream: there the system under test sends each query as it comes.
"""

import asyncio
import random
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from math import inf
from typing import Any, Generic, Protocol, TypeVar

from harness.config.patterns import Burst, ClosedLoop, LoadPattern, Poisson, Schedule, Sequential
from harness.config.plan import Plan
from harness.core.errors import LoadGenError
from harness.loadgen.requests import Query
from harness.workloads.cnn_dailymail import Library, Prompt

STREAM_TRIAL = 10  # queries of a trial that sends one after another
QUEUE_FACTOR = 2  # requests at the engine for each that it computes, in Offline: some always wait

Item = TypeVar("Item")
Answer = Callable[[Item], Coroutine[Any, Any, None]]  # sends one request, and returns when it is answered
Turn = Callable[[Item], tuple[int, int, int]]  # an item's round, its conversation, and its place in that


class Sender(Protocol[Item]):
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

    After `seconds`, and `least` items, no more are sent. `turn`
    gives an item's round, its conversation in the round, and its place there: the items of a conversation follow one
    another, and a round that was begun is sent whole.
    """

    at_once: int | None = None
    seconds: float = inf
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
                round = self.turn(talk[0])[0] if self.turn else inf
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


def batches(items: Iterable[Item], size: int | None) -> Iterator[Sequence[Item]]:
    """Consecutive slices of `size` items, or all; the last may be shorter."""
    source = iter(items)
    while batch := list(islice(source, size)):
        yield batch


def turn_of(library: Library) -> Turn[Query] | None:
    """Where a query stands in its conversation; None of a library without conversations."""
    talks = library.conversations
    if not talks:
        return None
    return lambda query: (query.request.round, talks[query.request.sample], query.request.sample)


async def ask(engine: Any, prompt: Prompt, pattern: LoadPattern) -> None:
    """Sends one prompt outside LoadGen's tests, and waits for its answer. Raises EngineError."""
    async for _ in engine.stream(*prompt, None, not pattern.is_streamed):
        pass


@dataclass(frozen=True)
class Driver:
    """How a plan's load pattern is sent; `engine` is the number of requests that the engine computes at once."""

    plan: Plan

    def issued(self, library: Library, timed: bool) -> Sender[Query] | None:
        """What LoadGen has issued; None: it sets the pace, and each query is sent as it comes."""
        return None

    def endless(self, engine: int) -> Sender[Prompt]:
        """The same load from an endless source, under the profiler: by default at the plan's rate."""
        return RandomArrivals(self.plan.target_qps or 1.0, self.plan.seeds.schedule)

    def trial(self, engine: int) -> Sender[Prompt]:
        """A short trial, before its rate is known: by default all at once, or in batches."""
        return Batches(self.plan.config.batch_size)

    def trial_size(self, engine: int) -> int:
        """Prompts of a trial."""
        return self.plan.config.batch_size or engine


class BurstDriver(Driver):
    def issued(self, library: Library, timed: bool) -> Sender[Query]:
        """Sorted within each pass of the samples: MLPerf forbids more."""
        size, prompts, config = len(library.prompts), library.prompts, self.plan.config

        def longest_first(query: Query) -> tuple[int, int]:
            return query.request.order // size, -len(prompts[query.request.sample])

        return Batches(config.batch_size, longest_first if config.sort_by_length else None)

    def endless(self, engine: int) -> Sender[Prompt]:
        """The engine always has as many requests as it takes, and others that wait; or one batch at a time."""
        return self.trial(engine) if self.plan.config.batch_size else InFlight(QUEUE_FACTOR * engine)


class SequentialDriver(Driver):
    def endless(self, engine: int) -> Sender[Prompt]:
        return Batches(self.plan.samples_per_query)

    trial = endless

    def trial_size(self, engine: int) -> int:
        return STREAM_TRIAL * self.plan.samples_per_query


class ClosedLoopDriver(Driver):
    def issued(self, library: Library, timed: bool) -> Sender[Query]:
        """Of an accuracy test all queries are sent."""
        seconds = self.plan.min_duration_s if timed else inf
        return InFlight(self.plan.concurrency, seconds, self.plan.min_queries, turn_of(library))

    def endless(self, engine: int) -> Sender[Prompt]:
        return InFlight(self.plan.concurrency or engine)

    trial = endless

    def trial_size(self, engine: int) -> int:
        return max(2 * (self.plan.concurrency or engine), STREAM_TRIAL)


class ScheduleDriver(Driver):
    def issued(self, library: Library, timed: bool) -> Sender[Query]:
        """The user's schedule, or each sample of a trace at its own time; all at once where nothing is timed."""
        plan, turn = self.plan, turn_of(library)
        if not timed:
            return Batches()

        def note(query: Query, due: float) -> None:
            query.request.issued_s = due

        def arrange(queries: Iterable[Query]) -> Sequence[Query]:
            if plan.replay and plan.replay.each_its_own:
                return sorted(queries, key=lambda query: query.request.sample)
            if turn is None:
                return list(queries)
            talks = conversations(queries, turn)  # all first turns before all second ones
            places = [(turn(query)[0], place, query) for talk in talks for place, query in enumerate(talk)]
            return [query for *_, query in sorted(places, key=lambda place: place[:2])]

        return AtTimes(library.arrivals or plan.schedule, note, arrange)


DRIVERS: dict[type[LoadPattern], type[Driver]] = {
    Burst: BurstDriver,
    Poisson: Driver,
    Sequential: SequentialDriver,
    ClosedLoop: ClosedLoopDriver,
    Schedule: ScheduleDriver,
}


def driver_of(plan: Plan) -> Driver:
    return DRIVERS[type(plan.pattern)](plan)
