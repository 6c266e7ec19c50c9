"""The OpenAI completions API as servers speak it: how they take a prompt, what an answer holds, and their errors."""

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from html import unescape
from typing import NamedTuple, TypedDict

from pydantic_core import from_json, to_json

from harness.core.errors import EndpointError, ServerFullError
from harness.core.formatting import joined_text
from harness.core.message_text import printable_text
from harness.core.reading import DAMAGED
from harness.core.secrets import hide_text
from harness.core.word_list import names_in
from harness.engines.answer_text import message_text
from harness.engines.protocol import ChoiceLogprobs
from harness.engines.request_formats import Content
from harness.engines.server_usage import StatedUsage, usage_in

# Engines by `owned_by` of their model lists.
ENGINE_NAMES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}
VERSION_PAGES = (("/version", "version"), ("/get_server_info", "version"), ("/props", "build_info"))  # path, key
# The largest answer: so many bytes, and so many more for each token that it may have.
LARGEST_ANSWER_BYTES, BYTES_PER_TOKEN = 2**24, 2**12
MOST_ID = 2**31  # LoadGen gets token ids as 32-bit numbers
OVERLOAD_WORD = "overloaded"  # a word of servers that are full, whatever their status
MOST_REFUSAL = 2**16  # bytes that are kept of what a server says about an error
NO_END = (None, "", "null")  # values of finish_reason that servers send while an answer goes on
REASON_KEYS = names_in("error detail message")  # keys under which servers say why they failed, the outermost first
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
STOP_WORDS = names_in("stop eos eos_token")  # words of servers for an answer that the model ended
# Words of servers for an answer that the limit of tokens ended.
LENGTH_WORDS = names_in("length max_tokens model_length max_length")
# Words of servers for an answer that was broken off. Any other word is taken as `stop`, and noted.
BROKEN_WORDS = names_in("abort aborted cancel cancelled content_filter error failed insufficient_system_resource")


# Fields by a server's name that ask it not to answer from its cache.
NO_CACHE_FIELDS = {"llama.cpp": (("cache_prompt", False),)}


class CompletionChunk(NamedTuple):
    """The part of an answer that one message holds."""

    text: str = ""
    ids: Sequence[int] | None = None  # the token ids, if the server sends them
    end: str | None = None  # `stop` or `length` if the message ends the answer
    usage: StatedUsage | None = None
    word: str = ""  # the server's own word for the end
    model: object = None  # the model that the server names, if the message ends the answer


class AnswerChoice(TypedDict, total=False):
    """One answer in a message, as the API has it; nobody has checked what a server put there."""

    text: object
    delta: object
    message: object
    finish_reason: object
    token_ids: Sequence[int] | None


class Message(TypedDict, total=False):
    """A message of an answer, as the API has it; nobody has checked what a server put there."""

    error: object
    choices: Sequence[AnswerChoice]
    usage: object
    model: object


def read_message(data: bytes) -> Message:
    """Return a message, given as JSON. Raises ValueError if it is no JSON."""
    message: Message
    try:
        message = from_json(data)  # fast
    except ValueError:
        # Servers that cut text into UTF-16 units send half a surrogate pair. Only Python's own reader takes that.
        message = json.loads(data)
    return message


def end_kind(word: str) -> str | None:
    """Return what a server's word for the end of an answer means: "length" if the limit of tokens ended it, else
    "stop". None for no word: the answer goes on.
    """
    if not word:
        return None
    return "length" if word.lower() in LENGTH_WORDS else "stop"


def completion_chunk(data: Message | bytes, address: str) -> CompletionChunk:
    """Return the part of an answer in one message, which is JSON or already parsed.

    Raises ServerFullError if the message says that the server is full, and EndpointError for any other error or damage.
    """
    try:
        message = read_message(data) if isinstance(data, bytes) else data
        error = message.get("error")
        if error:
            reason = server_text(error)
            error_type = ServerFullError if OVERLOAD_WORD in reason.lower() else EndpointError
            raise error_type(f"{address} failed while answering: {reason}")
        chunk = chunk_of(message)
    except DAMAGED:
        if is_web_page(data):
            raise web_page_error(data, address) from None
        raise EndpointError(f"{address} sent an invalid completion: {server_text(data)!r}") from None
    if chunk.word.lower() in BROKEN_WORDS:
        raise EndpointError(f"{address} broke an answer off: finish_reason {chunk.word!r}")
    return chunk


