"""A file of requests that the user named: JSON lines, or ShareGPT's published JSON."""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, TypeGuard, get_args

from harness.common.coerce import read_given
from harness.common.errors import UsageError
from harness.config.workload import MOST_TOKENS

MOST_BYTES = 2**30  # ShareGPT's published file has 0.64 GiB
Kind = Literal["prompt", "messages", "prompt_token_ids"]
# The longest answer by the names that OpenAI (the second since 2024) and vLLM's benchmarks have for it.
LONGEST = ("max_tokens", "max_completion_tokens", "output_tokens")
ROLES = ("system", "user", "assistant")
ASKS, ANSWERS = ("human", "user"), ("gpt", "chatgpt", "bard", "bing", "assistant")  # in ShareGPT's `from`
HALF = re.compile(r"[\ud800-\udfff]")


@dataclass(frozen=True)
class Request:
    """One request; `number` is its line, counted from 1. `kind` says what `prompt` holds: text, messages or token ids.

    `max_tokens` is the longest answer; None where the file does not say. `answer` is the one that was once given.
    """

    number: int
    kind: Kind
    prompt: Any
    max_tokens: int | None = None
    answer: str | None = None


@dataclass(frozen=True)
class Requests:
    """A file's requests; `unit` is what they are called in messages. `passed_over` of a ShareGPT file hold no
    question with an answer."""

    path: Path
    requests: tuple[Request, ...]
    unit: str = "line"
    passed_over: int = 0

    def where(self, request: Request) -> str:
        return f"{self.path}: {self.unit} {request.number}"

    @property
    def sharegpt(self) -> bool:
        return self.unit == "conversation"


def read(flag: str, path: Path) -> Requests:
    """The requests of a file. Raises UsageError in one line that names the file and the line."""
    text = read_given(flag, path, "text", str, most=MOST_BYTES)
    found = sharegpt(path, text) if text.lstrip().startswith("[") else json_lines(path, text)
    if not found.requests:
        what = "conversation has a question with an answer" if found.sharegpt else "request is in it"
        raise UsageError(f"{path}: no {what}.")
    return found


def json_lines(path: Path, text: str) -> Requests:
    """One object a line; empty lines are passed over."""
    lines = ((number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip())
    return Requests(path, tuple(request(line, number, f"{path}: line {number}") for number, line in lines))


def request(line: str, number: int, where: str) -> Request:
    """Raises UsageError for a line that is no request."""
    item = parsed(line, where)
    if not isinstance(item, dict):
        raise UsageError(f"{where}: not an object with a prompt.")
    known: tuple[Kind, ...] = get_args(Kind)
    kinds = [kind for kind in known if item.get(kind) is not None]
    if len(kinds) != 1:
        raise UsageError(f"{where}: {'more than one' if kinds else 'none'} of {', '.join(known)}; it takes one.")
    kind = kinds[0]
    return Request(number, kind, READ[kind](item[kind], where), longest(item, where))


def parsed(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {' '.join(str(error).split())}.") from None


def longest(item: dict[str, Any], where: str) -> int | None:
    """The longest answer that a request asks for, under whichever name; None where it does not say."""
    found = {name: item[name] for name in LONGEST if item.get(name) is not None}
    for name, value in found.items():
        if not (type(value) is int and 0 < value <= MOST_TOKENS):
            raise UsageError(f"{where}: {name} must be a whole number from 1 to {MOST_TOKENS:,}; it is {short(value)}.")
    if len(set(found.values())) > 1:
        raise UsageError(f"{where}: {' and '.join(f'{name} {value:,}' for name, value in found.items())}: which one?")
    return next(iter(found.values()), None)


def words(value: Any, where: str, name: str = "prompt") -> str:
    """Text with something in it. Raises UsageError."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {name} is {'empty' if isinstance(value, str) else 'not text'}.")
    if HALF.search(value):
        raise UsageError(f"{where}: half a character (a lone surrogate) in {name}.")
    return value


def messages(value: Any, where: str) -> list[dict[str, str]]:
    """A chat, each message with role and content, that ends with the user's word. Raises UsageError."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise UsageError(f"{where}: messages is not a list of objects with role and content.")
    for message in value:
        if message.get("role") not in ROLES:
            raise UsageError(f"{where}: role {short(message.get('role'))}; known are {', '.join(ROLES)}.")
    if not value or value[-1]["role"] != "user":
        raise UsageError(f"{where}: the last of messages must be the user's.")
    return [{"role": item["role"], "content": words(item.get("content"), where, "content")} for item in value]


def token_ids(value: Any, where: str) -> list[int]:
    if not (isinstance(value, list) and value and all(type(token) is int for token in value)):
        raise UsageError(f"{where}: prompt_token_ids is not a list of token ids.")
    return value


READ: dict[Kind, Callable[[Any, str], Any]] = {
    "prompt": words,
    "messages": messages,
    "prompt_token_ids": token_ids,
}


def sharegpt(path: Path, text: str) -> Requests:
    """The first question with its answer of each conversation; those without are passed over."""
    data = parsed(text, str(path))
    for number, item in enumerate(data, start=1):
        if not (isinstance(item, dict) and isinstance(item.get("conversations"), list)):
            raise UsageError(f"{path}: conversation {number} has no list of 'conversations', as ShareGPT's JSON has.")
    pairs = [(number, pair) for number, item in enumerate(data, start=1) for pair in turns(item["conversations"])]
    found = tuple(Request(number, "prompt", question, answer=answer) for number, (question, answer) in pairs)
    return Requests(path, found, "conversation", len(data) - len(found))


def turns(conversation: list[Any]) -> Iterator[tuple[str, str]]:
    """The first question that an answer follows, and that answer; nothing where there is none."""
    said = [turn for turn in conversation if isinstance(turn, dict)]
    for first, then in pairwise(said):
        question, answer = first.get("value"), then.get("value")
        if first.get("from") in ASKS and then.get("from") in ANSWERS and usable(question) and usable(answer):
            yield question, answer
            return


def usable(text: Any) -> TypeGuard[str]:
    return isinstance(text, str) and bool(text.strip()) and not HALF.search(text)


def short(value: Any) -> str:
    """A value in a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
