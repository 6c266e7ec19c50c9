"""The OpenAI completions API as servers speak it: how they take a prompt, what an answer holds, what they tell of
themselves."""

import json
import math
import re
from collections.abc import Sequence
from contextlib import suppress
from html import unescape
from itertools import product
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from harness.core.errors import EndpointError, ServerFullError, plain
from harness.core.reading import DAMAGED, names_in
from harness.core.secrets import hide_text
from harness.engines.protocol import ChoiceLogprobs, TokenCounts

NAMES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}  # by `owned_by` of their model lists
VERSIONS = (("/version", "version"), ("/get_server_info", "version"), ("/props", "build_info"))  # path, key
MOST_BYTES, BYTES_PER_TOKEN = 2**24, 2**12  # of an answer, and more for each token that it may have
MOST_ID = 2**31  # LoadGen gets token ids as 32-bit numbers
OVERLOADED = "overloaded"  # what servers say that are full, whatever their status
MOST_REFUSAL = 2**16  # bytes of what a server says beside an error
NO_END = (None, "", "null")  # what servers send as finish_reason while an answer goes on
REASONS = names_in("error detail message")  # what servers call why they failed, the outermost first
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
ENDS = names_in("stop eos eos_token")  # what servers call the end of an answer that is all there
LENGTH = names_in("length max_tokens model_length max_length")  # of one that has all tokens it may have
# What says that an answer is not all there; any other word is taken as `stop`, and noted.
BROKEN = names_in("abort aborted cancel cancelled content_filter error failed insufficient_system_resource")


class RequestFormat(NamedTuple):
    """How a server takes prompts and gives answers, found out with one small request."""

    ids_in: bool
    ids_out: bool
    min_tokens: bool  # taken; whether it is obeyed only the server knows
    usage: bool  # at the end of streams, too
    chat: bool = False  # the prompt as a user's message, which the server puts into its chat template
    switches: tuple[tuple[str, bool], ...] = ()  # fields that only this server has
    neutral: tuple[tuple[str, float], ...] = ()  # of NEUTRAL, what the server takes

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"

    def body(self, prompt: Sequence[int] | str, model: str, sampling: Any, stream: bool) -> bytes:
        """A request's JSON: the prompt as this form has it, greedy at temperature 0."""
        fields = {
            "model": model,
            **({"messages": [{"role": "user", "content": prompt}]} if self.chat else {"prompt": prompt}),
            "max_tokens": sampling.max_new_tokens,
            "temperature": sampling.temperature,
        }
        if stream:
            fields["stream"] = True
            if self.usage:
                fields["stream_options"] = {"include_usage": True}
        if self.ids_out:
            fields["return_token_ids"] = True
        if self.min_tokens:
            fields["min_tokens"] = sampling.min_new_tokens
        if sampling.exact:
            fields["ignore_eos"] = True
        fields.update((*self.switches, *self.neutral))
        return to_json(fields)  # ten times as fast as json for a prompt of 800 ids

    def __str__(self) -> str:
        into = "chat messages in" if self.chat else "token ids in" if self.ids_in else "text in"
        out = "token ids out" if self.ids_out else "text out, its tokens as `usage` or the model's tokenizer counts"
        least = "" if self.min_tokens else "; the server does not take min_tokens"
        counts = "" if self.usage else "; the server does not take stream_options"
        off = "".join(f"; {name} {str(value).lower()}" for name, value in self.switches)
        unset = ", ".join(name for name, value in NEUTRAL if (name, value) not in self.neutral)
        left = f"; the server does not take {unset}: its own defaults apply" if unset else ""
        return f"{into}, {out}{least}{counts}{off}{left}"


