"""Requests to OpenAI servers: each sent once, its token ids as they come, an error for any part that does not."""

import asyncio
import contextlib
import itertools
import multiprocessing
import pickle
import re
import signal
import socket
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from os import environ
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit
from urllib.request import getproxies

import uvloop
from aiohttp import (
    ClientConnectorCertificateError,
    ClientConnectorError,
    ClientError,
    ClientPayloadError,
    ClientResponse,
    ClientResponseError,
    ClientSession,
    ClientSSLError,
    ClientTimeout,
    TCPConnector,
    TraceConfig,
)

from harness.config import checkpoint, engine, run
from harness.core.errors import BenchmarkError, EndpointError, EngineError, ServerFullError, UsageError, first_line
from harness.core.secrets import HEADERS
from harness.engines.completions import (
    BYTES_PER_TOKEN,
    ENDS,
    LENGTH,
    MOST_BYTES,
    MOST_REFUSAL,
    OVERLOADED,
    CompletionChunk,
    EventReader,
    RequestFormat,
    choice_logprobs,
    choosing,
    error_message,
    piece,
)
from harness.engines.protocol import RUSH_S, ChoiceLogprobs, Delivery, Exchange, Sampling, TokenCounts, Tokens

KEY, PROXY = "OPENAI_API_KEY", "ENDPOINT_PROXY"
TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # a header's name, by RFC 9110
REFUSED_HEADERS = {"accept-encoding", "content-type", "content-length", "host", "transfer-encoding", "connection"}
# Servers close idle connections (uvicorn, so vLLM: after 5 s). One that is reused at that moment breaks the request.
IDLE_S = 2.0
FULL = (429, 503)  # statuses of a server that has no room for a request
SPARE_MESSAGES = 1000  # of an answer: a server may send some without a token
ALIVE_S = 1.0  # an answer that goes on says so this often
TEXT_SHARE = 0.9  # of an engine's tokens that its text, encoded here, has at least


