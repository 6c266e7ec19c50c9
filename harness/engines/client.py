"""Requests to OpenAI servers: each sent once, its token ids as they come, an error for any part that does not."""

import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from os import environ, strerror
from types import SimpleNamespace
from typing import ClassVar, NamedTuple
from urllib.parse import urlsplit

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

from harness.config import run, server_addresses
from harness.config.hub_environment import proxy_of
from harness.core.errors import EndpointError, ServerFullError, UsageError
from harness.core.secrets import HEADERS
from harness.core.tokenizer import Tokenizer
from harness.core.web_addresses import is_usable
from harness.engines.answer_delivery import Delivery, Exchange, TokenCounts
from harness.engines.answer_reading import AnswerReading
from harness.engines.answer_text import whole_characters
from harness.engines.completions import (
    BYTES_PER_TOKEN,
    ENDS,
    LARGEST_ANSWER_BYTES,
    LENGTH,
    MOST_REFUSAL,
    OVERLOADED,
    CompletionChunk,
    EventReader,
    choice_logprobs,
    choosing,
    error_message,
    piece,
)
from harness.engines.other_protocols import spoken_instead
from harness.engines.protocol import ChoiceLogprobs, MessagePrompt, Sampling, TokenStream
from harness.engines.request_formats import Content, RequestFormat

KEY, PROXY = "OPENAI_API_KEY", "ENDPOINT_PROXY"
TOKEN = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # a header's name, by RFC 9110
REFUSED_HEADERS = {"accept-encoding", "content-type", "content-length", "host", "transfer-encoding", "connection"}
# Servers close idle connections; uvicorn, which vLLM uses, does so after 5 s. A request that reuses a connection at
# that moment fails, so this client drops idle connections earlier.
IDLE_S = 2.0
FULL_STATUSES = (429, 503)  # statuses of a server that has no room for a request
SPARE_MESSAGES = 1000  # messages without a token that a server may send in an answer
REPLACEMENT = "\ufffd"  # stands for half of a character
TEXT_SHARE = 0.9  # an engine's text, encoded here, has at least this share of its tokens


def extra_headers() -> dict[str, str]:
    """Return the headers that the user adds to every request.

    They are lines such as `X-Team: search` in the variable ENDPOINT_HEADERS. Raises UsageError, which never shows a
    value.
    """
    headers = {}
    for number, line in enumerate(environ.get(HEADERS, "").splitlines(), 1):
        name, colon, value = (part.strip() for part in line.partition(":"))
        if not line.strip():
            continue
        if not (colon and TOKEN.fullmatch(name) and value.isascii() and value.isprintable()):
            raise UsageError(f"{HEADERS}: line {number}: a header is a line such as X-Team: search.")
        if name.lower() in REFUSED_HEADERS:
            raise UsageError(f"{HEADERS}: line {number}: {name} is for this program to set.")
        headers[name] = value
    return headers