COMPLETIONS = tuple(RequestFormat(*traits) for traits in product((True, False), repeat=4))  # type: ignore[arg-type]
FORMS = {  # by `--endpoint-api`, best first
    "completions": COMPLETIONS,
    "chat": tuple(form._replace(chat=True) for form in COMPLETIONS if not form.ids_in),
}
# What leaves greedy answers to the model alone: unsaid, they come from the server's generation_config.json.
NEUTRAL = (
    ("top_p", 1.0),
    ("presence_penalty", 0.0),
    ("frequency_penalty", 0.0),
    ("top_k", -1),
    ("min_p", 0.0),
    ("repetition_penalty", 1.0),
)
# What asks a server, by its name, not to answer from what it computed before.
NO_CACHE = {"llama.cpp": (("cache_prompt", False),)}


class CompletionChunk(NamedTuple):
    """What one message holds of an answer; `end` is `stop` or `length` where it is the last, `word` the server's own
    for it, and `model` the one that it names."""

    text: str = ""
    ids: Sequence[int] | None = None
    end: str | None = None
    usage: TokenCounts | None = None
    word: str = ""
    model: object = None


def piece(data: Any, address: str) -> CompletionChunk:
    """Reads one message. Raises EndpointError for an error in the server's words, or for what is no completion."""
    try:
        message = data if type(data) is dict else from_json(data)
        if error := message.get("error"):
            said = error_message(error)
            kind = ServerFullError if OVERLOADED in said.lower() else EndpointError
            raise kind(f"{address} failed while answering: {said}")
        usage = read_usage(message.get("usage"))
        choices = message.get("choices") if usage else message["choices"]
        if not choices:  # a message about usage
            return CompletionChunk(usage=usage)
        first = choices[0]
        word = first.get("finish_reason")
        said = "" if word in NO_END else error_message(word)
        end = None if not said else "length" if said.lower() in LENGTH else "stop"
        model = message.get("model") if end else None
        # A completion's text, or a chat's, what a model thinks before it answers included.
        chat = first.get("delta") or first.get("message") or {}
        texts = (first.get("text"), chat.get("reasoning"), chat.get("reasoning_content"), chat.get("content"))
        text = "".join(part for part in texts if isinstance(part, str))
        found = CompletionChunk(text, first.get("token_ids"), end, usage, said, model)
        if not all(type(token) is int and 0 <= token < MOST_ID for token in found.ids or ()):
            raise ValueError
    except DAMAGED:
        raise EndpointError(f"{address} sent an invalid completion: {error_message(data)!r}") from None
    if found.word.lower() in BROKEN:
        raise EndpointError(f"{address} broke an answer off: finish_reason {found.word!r}")
    return found


def choosing(prompt: Sequence[int] | str, model: str, choices: Sequence[int]) -> bytes:
    """A request's JSON for the log-probabilities of some next tokens, in vLLM's own fields."""
    return to_json(
        {
            "model": model,
            "prompt": prompt,
            "max_tokens": 1,
            "temperature": 0.0,
            "logprobs": 1,
            "logprob_token_ids": choices,
            "return_tokens_as_token_ids": True,
        }
    )


def choice_logprobs(page: bytes, choices: Sequence[int]) -> ChoiceLogprobs | None:
    """What its answer says: probabilities over the whole vocabulary, here over the choices. None where it lacks one."""
    try:
        message = from_json(page)
        top = message["choices"][0]["logprobs"]["top_logprobs"][0]
        found = [float(top[f"token_id:{token}"]) for token in choices]
        most = max(found)
        scale = most + math.log(math.fsum(math.exp(value - most) for value in found))
    except DAMAGED:
        return None
    usage = read_usage(message.get("usage"))
    logprobs = tuple(value - scale for value in found)
    return ChoiceLogprobs(logprobs, usage.cached_tokens if usage else None) if math.isfinite(scale) else None


def read_usage(said: Any) -> TokenCounts | None:
    """A server's own counts of one answer; None where it gives none."""
    if not isinstance(said, dict):
        return None
    details = said.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = (said.get("prompt_tokens"), said.get("completion_tokens"), cached, said.get("total_tokens"))
    prompt, output, cached, total = map(whole_number, counts)
    if output is not None and prompt is not None and total is not None:  # with tokens of reasoning counted apart
        output = max(output, total - prompt)
    return TokenCounts(prompt, output, cached)


