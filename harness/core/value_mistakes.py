"""Values that pydantic refuses, each in one line that says which values are taken instead."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from harness.core.formatting import number
from harness.core.secrets import hide_word

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

TEXT, WHOLE_NUMBER, NUMBER, SWITCH = "text", "a whole number", "a number", "true or false"
NAMED_VALUES, LIST = "lines of `name: value`", "a list"
# The values that are taken, by pydantic's name of a mistake. The names in braces are those of the mistake's `ctx`.
TAKEN_VALUES = {
    "string_type": TEXT,
    "string_too_long": "text of at most {max_length} characters",
    "string_too_short": "text of at least {min_length} characters",
    "int_type": WHOLE_NUMBER,
    "int_parsing": WHOLE_NUMBER,
    "int_parsing_size": "a whole number of fewer digits",
    "int_from_float": WHOLE_NUMBER,
    "float_type": NUMBER,
    "float_parsing": NUMBER,
    "finite_number": "a finite number",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "a number of at least {ge}",
    "less_than": "a number below {lt}",
    "less_than_equal": "a number of at most {le}",
    "bool_type": SWITCH,
    "bool_parsing": SWITCH,
    "dict_type": NAMED_VALUES,
    "mapping_type": NAMED_VALUES,
    "model_type": NAMED_VALUES,
    "model_attributes_type": NAMED_VALUES,
    "dataclass_type": NAMED_VALUES,
    "list_type": LIST,
    "tuple_type": LIST,
    "set_type": LIST,
    "too_short": "a list of {min_length} or more values",
    "too_long": "a list of at most {max_length} values",
    "literal_error": "{expected}",
    "enum": "{expected}",
    "none_required": "null",
    "single_value": "one text or number, or true or false",  # a mistake of this program's own
}


def refusal_text(name: str, mistake: "ErrorDetails", pattern_words: Mapping[str, str] | None = None) -> str:
    """Return the sentence, without a full stop, that refuses the value `name` for a mistake that pydantic found.

    `pattern_words` are the texts that each pattern takes, in words. For a mistake that is not in the table, the
    sentence ends with pydantic's own words.
    """
    if mistake["type"] == "missing":
        return f"{name} is missing"
    allowed = taken_values(mistake, pattern_words or {})
    if allowed is None:
        message = mistake["msg"].removeprefix("Value error, ").rstrip(".")
        return f"{name}: {message[:1].lower()}{message[1:]}"
    return f"{name} takes {allowed}; got {value_text(mistake['input'])}"


def taken_values(mistake: "ErrorDetails", pattern_words: Mapping[str, str]) -> str | None:
    """Return the values that are taken in place of a wrong one, in words. None for a mistake without such words."""
    context = mistake.get("ctx", {})
    if mistake["type"] == "string_pattern_mismatch":
        return pattern_words.get(context["pattern"])
    template = TAKEN_VALUES.get(mistake["type"])
    if template is None:
        return None
    return template.format_map({key: context_text(value) for key, value in context.items()})


def context_text(value: object) -> str:
    """Return a bound or a list of choices of a mistake as people read it."""
    return number(value) if isinstance(value, int | float) else str(value)


def value_text(value: Any) -> str:
    """Return a wrong value as a message shows it, with secrets masked. Of lists and objects, it says only the kind."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case str():
            return repr(hide_word(value))
        case list() | tuple():
            return "a list" if value else "an empty list"
        case Mapping():
            return "names with values"
        case _:
            return repr(value)
