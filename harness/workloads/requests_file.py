"""A file of requests that the user named: rows with a prompt each, ShareGPT's JSON, or conversations of role and
content.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeGuard, get_args

from harness.core import given_values
from harness.core.errors import UsageError
from harness.core.file_limits import LARGEST_WORKLOAD
from harness.workloads.prompt_tables import RequestRow, RequestRows, parse_text, rows_of
from harness.workloads.request_keys import (
    KEYS_BESIDE_A_PROMPT,
    UnsentKeyError,
    answer_limit,
    check_sent,
    request_of,
    system_prompt,
    unread_keys,
    unread_note,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

RequestKind = Literal["prompt", "messages", "prompt_token_ids"]
REQUEST_KINDS: tuple[RequestKind, ...] = get_args(RequestKind)
CHATS = ("conversations", "conversation", "messages")  # keys of a conversation
MOST_BAD = 0.1  # the share of a file's rows that may be no requests; they are left out and counted
ROLES = ("system", "user", "assistant")
# In ShareGPT's `from`.
ASKING_ROLES, ANSWERING_ROLES = ("human", "user"), ("gpt", "chatgpt", "bard", "bing", "assistant")
MESSAGE_KEYS = ("role", "content", "from", "value")
TEXT_PARTS = ("text", "input_text", "output_text")  # the types of a message's parts that hold text
MOST_CHARACTERS = 2**22  # characters of a prompt: some million tokens
SURROGATES = re.compile(r"[\ud800-\udfff]")
TokenIds = list[int]
Chat = list[dict[str, str]]  # messages with role and content, as a tokenizer takes them
RequestPrompt = str | Chat | TokenIds
Dialog = Sequence[Mapping[str, object]]  # the messages of a conversation, as a file has them


class StoredRequest(NamedTuple):
    """One request; `number` is its line, counted from 1, of turns of one conversation the same. `kind` says what
    `prompt` holds: text, messages or token ids.

    `max_tokens` is the longest answer; None where the file does not say. `answer` is the one that was once given.
    """

    number: int
    kind: RequestKind
    prompt: RequestPrompt
    max_tokens: int | None = None
    answer: str | None = None


class StoredRequests(NamedTuple):
    """A file's requests; `unit` is what its rows are called in messages. `passed_over` conversations hold no question
    that could be asked; `left_out` says how many rows were none, and why the first; `unread` names the keys that nobody
    read.
    """

    path: Path
    requests: tuple[StoredRequest, ...]
    unit: str
    passed_over: int
    turns: bool  # whether several requests may be of one conversation
    is_sharegpt: bool  # whether each is the first question of a conversation, with the answer that it got
    left_out: str
    unread: str = ""

    def where(self, request: StoredRequest) -> str:
        return f"{self.path}: {self.unit} {request.number}"


class ReadRow(NamedTuple):
    """A row that was read: its requests, the names of the keys that nobody read, and what kind of row it is."""

    requests: list[StoredRequest]
    unread: list[str]
    is_chat: bool = False
    is_sharegpt: bool = False


def read(path: Path, column: str = "") -> StoredRequests:
    """Return the requests of --workload's file: JSON lines, a JSON list, a table, or one prompt in each line.

    `column` is the key of a row's prompt, if it is none of `REQUEST_KINDS`. Raises UsageError, in one line that names
    the file and the row.
    """
    text = given_values.read_given("--workload", path, "text", str, most=LARGEST_WORKLOAD)
    names = (column,) if column else (*REQUEST_KINDS, *CHATS)
    return read_rows(path, rows_of(path, text, names), column)


def read_rows(path: Path, rows: RequestRows, column: str) -> StoredRequests:
    """Return the requests of rows: one for each row, or one for each turn of a conversation.

    Rows that are no requests are left out and counted. Raises UsageError if more than a share of MOST_BAD are none, if
    no row has a request, or if a key would have to be sent.
    """
    good_rows: list[ReadRow] = []
    faults: list[UsageError] = []
    for row in rows.rows:
        try:
            good_rows.append(read_row(row, f"{path}: {rows.unit} {row.number}", column))
        except UnsentKeyError:
            raise
        except UsageError as error:
            faults.append(error)
    if len(faults) > MOST_BAD * len(rows.rows):
        raise faults[0]
    requests = list[StoredRequest]()
    unread = Counter[str]()
    for good_row in good_rows:
        requests += good_row.requests
        unread.update(good_row.unread)
    with_requests = [good_row for good_row in good_rows if good_row.requests]
    passed_over = len(good_rows) - len(with_requests)
    if not requests:
        nothing = "no conversation has a question with an answer" if passed_over else "no request is in it"
        raise UsageError(f"{path}: {nothing}.")
    left_out = ""
    if faults:
        fault = str(faults[0]).removesuffix(".").removeprefix(f"{path}: ")
        left_out = f"{len(faults):,} of {len(rows.rows):,} {rows.unit}s were left out, the first: {fault}"
    return StoredRequests(
        path,
        tuple(requests),
        rows.unit,
        passed_over,
        turns=any(good_row.is_chat for good_row in good_rows),
        is_sharegpt=all(good_row.is_sharegpt for good_row in with_requests),
        left_out=left_out,
        unread=unread_note(unread, rows.unit),
    )


def read_row(row: RequestRow, where: str, column: str) -> ReadRow:
    """Return the requests of a row. Raises UsageError if the row is no request."""
    item = parse_text(str(row.value), where) if row.is_text else row.value
    if isinstance(item, str):
        return ReadRow([StoredRequest(row.number, "prompt", checked_text(item, where))], [])
    if isinstance(item, dict):
        item = request_of(item)
        if not column:  # if the prompt's column is named, the other columns may be anything
            check_sent(item, where)
    name, dialog = ("", None) if column else dialog_of(item)
    if dialog is None:
        return plain_row(item, row.number, where, column)
    beside = item if isinstance(item, dict) else {}
    unread = [*unread_keys(beside, (name, *KEYS_BESIDE_A_PROMPT)), *unread_message_keys(dialog)]
    limit, system = answer_limit(beside, where), system_prompt(beside, where)
    is_chat = any("role" in message for message in dialog)
    if is_chat:
        turns = [*chat_turns(with_system(dialog, system, where), row.number, where)]
    else:
        turns = [*sharegpt_turns(dialog, system, row.number)]
    requests = [turn._replace(max_tokens=limit) for turn in turns]
    return ReadRow(requests, unread, is_chat=is_chat, is_sharegpt=not is_chat)


def plain_row(item: object, number: int, where: str, column: str) -> ReadRow:
    """Return a row that holds one prompt. Raises UsageError if it holds none."""
    if not isinstance(item, dict):
        raise UsageError(f"{where}: not an object with a prompt.")
    request = stored_request(item, number, where, column)
    unread = unread_keys(item, (column or request_kind(item, where), *KEYS_BESIDE_A_PROMPT))
    if not column and isinstance(item.get("messages"), list):
        unread += unread_message_keys(item["messages"])
    return ReadRow([request], unread)


def dialog_of(item: object) -> tuple[str, Dialog | None]:
    """Return the key and the messages of a row that is a conversation or holds one.

    The messages are None for any other row. Messages have role and content, or ShareGPT's from and value. `messages`
    that do not end with an answer are one request, not a conversation.
    """
    if isinstance(item, list):
        return "", item if is_dialog(item) else None
    if not isinstance(item, dict):
        return "", None
    for name in CHATS:
        dialog = item.get(name)
        if not is_dialog(dialog):
            continue
        roles = [message.get("role") for message in dialog]
        is_request = name == CHATS[-1] and ("user" not in roles or roles[-1] != "assistant")
        return name, None if is_request else dialog
    return "", None


def is_dialog(value: object) -> TypeGuard[Dialog]:
    return isinstance(value, list) and all(isinstance(message, dict) for message in value)


def unread_message_keys(dialog: Sequence[object]) -> list[str]:
    """Return the keys of a row's messages that nobody reads, each once."""
    names = list[str]()
    for message in dialog:
        if isinstance(message, dict):
            names += unread_keys(message, MESSAGE_KEYS)
    return [f"messages[].{name}" for name in dict.fromkeys(names)]


