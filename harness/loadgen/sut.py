"""LoadGen's system under test: it takes queries and completes them as the engine answers."""

import asyncio
import time
from array import array
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass

import mlperf_loadgen as lg

from harness.config.engine import failure_allowance
from harness.config.patterns import LoadPattern
from harness.config.plan import Plan
from harness.core import progress
from harness.core.errors import EmptyAnswerError, EndpointError, ServerFullError
from harness.engines.answer_delivery import Delivery, Exchange
from harness.engines.protocol import Engine
from harness.loadgen import senders, sending, test_run
from harness.loadgen.admission import Admission, remedy_for_full_server
from harness.loadgen.requests import Request
from harness.workloads.sample_library import Library


@dataclass
class SUT:
    """Answers every query with the engine, and notes in `requests`, in the order of issue, what it knows of each. Times
    are by time.perf_counter.
    """

    engine: Engine
    library: Library
    sender: senders.RequestSender | None = None  # sends what LoadGen issues at once; None if LoadGen sets the pace
    streams: bool = True  # whether the time of each first token is taken
    is_timed_by_client: bool = False  # whether this object takes the times; if not, it reports first tokens to LoadGen
    timed: bool = True  # False in an accuracy test, in which an empty answer is a bad answer, but no error
    max_failed: str = "0"  # the value of --max-failed
    expected: int = 0  # roughly how many queries there are; 0 if not known
    is_probe: bool = False  # whether a refusal by a full server is a measurement, and no failure
    most_in_flight_flag: str = LoadPattern.most_in_flight_flag  # the flag that limits how many requests are in flight
    failure: BaseException | None = None  # the first exception, after which LoadGen waits for answers that never come

    def __post_init__(self) -> None:
        """Begin a test without requests: the lists and counters grow while LoadGen issues queries."""
        self.counters, self.requests = progress.Counters(), list[Request]()
        self.deliveries, self.sent_tokens = list[Delivery](), 0  # deliveries and prompt tokens of the answered requests
        self.admission = Admission()
        self._tasks = set[asyncio.Task[None]]()  # the loop itself keeps only weak references
        self._issues = Counter[int]()  # how often each sample was issued so far
        self._failed = 0
        self.in_flight = self.most_in_flight = 0  # requests handed to the engine and not answered yet, now and at most

    def issue(self, ids: Sequence[int], indices: Sequence[int]) -> None:
        """Hand a query of LoadGen's over to the engine's loop, in one thread-safe call.

        LoadGen calls this on its own threads, as its IssueQuery. For each sample of the query, `ids` has LoadGen's
        number and `indices` the sample's place in the library.
        """
        issued_s = None
        if not self.is_timed_by_client:  # If the client takes the times, requests are counted as they are sent.
            issued_s = time.perf_counter()
            self.counters.issued += len(ids)
        new_requests = list[Request]()
        # The order counts all requests of the test. The round of a request is how often its sample was issued before.
        for order, (id, index) in enumerate(zip(ids, indices, strict=True), start=len(self.requests)):
            new_requests.append(Request(index, issued_s=issued_s, order=order, round=self._issues[index], id=id))
            self._issues[index] += 1
        self.requests += new_requests
        self.engine.loop.call_soon_threadsafe(self.start, new_requests)

    def start(self, requests: list[Request]) -> None:
        """Send the requests that LoadGen issued together: at once if LoadGen sets the pace, else through the sender.

        Runs on the engine's loop, and does not wait for the answers.
        """
        if self.sender is None:  # LoadGen sets the pace.
            for request in requests:
                self.run(self.attempt(request))
        else:
            self.run(self.send(self.sender, requests))

    async def send(self, sender: senders.RequestSender, requests: list[Request]) -> None:
        """Send requests through the sender, which may have a time limit.

        Requests that it did not send in time are dropped from `self.requests`. LoadGen waits for an answer to each of
        them, and so gets placeholders.
        """
        unsent_requests = await sender.send(requests, self.attempt)
        unsent_orders = {request.order for request in unsent_requests}
        self.requests = [request for request in self.requests if request.order not in unsent_orders]
        for request in unsent_requests:
            self.report(lg.QuerySamplesComplete, request.id, [0] * test_run.PLACEHOLDER_TOKENS)

    def run(self, work: Coroutine[object, object, None]) -> None:
        """Run work as a task of the engine's loop. Its first error is noted in `failure`."""
        task = self.engine.loop.create_task(self._note_failure(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _note_failure(self, work: Coroutine[object, object, None]) -> None:
        """Do the work. If it raises an error, and is the first to do so, note the error in `failure`."""
        try:
            await work
        except Exception as error:
            self.failure = self.failure or error

    async def attempt(self, request: Request) -> None:
        """Answer a request, or count it as refused or failed.

        Raises EndpointError if more requests failed than --max-failed allows, or if a server refuses a request of a
        probe while no other is in flight.
        """
        self.in_flight += 1
        self.most_in_flight = max(self.most_in_flight, self.in_flight)
        number = self.admission.note_sent(time.perf_counter())
        try:
            await self.answer(request)
            sent_s = None
            if request.sent_ms:  # The request may have waited in this client for a connection.
                sent_s = request.begin_s + request.sent_ms / 1e3
            self.admission.note_answered(number, time.perf_counter(), sent_s)
        except ServerFullError as error:
            if self.is_probe:  # A refusal is a measurement.
                self.admission.note_refused(number, time.perf_counter(), error)
                self.end_without_answer(request, error)
            else:
                self.admission.forget(number)
                others = len(self.admission.in_progress)
                self.count_failure(request, error, remedy_for_full_server(others, self.most_in_flight_flag))
        except EndpointError as error:
            self.admission.forget(number)
            self.count_failure(request, error)
        finally:
            self.in_flight -= 1

    def count_failure(self, request: Request, error: EndpointError, remedy: str = "") -> None:
        """Count a failed request, and give LoadGen a placeholder for its answer.

        Raises EndpointError, with `remedy` at the end of its message, if more requests failed than --max-failed allows.
        """
        self._failed += 1
        total = max(self.expected, self.counters.issued)
        allowed = failure_allowance(self.max_failed, total)
        if self._failed > allowed:
            failure_count = ""  # If no request may fail, how many failed says nothing.
            if allowed:
                failure_count = f" (request {allowed + 1:,} of about {total:,} to fail; --max-failed {self.max_failed})"
            raise EndpointError(f"{error}{failure_count}{remedy}") from error
        self.end_without_answer(request, error)

    def end_without_answer(self, request: Request, error: EndpointError) -> None:
        """Note why a request failed, and give LoadGen a placeholder, since LoadGen waits for every answer."""
        request.failure = str(error)
        takes_first_tokens = self.timed and self.streams and not self.is_timed_by_client
        if takes_first_tokens and request.ttft_ms is None:  # LoadGen waits for a first token, too, and none came.
            self.report(lg.FirstTokenComplete, request.id, [0])
        # An accuracy test scores the answers, so there the placeholder has no tokens.
        placeholders = [0] * test_run.PLACEHOLDER_TOKENS if self.timed else []
        self.end(request, placeholders)

    async def answer(self, request: Request) -> None:
        """Send one request, report its first token and its answer to LoadGen, and note its times in `request`.

        The first token is noted only if answers are streamed, and reported only if LoadGen takes the times. Raises
        EndpointError, EngineError or EmptyAnswerError.
        """
        exchange, tokens = Exchange(), list[int]()
        begin = exchange.sent_at  # now; a server's client replaces `sent_at` as soon as a connection takes the request
        prompt, max_new_tokens = self.library.request(request.sample, request.order, request.round)
        is_whole = not self.streams
        request.prompt_tokens = len(prompt)
        if self.is_timed_by_client:
            self.counters.issued += 1
            if request.issued_s is None:  # an arrival of the user's own has the time at which it was due
                request.issued_s = begin
        try:
            async for new_tokens in self.engine.stream(prompt, max_new_tokens, exchange, is_whole):
                are_first = bool(new_tokens) and not tokens
                if self.streams and are_first:
                    self.note_first_token(request, new_tokens[:1], begin)
                tokens.extend(new_tokens)
        finally:  # A request that failed was sent as well, so this time is recorded.
            if self.streams:
                request.sent_ms = self.ms_since_issue(request, exchange.sent_at)
        self.complete(request, tokens, exchange)

    def note_first_token(self, request: Request, first_token: Sequence[int], begin: float) -> None:
        """Note when the first token of a streamed answer came, and report it to LoadGen if LoadGen takes the times.

        `begin` is when the request was begun, by time.perf_counter.
        """
        now = time.perf_counter()
        request.ttft_ms = self.ms_since_issue(request, now)
        if not self.is_timed_by_client:
            self.report(lg.FirstTokenComplete, request.id, first_token)
        self.counters.started += 1
        self.counters.first_token_s += now - begin

    def complete(self, request: Request, tokens: Sequence[int], exchange: Exchange) -> None:
        """Note the tokens of a whole answer, and report it to LoadGen.

        Raises EmptyAnswerError for a timed answer without tokens, unless it is hidden: counted by the server, but not
        sent.
        """
        delivery = exchange.delivery  # what a server sent; None for an engine in this process
        is_hidden = delivery is not None and delivery.is_hidden
        if not tokens and self.timed and not is_hidden:
            why = delivery.why_empty if delivery else "remove the sample"
            raise EmptyAnswerError(
                f"{self.engine.name} answered sample {request.sample} without a single token, which cannot be timed: "
                f"{why}."
            )
        # A server may count other tokens than it sends.
        request.output_tokens = delivery.tokens if delivery else len(tokens)
        if delivery:
            request.first_tokens = max(1, delivery.first_tokens)  # An answer that came whole has 0 in its delivery.
            self.deliveries.append(delivery)
            self.sent_tokens += request.prompt_tokens  # The prompt is what this program sent to the server.
        self.counters.tokens += request.output_tokens
        if is_hidden and self.timed:
            self.complete_hidden(request)
        else:
            self.end(request, tokens)

    def complete_hidden(self, request: Request) -> None:
        """Report an answer whose tokens the server counted but did not send.

        No first token came, so its time is not known. LoadGen gets placeholders for the tokens; the server's count is
        in the request.
        """
        request.first_tokens = 0
        if self.streams and not self.is_timed_by_client:  # LoadGen needs a first token: it gets one at the end.
            self.report(lg.FirstTokenComplete, request.id, [0])
        self.end(request, [0] * test_run.PLACEHOLDER_TOKENS)

    def end(self, request: Request, tokens: Sequence[int]) -> None:
        """Note the time at which a request ended, and report to LoadGen that it did, with the token ids."""
        request.latency_ms = self.ms_since_issue(request, time.perf_counter())
        self.counters.completed += 1
        self.report(lg.QuerySamplesComplete, request.id, tokens, request.output_tokens)

    def ms_since_issue(self, request: Request, at_s: float) -> float:
        """Return the milliseconds from the issue of a request, from which its latencies count, until `at_s`."""
        return 1e3 * (at_s - request.begin_s)

    def report(
        self, loadgen_call: Callable[[list[object]], object], id: int, tokens: Sequence[int], count: int = 0
    ) -> None:
        """Report token ids to LoadGen by `loadgen_call`, its function for a first token or for a whole answer.

        LoadGen copies the ids, as int32, from their buffer. `id` is LoadGen's number of the request. `count` is how
        many tokens LoadGen is to count; 0 stands for the number of ids.
        """
        data = array("i", tokens)
        address, length = data.buffer_info()
        loadgen_call([lg.QuerySampleResponse(id, address, length * data.itemsize, count or length)])


def make_sut(engine: Engine, library: Library, plan: Plan, timed: bool, expected: int, is_probe: bool = False) -> SUT:
    """Return the system under test for a plan's scenario. All parameters but `plan` are fields of `SUT`.

    Of a `timed` test, the latencies count; an accuracy test is not timed.
    """
    pattern = plan.pattern
    return SUT(
        engine,
        library,
        sender=sending.loadgen_sender(plan, library, timed),
        streams=pattern.is_streamed,
        is_timed_by_client=pattern.is_timed_by_client,
        timed=timed,
        max_failed=plan.config.max_failed,
        expected=expected,
        is_probe=is_probe,
        most_in_flight_flag=pattern.most_in_flight_flag,
    )
