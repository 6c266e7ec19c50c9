"""Any engine behind an OpenAI completions API: vLLM, SGLang, llama.cpp, transformers; one server or several.

Requests go to the server with the least load, by way of a client in this process or of several in separate
processes. A request that fails, in whatever way, ends the run: no part of its answer reaches LoadGen, and none is sent
again.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from operator import attrgetter
from pathlib import Path
from resource import RLIM_INFINITY, RLIMIT_NOFILE, getrlimit, setrlimit
from urllib.parse import urlsplit

import uvloop

from harness.config import engine, pretrained, run, server_addresses
from harness.config.plan import Plan
from harness.core.errors import EndpointError, UsageError
from harness.core.system import core_count
from harness.engines import sampling_of
from harness.engines.answer_delivery import Exchange
from harness.engines.client import IDLE_S, Client, WireRequest, connect, key_hint, read_whole, refusal
from harness.engines.client_processes import RemoteClient
from harness.engines.completions import (
    NO_CACHE_FIELDS,
    CompletionChunk,
    EventReader,
    Message,
    completion_chunk,
    server_text,
)
from harness.engines.discovery import BUSY_S, BUSY_STATUSES, PAGE_S, PAUSE_S, Discovery, Server, read_page
from harness.engines.metrics_pages import own_rows, page_notes
from harness.engines.protocol import ChoiceLogprobs, Engine, Sampling, TokenStream
from harness.engines.request_formats import FORMATS_BY_API, NEUTRAL_FIELDS, RequestFormat
from harness.engines.server_metrics import have_cache_counters

SPARE_FILES = 256  # open files of this process beside its connections
PROBE_TOKENS = 2  # the longest answer to a probe, in tokens
LONGEST_NOTE = 300  # characters of a note about a page of metrics
MOST_CLIENTS = 8  # each sends 1,000 requests a second or more (docs/evidence/serving.md)
PROBE_TEXT = "Summarize: the quick brown fox jumps over the lazy dog."


class RefusedError(Exception):
    """A server does not take a request of this form."""


def create(plan: Plan, traces: Path, may_score: bool = False) -> "OpenAI":
    """Return the client of a run. The folder `traces` is not used, since a server's profiler cannot be reached.

    With `may_score`, no client processes are started, since `score_choices` uses only the client in this process.
    """
    processes = 1 if may_score else 0  # 1 is this process alone, 0 as many as the machine's cores allow.
    return OpenAI(plan.config, plan.max_model_len, sampling_of(plan), processes)


class OpenAI(Engine):
    """The client of one or more servers that serve the same model. With one of `processes`, this process sends the
    requests, otherwise as many others. 0 means half as many as there are cores, at most MOST_CLIENTS: the other cores
    are for LoadGen, and for a server on this machine.
    """

    def __init__(
        self,
        config: run.RunConfig,
        max_model_len: int,
        sampling: Sampling | None = None,
        processes: int = 0,
    ) -> None:
        """Prepare the client. No request is sent before `load`, which finds out what the servers are.

        The servers must serve contexts of `max_model_len` tokens. `processes` is the number of client processes: 0
        chooses by the machine's cores, and 1 starts none.
        """
        super().__init__(sampling=sampling or Sampling(config.max_new_tokens))
        self.loop = uvloop.new_event_loop()
        self.config = config
        self.max_model_len = max_model_len
        processes_by_cores = max(1, min(MOST_CLIENTS, core_count() // 2))
        self.processes = processes or processes_by_cores
        self.tokenizer = tokenizer = pretrained.load_tokenizer(config)
        self.name = f"the client of {', '.join(config.endpoint)}"
        self.starting = f"connecting to {', '.join(config.endpoint)}"
        self.servers: list[Server] = []
        self._client = Client(
            config,
            self.sampling,
            tokenizer,
            vocabulary=len(tokenizer),
            model=config.model_path,  # The model's name and the form are preliminary: `load` asks the servers.
            form=FORMATS_BY_API[config.endpoint_api][0],
        )
        self._slots = asyncio.Semaphore(config.most_in_flight)
        self._cache_is_counted = False  # True if the servers tell how many prompt tokens come from a cache.
        self._remote: list[RemoteClient] = []
        self._clients: Sequence[Client | RemoteClient] = [self._client]

    async def load(self) -> None:
        """Find out what the servers are and how they take prompts, then start the client processes, if there are any.

        Raises UsageError if a server cannot be used or differs from the others, EndpointError if a connection fails.
        """
        config = self.config
        allow_open_files(config.most_in_flight)  # Each request in flight has a connection, which is an open file.
        self._client.open()
        discovery = Discovery(config, self._client.session)
        for address in config.endpoint:
            await discovery.ready(address)
        self.servers = [await discovery.discover(address, self.max_model_len) for address in config.endpoint]
        for server in self.servers:
            server.form = await self._best_format(server)
        require_identical(self.servers, "serve different models", attrgetter("model"))
        require_identical(self.servers, "take prompts differently", attrgetter("form"))
        first = self.servers[0]
        self._client.form, self._client.model = first.form or self._client.form, first.model
        versions = ", ".join(sorted({server.version_text for server in self.servers}))
        self.name = f"the client of {versions} at {', '.join(config.endpoint)}"
        self.ready = f"connected to {versions}"
        self.args = {
            "server": versions,
            "serves": server_text(first.model),
            "endpoints": [*config.endpoint],
            "exchange": str(self._client.form),
            "client_processes": self.processes,
            "max_in_flight": config.max_in_flight,
        }
        await self._inspect_metrics()
        if self.processes > 1:  # From now on, requests go through the client processes.
            self._clients = self._remote = [RemoteClient(self._client) for _ in range(self.processes)]
            await asyncio.gather(*(client.open() for client in self._remote))

    async def _inspect_metrics(self) -> None:
        """Note in `cautions`, and for the record in `args`, which rows of the servers' metrics may not be this run's.

        Also note whether the servers tell how many prompt tokens come from a cache, in each answer or on their pages of
        metrics.
        """
        pages = await self._read_pages()
        notes = dict[str, None]()
        for page in pages:
            notes |= dict.fromkeys(page_notes(page, self.model_names))
        self.cautions = [server_text(note, LONGEST_NOTE) for note in notes]
        if self.cautions:
            self.args["metrics"] = "; ".join(self.cautions)
        own_pages = [own_rows(page, self.model_names) for page in pages]
        is_in_answers = all(server.tells_cache for server in self.servers)
        self._cache_is_counted = is_in_answers or have_cache_counters(own_pages)

    async def _best_format(self, server: Server) -> RequestFormat:
        """Return the best request format that the server takes, with the sampling fields that it takes.

        Raises UsageError if the server takes no format, or only text although prompts need an exact number of tokens.
        """
        last_refusal = RefusedError()
        no_cache_fields = NO_CACHE_FIELDS.get(server.name, ())  # fields that turn this kind of server's cache off
        for candidate in FORMATS_BY_API[self.config.endpoint_api]:  # the best first: token ids before text
            form = candidate._replace(no_cache_fields=no_cache_fields)
            try:
                answers_with_ids = await self._try_format(server, form)
            except RefusedError as error:
                last_refusal = error
                continue
            if self.sampling.exact and not form.ids_in:
                raise UsageError(
                    f"--endpoint {server.address} accepts text prompts only, so --input-len would not be exact."
                )
            form = form._replace(ids_out=answers_with_ids)
            return form._replace(accepted_fields=await self._accepted_fields(server, form))
        raise UsageError(
            f"--endpoint {server.address} accepts none of this program's completion requests: {last_refusal}."
        )

    async def _accepted_fields(self, server: Server, form: RequestFormat) -> tuple[tuple[str, float], ...]:
        """Return the sampling fields of NEUTRAL_FIELDS that the server takes, with their values.

        The fields override the server's own defaults, which could change greedy answers.
        """
        with suppress(RefusedError):
            await self._try_format(server, form._replace(accepted_fields=NEUTRAL_FIELDS))
            return NEUTRAL_FIELDS
        accepted = list[tuple[str, float]]()
        for field in NEUTRAL_FIELDS:
            with suppress(RefusedError):
                await self._try_format(server, form._replace(accepted_fields=(field,)))
                accepted.append(field)
        return tuple(accepted)

    async def _try_format(self, server: Server, form: RequestFormat) -> bool:
        """Send a small request in this form, and return whether the form asks for token ids and the answer has them.

        Notes which model answered, and whether the server counts cached tokens. Raises RefusedError if another form may
        work, and UsageError if none can.
        """
        stream = self.config.scenario_rules.pattern.is_streamed  # as the run's requests will be
        self._client.form = form  # decides what `content` returns
        content = self._client.content(self.tokenizer.encode(PROBE_TEXT))
        body = form.body(content, server.model, self.sampling.for_request(PROBE_TOKENS), stream)
        status, page, challenge = await self._first_reply(server.address, body)
        check_status(server.address, status, page, challenge)
        try:
            chunks = chunks_of(page, server.address, stream)
        except EndpointError as error:  # The reply is no answer, or its end did not come.
            raise UsageError(f"--endpoint {error}.") from None
        self._client.served = next(chunk.model for chunk in chunks if chunk.end)
        counts_cached_tokens = any(chunk.usage and chunk.usage.cached_tokens is not None for chunk in chunks)
        server.tells_cache = server.tells_cache and counts_cached_tokens  # in all answers so far
        token_ids = sum(len(chunk.ids or ()) for chunk in chunks)
        if token_ids > PROBE_TOKENS:
            raise UsageError(f"--endpoint {server.address} ignores max_tokens: its answers are longer.")
        return form.ids_out and all(chunk.ids is not None for chunk in chunks if chunk.text)

    async def _first_reply(self, address: str, body: bytes) -> tuple[int, bytes, str]:
        """Send a request until the server is not busy, or for BUSY_S seconds.

        Return the last reply's status, its page (only the reason unless the status is 200), and its WWW-Authenticate
        header.
        """
        until = time.monotonic() + BUSY_S
        while True:
            async with self._client.post(address, body) as response:
                status, headers = response.status, response.headers
                if status == 200:
                    page = await read_whole(response, address)
                else:
                    page = (await refusal(response)).encode()
            retry_after = headers.get("Retry-After", "")  # the seconds that the server asks to wait, if it does
            pause_s = float(retry_after) if retry_after.isdecimal() else PAUSE_S
            has_time_left = time.monotonic() + pause_s <= until
            if status not in BUSY_STATUSES or not has_time_left:
                return status, page, headers.get("WWW-Authenticate", "")
            await asyncio.sleep(max(PAUSE_S, pause_s))  # A server may ask for no pause (0).

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> TokenStream:
        """Yield the answer of the server with the least load, through the client with the fewest requests.

        `exchange` is filled with how the answer was delivered. With `is_whole`, the answer is asked for in one piece.
        """
        # If as many requests are in flight as are allowed, this waits for one of them to end.
        async with self._least_loaded() as server:
            client = min(self._clients, key=attrgetter("in_flight"))
            server.unstarted += 1  # A request without a token weighs more in the server's load.
            client.in_flight += 1
            has_started = False
            try:
                request = WireRequest(server.address, prompt, max_new_tokens, stream=not is_whole)
                async for tokens in client.answer(request, exchange or Exchange()):
                    self.last_response_at = time.monotonic()
                    if not has_started:
                        server.unstarted -= 1
                        has_started = True
                    yield tokens
            finally:
                if not has_started:  # The request ended, by an error or otherwise, without a first token.
                    server.unstarted -= 1
                client.in_flight -= 1

    @asynccontextmanager
    async def _least_loaded(self) -> AsyncIterator[Server]:
        """Yield the server with the least load, and count one more request for it until the block ends."""
        async with self._slots:  # waits until fewer requests are in flight than are allowed
            server = min(self.servers, key=attrgetter("load"))
            server.in_flight += 1
            try:
                yield server
            finally:
                server.in_flight -= 1

    async def score_choices(self, prompt: list[int], choices: list[int]) -> ChoiceLogprobs:
        """Return the log-probabilities of the ids in `choices` as the next token, by the server with the least load.

        Raises EndpointError if the server fails, and UsageError if it does not give log-probabilities.
        """
        async with self._least_loaded() as server:
            try:
                return await self._client.choose(server.address, prompt, choices)
            finally:
                self.last_response_at = time.monotonic()

    @property
    def engine_state(self) -> engine.EngineState:
        """The settings of the servers. Most are unknown, since servers do not report them."""
        other_models = [server.other_model for server in self.servers if server.other_model]
        return engine.EngineState(
            precision="unknown",
            quantization="unknown",
            kv_cache_dtype="unknown",
            prefix_caching=None,
            cache_counted=self._cache_is_counted,
            other_model=other_models[0] if other_models else "",
        )

    @property
    def concurrency(self) -> int:
        """The requests that make a full load: as many as may be in flight, but fewer for the demo model.

        How many requests the servers themselves compute at once is not known.
        """
        most_in_flight = self.config.most_in_flight
        demo_sequences = self.config.model_spec.sequences  # what a server computes at once; only the demo model has it
        if not demo_sequences:
            return most_in_flight
        return min(most_in_flight, len(self.config.endpoint) * demo_sequences)

    def limit_in_flight(self, most: int) -> int:
        """Keep at most `most` requests in flight at all servers together. Return the limit for each server.

        Must be called between two tests: requests that are already in flight do not count.
        """
        per_server = max(1, most // len(self.config.endpoint))
        self.config = self.config.with_settings(max_in_flight=per_server)
        self._slots = asyncio.Semaphore(self.config.most_in_flight)  # the limit of all servers together
        self.args["max_in_flight"] = per_server
        return per_server

    @property
    def model_names(self) -> tuple[str, ...]:
        """The names by which a page of metrics may know this run's model: the servers' and the user's, each once."""
        config = self.config
        served = [server.model for server in self.servers]
        return tuple(dict.fromkeys([*served, config.served_model_name, config.model, config.model_path]))

    def prometheus_metrics(self) -> list[str]:
        """Return the rows of this run's model on each server's page. Empty if the pages do not come in time."""
        with suppress(TimeoutError):
            # The pages are read at the same time, each in PAGE_S at most. The loop may be late with them under load.
            pages = self.spawn(self._read_pages()).result(timeout=2 * PAGE_S)
            return [own_rows(page, self.model_names) for page in pages]
        return []

    async def _read_pages(self) -> list[str]:
        """Return the pages of metrics of --metrics-url, or else each server's /metrics. Those that do not come are left
        out.
        """
        addresses = list(self.config.metrics_url)
        if not addresses:
            for server in self.servers:  # A server has this page outside its API, so without the /v1 of the API.
                addresses.append(server_addresses.join_url(server.address, "/metrics", outside=True))
        pages = await asyncio.gather(*map(self._metrics, addresses))
        return list(filter(None, pages))

    async def _metrics(self, url: str) -> str:
        """Return a page of metrics. Empty if it does not come.

        The user's key and headers are sent only to the endpoints' own hosts. Any other host gets a session without.
        """
        hosts = {urlsplit(server.address).hostname for server in self.servers}
        with suppress(EndpointError):
            if urlsplit(url).hostname in hosts:
                return await read_page(url, self._client.session)
            async with connect(self.config, with_credentials=False) as session:
                return await read_page(url, session)
        return ""

    @property
    def failure(self) -> str | None:
        """The reason why a client process can answer no more. A server that is gone shows in its requests instead."""
        for client in self._clients:
            if client.failure:
                return client.failure
        return None

    def close(self) -> None:
        """Close the connections, for at most IDLE_S seconds, then end the client processes and the loop."""
        if self.servers:  # Without servers, the loop may never have begun.
            with suppress(TimeoutError):
                self.spawn(self._disconnect()).result(timeout=IDLE_S)
        for client in self._remote:
            client.close()
        self.stop_loop()

    async def _disconnect(self) -> None:
        """Close the session of this process and the connections to the client processes."""
        clients = (client.disconnect() for client in self._remote)
        # Errors are ignored: a client process that died while it started has no connection to close.
        await asyncio.gather(self._client.session.close(), *clients, return_exceptions=True)