def extra_headers() -> dict[str, str]:
    """The headers that every request gets beside its own: lines such as `X-Team: search` in the environment.

    Raises UsageError, which never shows a value.
    """
    found = {}
    for number, line in enumerate(environ.get(HEADERS, "").splitlines(), 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not (colon and TOKEN.fullmatch(name) and value.isascii() and value.isprintable()):
            raise UsageError(f"{HEADERS}: line {number}: a header is a line such as X-Team: search.")
        if name.lower() in REFUSED_HEADERS:
            raise UsageError(f"{HEADERS}: line {number}: {name} is for this program to set.")
        found[name] = value
    return found


def connect(config: run.RunConfig) -> ClientSession:
    """A session with key, headers and proxy of the environment, which keeps connections for further requests without
    --new-connections; to be called on a loop.

    Raises UsageError for a key, a header or a proxy that cannot be used.
    """
    key = environ.get(KEY, "")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{KEY} contains a character that is not allowed in a header, such as a line break.")
    own = {"Authorization": f"Bearer {key}"} if key else {}
    proxy = environ.get(PROXY) or None
    if proxy and not engine.is_usable(proxy):
        raise UsageError(f"{PROXY} must be an address such as http://proxy:3128.")
    fresh = config.new_connections
    return ClientSession(
        connector=TCPConnector(limit=0, force_close=fresh, keepalive_timeout=None if fresh else IDLE_S),
        headers={"Accept-Encoding": "identity"} | own | extra_headers(),
        timeout=ClientTimeout(total=config.request_timeout),
        proxy=proxy,
        trace_configs=[note_sent()],
    )


class WireRequest(NamedTuple):
    """One request, as a client sends it."""

    address: str
    prompt: list[int]
    max_new_tokens: int | None
    stream: bool


@dataclass
class Client:
    """HTTP to servers that serve the same `model` and take prompts in the same `form`."""

    failure: ClassVar = None  # a server that is gone shows in its requests

    config: run.RunConfig
    sampling: Sampling
    tokenizer: Any
    vocabulary: int
    model: str
    form: RequestFormat
    served: object = None  # the model that the server named beside its first answer
    in_flight: int = 0
    session: ClientSession = field(init=False)  # from `open` on

    def open(self) -> None:
        """To be called on the loop. Raises UsageError for a key that cannot be sent."""
        self.session = connect(self.config)

    async def answer(self, request: WireRequest, exchange: Exchange) -> Tokens:
        """The answer's token ids: whole, or streamed: those of the first message that holds any, at once; then the
        rest, and no ids once in a while where there is more to come. What is known of it goes into `exchange`.

        Raises EndpointError where any part of it does not come.
        """
        address, sampling = request.address, self.sampling.of(request.max_new_tokens)
        body = self.form.body(self.content(request.prompt), self.model, sampling, request.stream)
        async with self.post(address, body, exchange) as response:
            chunks = limit_bytes(response, address, MOST_BYTES + BYTES_PER_TOKEN * sampling.max_new_tokens)
            if response.status != 200:
                said = await refusal(response)
                error = ServerFullError if is_full(response, said) else EndpointError
                raise error(f"{address} answered {response.status}: {said}")
            reader, pieces = EventReader(address), list[CompletionChunk]()
            first: Sequence[int] = ()
            usage: TokenCounts | None = None
            count = messages = rushed = opening = 0
            before = heard = time.monotonic()
            if not request.stream:
                pieces.append(event := piece(b"".join([chunk async for chunk in chunks]), address))
                usage = event.usage
            async for chunk in chunks:  # none is left of an answer that came whole
                held, now = 0, time.monotonic()
                for data in reader.feed(chunk):
                    pieces.append(event := piece(data, address))
                    held += bool(event.ids if self.form.ids_out else event.text)
                    count += max(1, len(event.ids or ()))
                    usage = event.usage or usage  # the last counts all of the answer
                    if not first and (first := self._encode(pieces, address)):
                        yield first
                        pieces = [CompletionChunk(end=event.end)]
                    if count > 2 * sampling.max_new_tokens + SPARE_MESSAGES:
                        raise EndpointError(f"{address} ignores max_tokens: still sending after {count:,} messages")
                if held:
                    rushed += held - 1 + (messages > 0 and now - before < RUSH_S)
                    messages, before = messages + held, now
                if first and not opening:
                    opening = len(first) + len(self._encode(pieces, address))
                elif now - heard > ALIVE_S:
                    heard = now
                    yield ()
        if not (end := next((found for found in pieces if found.end), None)):
            raise reader.missing_end_error()
        rest, has_ids = self._tokens(pieces, end, address, sampling, len(first)), self.form.ids_out
        here = len(first) + len(rest)
        # Where text came, `usage` counts instead; without it the text may have fewer tokens than the engine made.
        counted = usage.output_tokens if usage and not has_ids else None
        least = sampling.max_new_tokens * (1.0 if counted or has_ids else TEXT_SHARE)
        exchange.delivery = Delivery(
            counted or here,
            here,
            opening,
            messages,
            usage,
            rushed,
            is_capped=end.end == "length" and (counted or here) < least,
            end="" if end.word.lower() in (*ENDS, *LENGTH) else end.word,
            model="" if end.model in (None, self.served) else error_message(end.model),
        )
        if rest:
            yield rest

    async def choose(self, address: str, prompt: list[int], choices: Sequence[int]) -> ChoiceLogprobs:
        """The next token, restricted to the ids in `choices`. Raises EndpointError, UsageError where the server tells
        no log-probabilities."""
        async with self.post(address, choosing(self.content(prompt), self.model, choices)) as response:
            page = await read_whole(response, address)
        if response.status >= 500:
            raise EndpointError(f"{address} answered {response.status}: {error_message(page)}")
        if found := choice_logprobs(page, choices):
            return found
        said = f" ({response.status}: {error_message(page)})" if response.status != 200 else ""
        raise UsageError(f"--endpoint {address} gives no log-probabilities by token id, as vLLM 0.32 does{said}.")

    def content(self, prompt: list[int]) -> list[int] | str:
        """A prompt as its server takes it: its ids, or its text, a chat's special tokens included; the one that begins
        it the server adds itself."""
        if self.form.ids_in:
            return prompt
        begun = prompt[:1] == [self.tokenizer.bos_token_id]
        return str(self.tokenizer.decode(prompt[begun:], skip_special_tokens=False))

    def _tokens(
        self, pieces: Sequence[CompletionChunk], end: CompletionChunk, address: str, sampling: Sampling, before: int
    ) -> Sequence[int]:
        """The token ids of pieces that end an answer, after those `before`. Raises EndpointError where it has another
        length than was asked for and the server gives token ids.

        Of text the tokens are counted here, and the server's own may be fewer.
        """
        if end.end != "length" and self.sampling.exact:
            raise EndpointError(f"{address} ended an answer early ({end.end}): it ignores ignore_eos")
        tokens, most = self._encode(pieces, address), sampling.max_new_tokens
        count = before + len(tokens)
        if self.form.ids_out and (count > most or (sampling.exact and count < most)):
            raise EndpointError(f"{address} ignores max_tokens: it sent {count:,} tokens instead of {most:,}")
        # As engines count, the token that ended it is one, too; there is none where the limit did.
        if end.end != "length" and not self.form.ids_out and count < most:
            tokens.append(self.tokenizer.eos_token_id)
        return tokens

    def _encode(self, pieces: Sequence[CompletionChunk], address: str) -> list[int]:
        """The token ids of pieces. Raises EndpointError where they cannot be those of the text beside them."""
        if self.form.ids_out:
            if any(found.text and found.ids is None for found in pieces):
                raise EndpointError(f"{address} sent text without its token ids, which it gave when it was tried")
            tokens = [token for found in pieces for token in found.ids or ()]
            if tokens and max(tokens) >= self.vocabulary:
                raise EndpointError(
                    f"{address} sent the token id {max(tokens):,}, which is none of the model's vocabulary of "
                    f"{self.vocabulary:,}: does it serve another model?"
                )
            return tokens
        text = "".join(found.text for found in pieces)
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    @contextlib.asynccontextmanager
    async def post(self, address: str, body: bytes, exchange: Exchange | None = None) -> AsyncIterator[ClientResponse]:
        """A completion request's response, whatever its status. Raises EndpointError where the connection fails."""
        try:
            url, kind = engine.join_url(address, self.form.path), {"Content-Type": "application/json"}
            async with self.session.post(
                url, data=body, headers=kind, allow_redirects=False, trace_request_ctx=exchange
            ) as response:
                yield response
        except TimeoutError:
            raise EndpointError(
                f"{address} did not finish an answer within {self.config.request_timeout:g} s (--request-timeout), "
                f"with {self.config.max_in_flight:,} requests at once at most (--max-in-flight)"
            ) from None
        except ClientPayloadError:
            raise ServerFullError(f"{address} broke the connection off in the middle of an answer") from None
        except (ClientError, ConnectionError) as error:
            said = str(error.message if isinstance(error, ClientResponseError) else error)
            if found := re.search(r"content-encoding: (.*?)\.(?: |$)", said):  # of an answer that aiohttp cannot read
                raise UsageError(
                    f"--endpoint {address} compresses its answers ({found[1]}) although they were asked for as they "
                    "are: turn compression off at the server, or at the proxy before it."
                ) from None
            raise ServerFullError(f"{address} broke the connection off: {error_message(said)}") from None


def note_sent() -> TraceConfig:
    """Notes in a request's exchange when it is written to a connection."""

    async def note_time(session: ClientSession, context: Any, params: Any) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.sent_at = time.perf_counter()

    trace = TraceConfig()
    trace.on_request_chunk_sent.append(note_time)
    return trace


def is_full(response: ClientResponse, said: str) -> bool:
    """Whether a server refuses a request for want of room, by its status, its headers or its words."""
    return response.status in FULL or "Retry-After" in response.headers or OVERLOADED in said.lower()


async def refusal(response: ClientResponse) -> str:
    """What a response other than 200 says: where it leads, or the server's own words."""
    if place := response.headers.get("Location"):
        return f"a redirect, which is not followed, to {error_message(place)}"
    said = b""
    async for chunk in response.content.iter_any():
        said += chunk
        if len(said) >= MOST_REFUSAL:
            break
    return error_message(said[:MOST_REFUSAL])


async def limit_bytes(response: ClientResponse, address: str, most: int = MOST_BYTES) -> AsyncIterator[bytes]:
    """The chunks of an answer, as long as they are no more than `most` bytes. Raises EndpointError beyond."""
    count = 0
    async for chunk in response.content.iter_any():
        count += len(chunk)
        if count > most:
            raise EndpointError(f"{address} sent more than {most / 2**20:,.0f} MiB in one answer, and continued")
        yield chunk


async def read_whole(response: ClientResponse, address: str) -> bytes:
    """All that a small page holds. Raises EndpointError for one that goes on beyond MOST_BYTES."""
    return b"".join([chunk async for chunk in limit_bytes(response, address)])


def key_hint(challenge: str) -> str:
    """What a server wants that answers 401 or 403 with this WWW-Authenticate, and where it is set."""
    if "authorization" in map(str.lower, extra_headers()):
        return f"refuses the Authorization in {HEADERS}"
    if challenge.lower().startswith("basic"):
        return f"asks for a name and a password: set {HEADERS} to a line such as Authorization: Basic ..."
    return f"refuses the key in {KEY}" if environ.get(KEY) else f"asks for a key: set {KEY} in the environment"


def why_unreached(error: ClientError, address: str) -> str:
    """Why a server was not reached at all, or not in HTTP."""
    if isinstance(error, ClientConnectorCertificateError):
        return (
            f"its certificate is not trusted: {error_message(error.certificate_error)}; SSL_CERT_FILE names a file of "
            "authorities that are"
        )
    scheme = urlsplit(address).scheme
    if isinstance(error, ClientSSLError) or not isinstance(error, ClientConnectorError):
        other = "http" if scheme == "https" else "https"
        return f"it does not answer as {scheme}:// does ({error_message(error)}): is it {other}://?"
    is_unused = getproxies().get(scheme) and not environ.get(PROXY)
    hint = f"; a proxy is set in the environment, and not used: {PROXY} names one that is" if is_unused else ""
    return f"no server there: {error_message(error)}{hint}"


# Clients in separate processes, so that the client of a server is not what is measured.
PROCESS_ENDED = "a client process ended unexpectedly"
READY = "ready"
LAST_S = 2.0  # to end by itself


class Reply(NamedTuple):
    """A part of an answer on its way back, by number; with `exchange`, what is known of it, nothing follows."""

    number: int
    tokens: Sequence[int] = ()
    error: Exception | None = None
    exchange: Exchange | None = None


def send(writer: asyncio.StreamWriter, message: object) -> None:
    """Sends a message; uvloop writes those of one turn of the loop together."""
    data = pickle.dumps(message)
    writer.write(len(data).to_bytes(8, "big") + data)


async def receive(reader: asyncio.StreamReader) -> Any:
    """The next message. Raises EOFError when the other side is gone."""
    try:
        size = int.from_bytes(await reader.readexactly(8), "big")
        return pickle.loads(await reader.readexactly(size))
    except ConnectionError:  # a message that is cut short is an EOFError
        raise EOFError from None


class RemoteClient:
    _reader: asyncio.StreamReader  # from `open` on, as the next two
    _writer: asyncio.StreamWriter
    _receiving: asyncio.Task[None]

    def __init__(self, client: Client) -> None:
        self._ours, theirs = socket.socketpair()
        work = (replace(client, tokenizer=None), theirs)
        spawn = multiprocessing.get_context("spawn")
        self._process = spawn.Process(target=serve, args=work, name="client", daemon=True)
        self._process.start()
        theirs.close()
        self._numbers = itertools.count()
        self._parts: dict[int, asyncio.Queue[Reply]] = {}
        self.in_flight = 0
        self.failure: str | None = None

    async def open(self) -> None:
        """Waits until the process is ready; to be called on the loop. Raises EngineError where it is not."""
        self._reader, self._writer = await asyncio.open_connection(sock=self._ours)
        try:
            await receive(self._reader)
        except EOFError:
            raise EngineError(PROCESS_ENDED) from None
        self._receiving = asyncio.create_task(self._receive())

    async def _receive(self) -> None:
        try:
            while True:
                reply = await receive(self._reader)
                if reply.number in self._parts:
                    self._parts[reply.number].put_nowait(reply)
        except EOFError:
            self.failure = PROCESS_ENDED
            for number, parts in self._parts.items():
                parts.put_nowait(Reply(number, error=EngineError(PROCESS_ENDED)))

    async def answer(self, request: WireRequest, exchange: Exchange) -> Tokens:
        """As `Client.answer`. Raises EngineError where the process is gone."""
        number = next(self._numbers)
        parts = self._parts[number] = asyncio.Queue()
        try:
            if self.failure:
                raise EngineError(self.failure)
            send(self._writer, (number, request))
            while not (reply := await parts.get()).exchange and not reply.error:
                yield reply.tokens
            if reply.exchange:
                exchange.sent_at, exchange.delivery = reply.exchange.sent_at, reply.exchange.delivery
            if reply.error:
                raise reply.error
        finally:
            del self._parts[number]

    async def disconnect(self) -> None:
        """The process ends once nobody talks to it; to be called on the loop."""
        self._receiving.cancel()
        self._writer.close()

    def close(self) -> None:
        self._process.join(LAST_S)
        self._process.kill()


def serve(client: Client, theirs: socket.socket) -> None:
    """What the process does: answer until the other side is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches it, too: the command ends it
    if not (client.form.ids_in and client.form.ids_out):
        client.tokenizer = checkpoint.load_tokenizer(client.config)
    uvloop.run(answer_all(client, theirs))


async def answer_all(client: Client, theirs: socket.socket) -> None:
    client.open()
    reader, writer = await asyncio.open_connection(sock=theirs)
    send(writer, READY)
    tasks = set[asyncio.Task[None]]()
    try:
        while True:
            task = asyncio.create_task(answer(client, writer, *await receive(reader)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    except EOFError:
        await client.session.close()


async def answer(client: Client, writer: asyncio.StreamWriter, number: int, request: WireRequest) -> None:
    """Sends the parts of one answer on as they come."""
    exchange = Exchange()
    error: Exception | None = None
    try:
        async for tokens in client.answer(request, exchange):
            send(writer, Reply(number, tokens))
    except BenchmarkError as known:
        error = known
    except Exception as unknown:
        traceback.print_exception(unknown)  # to engine.log
        error = RuntimeError(f"{type(unknown).__name__}: {first_line(unknown)}")
    send(writer, Reply(number, error=error, exchange=exchange))