def connect(config: run.RunConfig, with_credentials: bool = True) -> ClientSession:
    """Return a session with the key, headers and proxy of the environment.

    Must be called on an event loop. Connections are kept for further requests, unless --new-connections.
    `with_credentials` is False for a host that must not see the key and the headers. Raises UsageError if the key, a
    header or the proxy cannot be used.
    """
    key = environ.get(KEY, "")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{KEY} contains a character that is not allowed in a header, such as a line break.")
    headers = {"Accept-Encoding": "identity"}
    if with_credentials:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        headers |= extra_headers()
    proxy = environ.get(PROXY) or None
    if proxy and not is_usable(proxy):
        raise UsageError(f"{PROXY} must be an address such as http://proxy:3128.")
    idle_s = None if config.new_connections else IDLE_S
    return ClientSession(
        connector=TCPConnector(limit=0, force_close=config.new_connections, keepalive_timeout=idle_s),
        headers=headers,
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
    tokenizer: Tokenizer
    vocabulary: int
    model: str
    form: RequestFormat
    served: object = None  # the model that the server named beside its first answer
    in_flight: int = 0
    session: ClientSession = field(init=False)  # from `open` on

    def open(self) -> None:
        """Open the session. Must be called on the event loop. Raises UsageError if the key cannot be sent."""
        self.session = connect(self.config)

    async def answer(self, request: WireRequest, exchange: Exchange) -> TokenStream:
        """Yield the answer's token ids: the ids of the first message that has any, then all others at once.

        In between, an empty list is yielded now and then while the answer goes on. An answer that is not streamed comes
        as a whole. How the answer came is noted in `exchange`. Raises EndpointError if any part of the answer does not
        come.
        """
        address, sampling = request.address, self.sampling.of(request.max_new_tokens)
        body = self.form.body(self.content(request.prompt), self.model, sampling, request.stream)
        reading = AnswerReading(lambda pieces: self._encode(pieces, address), self.form.ids_out)
        most_messages = 2 * sampling.max_new_tokens + SPARE_MESSAGES
        async with self.post(address, body, exchange) as response:
            chunks = limit_bytes(response, address, LARGEST_ANSWER_BYTES + BYTES_PER_TOKEN * sampling.max_new_tokens)
            if response.status != 200:
                reason = await refusal(response)
                error = ServerFullError if is_full(response, reason) else EndpointError
                raise error(f"{address} answered {response.status}: {reason}")
            reader = EventReader(address)
            if not request.stream:
                reading.take_whole(piece(b"".join([chunk async for chunk in chunks]), address))
            async for chunk in chunks:  # no chunk is left if the answer came whole
                now = time.monotonic()
                for data in reader.feed(chunk):
                    if first := reading.add(piece(data, address)):
                        yield first
                    if reading.count > most_messages:
                        raise EndpointError(
                            f"{address} ignores max_tokens: still sending after {reading.count:,} messages"
                        )
                if reading.end_read(now):
                    yield ()
        if not reading.end:
            raise reader.missing_end_error()
        rest = self._rest(reading, address, sampling)
        exchange.delivery = self._delivery(reading, reading.end, len(reading.first) + len(rest), sampling)
        if rest:
            yield rest

    def _delivery(self, reading: AnswerReading, end: CompletionChunk, here: int, sampling: Sampling) -> Delivery:
        """Return how an answer came, whose count of tokens its result uses, and how it ended.

        `here` is the number of tokens that this client counted. If the server sent text, the tokens in `usage` are
        used, because an engine may have made more tokens than the text shows.
        """
        usage = reading.usage.counts(here) if reading.usage else None
        is_hidden = self._is_hidden(reading)
        has_ids = self.form.ids_out and not is_hidden
        counted = usage.output_tokens if usage and not has_ids else None
        tokens = counted or here
        least = sampling.max_new_tokens * (1.0 if counted or has_ids else TEXT_SHARE)
        is_usual_end = end.word.lower() in (*ENDS, *LENGTH)
        is_named_model = end.model in (None, self.served)
        has_answer = here > 0 or is_hidden
        return Delivery(
            tokens,
            here,
            reading.opening,
            reading.messages,
            usage,
            reading.rushed,
            is_capped=end.end == "length" and tokens < least,
            end="" if is_usual_end else end.word,
            model="" if is_named_model else error_message(end.model),
            is_hidden=is_hidden,
            why_empty="" if has_answer else self._why_empty(end, usage),
        )

    def _is_hidden(self, reading: AnswerReading) -> bool:
        """Return whether the server counts tokens that it did not send, such as those of hidden thinking.

        A single token that ended the answer at once is never sent, so it does not count as hidden.
        """
        if reading.has_text or not reading.usage or not reading.end:
            return False
        counted = reading.usage.counts(0).output_tokens or 0
        return counted > (0 if reading.end.end == "length" else 1)

    def _why_empty(self, end: CompletionChunk, usage: TokenCounts | None) -> str:
        """Return why an answer has no token, in words, as far as its end and its counts tell."""
        if end.end == "length":
            return (
                "it reached its limit of tokens without text, and no `usage` counts them: the server hides what the "
                "model thinks; turn thinking off at the server"
            )
        counted = f", `usage` counts {usage.output_tokens}" if usage and usage.output_tokens else ""
        ended = f"the model ended it at once (finish_reason {end.word or end.end!r}{counted})"
        if self.form.min_tokens and usage and usage.output_tokens:
            return f"{ended} although min_tokens was asked for: its tokens decode to no text"
        if self.form.min_tokens:
            return (
                f"{ended} although min_tokens was asked for: the server does not honor it, or the tokens that it made "
                "decode to no text"
            )
        return f"{ended}, and the server does not take min_tokens: remove the sample, or take a server that does"

    async def choose(self, address: str, prompt: list[int], choices: Sequence[int]) -> ChoiceLogprobs:
        """Return the log-probabilities of the ids in `choices` as the next token.

        Raises EndpointError if the server fails, and UsageError if it does not give log-probabilities.
        """
        async with self.post(address, choosing(self.content(prompt), self.model, choices)) as response:
            page = await read_whole(response, address)
        if response.status >= 500:
            raise EndpointError(f"{address} answered {response.status}: {error_message(page)}")
        if logprobs := choice_logprobs(page, choices):
            return logprobs
        status_text = f" ({response.status}: {error_message(page)})" if response.status != 200 else ""
        raise UsageError(
            f"--endpoint {address} gives no log-probabilities by token id, as vLLM 0.32 does{status_text}."
        )

    def content(self, prompt: list[int]) -> Content:
        """Return a prompt as its server takes it: token ids, the messages of a conversation, or text.

        The text includes special tokens except the one at its beginning, which the server adds itself.
        """
        if self.form.ids_in:
            return prompt
        if self.form.chat and isinstance(prompt, MessagePrompt):
            return self.salted_messages(prompt)
        is_begun = prompt[:1] == [self.tokenizer.bos_token_id]
        return str(self.tokenizer.decode(prompt[is_begun:], skip_special_tokens=False))

    def salted_messages(self, prompt: MessagePrompt) -> list[dict[str, str]]:
        """Return the messages of a conversation, with the text of its salt before the first one."""
        messages = [dict(message) for message in prompt.messages]
        if prompt.salt:
            messages[0]["content"] = self.tokenizer.decode(list(prompt.salt)) + messages[0]["content"]
        return messages

    def _rest(self, reading: AnswerReading, address: str, sampling: Sampling) -> Sequence[int]:
        """Return the token ids of an answer after its first ones.

        Tokens of text are counted here, so the server may have counted fewer. Raises EndpointError if an answer of
        exact length ended early, or if the server gives token ids and their number is not what was asked for.
        """
        end = reading.end.end if reading.end else None
        if end != "length" and self.sampling.exact:
            raise EndpointError(f"{address} ended an answer early ({end}): it ignores ignore_eos")
        tokens, half = self._encode(reading.pieces, address)
        if half:
            tokens += self._encode_text(REPLACEMENT)  # the other half of the character did not come
        count, most = len(reading.first) + len(tokens), sampling.max_new_tokens
        if self.form.ids_out and (count > most or (sampling.exact and count < most)):
            raise EndpointError(f"{address} ignores max_tokens: it sent {count:,} tokens instead of {most:,}")
        # Engines count the token that ends an answer. There is no such token if the limit of tokens ended it.
        if end != "length" and not self.form.ids_out and count < most and not self._is_hidden(reading):
            tokens.append(self.tokenizer.eos_token_id)
        return tokens

    def _encode(self, pieces: Sequence[CompletionChunk], address: str) -> tuple[list[int], str]:
        """Return the token ids of pieces, and half a character if the pieces end with one.

        Raises EndpointError if the ids do not belong to the text that came with them.
        """
        if not self.form.ids_out:
            text, half = whole_characters(chunk.text for chunk in pieces)
            return self._encode_text(text), half
        if any(chunk.text and chunk.ids is None for chunk in pieces):
            raise EndpointError(f"{address} sent text without its token ids, which it gave when it was tried")
        tokens = list[int]()
        for chunk in pieces:
            tokens += chunk.ids or ()
        if tokens and max(tokens) >= self.vocabulary:
            raise EndpointError(
                f"{address} sent the token id {max(tokens):,}, which is none of the model's vocabulary of "
                f"{self.vocabulary:,}: it serves another model, or --model names another"
            )
        return tokens, ""

    def _encode_text(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False)) if text else []

    @contextlib.asynccontextmanager
    async def post(self, address: str, body: bytes, exchange: Exchange | None = None) -> AsyncIterator[ClientResponse]:
        """Yield the response to a completion request, whatever its status.

        Raises EndpointError if the connection fails.
        """
        try:
            url, kind = server_addresses.join_url(address, self.form.path), {"Content-Type": "application/json"}
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
            text = str(error.message if isinstance(error, ClientResponseError) else error)
            if encoding := re.search(r"content-encoding: (.*?)\.(?: |$)", text):  # aiohttp cannot unpack this answer
                raise UsageError(
                    f"--endpoint {address} compresses its answers ({encoding[1]}) although they were asked for as they "
                    "are: turn compression off at the server, or at the proxy before it."
                ) from None
            raise ServerFullError(f"{address} broke the connection off: {error_message(text)}") from None