def check_status(address: str, status: int, page: bytes, challenge: str) -> None:
    """Raise an error if a server did not answer a completion request with status 200.

    After a RefusedError, another form of the request may work. `challenge` is the header WWW-Authenticate, `page` the
    reply or its reason.
    """
    if status == 200:
        return
    if status in (401, 403):
        raise UsageError(f"--endpoint {address} {key_hint(challenge)} ({status}).")
    if status >= 400 and status not in (404, *BUSY_STATUSES):
        raise RefusedError(f"{status}: {server_text(page)}")
    # The server is busy, is not there (404), or redirects (a status below 400).
    message = server_text(page)
    if status == 404 and "/v1" not in address:
        message += "; most servers' addresses end in /v1, as in http://host:8000/v1"
    raise UsageError(f"--endpoint {address} answers {status} to a completion: {message}.")


def chunks_of(page: bytes, address: str, stream: bool) -> list[CompletionChunk]:
    """Return the parts of a whole answer, which came streamed or in one document.

    Raises EndpointError if the page is no answer, or if the answer's end did not come.
    """
    reader = EventReader(address)
    messages: Sequence[Message | bytes] = reader.feed(page) if stream else [page]
    chunks = [completion_chunk(message, address) for message in messages]
    if not any(chunk.end for chunk in chunks):
        raise reader.missing_end_error()
    return chunks


