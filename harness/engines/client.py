"""Requests to OpenAI servers: each sent once, its token ids as they come, an error for any part that does not."""

import contextlib
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import partial
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
from harness.core.formatting import plural
from harness.core.secrets import HEADERS_VARIABLE
from harness.core.tokenizer import Tokenizer
from harness.core.web_addresses import is_usable
from harness.engines.answer_delivery import Delivery, Exchange, TokenCounts
from harness.engines.answer_reading import AnswerReading
from harness.engines.answer_text import whole_characters
from harness.engines.completions import (
    BYTES_PER_TOKEN,
    LARGEST_ANSWER_BYTES,
    LENGTH_WORDS,
    MOST_REFUSAL,
    OVERLOAD_WORD,
    STOP_WORDS,
    CompletionChunk,
    EventReader,
    choice_logprobs,
    choice_request,
    completion_chunk,
    server_text,
)
from harness.engines.other_protocols import protocol_hint
from harness.engines.protocol import ChoiceLogprobs, MessagePrompt, Sampling, TokenStream
from harness.engines.request_formats import Content, RequestFormat

KEY_VARIABLE, PROXY_VARIABLE = "OPENAI_API_KEY", "ENDPOINT_PROXY"
HEADER_NAME = re.compile(r"[-!#$%&'*+.^_`|~0-9A-Za-z]+")  # a header's name, by RFC 9110
REFUSED_HEADERS = {"accept-encoding", "content-type", "content-length", "host", "transfer-encoding", "connection"}
# Servers close idle connections; uvicorn, which vLLM uses, does so after 5 s. A request that reuses a connection at
# that moment fails, so this client drops idle connections earlier.
IDLE_S = 2.0
FULL_STATUSES = (429, 503)  # statuses of a server that has no room for a request
SPARE_MESSAGES = 1000  # messages beyond two a token before an answer counts as endless
REPLACEMENT = "\ufffd"  # stands for half of a character
TEXT_SHARE = 0.9  # encoding an engine's text here gives at least this share of the tokens that the engine made


def extra_headers() -> dict[str, str]:
    """Return the headers that the user adds to every request, as lines in the variable ENDPOINT_HEADERS.

    Raises UsageError for a line that cannot be used. The message never shows a value, which may be secret.
    """
    headers = {}
    for number, line in enumerate(environ.get(HEADERS_VARIABLE, "").splitlines(), 1):
        if not line.strip():
            continue
        name, colon, value = map(str.strip, line.partition(":"))
        if not (colon and HEADER_NAME.fullmatch(name) and value.isascii() and value.isprintable()):
            raise UsageError(f"{HEADERS_VARIABLE}: line {number}: a header is a line such as X-Team: search.")
        if name.lower() in REFUSED_HEADERS:
            raise UsageError(f"{HEADERS_VARIABLE}: line {number}: {name} is for this program to set.")
        headers[name] = value
    return headers


def connect(config: run.RunConfig, with_credentials: bool = True) -> ClientSession:
    """Return a session with the key, headers and proxy of the environment, which notes when each request is sent.

    Must be called on an event loop. `with_credentials` is False for a host that must not see the key. Raises UsageError
    if a value cannot be used.
    """
    key = environ.get(KEY_VARIABLE, "")
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{KEY_VARIABLE} contains a character that is not allowed in a header, such as a line break.")
    headers = {"Accept-Encoding": "identity"}  # asks for answers that are not compressed
    if with_credentials:
        if key:
            headers["Authorization"] = f"Bearer {key}"
        headers |= extra_headers()
    proxy = environ.get(PROXY_VARIABLE) or None
    if proxy and not is_usable(proxy):
        raise UsageError(f"{PROXY_VARIABLE} must be an address such as http://proxy:3128.")
    idle_s = None if config.new_connections else IDLE_S
    no_limit = 0  # on the number of connections, since the engine itself limits the requests in flight
    return ClientSession(
        connector=TCPConnector(limit=no_limit, force_close=config.new_connections, keepalive_timeout=idle_s),
        headers=headers,
        timeout=ClientTimeout(total=config.request_timeout),
        proxy=proxy,
        trace_configs=[sending_time_trace()],
    )