def with_system(dialog: Dialog, system: str, where: str) -> Dialog:
    """Return the messages with the system prompt before them. Raises UsageError if they have a different one."""
    if not system:
        return dialog
    if dialog and dialog[0].get("role") == "system":
        if content_text(dialog[0].get("content"), where) != system:
            raise UsageError(f"{where}: two system prompts, one of them in the messages: keep one.")
        return dialog
    return [{"role": "system", "content": system}, *dialog]


def chat_turns(dialog: Dialog, number: int, where: str) -> Iterator[StoredRequest]:
    """Yield a request for each of the user's messages, with all messages before it.

    The stored answer gives its length. A message without text ends the requests. Raises UsageError for an unknown role.
    """
    check_roles(dialog, where)
    for place, message in enumerate(dialog):
        if not is_usable(content_text(message.get("content"), where)):
            return
        if message["role"] != "user":
            continue
        after: Mapping[str, object] = dialog[place + 1] if place + 1 < len(dialog) else {}
        answer = content_text(after.get("content"), where) if after.get("role") == "assistant" else None
        history = checked_chat(dialog[: place + 1], where)
        yield StoredRequest(number, "messages", history, answer=answer if is_usable(answer) else None)


def check_roles(dialog: Dialog, where: str) -> None:
    for message in dialog:
        if message.get("role") not in ROLES:
            raise UsageError(f"{where}: role {message.get('role')!r:.40}; known are {', '.join(ROLES)}.")


