"""LoadGen's system under test: queries come in on LoadGen's threads, answers leave from the engine's loop."""

import asyncio
import math
import time
from array import array
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import mlperf_loadgen as lg

from harness.common.errors import EmptyAnswerError, EndpointError, LoadGenError
from harness.config.endpoint import may_fail
from harness.config.plan import Plan
from harness.engines.protocol import ON_DELIVERED, ON_SENT, Engine
from harness.loadgen.failures import PLACEHOLDER
from harness.runs.delivery import Delivery
from harness.terminal.progress import Counters
from harness.workloads.salt import Salt

Item = TypeVar("Item")


@dataclass
class SUT:
    """Answers every query with the engine; in the order of issue, `indices` holds the samples asked for, `new_tokens`
    each answer's length, `issued_at` and `completed_at` when it came and left, `sent_at` when it went to the engine.

    `failure` is set to the first exception: from then on LoadGen waits for answers that never come.
    """

    engine: Engine
    prompts: list[list[int]]
    counters: Counters = field(default_factory=Counters)
    indices: list[int] = field(default_factory=list)
    new_tokens: list[int] = field(default_factory=list)
    issued_at: list[float] = field(default_factory=list)  # seconds of the process's clock, in the order of issue
    completed_at: list[float] = field(default_factory=list)
    sent_at: list[float] = field(default_factory=list)
    most_new_tokens: Sequence[int] | None = None  # of each sample's answer; None: as many as in every answer
    conversations: Sequence[int] | None = None  # of each sample, where several are turns of one, in order
    salt: Salt | None = None
    timed: bool = True  # whether LoadGen measures; in an accuracy test an empty answer is a bad answer
    failure: BaseException | None = None
    max_failed: str = "0"  # as the flag has it
    expected: int = 0  # queries, about, where LoadGen does not issue all at once
    failed: dict[int, str] = field(default_factory=dict)  # what was said, by place in the order of issue
    delivered: dict[int, Delivery] = field(default_factory=dict)  # likewise, of an engine behind HTTP

    def issue(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """LoadGen's IssueQuery: one thread-safe call hands the whole query over to the engine's loop."""
        first = len(self.new_tokens)
        self.new_tokens.extend([0] * len(ids))
        self.issued_at.extend([time.perf_counter()] * len(ids))
        self.completed_at.extend([0.0] * len(ids))
        self.sent_at.extend([0.0] * len(ids))
        self.indices.extend(indices)
        self.counters.issued += len(ids)
        queries = []
        for order, (id, index) in enumerate(zip(ids, indices, strict=True), start=first):
            queries.append(Query(id, index, order, self._issues[index]))
            self._issues[index] += 1
        self.engine.loop.call_soon_threadsafe(self.start, queries)

    def start(self, queries: "list[Query]") -> None:
        """Starts every query at once; runs on the engine's loop."""
        for query in queries:
            self.run(self.attempt(query))

    def run(self, work: Any) -> None:
        task = self.engine.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)

    def __post_init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()  # the loop itself keeps only weak references
        self._issues: Counter[int] = Counter()  # of each sample so far

    def _finished(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) and self.failure is None:
            self.failure = error

    async def attempt(self, query: "Query") -> None:
        """Answers a query, or counts it as failed. Raises EndpointError for one that failed beyond --max-failed."""
        ON_DELIVERED.set(lambda delivery: self.delivered.__setitem__(query.order, delivery))
        try:
            await self.answer(query)
        except EndpointError as error:
            self.failed[query.order] = str(error)
            total = max(self.expected, self.counters.issued)
            most = may_fail(self.max_failed, total)
            if len(self.failed) <= most:
                self.give_up(query)
            elif not most:
                raise
            else:
                said = f"request {most + 1:,} of about {total:,} to fail; --max-failed {self.max_failed}"
                raise EndpointError(f"{error} ({said})") from error

    async def answer(self, query: "Query") -> None:
        raise NotImplementedError

    def give_up(self, query: "Query") -> None:
        """Tells LoadGen, which waits for every answer, of one where a request failed: empty where it is scored."""
        self.completed_at[query.order] = time.perf_counter()
        self.counters.completed += 1
        self.send(lg.QuerySamplesComplete, query.id, [0] * PLACEHOLDER if self.timed else [])

    def sending(self, query: "Query") -> float:
        """Notes that a query goes to the engine now, or later, if the engine says so; returns the time."""
        ON_SENT.set(lambda at: self.sent_at.__setitem__(query.order, at))
        now = self.sent_at[query.order] = time.perf_counter()
        return now

    def request(self, query: "Query") -> tuple[list[int], int | None]:
        """A request to the engine: the prompt, and the most tokens of its answer."""
        most = None if self.most_new_tokens is None else self.most_new_tokens[query.index]
        prompt = self.prompts[query.index]
        if self.salt:
            prompt = self.salt.salted(prompt, query.order, self.conversation(query.index), query.round)
        return prompt, most

    def conversation(self, index: int) -> int:
        return self.conversations[index] if self.conversations else index

    def complete(self, query: "Query", tokens: Sequence[int]) -> None:
        """Reports a whole answer. Raises EmptyAnswerError for one without tokens where it is timed: it cannot be."""
        if not tokens and self.timed:
            raise EmptyAnswerError(
                f"{self.engine.name} answered sample {query.index} without a single token, which cannot be timed: take "
                "that request out, or serve the model so that it obeys min_tokens."
            )
        count = self.delivered.get(query.order, Delivery(len(tokens))).tokens
        self.new_tokens[query.order] = count
        self.completed_at[query.order] = time.perf_counter()
        self.counters.completed += 1
        self.counters.tokens += count
        self.send(lg.QuerySamplesComplete, query.id, tokens, count)

    def send(self, report: Any, id: int, tokens: Sequence[int], count: int | None = None) -> None:
        """Reports token ids to LoadGen as int32, which takes a copy of the buffer; `count` tokens (None: as many)."""
        data = array("i", tokens)
        address, length = data.buffer_info()
        report([lg.QuerySampleResponse(id, address, length * data.itemsize, length if count is None else count)])