class WireRequest(NamedTuple):
    """One request, as a client sends it. `max_new_tokens` is None if it is sampled as all requests are."""

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
    vocabulary: int  # the number of token ids
    model: str
    form: RequestFormat
    served: object = None  # the model that the server named beside its first answer
    in_flight: int = 0
    session: ClientSession = field(init=False)  # from `open` on

    def open(self) -> None:
        """Open the session. Must be called on the event loop. Raises UsageError if the key cannot be sent."""
        self.session = connect(self.config)

    async def answer(self, request: WireRequest, exchange: Exchange) -> TokenStream:
        """Yield the answer's token ids: first those of the first message that has any, then all others together.

        Empty lists in between show that the answer goes on. How the answer came is noted in `exchange`. Raises
        ServerFullError or EndpointError.
        """
        address, sampling = request.address, self.sampling.for_request(request.max_new_tokens)
        body = self.form.body(self.content(request.prompt), self.model, sampling, request.stream)
        reading = AnswerReading(partial(self._encode, address), self.form.ids_out)
        # An answer of more messages, token ids or bytes is taken as endless.
        most_length = 2 * sampling.max_new_tokens + SPARE_MESSAGES
        most_bytes = LARGEST_ANSWER_BYTES + BYTES_PER_TOKEN * sampling.max_new_tokens
        async with self.post(address, body, exchange) as response:
            await check_accepted(response, address)
            chunks = limit_bytes(response, address, most_bytes)
            reader = EventReader(address)
            if not request.stream:  # All its tokens are yielded at the end.
                page = b"".join([chunk async for chunk in chunks])
                reading.take_whole(completion_chunk(page, address))
            async for chunk in chunks:  # If the answer is not streamed, no chunk is left here.
                now = time.monotonic()
                for data in reader.feed(chunk):
                    first = reading.add(completion_chunk(data, address))
                    if first:
                        yield first
                    if reading.length > most_length:
                        raise EndpointError(
                            f"{address} ignores max_tokens: still sending after {reading.length:,} messages"
                        )
                if reading.end_read(now):  # It is time to show the caller again that the answer goes on.
                    yield ()
        end = reading.end
        if not end:
            raise reader.missing_end_error()
        later_tokens = self._later_tokens(reading, end, address, sampling)
        exchange.delivery = self._delivery(reading, end, len(reading.first) + len(later_tokens), sampling)
        if later_tokens:
            yield later_tokens

    def _delivery(
        self, reading: AnswerReading, end: CompletionChunk, client_tokens: int, sampling: Sampling
    ) -> Delivery:
        """Return the record of how an answer was delivered: its tokens, how it ended, and whether it ended too early.

        `client_tokens` is the number of tokens that this client counted. `end` is the message that ended the answer.
        """
        usage = reading.usage.counts(client_tokens) if reading.usage else None
        is_hidden = self._is_hidden(reading)
        tokens, is_estimate = client_tokens, False
        has_all_ids = self.form.ids_out and not is_hidden
        if not has_all_ids:  # The engine may have made more tokens than the text shows, so `usage` counts better.
            stated_tokens = usage.output_tokens if usage else None
            tokens, is_estimate = stated_tokens or client_tokens, not stated_tokens
        fewest_at_limit = float(sampling.max_new_tokens)  # the tokens of an answer that this limit ended
        if is_estimate:
            fewest_at_limit *= TEXT_SHARE
        # An answer that ended by length with fewer tokens was ended by a lower limit of the server's own.
        is_capped = end.end == "length" and tokens < fewest_at_limit
        unusual_word = other_model = why_empty = ""
        if end.word.lower() not in (*STOP_WORDS, *LENGTH_WORDS):
            unusual_word = end.word
        if end.model not in (None, self.served):  # `served` is the model that the server named in its first answer.
            other_model = server_text(end.model)
        if client_tokens == 0 and not is_hidden:
            why_empty = self._why_empty(end, usage)
        return Delivery(
            tokens,
            client_tokens=client_tokens,
            first_tokens=reading.first_read_tokens,
            messages=reading.messages,
            usage=usage,
            rushed=reading.rushed,
            is_capped=is_capped,
            end=unusual_word,
            model=other_model,
            is_hidden=is_hidden,
            why_empty=why_empty,
        )

    def _is_hidden(self, reading: AnswerReading) -> bool:
        """Return whether the server sent no text but counts tokens, such as those of hidden thinking."""
        if reading.has_text or not reading.usage or not reading.end:  # Text came, or there are no counts to judge by.
            return False
        counted = reading.usage.counts(came=0).output_tokens or 0
        # If the model ended the answer at once, the server may count the token for that end, which is never sent.
        most_end_tokens = 0 if reading.end.end == "length" else 1
        return counted > most_end_tokens

    def _why_empty(self, end: CompletionChunk, usage: TokenCounts | None) -> str:
        """Return in words why an answer has no token, with a remedy where there is one.

        `end` is the message that ended the answer, `usage` the server's counts.
        """
        if end.end == "length":
            return (
                "it reached its limit of tokens without text, and no `usage` counts them: the server hides what the "
                "model thinks; turn thinking off at the server"
            )
        counted = usage.output_tokens if usage else None
        details = f"finish_reason {end.word or end.end!r}"
        if counted:
            details += f", `usage` counts {counted}"
        fact = f"the model ended it at once ({details})"
        if not self.form.min_tokens:
            return f"{fact}, and the server does not take min_tokens: remove the sample, or take a server that does"
        if counted:
            return f"{fact} although min_tokens was asked for: its tokens decode to no text"
        return (
            f"{fact} although min_tokens was asked for: the server does not honor it, or the tokens that it made "
            "decode to no text"
        )

    async def choose(self, address: str, prompt: list[int], choices: Sequence[int]) -> ChoiceLogprobs:
        """Return the log-probabilities of the ids in `choices` as the next token after the prompt, in the same order.

        Raises EndpointError if the server fails (status 500 or above), and UsageError if its answer has no
        log-probability for each of the ids.
        """
        async with self.post(address, choice_request(self.content(prompt), self.model, choices)) as response:
            page = await read_whole(response, address)
        if response.status >= 500:
            raise EndpointError(f"{address} answered {response.status}: {server_text(page)}")
        logprobs = choice_logprobs(page, choices)
        if logprobs:
            return logprobs
        problem = f"--endpoint {address} gives no log-probabilities by token id, as vLLM 0.32 does"
        if response.status != 200:
            problem += f" ({response.status}: {server_text(page)})"
        raise UsageError(f"{problem}.")

    def content(self, prompt: list[int]) -> Content:
        """Return a prompt in the form that the server takes: token ids if it takes them, else messages or text."""
        if self.form.ids_in:
            return prompt
        if self.form.chat and isinstance(prompt, MessagePrompt):
            return self.salted_messages(prompt)
        text_tokens = prompt
        if prompt[:1] == [self.tokenizer.bos_token_id]:  # The server adds this token itself.
            text_tokens = prompt[1:]
        return str(self.tokenizer.decode(text_tokens, skip_special_tokens=False))

    def salted_messages(self, prompt: MessagePrompt) -> list[dict[str, str]]:
        """Return the messages of a conversation, with the salt, if there is any, at the start of the first message.

        Salt makes a prompt unique, so that the server cannot answer it from its cache.
        """
        messages = [dict(message) for message in prompt.messages]
        if prompt.salt:
            messages[0]["content"] = self.tokenizer.decode(list(prompt.salt)) + messages[0]["content"]
        return messages

    def _later_tokens(
        self, reading: AnswerReading, end: CompletionChunk, address: str, sampling: Sampling
    ) -> Sequence[int]:
        """Return the token ids of an ended answer that came after its first tokens (`reading.first`).

        `end` is the message that ended the answer. Raises EndpointError if an answer of exact length ended early, or if
        the server sent too many or too few ids.
        """
        if sampling.exact and end.end != "length":
            raise EndpointError(f"{address} ended an answer early ({end.end}): it ignores ignore_eos")
        if not self.form.ids_out:
            return self._later_tokens_of_text(reading, end, sampling.max_new_tokens)
        tokens = self._checked_ids(address, reading.pieces)
        count, most = len(reading.first) + len(tokens), sampling.max_new_tokens
        is_wrong_number = count > most or (sampling.exact and count < most)
        if is_wrong_number:
            raise EndpointError(f"{address} ignores max_tokens: it sent {plural(count, 'token')} instead of {most:,}")
        return tokens

    def _later_tokens_of_text(self, reading: AnswerReading, end: CompletionChunk, most: int) -> Sequence[int]:
        """Return the token ids of an ended answer's text after its first tokens, and of the token that ended it.

        More tokens than `most` are no error: the engine may have encoded the text with fewer tokens.
        """
        tokens, half_character = self._encode_pieces(reading.pieces)
        if half_character:  # The answer ended within a character.
            tokens += self._encode_text(REPLACEMENT)
        # Engines count the token by which the model ends an answer, but the text does not show it.
        was_ended_by_model = end.end != "length"
        has_room = len(reading.first) + len(tokens) < most
        if was_ended_by_model and has_room and not self._is_hidden(reading):
            tokens.append(self.tokenizer.eos_token_id)
        return tokens

    def _encode(self, address: str, pieces: Sequence[CompletionChunk]) -> tuple[list[int], str]:
        """Return the token ids of messages, and half a character if their text ends with one, else "".

        If the server sends token ids, these are returned; else the text is encoded here. Raises EndpointError as
        `_checked_ids` does.
        """
        if self.form.ids_out:
            return self._checked_ids(address, pieces), ""
        return self._encode_pieces(pieces)

    def _encode_pieces(self, pieces: Sequence[CompletionChunk]) -> tuple[list[int], str]:
        """Return the token ids of the text of messages, and half a character if the text ends with one, else ""."""
        text, half_character = whole_characters(chunk.text for chunk in pieces)
        return self._encode_text(text), half_character

    def _checked_ids(self, address: str, pieces: Sequence[CompletionChunk]) -> list[int]:
        """Return the token ids that a server sent in messages.

        Raises EndpointError if a message has text without its ids, or an id beyond the vocabulary.
        """
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
        return tokens

    def _encode_text(self, text: str) -> list[int]:
        """Return the token ids of a text, without special tokens."""
        if not text:
            return []
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    @contextlib.asynccontextmanager
    async def post(self, address: str, body: bytes, exchange: Exchange | None = None) -> AsyncIterator[ClientResponse]:
        """Yield the response to a completion request, whatever its status. The time of sending goes to `exchange`.

        Raises EndpointError if the answer does not come in time, ServerFullError if the connection breaks, and
        UsageError if the server compresses its answers.
        """
        url = server_addresses.join_url(address, self.form.path)
        headers = {"Content-Type": "application/json"}
        try:
            async with self.session.post(
                url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=exchange
            ) as response:
                yield response
        except TimeoutError:
            raise EndpointError(
                f"{address} did not finish an answer within {self.config.request_timeout:g} s (--request-timeout): "
                "fewer requests at once (--max-in-flight) may be answered in time"
            ) from None
        except ClientPayloadError:  # A full server breaks connections.
            raise ServerFullError(f"{address} broke the connection off in the middle of an answer") from None
        except (ClientError, ConnectionError) as error:
            raise broken_answer_error(error, address) from None


