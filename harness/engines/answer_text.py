"""The text of one message of an answer, under whichever key and in whichever form a server sends it."""

import re
from collections.abc import Iterable, Mapping

from harness.core import word_list

# Keys with the text of a part, in the order in which they are tried. They are those of OpenAI, Mistral, OpenRouter, and
# Anthropic behind a gateway.
PART_KEYS = word_list.names_in("text thinking content reasoning summary refusal transcript output_text input_text")
# Several servers send what a model thinks twice, under an older and a newer name. Only the first key found is read.
THOUGHT_KEYS = word_list.names_in(
    "reasoning reasoning_content reasoning_text thinking thought reasoning_details thinking_blocks"
)
ANSWER_KEYS = word_list.names_in("content refusal audio")
CALL_KEYS = word_list.names_in("tool_calls function_call")
# Halves of characters beyond the first 65,536 (surrogates): a first half at the end of a text, and any half.
FIRST_HALF_AT_END = re.compile("[\ud800-\udbff]$")
ANY_HALF = re.compile("[\ud800-\udfff]")


def part_text(value: object) -> str:
    """Return the text in a value: a text, an object that holds a text under one of PART_KEYS, or a list of these.

    Empty for any other value. The API calls such objects the parts of a message.
    """
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(part_text, value))
    if isinstance(value, Mapping):
        for key in PART_KEYS:
            if value.get(key):
                return part_text(value[key])
    return ""


def call_text(value: object) -> str:
    """Return the name and arguments of the function calls that the model wrote, as far as this message has them.

    `value` is a call, a list of calls, or anything else, which has no text.
    """
    if isinstance(value, list):
        return "".join(map(call_text, value))
    if not isinstance(value, Mapping):
        return ""
    function = value.get("function")
    if not isinstance(function, Mapping):  # The call has its fields at the top.
        function = value
    parts = (function.get("name"), function.get("arguments"))
    return "".join(part for part in parts if isinstance(part, str))


def message_text(choice: Mapping[str, object]) -> str:
    """Return all text that the model wrote in a choice, one of the answers that a message of the API may hold.

    Thoughts, refusals and function calls count as well, since the model made tokens for them.
    """
    chat = choice.get("delta") or choice.get("message") or {}
    if not isinstance(chat, Mapping):  # a text instead of an object
        return part_text(choice.get("text")) + part_text(chat)
    text = part_text(choice.get("text")) + thought_text(chat)
    for key in ANSWER_KEYS:
        text += part_text(chat.get(key))
    for key in CALL_KEYS:
        text += call_text(chat.get(key))
    return text


def thought_text(chat: Mapping[str, object]) -> str:
    """Return what a model thinks in a message of a chat, under the first key that holds a text; empty if none does.

    Servers may send the same thoughts under several keys.
    """
    for key in THOUGHT_KEYS:
        text = part_text(chat.get(key))
        if text:
            return text
    return ""


def whole_characters(texts: Iterable[str]) -> tuple[str, str]:
    """Return the texts of messages joined into one, and half a character if the joined text ends with one, else "".

    Some servers cut an emoji in two: each message has half of its surrogate pair in UTF-16.
    """
    text = "".join(texts)
    if not ANY_HALF.search(text):
        return text, ""
    half = ""
    if FIRST_HALF_AT_END.search(text):
        half = text[-1:]  # The second half may come in the next message.
    # In UTF-16, two halves side by side are a character, so decoding joins them. It replaces any other half.
    utf_16_units = text.removesuffix(half).encode("utf-16-le", "surrogatepass")
    return utf_16_units.decode("utf-16-le", "replace"), half
