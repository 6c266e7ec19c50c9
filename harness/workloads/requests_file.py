"""A file of requests that the user named: rows with a prompt each, ShareGPT's JSON, or conversations whose messages
have role and content.
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
    flat_request,
    refuse_unsent_keys,
    system_prompt,
    unread_keys,
    unread_note,
)

if TYPE_CHECKING:
    from typing_extensions import TypeIs

RequestKind = Literal["prompt", "messages", "prompt_token_ids"]
REQUEST_KINDS: tuple[RequestKind, ...] = get_args(RequestKind)
CHAT_KEYS = ("conversations", "conversation", "messages")  # keys of a conversation
MOST_FAULTY_SHARE = 0.1  # up to this share of a file's rows may be no requests, and are left out and counted
ROLES = ("system", "user", "assistant")
# The roles that ShareGPT has under `from`, of those who ask and of those who answer.
ASKING_ROLES, ANSWERING_ROLES = ("human", "user"), ("gpt", "chatgpt", "bard", "bing", "assistant")
MESSAGE_KEYS = ("role", "content", "from", "value")
TEXT_PART_TYPES = ("text", "input_text", "output_text")  # the types of a message's parts that hold text
MOST_CHARACTERS = 2**22  # characters of a prompt: roughly a million tokens
SURROGATES = re.compile(r"[\ud800-\udfff]")
TokenIds = list[int]
Chat = list[dict[str, str]]  # messages with role and content, as a tokenizer takes them
RequestPrompt = str | Chat | TokenIds
Dialog = Sequence[Mapping[str, object]]  # the messages of a conversation, as a file has them


class StoredRequest(NamedTuple):
    """One request. `number` is that of its row, counted from 1, which all turns of a conversation share. `kind` says
    what `prompt` holds: text, messages or token ids.

    `max_tokens` is the longest answer, None if the file does not say. `answer` is the recorded answer, None if there is
    none. The names of this class and its fields go into the digest of a workload, so they must not change.
    """

    number: int
    kind: RequestKind
    prompt: RequestPrompt
    max_tokens: int | None = None
    answer: str | None = None


class StoredRequests(NamedTuple):
    """The requests of a file."""

    path: Path
    requests: tuple[StoredRequest, ...]
    unit: str  # what messages call a row
    questionless: int  # conversations without a question that could be sent
    has_turns: bool  # whether several requests may belong to one conversation
    is_sharegpt: bool  # whether each request is the first question of a conversation, with its answer
    fault_note: str  # how many rows were no requests, and why the first was none; empty if all were
    unread_note: str = ""  # the keys that were not read; empty if there are none

    def where(self, request: StoredRequest) -> str:
        return f"{self.path}: {self.unit} {request.number}"


class ReadRow(NamedTuple):
    """A row that was read: its requests, the names of the keys that were not read, and what kind of row it is."""

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
    return read_rows(path, rows_of(path, text, prompt_columns(column)), column)


def prompt_columns(column: str) -> tuple[str, ...]:
    """Return the keys under which a row may have its prompt: `column` alone if the user named one, else all known."""
    if column:
        return (column,)
    return (*REQUEST_KINDS, *CHAT_KEYS)


def read_rows(path: Path, rows: RequestRows, column: str) -> StoredRequests:
    """Return the requests of rows: one for each row, or one for each turn of a conversation.

    `column` is the key of the prompt, if the user named one. Raises UsageError if no request can be read.
    """
    # Raises UsageError if too many rows have no request, or if a key would change a request but is not sent.
    good_rows, faults = readable_rows(path, rows, column)
    requests = list[StoredRequest]()
    unread_counts = Counter[str]()
    for row in good_rows:
        requests += row.requests
        unread_counts.update(row.unread)
    rows_with_request = [row for row in good_rows if row.requests]
    # Only a conversation can be read and have no request: it has no question that could be sent.
    questionless = len(good_rows) - len(rows_with_request)
    if not requests and questionless:
        raise UsageError(f"{path}: no conversation has a question with an answer.")
    if not requests:
        raise UsageError(f"{path}: no request is in it.")
    fault_note = ""
    if faults:
        first_fault = str(faults[0]).removesuffix(".")
        fault_note = f"{len(faults):,} of {len(rows.rows):,} {rows.unit}s were left out, the first: {first_fault}"
    return StoredRequests(
        path,
        tuple(requests),
        rows.unit,
        questionless,
        has_turns=any(row.is_chat for row in good_rows),  # Each turn of a chat is a request.
        is_sharegpt=all(row.is_sharegpt for row in rows_with_request),
        fault_note=fault_note,
        unread_note=unread_note(unread_counts, rows.unit),
    )


def readable_rows(path: Path, rows: RequestRows, column: str) -> tuple[list[ReadRow], list[UsageError]]:
    """Return the rows that could be read, and the errors of the rows that could not.

    Raises the first error if more than MOST_FAULTY_SHARE of the rows are faulty, and the first UnsentKeyError.
    """
    good_rows: list[ReadRow] = []
    faults: list[UsageError] = []
    for row in rows.rows:
        try:
            good_rows.append(read_row(row, f"{rows.unit} {row.number}", column))
        except UnsentKeyError as error:  # The file would not measure what it should.
            raise UnsentKeyError(f"{path}: {error}", path=path) from None
        except UsageError as error:
            faults.append(error)
    if len(faults) > MOST_FAULTY_SHARE * len(rows.rows):
        raise UsageError(f"{path}: {faults[0]}", path=path)
    return good_rows, faults


def read_row(row: RequestRow, where: str, column: str) -> ReadRow:
    """Return the requests of a row (a prompt, an object or a conversation), and the keys that were not read.

    `column` is the key of the prompt if the user named one. Raises UsageError if the row is no request, UnsentKeyError
    if a key would change the request but is not sent.
    """
    item = row.value
    if row.is_unparsed:
        item = parse_text(str(row.value), where)
    if isinstance(item, str):
        return ReadRow([StoredRequest(row.number, "prompt", checked_text(item, where))], [])
    if isinstance(item, dict):
        item = flat_request(item)
        if not column:  # If the user named the prompt's column, the other columns may be anything.
            refuse_unsent_keys(item, where)
    conversation = None if column else conversation_of(item)
    if conversation is None:
        return plain_row(item, row.number, where, column)
    name, dialog = conversation
    if not isinstance(item, dict):
        item = {}  # A row that is a list of messages has no keys.
    return dialog_row(item, name, dialog, row.number, where)


def dialog_row(item: Mapping[str, object], name: str, dialog: Dialog, number: int, where: str) -> ReadRow:
    """Return the requests of a row that holds a conversation, with the row's keys that were not read.

    `item` has the row's keys, and `name` is the key of the conversation. `number` is the row's number in the file, and
    `where` names the row in errors.
    """
    unread = unread_keys(item, (name, *KEYS_BESIDE_A_PROMPT))
    unread += unread_message_keys(dialog)
    limit = answer_limit(item, where)
    system = system_prompt(item, where)
    has_roles = any("role" in message for message in dialog)
    if has_roles:
        turns = [*chat_turns(with_system(dialog, system, where), number, where)]
    else:
        turns = [*sharegpt_turns(dialog, system, number)]
    requests = [turn._replace(max_tokens=limit) for turn in turns]
    return ReadRow(requests, unread, is_chat=has_roles, is_sharegpt=not has_roles)


def plain_row(item: object, number: int, where: str, column: str) -> ReadRow:
    """Return the request of a row that holds one prompt, with the row's keys that were not read.

    `column` is the key of the prompt if the user named one. Raises UsageError unless the row holds one prompt.
    """
    if not isinstance(item, dict):
        raise UsageError(f"{where}: not an object with a prompt.")
    request = stored_request(item, number, where, column)
    unread = unread_keys(item, (column or request_kind(item, where), *KEYS_BESIDE_A_PROMPT))
    if not column and isinstance(item.get("messages"), list):
        unread += unread_message_keys(item["messages"])
    return ReadRow([request], unread)


def conversation_of(item: object) -> tuple[str, Dialog] | None:
    """Return the key and the messages of a row that holds a conversation. None if the row holds none.

    The key is empty if the row itself is a list of messages.
    """
    if is_dialog(item):
        return "", item
    if not isinstance(item, dict):
        return None
    for name in CHAT_KEYS:
        dialog = item.get(name)
        if not is_dialog(dialog):
            continue
        if name == "messages" and not is_answered(dialog):  # Without an answer at the end, it is a single prompt.
            return None
        return name, dialog
    return None


def is_answered(dialog: Dialog) -> bool:
    """Return whether a conversation of messages with roles has a question and ends with an answer."""
    roles = [message.get("role") for message in dialog]
    return "user" in roles and roles[-1] == "assistant"


def is_dialog(value: object) -> TypeGuard[Dialog]:
    """Return whether a value is a list of objects, like the messages of a conversation. An empty list counts."""
    if not isinstance(value, list):
        return False
    return all(isinstance(message, dict) for message in value)


def unread_message_keys(dialog: Sequence[object]) -> list[str]:
    """Return the keys of a row's messages that this program does not read, each once."""
    names = list[str]()
    for message in dialog:
        if isinstance(message, dict):
            names += unread_keys(message, MESSAGE_KEYS)
    return [f"messages[].{name}" for name in dict.fromkeys(names)]