def note_sent() -> TraceConfig:
    """Return a trace that notes in a request's exchange when the request was written to a connection."""

    async def note_time(session: ClientSession, context: SimpleNamespace, params: object) -> None:
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.sent_at = time.perf_counter()

    trace = TraceConfig()
    trace.on_request_chunk_sent.append(note_time)
    return trace


def is_full(response: ClientResponse, reason: str) -> bool:
    """Return whether a server refuses a request because it is full, judged by its status, its headers or its words."""
    return response.status in FULL_STATUSES or "Retry-After" in response.headers or OVERLOADED in reason.lower()


async def refusal(response: ClientResponse) -> str:
    """Return the reason in a response other than 200: the address of a redirect, or the server's own words."""
    if place := response.headers.get("Location"):
        return f"a redirect, which is not followed, to {error_message(place)}"
    page = b""
    async for chunk in response.content.iter_any():
        page += chunk
        if len(page) >= MOST_REFUSAL:
            break
    return error_message(page[:MOST_REFUSAL])


async def limit_bytes(response: ClientResponse, address: str, most: int = LARGEST_ANSWER_BYTES) -> AsyncIterator[bytes]:
    """Yield the chunks of an answer. Raises EndpointError if they are more than `most` bytes."""
    count = 0
    async for chunk in response.content.iter_any():
        count += len(chunk)
        if count > most:
            raise EndpointError(f"{address} sent more than {most / 2**20:,.0f} MiB in one answer, and continued")
        yield chunk