def chunk_of(message: Message) -> CompletionChunk:
    """Return the part of an answer in a message: its text or token ids, its end, and the server's counts (`usage`).

    Raises one of the errors in DAMAGED if the message is no completion.
    """
    usage = usage_in(message)
    choices = message.get("choices") if usage else message["choices"]  # A message with `usage` may lack choices.
    if not choices:
        return CompletionChunk(usage=usage)
    choice = choices[0]
    ids = choice.get("token_ids")
    if not all(type(token) is int and 0 <= token < MOST_ID for token in ids or ()):
        raise ValueError  # The caller reports the message as invalid.
    word = ""
    if choice.get("finish_reason") not in NO_END:
        word = server_text(choice["finish_reason"])
    end = end_kind(word)
    model = message.get("model") if end else None  # The last message suffices to see which model answered.
    return CompletionChunk(message_text(choice), ids, end, usage, word, model)


def choice_request(prompt: Content, model: str, choices: Sequence[int]) -> bytes:
    """Return the JSON of a request for the log-probabilities of the tokens `choices` after a prompt.

    A single token is generated. Some of the fields are vLLM's own: only they give any chosen token by its id.
    """
    fields = {
        "model": model,
        "prompt": prompt,
        "max_tokens": 1,
        "temperature": 0.0,
        "logprobs": 1,
        "logprob_token_ids": choices,
        "return_tokens_as_token_ids": True,
    }
    return to_json(fields)


def choice_logprobs(page: bytes, choices: Sequence[int]) -> ChoiceLogprobs | None:
    """Return the log-probabilities of the choices, and the prompt tokens from the server's cache, if it counts them.

    The choices' probabilities sum up to 1. None if a choice is missing, or if the numbers are not finite.
    """
    try:
        message = from_json(page)
        logprob_by_name = message["choices"][0]["logprobs"]["top_logprobs"][0]  # of the answer's only token
        logprobs = [float(logprob_by_name[f"token_id:{token}"]) for token in choices]
        largest = max(logprobs)  # subtracted before `exp`, which would otherwise underflow
        total = math.fsum(math.exp(logprob - largest) for logprob in logprobs)
        log_of_sum = largest + math.log(total)
    except DAMAGED:
        return None
    if not math.isfinite(log_of_sum):
        return None
    scaled_logprobs = tuple(logprob - log_of_sum for logprob in logprobs)
    usage = usage_in(message)
    return ChoiceLogprobs(scaled_logprobs, usage.cached_tokens if usage else None)