def with_system(dialog: Dialog, system: str, where: str) -> Dialog:
    """Return the messages of a conversation with the system prompt before them.

    The messages are returned unchanged if `system` is empty, or if they begin with the same system prompt. Raises
    UsageError if they begin with a different system prompt.
    """
    if not system:
        return dialog
    if dialog and dialog[0].get("role") == "system":
        if content_text(dialog[0].get("content"), where) != system:
            raise UsageError(f"{where}: two system prompts, one of them in the messages: keep one.")
        return dialog
    return [{"role": "system", "content": system}, *dialog]


def chat_turns(dialog: Dialog, number: int, where: str) -> Iterator[StoredRequest]:
    """Yield a request for each of the user's messages, with all messages before it, and the recorded answer, if any.

    Raises UsageError for an unknown role, or for a key that would change the request but is not sent.
    """
    check_roles(dialog, where)
    for index, message in enumerate(dialog):
        # An unusable message ends the dialog, since each later request would contain it.
        if not is_usable(content_text(message.get("content"), where)):
            return
        if message["role"] != "user":
            continue
        answer = recorded_answer(dialog, index + 1, where)
        history = checked_chat(dialog[: index + 1], where)
        yield StoredRequest(number, "messages", history, answer=answer)


def recorded_answer(dialog: Dialog, index: int, where: str) -> str | None:
    """Return the text of the message at `index` of a conversation, if it is an answer that has text.

    None if there is no such message, or if it is not the assistant's or has no text.
    """
    if index >= len(dialog) or dialog[index].get("role") != "assistant":
        return None
    answer = content_text(dialog[index].get("content"), where)
    if not is_usable(answer):
        return None
    return answer