def broken_answer_error(error: ClientError | ConnectionError, address: str) -> UsageError | ServerFullError:
    """Return the error to raise for an error of a connection: the server compresses its answers, or it broke off.

    In the first case, the error is aiohttp's, which cannot unpack the answer. In the second, the server may be full.
    """
    text = str(error)
    if isinstance(error, ClientResponseError):
        text = str(error.message)  # without the status and the address, which its text has as well
    encoding = re.search(r"content-encoding: (.*?)\.(?: |$)", text)
    if encoding:
        return UsageError(
            f"--endpoint {address} compresses its answers ({encoding[1]}) although they were asked for as they "
            "are: turn compression off at the server, or at the proxy before it."
        )
    return ServerFullError(f"{address} broke the connection off: {server_text(text)}")


def sending_time_trace() -> TraceConfig:
    """Return a trace for aiohttp that notes when a request was written to a connection, in its `Exchange`.

    A wait for a connection before that time is a wait of this client and not of the server.
    """

    async def note_time(session: ClientSession, context: SimpleNamespace, params: object) -> None:
        """Note the time in the exchange that `post` gave to the request, if any."""
        if context.trace_request_ctx is not None:
            context.trace_request_ctx.sent_at = time.perf_counter()

    trace = TraceConfig()
    trace.on_request_chunk_sent.append(note_time)
    return trace