def require_identical(servers: Sequence[Server], trouble: str, value_of: Callable[[Server], object]) -> None:
    """Raise UsageError if what `value_of` returns differs between servers. Servers that share one load must be alike.

    `trouble` says in the message what is wrong, such as "serve different models". The message names each value with
    one of the servers that have it.
    """
    address_by_value = {str(value_of(server)): server.address for server in servers}
    if len(address_by_value) > 1:
        values = "; ".join(f"{address}: {value}" for value, address in address_by_value.items())
        raise UsageError(f"the endpoints {trouble}: {values}.")


def allow_open_files(connections: int) -> None:
    """Increase this process's limit of open files, if it is too low for so many connections and SPARE_FILES files.

    A process may raise its soft limit up to its hard limit. Raises UsageError if the hard limit is too low as well.
    """
    soft, hard = getrlimit(RLIMIT_NOFILE)
    needed = connections + SPARE_FILES
    if soft != RLIM_INFINITY and soft < needed:
        if hard != RLIM_INFINITY and hard < needed:
            raise UsageError(
                f"{connections:,} requests in flight need {needed:,} open files; this machine allows {hard:,}: "
                "use a lower --max-in-flight, or raise ulimit -n."
            )
        setrlimit(RLIMIT_NOFILE, (needed, hard))