def whole_number(count: Any) -> int | None:
    """A count as servers write it, also as 16.0; None for anything else."""
    is_whole = type(count) is int or (type(count) is float and count.is_integer())
    return int(count) if is_whole and 0 <= count < MOST_ID else None


class EventReader:
    """Server-sent events of one answer (WHATWG HTML, section 9.2.6), by whatever line ends and reads they come.

    `stray` keeps what belongs to no answer, at most MOST_REFUSAL bytes: an error without framing, a page, a heartbeat.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.stray = b""
        self._line = b""  # the beginning of one
        self._data: list[bytes] = []  # of the event that is being read
        self._kind = b""
        self._after_return = False  # a line feed that comes next belongs to the line end before

    def feed(self, chunk: bytes) -> list[Any]:
        """The messages that a read completes, without the closing [DONE]: parsed, or bytes where they are damaged.
        Raises EndpointError for a line of more than MOST_BYTES."""
        if not chunk:  # which ends no line
            return []
        if self._after_return:
            chunk = chunk.removeprefix(b"\n")
        self._after_return = chunk.endswith(b"\r")
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *lines, self._line = (self._line + chunk).split(b"\n")
        if len(self._line) > MOST_BYTES:
            raise EndpointError(f"{self.address} sent a line of more than {MOST_BYTES / 2**20:,.0f} MiB, and went on")
        return [event for line in lines if (event := self._take(line))]

    def _take(self, line: bytes) -> Any:
        """The message that a line ends; None for any other line."""
        if not line:
            return self._dispatch()
        name, _, value = line.removeprefix(BYTE_ORDER_MARK).partition(b":")
        if name == b"data":
            self._data.append(value.removeprefix(b" "))
        elif name == b"event":
            self._kind = value.strip()
        elif name not in (b"", b"id", b"retry"):
            self._keep(value if name == b"error" else line)
        return None

    def _dispatch(self) -> Any:
        data, kind = b"\n".join(self._data), self._kind
        self._data, self._kind = [], b""
        try:
            message = from_json(data)
        except ValueError:
            if data.startswith(b"{"):  # a part of the answer may be lost with it
                return data
            message = None
        if type(message) is dict:
            if kind == b"error":
                return {"error": message}
            if "choices" in message or "error" in message or "usage" in message:
                return message
        if data.strip() not in (b"", b"[DONE]"):
            self._keep(data)
        return None

    def _keep(self, said: bytes) -> None:
        if said not in self.stray:
            self.stray = (self.stray + said + b"\n")[:MOST_REFUSAL]

    def missing_end_error(self) -> EndpointError:
        """Why an answer whose end did not come is none, in the server's own words where it left any."""
        said = self.stray + (b"" if self._line.startswith(b"data:") else self._line)
        if b'"choices"' in said:
            return EndpointError(f"{self.address} does not stream: it answers `stream: true` in a single JSON document")
        words = f": {error_message(said)}" if said else ""
        return EndpointError(f"{self.address} closed an answer before its end{words}")


def reason_in(said: Any) -> Any:
    """Why a server failed, of an object that tells; None of anything else."""
    return next((said[key] for key in REASONS if said.get(key)), None) if isinstance(said, dict) else None


def error_message(said: Any, most: int = 200) -> str:
    """A server's words, of an error or about itself, as one short line that may be shown and written."""
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
        with suppress(ValueError, RecursionError):
            said = reason_in(json.loads(said)) or said
    while inner := reason_in(said):
        said = inner
    text = str(said)
    if text.lstrip().startswith("<"):  # a page: its title, or its text where it has none
        text = unescape(re.sub(r"(?is)^.*<title[^>]*>(.*?)</title>.*$|<[^>]*>", r"\1 ", text))
    return plain(hide_text(" ".join(text.split())))[:most].rstrip(".")
