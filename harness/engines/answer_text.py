"""The text of one message of an answer, whatever a server puts it into."""

import re
from collections.abc import Iterable, Mapping

from harness.core import word_list

# Keys with the text of a part, the first that is there: of OpenAI, Mistral, Anthropic by way of a gateway, OpenRouter.
PART_KEYS = word_list.names_in("text thinking content reasoning summary refusal transcript output_text input_text")
# Several servers send what a model thinks twice, under an older and a newer name: the first that is there counts.
THOUGHT_KEYS = word_list.names_in(
    "reasoning reasoning_content reasoning_text thinking thought reasoning_details thinking_blocks"
)
ANSWER_KEYS = word_list.names_in("content refusal audio")
CALL_KEYS = word_list.names_in("tool_calls function_call")
LEADING_HALF = re.compile("[\ud800-\udbff]$")
ANY_HALF = re.compile("[\ud800-\udfff]")


def part_text(value: object) -> str:
    """Return the text of a value that is text, a part that holds some, or a list of such parts."""
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return "".join(map(part_text, value))
    if isinstance(value, Mapping):
        return next((part_text(value[key]) for key in PART_KEYS if value.get(key)), "")
    return ""


def call_text(value: object) -> str:
    """Return what a model wrote to call a function: its name and its arguments, as far as this message has them."""
    if isinstance(value, list):
        return "".join(map(call_text, value))
    if not isinstance(value, Mapping):
        return ""
    inner = value.get("function")
    called = inner if isinstance(inner, Mapping) else value
    return "".join(str(called[key]) for key in ("name", "arguments") if isinstance(called.get(key), str))


def message_text(choice: Mapping[str, object]) -> str:
    """Return the text of a choice: a completion's, or a chat's with what the model thinks before it answers."""
    chat = choice.get("delta") or choice.get("message") or {}
    if not isinstance(chat, Mapping):
        return part_text(choice.get("text")) + part_text(chat)
    thoughts = (part_text(chat.get(key)) for key in THOUGHT_KEYS)
    thought = next(filter(None, thoughts), "")
    answered = "".join(part_text(chat.get(key)) for key in ANSWER_KEYS)
    called = "".join(call_text(chat.get(key)) for key in CALL_KEYS)
    return part_text(choice.get("text")) + thought + answered + called


def whole_characters(texts: Iterable[str]) -> tuple[str, str]:
    """Return texts as one, and half of a character that it ends with. Servers that cut their text into UTF-16 send an
    emoji in two messages, half a surrogate pair in each.
    """
    text = "".join(texts)
    if not ANY_HALF.search(text):
        return text, ""
    half = text[-1:] if LEADING_HALF.search(text) else ""
    whole = text.removesuffix(half).encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return whole, half