@dataclass(frozen=True, slots=True)
class Query:
    id: int
    index: int
    order: int
    round: int = 0  # how often its sample was issued before


@dataclass
class BatchSUT(SUT):
    """Offline: only whole answers count."""

    batch_size: int | None = None
    sort_by_length: bool = False

    def start(self, queries: list[Query]) -> None:
        if self.sort_by_length:
            size = len(self.prompts)  # of a pass: MLPerf forbids sorting beyond its end
            queries.sort(key=lambda query: (query.order // size, -len(self.prompts[query.index])))
        if self.batch_size is None:
            super().start(queries)
        else:
            self.run(self.in_batches(queries, self.batch_size))

    async def in_batches(self, queries: list[Query], size: int) -> None:
        """Fixed batches, one after the other: the next starts when the last answer of the one before is there."""
        for batch in batched(queries, size):
            await asyncio.gather(*(self.attempt(query) for query in batch))

    async def answer(self, query: Query) -> None:
        self.complete(query, await self.engine.generate(*self.request(query)))


@dataclass
class StreamingSUT(SUT):
    """Server, Interactive, SingleStream: LoadGen hears of the first token when it is there."""

    started: set[int] = field(default_factory=set)  # by place: answers of which LoadGen has heard the first token

    async def answer(self, query: Query) -> None:
        begin = self.sending(query)
        tokens: list[int] = []
        async for new in self.engine.stream(*self.request(query)):
            if not tokens and new:
                self.send(lg.FirstTokenComplete, query.id, new[:1])
                self.started.add(query.order)
                self.counters.started += 1
                self.counters.first_token_s += time.perf_counter() - begin
            tokens.extend(new)
        self.complete(query, tokens)
        self.started.discard(query.order)

    def give_up(self, query: Query) -> None:
        if self.timed and query.order not in self.started:
            self.send(lg.FirstTokenComplete, query.id, [0])
        super().give_up(query)


@dataclass
class TimedSUT(SUT):
    """LoadGen issues all queries at the start, and each is sent on when the time has come for it: `issued_at` is when
    it is sent here, `first_token_at` when its first token is there, `due_at` when it should have been sent."""

    first_token_at: list[float] = field(default_factory=list)
    due_at: list[float] = field(default_factory=list)

    def start(self, queries: list[Query]) -> None:
        self.counters.issued -= len(queries)  # counted again, each when it is sent
        self.first_token_at.extend([0.0] * len(queries))
        self.begin(queries)

    def begin(self, queries: list[Query]) -> None:
        raise NotImplementedError

    async def answer(self, query: Query) -> None:
        self.counters.issued += 1
        begin = self.issued_at[query.order] = self.sending(query)
        tokens: list[int] = []
        async for new in self.engine.stream(*self.request(query)):
            if not tokens and new:
                self.first_token_at[query.order] = time.perf_counter()
                self.counters.started += 1
                self.counters.first_token_s += self.first_token_at[query.order] - begin
            tokens.extend(new)
        self.complete(query, tokens)

    def talks(self, queries: Sequence[Query]) -> list[list[Query]]:
        """Requests that follow one another: the turns of a conversation in order; else each query alone."""
        if not self.conversations:
            return [[query] for query in queries]
        found: dict[tuple[int, int], list[Query]] = {}
        for query in queries:
            found.setdefault((query.round, self.conversation(query.index)), []).append(query)
        return [sorted(turns, key=lambda query: query.index) for turns in found.values()]


@dataclass
class CappedSUT(TimedSUT):
    """Fixed concurrency: `at_once` requests in flight, the next as soon as one is answered; of conversations, as many
    at a time. A timed test ends by its time: LoadGen issues more than that takes, and what is left then is not sent."""

    at_once: int | None = None  # None: all
    least: int = 0  # requests of a timed test, and how many seconds it sends
    least_s: float = math.inf

    def begin(self, queries: list[Query]) -> None:
        self._left = deque(self.talks(queries))
        self._end, self._round = time.perf_counter() + self.least_s, -1
        self.run(self.until_the_end(min(self.at_once or len(self._left), len(self._left))))

    async def until_the_end(self, at_once: int) -> None:
        await asyncio.gather(*(self.one_after_the_other() for _ in range(at_once)))
        unsent = [query for talk in self._left for query in talk]
        sent = len(self.indices) - len(unsent)  # LoadGen's last permutations are what is left
        for column in (self.indices, self.new_tokens, self.issued_at, self.first_token_at, self.completed_at):
            del column[sent:]
        for query in unsent:
            self.send(lg.QuerySamplesComplete, query.id, [0] * PLACEHOLDER)

    async def one_after_the_other(self) -> None:
        while self._left and not self.is_over(self._left[0][0]):
            talk = self._left.popleft()
            self._round = max(self._round, talk[0].round)
            for query in talk:
                await self.attempt(query)

    def is_over(self, query: Query) -> bool:
        """Whether a query would be sent after the time; turns of conversations are sent in whole rounds."""
        enough = self.timed and self.counters.issued >= self.least and time.perf_counter() >= self._end
        return enough and not (self.conversations and query.round == self._round)


@dataclass
class ScheduledSUT(TimedSUT):
    """Arrivals of one's own: each query is sent at its time in `schedule`, in seconds since the first, answered or not
    those before it. `by_sample`: the times are those of the samples, else of the queries in order of issue."""

    schedule: Sequence[float] = ()
    by_sample: bool = False
    parents: Sequence[int | None] | None = None  # of each sample, the one whose answer it waits for; then it is due
    answered: defaultdict[int, asyncio.Event] = field(default_factory=lambda: defaultdict(asyncio.Event))  # by sample

    async def attempt(self, query: Query) -> None:
        parent = self.parents[query.index] if self.parents and self.timed else None
        if parent is not None and not self.answered[parent].is_set():
            await self.answered[parent].wait()
            self.due_at[query.order] = time.perf_counter()
        await super().attempt(query)
        self.answered[query.index].set()

    def begin(self, queries: list[Query]) -> None:
        if not self.timed:  # the speed does not count
            self.schedule = [0.0] * len(queries)
        ordered = self.ordered(queries)
        if len(ordered) != len(self.schedule):
            self.failure = LoadGenError(
                f"LoadGen issued {len(ordered):,} samples; the schedule has {len(self.schedule):,}."
            )
            return
        self.due_at = [0.0] * len(ordered)
        self.run(self.released(ordered))

    def ordered(self, queries: list[Query]) -> list[Query]:
        """The queries in the order of their times: of conversations, all first turns before all second ones."""
        if self.by_sample:
            return sorted(queries, key=lambda query: query.index)
        if not self.conversations:
            return queries
        talks = self.talks(queries)
        turns = [(query.round, turn, query) for talk in talks for turn, query in enumerate(talk)]
        return [query for *_, query in sorted(turns, key=lambda item: item[:2])]

    async def released(self, queries: list[Query]) -> None:
        """Sends each at its time."""
        zero = time.perf_counter()
        for query, due in zip(queries, self.schedule, strict=True):
            self.due_at[query.order] = zero + due
            while (left := zero + due - time.perf_counter()) > 0:  # a timer may end up to a millisecond early
                await asyncio.sleep(left)
            self.run(self.attempt(query))


SUTFactory = Callable[[Engine, list[list[int]], Plan], SUT]


def create(engine: Engine, prompts: list[list[int]], plan: Plan) -> SUT:
    """The system under test of a scenario."""
    config = plan.config
    if config.scenario_rules.scheduled:
        replay = plan.request_set.replay if plan.request_set else None
        return ScheduledSUT(engine, prompts, schedule=plan.schedule, by_sample=bool(replay and replay.each_its_own))
    if config.scenario_rules.capped:
        return CappedSUT(engine, prompts, at_once=plan.concurrency, least_s=plan.min_duration_s, least=plan.min_queries)
    if config.scenario_rules.streaming:
        return StreamingSUT(engine, prompts)
    return BatchSUT(engine, prompts, batch_size=config.batch_size, sort_by_length=config.sort_by_length)


def batched(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    """Consecutive slices of `size` items; the last may be shorter."""
    return (items[start : start + size] for start in range(0, len(items), size))
