"""The types that a setting may have, and how they are named in help and messages."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import NamedTuple, TypedDict

from pydantic import BaseModel, TypeAdapter

from harness.core.formatting import alternatives


class TypeWords(NamedTuple):
    """The words for the values of a type: `placeholder` in the help, `text` in messages."""

    placeholder: str
    text: str


TYPE_WORDS = {
    "integer": TypeWords("N", "a whole number"),
    "number": TypeWords("X", "a number"),
    "path": TypeWords("PATH", "a path"),
    "string": TypeWords("TEXT", "text"),
    "boolean": TypeWords("[0|1]", "true or false"),
    "array": TypeWords("", "numbers with commas between"),
}


OfferedChoice = str | int | float | bool


class TypeSchema(TypedDict, total=False):
    """The parts of a type's JSON schema that are read."""

    enum: Sequence[OfferedChoice]
    minimum: float
    maximum: float
    exclusiveMinimum: float


def type_text(name: str, schema: TypeSchema, metavar: str) -> str:
    """Return what values a type takes, with its bounds or choices, in words for a message.

    `name` and `schema` are those of `types_of`. `metavar` names an item of a list of texts.
    """
    if name == "texts":
        return f"a list of {metavar}"
    if name == "choice":
        return alternatives([*map(str, schema["enum"])])
    words = TYPE_WORDS[name].text
    match schema:
        case {"exclusiveMinimum": low, "maximum": high}:
            return f"{words} above {low}, at most {high:,}"
        case {"minimum": low, "maximum": high}:
            return f"{words} from {low:,} to {high:,}"
        case {"minimum": low}:
            return f"{words} of {low} or more"
    return words


@cache
def types_of(settings: type[BaseModel], name: str) -> dict[str, TypeSchema]:
    """Return the types that a setting may have, without null, as JSON schemas by the name of the type.

    A name is that of a JSON format or type, such as "path" or "integer", or is "texts" (a list) or "choice".
    """
    schema = TypeAdapter(settings.model_fields[name].rebuild_annotation()).json_schema()
    types: dict[str, TypeSchema] = {}
    for option_schema in schema.get("anyOf", [schema]):  # A setting of several types has a schema for each.
        match option_schema:
            case {"const": only}:
                types["choice"] = {"enum": [only]}
            case {"enum": _}:
                types["choice"] = option_schema
            case {"items": {"type": "string"}}:
                types["texts"] = option_schema
            case {"format": type_name} | {"type": type_name}:
                types[type_name] = option_schema
    types.pop("null", None)
    return types


def choices(types: Mapping[str, TypeSchema]) -> Sequence[OfferedChoice]:
    """Return the values that a setting chooses from. Empty if it has no choices."""
    if "choice" not in types:
        return ()
    return types["choice"]["enum"]