async def read_whole(response: ClientResponse, address: str) -> bytes:
    """Return the content of a small page. Raises EndpointError if it is larger than LARGEST_ANSWER_BYTES."""
    return b"".join([chunk async for chunk in limit_bytes(response, address)])


def key_hint(challenge: str) -> str:
    """Return what a server that answers 401 or 403 wants, and where the user can set it.

    `challenge` is the server's WWW-Authenticate header.
    """
    if "authorization" in map(str.lower, extra_headers()):
        return f"refuses the Authorization in {HEADERS}"
    if challenge.lower().startswith("basic"):
        return f"asks for a name and a password: set {HEADERS} to a line such as Authorization: Basic ..."
    return f"refuses the key in {KEY}" if environ.get(KEY) else f"asks for a key: set {KEY} in the environment"


async def why_unreached(error: ClientError, address: str) -> str:
    """Return why a server could not be reached.

    If it answered, but not in HTTP, it is asked which protocol it speaks.
    """
    if isinstance(error, ClientConnectorCertificateError):
        return (
            f"its certificate is not trusted: {error_message(error.certificate_error)}; SSL_CERT_FILE names a file of "
            "authorities that are"
        )
    scheme = urlsplit(address).scheme
    is_broken_off = isinstance(error, ClientConnectorError) and isinstance(error.os_error, ConnectionResetError)
    if isinstance(error, ClientSSLError) or is_broken_off or not isinstance(error, ClientConnectorError):
        # With a proxy, the proxy would answer in place of the server.
        spoken = "" if environ.get(PROXY) else await spoken_instead(address)
        return f"it does not answer as {scheme}:// does: {spoken or error_message(error)}"
    is_unused = proxy_of(urlsplit(address)) and not environ.get(PROXY)
    hint = f"; a proxy is set in the environment, and not used: {PROXY} names one that is" if is_unused else ""
    return f"no server there: {connection_reason(error)}{hint}"


def connection_reason(error: ClientConnectorError) -> str:
    """Return why a connection failed, in the words of the operating system.

    The message of aiohttp has parts of its connection pool's key, such as "ssl:default". A name that is not known has a
    number below zero, and attempts at several addresses have none.
    """
    number = error.os_error.errno
    if number is not None and number > 0:
        return strerror(number)
    return error.os_error.strerror or error_message(error.os_error)
