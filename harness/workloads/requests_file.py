"""A file of requests that the user named: JSON lines, ShareGPT's JSON, or conversations of role and content."""

import json
import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard, get_args

from harness.config.lengths import MOST_TOKENS
from harness.core import given_values, word_list
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_WORKLOAD

RequestKind = Literal["prompt", "messages", "prompt_token_ids"]
# The longest answer by the names that OpenAI, vLLM's benchmarks, guidellm and others have for it.
LENGTH_KEYS = word_list.names_in(
    """
    max_tokens max_completion_tokens max_output_tokens max_new_tokens output_tokens output_tokens_count output_len
    output_length
    """
)
REQUEST_KINDS: tuple[RequestKind, ...] = get_args(RequestKind)
CHATS = ("conversations", "conversation", "messages")  # what a conversation is called
MOST_BAD = 0.1  # share of a file's rows that may be none: they are left out and counted
ROLES = ("system", "user", "assistant")
# In ShareGPT's `from`.
ASKING_ROLES, ANSWERING_ROLES = ("human", "user"), ("gpt", "chatgpt", "bard", "bing", "assistant")
MOST_CHARACTERS = 2**22  # of a prompt: some million tokens
SURROGATES = re.compile(r"[\ud800-\udfff]")
TokenIds = list[int]
Dialog = list[dict[str, Any]]  # the messages of a conversation


class StoredRequest(NamedTuple):
    """One request; `number` is its line, counted from 1, of turns of one conversation the same. `kind` says what
    `prompt` holds: text, messages or token ids.

    `max_tokens` is the longest answer; None where the file does not say. `answer` is the one that was once given.
    """

    number: int
    kind: RequestKind
    prompt: Any
    max_tokens: int | None = None
    answer: str | None = None


class StoredRequests(NamedTuple):
    """A file's requests; `unit` is what its rows are called in messages. `passed_over` conversations hold no question
    that could be asked; `left_out` says how many rows were none, and why the first.
    """

    path: Path
    requests: tuple[StoredRequest, ...]
    unit: str
    passed_over: int
    turns: bool  # whether several requests may be of one conversation
    is_sharegpt: bool  # whether each is the first question of a conversation, with the answer that it got
    left_out: str

    def where(self, request: StoredRequest) -> str:
        return f"{self.path}: {self.unit} {request.number}"


def read(path: Path, column: str = "") -> StoredRequests:
    """The requests of --workload's file, JSON lines or a JSON list of the same rows; `column` is the key of a row's
    prompt, where it is not one of `KINDS`. Raises UsageError in one line that names the file and the row.
    """
    text = given_values.read_given("--workload", path, "text", str, most=LARGEST_WORKLOAD)
    if text.lstrip().startswith("["):
        return read_rows(path, parse_text(text, str(path)), "record", column)
    return read_rows(path, text.split("\n"), "line", column)


def read_rows(path: Path, rows: list[Any], unit: str, column: str) -> StoredRequests:
    """Requests of rows: one each, or one for each turn of a conversation. Rows that are none are left out and counted,
    up to a share of MOST_BAD. Raises UsageError for the first of more, and where no request is in any.
    """
    found: list[StoredRequest] = []
    faults: list[UsageError] = []
    passed_over = pairs = talks = 0
    for number, row in enumerate(rows, start=1):
        if isinstance(row, str) and not row.strip():
            continue
        where = f"{path}: {unit} {number}"
        try:
            item = parse_text(row, where) if unit == "line" else row
            dialog = None if column else conversation(item)
            if dialog is None:
                made = [stored_request(item, number, where, column)]
            elif any("role" in message for message in dialog):
                made = [*chat_turns(dialog, number, where)]
                talks += 1
            else:
                made = [StoredRequest(number, "prompt", asked, answer=answer) for asked, answer in turns(dialog)]
                pairs += len(made)
            found += made
            passed_over += not made
        except UsageError as error:
            faults.append(error)
    if len(faults) > MOST_BAD * len(rows):
        raise faults[0]
    if not found:
        raise UsageError(
            f"{path}: no {'conversation has a question with an answer' if passed_over else 'request is in it'}."
        )
    fault = str(faults[0]).removesuffix(".").removeprefix(f"{path}: ") if faults else ""
    left_out = f"{len(faults):,} of {len(rows):,} {unit}s were left out, the first: {fault}" if faults else ""
    return StoredRequests(path, tuple(found), unit, passed_over, bool(talks), pairs == len(found), left_out)


