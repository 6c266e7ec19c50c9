"""LoadGen's system under test: it takes queries and completes them as the engine answers."""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

import mlperf_loadgen as lg

from harness.config.engine import failure_allowance
from harness.config.plan import Plan
from harness.core import progress
from harness.core.errors import EmptyAnswerError, EndpointError, ServerFullError
from harness.engines.answer_delivery import Delivery, Exchange
from harness.engines.protocol import Engine
from harness.loadgen import senders, sending, test_run
from harness.loadgen.admission import Admission, advice
from harness.loadgen.requests import Request
from harness.workloads.sample_library import Library


@dataclass
class SUT:
    """Answers every query with the engine, and notes what it knows of each in `requests`, in the order of issue: times
    by time.perf_counter.

    `sender` sends what LoadGen issues at once; None where LoadGen sets the pace, and each is sent as it comes.
    `failure` is the first exception: from then on LoadGen waits for answers that never come.
    """

    engine: Engine
    library: Library
    sender: senders.RequestSender | None = None
    streams: bool = True  # whether the time of each first token is taken
    by_client: bool = False  # whether it takes its own times; else LoadGen takes them, and hears of each
    timed: bool = True  # whether LoadGen measures; in an accuracy test an empty answer is a bad answer
    max_failed: str = "0"  # as the flag has it
    expected: int = 0  # about how many queries there are; 0 if LoadGen issues all at once
    is_probe: bool = False  # whether a refusal by a full server is a measurement, and no failure
    failure: BaseException | None = None

    def __post_init__(self) -> None:
        self.counters, self.requests = progress.Counters(), list[Request]()
        self.deliveries, self.sent_tokens = list[Delivery](), 0  # deliveries and prompt tokens of the answered requests
        self.admission = Admission()
        self._tasks = set[asyncio.Task[None]]()  # the loop itself keeps only weak references
        self._issues = Counter[int]()  # issues of each sample so far
        self._failed = 0
        self.in_flight = self.most_in_flight = 0  # requests that were handed to the engine and not answered yet

    def issue(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Hand a query of LoadGen's over to the engine's loop, in one thread-safe call.

        This is LoadGen's IssueQuery.
        """
        issued_s = None
        if not self.by_client:  # with its own times, the client notes and counts each request when it is sent
            issued_s = time.perf_counter()
            self.counters.issued += len(ids)
        new = list[Request]()
        for order, (id, index) in enumerate(zip(ids, indices, strict=True), start=len(self.requests)):
            new.append(Request(index, issued_s=issued_s, order=order, round=self._issues[index], id=id))
            self._issues[index] += 1
        self.requests += new
        self.engine.loop.call_soon_threadsafe(self.start, new)

    def start(self, requests: list[Request]) -> None:
        """Send the queries that LoadGen issued together. Runs on the engine's loop."""
        if self.sender is None:
            for request in requests:
                self.run(self.attempt(request))
        else:
            self.run(self.send(self.sender, requests))

    async def send(self, sender: senders.RequestSender, requests: list[Request]) -> None:
        """Send queries through the sender. Queries that it does not send are answered with placeholders."""
        left = await sender.send(requests, self.attempt)
        unsent = {request.order for request in left}
        self.requests = [request for request in self.requests if request.order not in unsent]
        for request in left:
            self.report(lg.QuerySamplesComplete, request.id, [0] * test_run.PLACEHOLDER_TOKENS)

    def run(self, work: Coroutine[object, object, None]) -> None:
        task = self.engine.loop.create_task(self._guard(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _guard(self, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception as error:
            self.failure = self.failure or error

    async def attempt(self, request: Request) -> None:
        """Answer a request, or count it as refused or failed.

        Raises EndpointError if more requests failed than --max-failed allows. In a probe a refusal is a measurement:
        `admission.refuse` raises EndpointError only if the server answers no other request either.
        """
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        number = self.admission.send(time.perf_counter())
        try:
            await self.answer(request)
            sent_s = None
            if request.sent_ms:
                sent_s = request.begin_s + request.sent_ms / 1e3
            self.admission.answer(number, time.perf_counter(), sent_s)
        except ServerFullError as error:
            if self.is_probe:
                self.admission.refuse(number, time.perf_counter(), error)
                self.end_without_answer(request, error)
            else:
                self.admission.drop(number)
                self.count_failure(request, error, advice(len(self.admission.in_progress)))
        except EndpointError as error:
            self.admission.drop(number)
            self.count_failure(request, error)
        finally:
            self.in_flight -= 1

    def count_failure(self, request: Request, error: EndpointError, remedy: str = "") -> None:
        """Count a failed request.

        Raises EndpointError, with a remedy, if more requests failed than --max-failed allows.
        """
        self._failed += 1
        total = max(self.expected, self.counters.issued)
        most = failure_allowance(self.max_failed, total)
        if self._failed > most:
            count = ""
            if most:
                count = f" (request {most + 1:,} of about {total:,} to fail; --max-failed {self.max_failed})"
            raise EndpointError(f"{error}{count}{remedy}") from error
        self.end_without_answer(request, error)

    def end_without_answer(self, request: Request, error: EndpointError) -> None:
        """Give LoadGen an answer of PLACEHOLDER_TOKENS for a failed request, since LoadGen waits for every answer.

        In an accuracy test the answer is empty, since it is scored.
        """
        request.failure = str(error)
        if self.timed and self.streams and not self.by_client and request.ttft_ms is None:
            self.report(lg.FirstTokenComplete, request.id, [0])
        placeholders = [0] * test_run.PLACEHOLDER_TOKENS if self.timed else []
        self.end(request, placeholders)

    async def answer(self, request: Request) -> None:
        """Send one request and report its answer. Raises EndpointError, EngineError or EmptyAnswerError."""
        exchange, tokens = Exchange(), list[int]()
        begin = exchange.sent_at
        prompt, most = self.library.request(request.sample, request.order, request.round)
        request.prompt_tokens = len(prompt)
        if self.by_client:
            self.counters.issued += 1
            if request.issued_s is None:
                request.issued_s = begin
        try:
            async for new in self.engine.stream(prompt, most, exchange, not self.streams):
                if self.streams and new and not tokens:
                    now = time.perf_counter()
                    request.ttft_ms = self.ms_since_issue(request, now)
                    if not self.by_client:
                        self.report(lg.FirstTokenComplete, request.id, new[:1])
                    self.counters.started += 1
                    self.counters.first_token_s += now - begin
                tokens.extend(new)
        finally:
            if self.streams:
                request.sent_ms = self.ms_since_issue(request, exchange.sent_at)
        self.complete(request, tokens, exchange)

    def complete(self, request: Request, tokens: Sequence[int], exchange: Exchange) -> None:
        """Report a whole answer to LoadGen.

        Raises EmptyAnswerError if a timed answer has no tokens, since it cannot be timed.
        """
        delivery = exchange.delivery
        is_hidden = delivery is not None and delivery.is_hidden
        if not tokens and self.timed and not is_hidden:
            why = delivery.why_empty if delivery else "remove the sample"
            raise EmptyAnswerError(
                f"{self.engine.name} answered sample {request.sample} without a single token, which cannot be timed: "
                f"{why}."
            )
        request.output_tokens = delivery.tokens if delivery else len(tokens)
        if delivery:
            request.first_tokens = max(1, delivery.first_tokens)
            self.deliveries.append(delivery)
            self.sent_tokens += request.prompt_tokens
        self.counters.tokens += request.output_tokens
        if is_hidden and self.timed:
            self.complete_hidden(request)
        else:
            self.end(request, tokens)

    def complete_hidden(self, request: Request) -> None:
        """Report an answer whose tokens the server counted but did not send.

        LoadGen needs a first token. It gets one at the end, whose time says nothing about the answer.
        """
        request.first_tokens = 0
        if self.streams and not self.by_client:
            self.report(lg.FirstTokenComplete, request.id, [0])
        self.end(request, [0] * test_run.PLACEHOLDER_TOKENS)

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """Report the end of an answer to LoadGen."""
        request.latency_ms = self.ms_since_issue(request, time.perf_counter())
        self.counters.completed += 1
        self.report(lg.QuerySamplesComplete, request.id, tokens, request.output_tokens)

    def ms_since_issue(self, request: Request, at: float) -> float:
        """Return the milliseconds since the time from which the request's latencies count."""
        return 1e3 * (at - request.begin_s)

    def report(self, report: Callable[[list[object]], object], id: int, tokens: Sequence[int], count: int = 0) -> None:
        """Report token ids to LoadGen as int32.

        LoadGen copies the buffer. `count` is the number of tokens that LoadGen counts. 0 means the number of ids.
        """
        data = array("i", tokens)
        address, length = data.buffer_info()
        report([lg.QuerySampleResponse(id, address, length * data.itemsize, count or length)])


def make_sut(engine: Engine, library: Library, plan: Plan, timed: bool, expected: int, is_probe: bool = False) -> SUT:
    """Return the system under test for a plan's scenario.

    `expected` is about the number of queries, or 0 if LoadGen issues all at once.
    """
    pattern = plan.pattern
    return SUT(
        engine,
        library,
        sending.loadgen_sender(plan, library, timed),
        streams=pattern.is_streamed,
        by_client=pattern.is_own_clock,
        timed=timed,
        max_failed=plan.config.max_failed,
        expected=expected,
        is_probe=is_probe,
    )