def content_text(content: object, where: str) -> object:
    """Return the text of a message's content, which may be a list of parts.

    Any other content is returned unchanged. Raises UnsentKeyError if a part is no text, such as an image.
    """
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS or not isinstance(part.get("text"), str):
            raise UnsentKeyError(f"{where}: a part of the content is {kind or part!r:.40}: text alone is sent.")
        texts.append(part["text"])
    return "".join(texts)


def request_kind(item: Mapping[str, object], where: str) -> RequestKind:
    """Return the kind of a row's prompt. Raises UsageError if the row has none or several."""
    kinds = [kind for kind in REQUEST_KINDS if item.get(kind) is not None]
    if len(kinds) != 1:
        count = "more than one" if kinds else "none"
        raise UsageError(f"{where}: {count} of {', '.join(REQUEST_KINDS)}; give exactly one.")
    return kinds[0]


def stored_request(item: Mapping[str, object], number: int, where: str, column: str = "") -> StoredRequest:
    """Return a row's request, with the system prompt beside it. Raises UsageError if the row is no request."""
    limit, system = answer_limit(item, where), system_prompt(item, where)
    if column:
        if column not in item:
            raise UsageError(f"{where}: no {column!r}; it has {', '.join(map(str, item))[:200]}.")
        kind: RequestKind = "prompt"
        prompt: RequestPrompt = checked_text(item[column], where, column)
    else:
        kind = request_kind(item, where)
        prompt = READERS[kind](item[kind], where)
    if system and kind == "prompt_token_ids":
        raise UnsentKeyError(f"{where}: a system prompt beside token ids is not sent: put it into them, or remove it.")
    if system:
        dialog = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        assert is_dialog(dialog)  # token ids with a system prompt were refused above
        kind, prompt = "messages", checked_chat(with_system(dialog, system, where), where)
    return StoredRequest(number, kind, prompt, limit)


def checked_text(value: object, where: str, name: str = "prompt") -> str:
    """Return a text. Raises UsageError if it is empty, too long, or no valid text."""
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"{where}: {name} is {'empty' if isinstance(value, str) else 'not text'}.")
    if len(value) > MOST_CHARACTERS:  # a tokenizer would take minutes
        raise UsageError(f"{where}: {name} has {len(value):,} characters; {MOST_CHARACTERS:,} at most.")
    if SURROGATES.search(value):
        raise UsageError(f"{where}: invalid text (a lone surrogate) in {name}.")
    return value


def checked_chat(value: object, where: str) -> Chat:
    """Return a chat whose messages have role and content. Raises UsageError if the last message is not the user's."""
    if not is_dialog(value):
        raise UsageError(f"{where}: messages is not a list of objects with role and content.")
    check_roles(value, where)
    if not value or value[-1]["role"] != "user":
        raise UsageError(f"{where}: the last of messages must be the user's.")
    chat = []
    for message in value:
        check_sent(message, where)
        content = checked_text(content_text(message.get("content"), where), where, "content")
        chat.append({"role": str(message["role"]), "content": content})
    return chat


def token_ids(value: object, where: str, name: str = "prompt_token_ids") -> TokenIds:
    if not (isinstance(value, list) and value and all(type(token) is int for token in value)):
        raise UsageError(f"{where}: {name} is not a list of token ids.")
    return value


READERS: dict[RequestKind, Callable[[object, str], RequestPrompt]] = {
    "prompt": checked_text,
    "messages": checked_chat,
    "prompt_token_ids": token_ids,
}


def sharegpt_turns(dialog: Dialog, system: str, number: int) -> Iterator[StoredRequest]:
    """Yield the first question that has an answer, after the system prompt if there is one.

    Yields nothing if there is none.
    """
    for message in dialog:
        text = message.get("value")
        if message.get("from") == "system" and is_usable(text):
            system = system or text
    for first, then in pairwise(dialog):
        question, answer = first.get("value"), then.get("value")
        if first.get("from") not in ASKING_ROLES or then.get("from") not in ANSWERING_ROLES:
            continue
        if not is_usable(question) or not is_usable(answer):
            continue
        if not system:
            yield StoredRequest(number, "prompt", question, answer=answer)
            return
        chat = [{"role": "system", "content": system}, {"role": "user", "content": question}]
        yield StoredRequest(number, "messages", chat, answer=answer)
        return


def is_chat(prompt: RequestPrompt) -> "TypeIs[Chat]":
    return isinstance(prompt, list) and all(isinstance(message, dict) for message in prompt)


def is_usable(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and bool(text.strip()) and not SURROGATES.search(text)