class EventReader:
    """Reads the server-sent events of one answer (WHATWG HTML, section 9.2.6), with any line ends, however they are cut
    into reads.
    """

    def __init__(self, address: str) -> None:
        """Begin the stream of one answer. `address` is the server's, for the texts of errors."""
        self.address = address
        # What the server sent outside its answer, such as an error as plain text. Up to MOST_REFUSAL bytes are kept.
        self.stray = b""
        self._line = b""  # the beginning of a line whose end has not come
        self._data: list[bytes] = []  # the lines of the event that is being read
        self._kind = b""  # the kind of that event
        self._has_begun = False  # a message of the answer came
        self._after_return = False  # the last read ended with "\r", whose "\n" may come next

    def feed(self, chunk: bytes) -> list[Message | bytes]:
        """Return the messages that a read of the connection completes, without the closing [DONE].

        A damaged message is returned as bytes. Raises EndpointError for a line of more than LARGEST_ANSWER_BYTES.
        """
        if not chunk:  # An empty chunk has no lines, and below it would reset `_after_return`.
            return []
        if self._after_return:  # A "\r\n" was cut in two, and its "\r" has ended the line already.
            chunk = chunk.removeprefix(b"\n")
        self._after_return = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._line = (self._line + chunk).split(b"\n")  # The read may end within a line.
        if len(self._line) > LARGEST_ANSWER_BYTES:
            raise EndpointError(
                f"{self.address} sent a line of more than {LARGEST_ANSWER_BYTES / 2**20:,.0f} MiB, and went on"
            )
        return list(filter(None, map(self._take, lines)))

    def _take(self, line: bytes) -> Message | bytes | None:
        """Take a line of the stream. Return the message of the event that an empty line ends. None for any other line.

        A damaged message is returned as bytes. A line is "NAME: VALUE". Lines that may be an error of the server are
        kept in `stray`.
        """
        if not line:
            return self._dispatch()
        name, _, value = line.removeprefix(BYTE_ORDER_MARK).partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._kind = value.strip()
        elif name == b"error":  # Some servers send an error in a line of its own, which is no part of the standard.
            self._keep(value)
        elif name not in (b"", b"id", b"retry"):  # Comments have no name, and the others have no use here.
            self._keep(line)
        return None

    def _dispatch(self) -> Message | bytes | None:
        """Return the message of the event that an empty line ended, and begin the next event.

        A damaged message is returned as bytes. None if the event is no part of an answer.
        """
        data, kind = b"\n".join(self._data), self._kind
        self._data, self._kind = [], b""
        try:
            message = read_message(data)
        except (ValueError, RecursionError):
            if data.startswith(b"{"):  # a damaged message, which may have held a part of the answer
                return data
            message = None  # The data are no JSON, such as [DONE].
        if message is not None and type(message) is dict:
            if kind == b"error":
                return {"error": message}
            if "choices" in message or "error" in message or "usage" in message:
                self._has_begun = True
                return message
        if data.strip() not in (b"", b"[DONE]"):  # perhaps the reason of an error that follows
            self._keep(data)
        return None

    def _keep(self, words: bytes) -> None:
        """Add words of the server to `stray`, up to MOST_REFUSAL bytes in all, unless they are in it already."""
        if words not in self.stray:
            self.stray = (self.stray + words + b"\n")[:MOST_REFUSAL]

    def missing_end_error(self) -> EndpointError:
        """Return the error for an answer whose end did not come, with what the server sent beside its events."""
        last_bytes = self.stray
        is_event_unfinished = self._line.startswith(b"data:")
        if not is_event_unfinished:  # The last line is no event, so it may say what is wrong.
            last_bytes += self._line
        if b'"choices"' in last_bytes:
            return EndpointError(f"{self.address} does not stream: it answers `stream: true` in a single JSON document")
        if is_web_page(last_bytes) and not self._has_begun:
            return web_page_error(last_bytes, self.address)
        problem = f"{self.address} closed an answer before its end"
        return EndpointError(joined_text(": ", problem, server_text(last_bytes)))


def is_web_page(data: object) -> bool:
    """Tell whether what a server sent in place of a completion is an HTML page, by how it begins."""
    return isinstance(data, bytes) and data.lstrip().startswith(b"<")


def web_page_error(page: object, address: str) -> EndpointError:
    """Return the error for a web page in place of a completion, with the page's title or text."""
    problem = f"{address} answered with a web page, not as the completions API; check what serves there"
    return EndpointError(joined_text(": ", problem, server_text(page)))


def reason_of(error: object) -> object:
    """Return the reason in a server's error: the value under the first of REASON_KEYS.

    None if the error is no object, or has none of these keys. The reason may be an object again.
    """
    if isinstance(error, dict):
        for key in REASON_KEYS:
            if error.get(key):
                return error[key]
    return None


def server_text(words: object, most: int = 200) -> str:
    """Return words of a server, such as an error, a name or a page, as one line of at most `most` characters.

    A JSON object is reduced to its innermost reason, an HTML page to its title. Secrets are masked.
    """
    if isinstance(words, bytes):
        page = words.decode(errors="replace")
        words = page
        with suppress(ValueError, RecursionError):
            words = reason_of(json.loads(page)) or page
    while inner := reason_of(words):  # The reason may itself be an object with a reason.
        words = inner
    text = str(words)
    is_page = text.lstrip().startswith("<")  # an HTML page
    if is_page:
        title = re.match(r"(?is).*<title[^>]*>(.*?)</title>", text)
        text_without_tags = re.sub(r"<[^>]*>", " ", text)
        text = unescape(title[1] if title else text_without_tags)
    line = " ".join(text.split())
    return printable_text(hide_text(line))[:most].rstrip(".")