async def check_accepted(response: ClientResponse, address: str) -> None:
    """Raise ServerFullError if a full server refused a request, and EndpointError for any other status than 200."""
    if response.status == 200:
        return
    reason = await refusal(response)
    error_type = ServerFullError if is_full(response, reason) else EndpointError
    raise error_type(f"{address} answered {response.status}: {reason}")


def is_full(response: ClientResponse, reason: str) -> bool:
    """Return whether a server refuses a request because it is full, judged by its status, a header or its `reason`."""
    return response.status in FULL_STATUSES or "Retry-After" in response.headers or OVERLOAD_WORD in reason.lower()


async def refusal(response: ClientResponse) -> str:
    """Return the reason in a response other than 200: the address of a redirect, or the server's own words.

    Only the first MOST_REFUSAL bytes of the words are read.
    """
    place = response.headers.get("Location")
    if place:  # Only a redirect names another address.
        return f"a redirect, which is not followed, to {server_text(place)}"
    page = b""
    async for chunk in response.content.iter_any():
        page += chunk
        if len(page) >= MOST_REFUSAL:
            break
    return server_text(page[:MOST_REFUSAL])


async def limit_bytes(response: ClientResponse, address: str, most: int = LARGEST_ANSWER_BYTES) -> AsyncIterator[bytes]:
    """Yield the chunks of an answer. Raises EndpointError if they are more than `most` bytes."""
    count = 0
    async for chunk in response.content.iter_any():
        count += len(chunk)
        if count > most:
            raise EndpointError(f"{address} sent more than {most / 2**20:,.0f} MiB in one answer, and continued")
        yield chunk