def check_roles(dialog: Dialog, where: str) -> None:
    """Raise UsageError for the first message whose role is none of ROLES. `where` names the row in the error."""
    for message in dialog:
        role = message.get("role")
        if role not in ROLES:
            raise UsageError(f"{where}: role {role!r:.40}; known are {', '.join(ROLES)}.")


def content_text(content: object, where: str) -> object:
    """Return the text of a message's content if that is a list of parts. Any other content is returned unchanged.

    Raises UnsentKeyError if a part is no text, such as an image.
    """
    if not isinstance(content, list):
        return content
    texts = []
    for part in content:
        kind = None
        if isinstance(part, dict):
            kind = part.get("type", "text")  # A part without a type is taken as text.
        if kind not in TEXT_PART_TYPES or not isinstance(part.get("text"), str):
            raise UnsentKeyError(f"{where}: a part of the content is {kind or part!r:.40}: text alone is sent.")
        texts.append(part["text"])
    return "".join(texts)


def request_kind(item: Mapping[str, object], where: str) -> RequestKind:
    """Return the kind of a row's prompt. Raises UsageError if the row has none or several."""
    kinds = [kind for kind in REQUEST_KINDS if item.get(kind) is not None]
    if len(kinds) == 1:
        return kinds[0]
    count = "more than one" if kinds else "none"
    raise UsageError(f"{where}: {count} of {', '.join(REQUEST_KINDS)}; give exactly one.")


