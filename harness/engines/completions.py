"""The OpenAI completions API as servers speak it: how they take a prompt, what an answer holds, what they tell of
themselves."""

import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from pydantic_core import from_json, to_json

from harness.common.errors import EndpointError, plain
from harness.common.secrets import hide_text

NAMES = {"vllm": "vLLM", "sglang": "SGLang", "llamacpp": "llama.cpp"}  # by `owned_by` of their model lists
VERSIONS = (("/version", "version"), ("/get_server_info", "version"), ("/props", "build_info"))  # path, key
MOST_BYTES, BYTES_PER_TOKEN = 2**24, 2**12  # of an answer, and more for each token that it may have
MOST_ID = 2**31  # LoadGen gets token ids as 32-bit numbers
FINISH_REASONS = ("stop", "length", "eos", "eos_token")  # reasons to end an answer that is all there


@dataclass(frozen=True)
class RequestFormat:
    """How a server takes prompts and gives answers, found out with one small request."""

    ids_in: bool
    ids_out: bool
    min_tokens: bool  # taken; whether it is obeyed only the server knows
    usage: bool  # at the end of streams, too
    chat: bool = False  # the prompt as a user's message, which the server puts into its chat template
    switches: tuple[tuple[str, bool], ...] = ()  # fields that only this server has

    @property
    def path(self) -> str:
        return "/chat/completions" if self.chat else "/completions"

    def body(self, prompt: Sequence[int] | str, model: str, sampling: Any, stream: bool) -> bytes:
        """A request's JSON: the prompt as this form has it, greedy at temperature 0."""
        fields: dict[str, object] = {
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
        fields.update(self.switches)
        return to_json(fields)  # ten times as fast as json for a prompt of 800 ids

    def __str__(self) -> str:
        into = "chat messages in" if self.chat else "token ids in" if self.ids_in else "text in"
        out = "token ids out" if self.ids_out else "text out, its tokens counted with the model's tokenizer"
        least = "" if self.min_tokens else "; the server does not take min_tokens"
        counts = "" if self.usage else "; the server does not take stream_options"
        off = "".join(f"; {name} {str(value).lower()}" for name, value in self.switches)
        return f"{into}, {out}{least}{counts}{off}"


FORMS = tuple(
    RequestFormat(*traits) for traits in product((True, False), (True, False), (True, False), (True, False))
)  # best first
CHAT_FORMS = tuple(replace(form, chat=True) for form in FORMS if not form.ids_in)
# What asks a server, by its name, not to answer from what it computed before.
NO_CACHE = {"llama.cpp": (("cache_prompt", False),)}


@dataclass(frozen=True, slots=True)
class CompletionChunk:
    """What one message holds of an answer; `end` is the reason where it is the last."""

    text: str = ""
    ids: Sequence[int] | None = None
    end: str | None = None
    usage: Counter[str] | None = None


def piece(data: bytes | str, address: str) -> CompletionChunk:
    """Reads one message. Raises EndpointError for an error in the server's words, or for what is no completion."""
    try:
        message = from_json(data)
        if error := message.get("error"):
            raise EndpointError(f"{address} failed while answering: {error_message(error)}")
        choices, told = message["choices"], usage(message.get("usage"))
        if not choices:  # a message about usage
            return CompletionChunk(usage=told)
        first = choices[0]
        found = CompletionChunk(spoken(first), first.get("token_ids"), first.get("finish_reason"), told)
        if not all(type(token) is int and 0 <= token < MOST_ID for token in found.ids or ()):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
        raise EndpointError(f"{address} sent what is no completion: {error_message(data)!r}") from None
    if found.end is not None and found.end not in FINISH_REASONS:
        raise EndpointError(f"{address} broke an answer off: finish_reason {error_message(found.end)!r}")
    return found


def forms(api: str) -> tuple[RequestFormat, ...]:
    """The forms of `--endpoint-api`, best first."""
    return CHAT_FORMS if api == "chat" else FORMS


def spoken(choice: Any) -> str:
    """The text of a choice: a completion's, or a chat's, what a model thinks before it answers included."""
    said = choice.get("delta") or choice.get("message") or {}
    texts = (choice.get("text"), said.get("reasoning"), said.get("reasoning_content"), said.get("content"))
    return "".join(text for text in texts if isinstance(text, str))


def usage(told: Any) -> Counter[str] | None:
    """A server's own counts of one answer, as ServerUse names them; None where it gives none."""
    if not isinstance(told, dict):
        return None
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    counts = {"prompt_tokens": told.get("prompt_tokens"), "output_tokens": told.get("completion_tokens")}
    found = {name: count for name, count in counts.items() if type(count) is int and 0 <= count < MOST_ID}
    if type(cached) is int and 0 <= cached < MOST_ID:
        found |= {"cached_tokens": cached, "answers_with_cached": 1}
    return Counter({**found, "answers": 1})


async def bounded(chunks: AsyncIterator[bytes], address: str, most: int = MOST_BYTES) -> AsyncIterator[bytes]:
    """The chunks of an answer, as long as they are no more than `most` bytes. Raises EndpointError beyond."""
    count = 0
    async for chunk in chunks:
        count += len(chunk)
        if count > most:
            raise EndpointError(f"{address} sent more than {most / 2**20:,.0f} MiB in one answer, and went on")
        yield chunk


async def events(chunks: AsyncIterator[bytes], address: str) -> AsyncIterator[bytes]:
    """The data of server-sent events, as soon as each is there, without the closing [DONE].

    Raises EndpointError for a line of more than MOST_BYTES.
    """
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > MOST_BYTES:
            raise EndpointError(f"{address} sent a line of more than {MOST_BYTES / 2**20:,.0f} MiB, and went on")
        for line in lines:
            if line.startswith(b"data:") and (data := line[5:].strip()) != b"[DONE]":
                yield data


def error_message(said: Any, most: int = 200) -> str:
    """What a server said, of an error or of itself, as one short line that may be shown and written."""
    if isinstance(said, bytes):
        said = said.decode(errors="replace")
        try:
            parsed = json.loads(said)
        except (ValueError, RecursionError):
            pass
        else:
            said = parsed.get("error") or parsed.get("detail") or said if isinstance(parsed, dict) else said
    if isinstance(said, dict):
        said = said.get("message") or said
    return plain(hide_text(" ".join(str(said).split())))[:most]