async def read_whole(response: ClientResponse, address: str) -> bytes:
    """Return the content of a page. Raises EndpointError if it is larger than LARGEST_ANSWER_BYTES."""
    return b"".join([chunk async for chunk in limit_bytes(response, address)])


def key_hint(challenge: str) -> str:
    """Return what a server that answers 401 or 403 wants, and where the user can set it, as the end of a message.

    `challenge` is the server's WWW-Authenticate header, which begins with "Basic" if the server wants a password.
    """
    if "authorization" in map(str.lower, extra_headers()):  # The user gave an Authorization header, which was sent.
        return f"refuses the Authorization in {HEADERS_VARIABLE}"
    if challenge.lower().startswith("basic"):
        return f"asks for a name and a password: set {HEADERS_VARIABLE} to a line such as Authorization: Basic ..."
    if environ.get(KEY_VARIABLE):  # The user gave a key, which was sent.
        return f"refuses the key in {KEY_VARIABLE}"
    return f"asks for a key: set {KEY_VARIABLE} in the environment"


async def connection_problem(error: ClientError, address: str) -> str:
    """Return why a server could not be reached: its certificate, another protocol, or no server at the address."""
    if isinstance(error, ClientConnectorCertificateError):
        return (
            f"its certificate is not trusted: {server_text(error.certificate_error)}; SSL_CERT_FILE names a file of "
            "authorities that are"
        )
    uses_proxy = bool(environ.get(PROXY_VARIABLE))
    something_answered = not has_no_listener(error)
    if something_answered:
        reason = ""
        if not uses_proxy:  # A proxy would answer in place of the server.
            reason = await protocol_hint(address)
        return f"it does not answer as {urlsplit(address).scheme}:// does: {reason or server_text(error)}"
    text = f"no server there: {connection_reason(error)}"
    if proxy_of(urlsplit(address)) and not uses_proxy:
        text += f"; a proxy is set in the environment, and not used: {PROXY_VARIABLE} names one that is"
    return text


def connection_reason(error: ClientError) -> str:
    """Return why a connection failed, in the words of the operating system.

    aiohttp's own message would contain internal words, such as "ssl:default".
    """
    if not isinstance(error, ClientConnectorError):  # An error after connecting has no error number.
        return server_text(error)
    number = error.os_error.errno
    if number is not None and number > 0:
        return strerror(number)
    # The number is negative for an unknown host name, and None after attempts at several addresses.
    return error.os_error.strerror or server_text(error.os_error)


def has_no_listener(error: ClientError) -> bool:
    """Return whether a connection failed because nothing answers at the address."""
    if isinstance(error, ClientSSLError) or not isinstance(error, ClientConnectorError):
        return False  # Something answered, but in another protocol.
    return not isinstance(error.os_error, ConnectionResetError)  # Only something that listens can reset a connection.