def conversation(item: Any) -> Dialog | None:
    """The messages of a row that is a conversation, or holds one: of role and content, or ShareGPT's from and value.
    None for any other row, also for `messages` that do not end with an answer: they are one request.
    """
    found = [item] if isinstance(item, list) else [item.get(name) for name in CHATS] if isinstance(item, dict) else []
    for said in found:
        if isinstance(said, list) and all(isinstance(message, dict) for message in said):
            roles = [message.get("role") for message in said]
            is_request = said is not item and said is found[-1] and ("user" not in roles or roles[-1] != "assistant")
            return None if is_request else said
    return None


def chat_turns(said: Dialog, number: int, where: str) -> Iterator[StoredRequest]:
    """A request for each of the user's messages, with all before it; the answer that follows says how long it is. Those
    after a message without text are left out. Raises UsageError for an unknown role.
    """
    check_roles(said, where)
    for place, message in enumerate(said):
        if not is_usable(message.get("content")):
            return
        if message["role"] == "user":
            after = said[place + 1] if place + 1 < len(said) else {}
            answer = after.get("content") if after.get("role") == "assistant" else None
            history = messages(said[: place + 1], where)
            yield StoredRequest(number, "messages", history, answer=answer if is_usable(answer) else None)


def check_roles(said: Dialog, where: str) -> None:
    for message in said:
        if message.get("role") not in ROLES:
            raise UsageError(f"{where}: role {message.get('role')!r:.40}; known are {', '.join(ROLES)}.")


def stored_request(item: Any, number: int, where: str, column: str = "") -> StoredRequest:
    """Raises UsageError for an object that is no request."""
    if not isinstance(item, dict):
        raise UsageError(f"{where}: not an object with a prompt.")
    if column:
        if column not in item:
            raise UsageError(f"{where}: no {column!r}; it has {', '.join(map(str, item))[:200]}.")
        return StoredRequest(number, "prompt", words(item[column], where, column), longest(item, where))
    kinds = [kind for kind in REQUEST_KINDS if item.get(kind) is not None]
    if len(kinds) != 1:
        raise UsageError(
            f"{where}: {'more than one' if kinds else 'none'} of {', '.join(REQUEST_KINDS)}; give exactly one."
        )
    kind = kinds[0]
    return StoredRequest(number, kind, READERS[kind](item[kind], where), longest(item, where))


def parse_text(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {' '.join(str(error).split())}.") from None


def longest(item: dict[str, Any], where: str) -> int | None:
    """The longest answer that a request asks for, under whichever name; None where it does not say."""
    found = {name: item[name] for name in LENGTH_KEYS if item.get(name) is not None}
    for name, value in found.items():
        if not (type(value) is int and 0 < value <= MOST_TOKENS):
            raise UsageError(f"{where}: {name} must be a whole number from 1 to {MOST_TOKENS:,}; it is {value!r:.40}.")
    if len(set(found.values())) > 1:
        raise UsageError(f"{where}: {' and '.join(f'{name} {found[name]:,}' for name in found)} disagree: keep one.")
    return next(iter(found.values()), None)


def words(value: Any, where: str, name: str = "prompt") -> str:
    """Text with something in it. Raises UsageError."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {name} is {'empty' if isinstance(value, str) else 'not text'}.")
    if len(value) > MOST_CHARACTERS:  # before minutes of a tokenizer
        raise UsageError(f"{where}: {name} has {len(value):,} characters; {MOST_CHARACTERS:,} at most.")
    if SURROGATES.search(value):
        raise UsageError(f"{where}: invalid text (a lone surrogate) in {name}.")
    return value


def messages(value: Any, where: str) -> list[dict[str, str]]:
    """A chat, each message with role and content, that ends with the user's word. Raises UsageError."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise UsageError(f"{where}: messages is not a list of objects with role and content.")
    check_roles(value, where)
    if not value or value[-1]["role"] != "user":
        raise UsageError(f"{where}: the last of messages must be the user's.")
    return [{"role": item["role"], "content": words(item.get("content"), where, "content")} for item in value]


def token_ids(value: Any, where: str, name: str = "prompt_token_ids") -> TokenIds:
    if not (isinstance(value, list) and value and all(type(token) is int for token in value)):
        raise UsageError(f"{where}: {name} is not a list of token ids.")
    return value


READERS: dict[RequestKind, Callable[[Any, str], Any]] = {
    "prompt": words,
    "messages": messages,
    "prompt_token_ids": token_ids,
}


def turns(conversation: Dialog) -> Iterator[tuple[str, str]]:
    """The first question that an answer follows, and that answer; nothing where there is none."""
    for first, then in pairwise(conversation):
        question, answer = first.get("value"), then.get("value")
        if (
            first.get("from") in ASKING_ROLES
            and then.get("from") in ANSWERING_ROLES
            and is_usable(question)
            and is_usable(answer)
        ):
            yield question, answer
            return


def is_usable(text: Any) -> TypeGuard[str]:
    return isinstance(text, str) and bool(text.strip()) and not SURROGATES.search(text)