def stored_request(item: Mapping[str, object], number: int, where: str, column: str = "") -> StoredRequest:
    """Return the request of a row with one prompt, under `column` if the user named it, or else under a known key.

    Raises UsageError if the row has no usable prompt, and UnsentKeyError for a system prompt beside token ids.
    """
    limit = answer_limit(item, where)
    system = system_prompt(item, where)
    if column:
        if column not in item:
            columns = ", ".join(map(str, item))[:200]
            raise UsageError(f"{where}: no {column!r}; it has {columns}.")
        kind: RequestKind = "prompt"
        prompt: RequestPrompt = checked_text(item[column], where, column)
    else:
        kind = request_kind(item, where)
        prompt = READERS[kind](item[kind], where)
    if system and kind == "prompt_token_ids":
        raise UnsentKeyError(f"{where}: a system prompt beside token ids is not sent: put it into them, or remove it.")
    if not system:
        return StoredRequest(number, kind, prompt, limit)
    # The system prompt goes before the other messages. A prompt that is a text becomes a message of the user's.
    dialog = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
    assert is_dialog(dialog)  # token ids with a system prompt were refused above
    chat = checked_chat(with_system(dialog, system, where), where)
    return StoredRequest(number, "messages", chat, limit)


def checked_text(value: object, where: str, name: str = "prompt") -> str:
    """Return a text unchanged. Raises UsageError if it is no text, blank, too long, or not valid Unicode.

    `name` is its key, and `where` the place of its row in errors.
    """
    if not isinstance(value, str):
        raise UsageError(f"{where}: {name} is not text.")
    if not value.strip():
        raise UsageError(f"{where}: {name} is empty.")
    if len(value) > MOST_CHARACTERS:  # a tokenizer would take minutes
        raise UsageError(f"{where}: {name} has {len(value):,} characters; {MOST_CHARACTERS:,} at most.")
    if SURROGATES.search(value):
        raise UsageError(f"{where}: invalid text (a lone surrogate) in {name}.")
    return value


def checked_chat(value: object, where: str) -> Chat:
    """Return the messages of a chat, each with only its role and its content as text.

    Other keys are dropped if they would not change the request. Raises UsageError if one would, or if the value is no
    chat.
    """
    if not is_dialog(value):
        raise UsageError(f"{where}: messages is not a list of objects with role and content.")
    check_roles(value, where)
    if not value or value[-1]["role"] != "user":
        raise UsageError(f"{where}: the last of messages must be the user's.")
    chat = []
    for message in value:
        refuse_unsent_keys(message, where)
        content = checked_text(content_text(message.get("content"), where), where, "content")
        chat.append({"role": str(message["role"]), "content": content})
    return chat


def token_ids(value: object, where: str, name: str = "prompt_token_ids") -> TokenIds:
    """Return a list of token ids unchanged. Raises UsageError if it is empty or no such list. `name` is its key."""
    if not (isinstance(value, list) and value and all(type(token) is int for token in value)):
        raise UsageError(f"{where}: {name} is not a list of token ids.")
    return value


def is_in_vocabulary(tokens: Sequence[int], size: int) -> bool:
    return all(0 <= token < size for token in tokens)


READERS: dict[RequestKind, Callable[[object, str], RequestPrompt]] = {
    "prompt": checked_text,
    "messages": checked_chat,
    "prompt_token_ids": token_ids,
}


def sharegpt_turns(dialog: Dialog, system: str, number: int) -> Iterator[StoredRequest]:
    """Yield at most one request: the first question of a conversation of ShareGPT that is followed by an answer.

    `system` is the system prompt beside the conversation, if there is one. `number` is the row's.
    """
    for message in dialog:
        text = message.get("value")
        if message.get("from") == "system" and is_usable(text):
            system = system or text  # the first one in the conversation
    for message, next_message in pairwise(dialog):
        question, answer = message.get("value"), next_message.get("value")
        if message.get("from") not in ASKING_ROLES or next_message.get("from") not in ANSWERING_ROLES:
            continue
        if not is_usable(question) or not is_usable(answer):
            continue
        if system:
            chat = [{"role": "system", "content": system}, {"role": "user", "content": question}]
            yield StoredRequest(number, "messages", chat, answer=answer)
        else:
            yield StoredRequest(number, "prompt", question, answer=answer)
        return


def is_chat(prompt: RequestPrompt) -> "TypeIs[Chat]":
    """Return whether a prompt is the messages of a chat, not a text or token ids."""
    return is_dialog(prompt)


def is_usable(text: object) -> TypeGuard[str]:
    """Return whether a value is text that is neither blank nor invalid."""
    return isinstance(text, str) and bool(text.strip()) and not SURROGATES.search(text)
