"""How the types of settings are named, in the help of a flag and in messages about a wrong value."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from harness.config.flags import Settings, kinds
from harness.core.given_values import unknown_setting
from harness.core.secrets import hide_word

# What a flag of a type takes: in the help, and in messages.
TYPES = {
    "integer": ("N", "a whole number"),
    "number": ("X", "a number"),
    "path": ("PATH", "a path"),
    "string": ("TEXT", "text"),
    "boolean": ("[0|1]", "true or false"),
    "array": ("", "numbers with commas between"),
}


def describe(name: str, schema: Mapping[str, Any], metavar: str) -> str:
    """A type in words, for messages; `metavar` is an item of a list of texts."""
    if name == "texts":
        return f"a list of {metavar}"
    if name == "choice":
        return " or ".join(map(str, schema["enum"]))
    _, words = TYPES[name]
    match schema:
        case {"exclusiveMinimum": low, "maximum": high}:
            return f"{words} above {low}, at most {high:,}"
        case {"minimum": low, "maximum": high}:
            return f"{words} from {low:,} to {high:,}"
        case {"minimum": low}:
            return f"{words} of {low} or more"
    return words


def mistake(kind: type[Settings], error: ValidationError, settings: Mapping[str, Any]) -> str:
    """The first thing that is wrong with settings, in one line."""
    errors = sorted(error.errors(), key=lambda each: each["type"] != "extra_forbidden")
    name = str(errors[0]["loc"][0])
    if errors[0]["type"] == "extra_forbidden":
        return unknown_setting(name, list(kind.model_fields))
    if own := [said for each in errors if each["type"] == "value_error" and (said := str(each["ctx"]["error"]))]:
        return f"{kind.named(name)}: {own[0]}."
    if errors[0]["type"] == "missing":
        return f"{kind.named(name)} is missing."
    takes = " or ".join(describe(*each, kind.flags()[name].metavar) for each in kinds(kind, name).items())
    got = hide_word(value) if isinstance(value := settings[name], str) else value
    return f"{kind.named(name)} takes {takes}; got {got!r}."
