"""Values from the outside: text and YAML into what a setting holds, files that the user named."""

import re
from collections.abc import Callable, Sequence
from dataclasses import fields
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from harness.core.errors import UsageError, why
from harness.core.moved import MOVED
from harness.core.reading import read_text
from harness.core.secrets import arguments, hide_word

# Control characters but the tab, which no value has, and bytes of the command line that are not UTF-8.
UNPRINTABLE = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
ADDRESS = re.compile(r"(?!hf:)\w[\w+.-]+:/")  # as a path, with one slash, too
NUMBERS = ((int,), (float,))  # what lists with commas may hold
# Older names of settings, which are still taken.
RENAMED = {"version": "round", "total_limit": "total_sample_count", "data": "dataset_path"}


def coerce(value: Any, hint: Any) -> Any:
    """`value` as `hint` asks for it. Raises ValueError where it does not fit.

    Text counts as the number it writes out and a number as text where text is asked for; true and false do not.
    """
    members = get_args(hint) if get_origin(hint) is not Literal else (hint,)
    for member in members:
        if get_origin(member) is Literal:
            choice = next((c for c in get_args(member) if str(c) == str(value)), None)
            if choice is not None:
                return choice
    if isinstance(value, bool) and hint is not bool:
        raise ValueError("true and false are not numbers")
    if isinstance(value, str) and "," in value and any(get_args(arg)[:1] in NUMBERS for arg in get_args(hint)):
        value = tuple(value.split(","))
    if get_origin(hint) is tuple and isinstance(value, str):
        value = (value,)
    if get_origin(hint) is tuple and not (isinstance(value, list | tuple) and all(isinstance(x, str) for x in value)):
        raise ValueError("every item must be text")
    return adapter(hint).validate_python(value)


@cache
def adapter(hint: Any) -> Any:
    from pydantic import ConfigDict, TypeAdapter

    return TypeAdapter(hint, config=ConfigDict(coerce_numbers_to_str=True))


def describe(hint: Any, each: str = "") -> str:
    """A type in words, for messages; `each` is an item of a list."""
    if get_origin(hint) is Literal:
        return " or ".join(str(choice) for choice in get_args(hint))
    if get_origin(hint) is tuple:
        return "numbers with commas between" if get_args(hint)[:1] in NUMBERS else f"a list of {each}"
    if args := get_args(hint):
        return " or ".join(describe(arg) for arg in args if arg is not type(None))
    return {int: "a whole number", float: "a number", bool: "true or false", Path: "a path"}.get(hint, "text")


def read_given(
    flag: str,
    path: Path,
    kind: str,
    parse: Callable[[str], Any],
    wrong: type[Exception] = ValueError,
    most: int = 2**32,
) -> Any:
    """The content of a file, which the user may have named with `flag`. Raises UsageError when it cannot be read or
    parsed.

    Only regular files of at most `most` bytes are read: a device has no end.
    """
    where = f"{flag} {path}".lstrip()
    try:
        return parse(read_text(path, most))
    except OSError as error:
        raise UsageError(f"{where}: {why(error)}.") from None
    except (wrong, ValueError, RecursionError) as error:  # also deep nesting, or a date that is none
        raise UsageError(f"{where}: not {kind}: {' '.join(str(error).split()).removesuffix('.')}.") from None


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """`; did you mean ...?` for a misspelt name, or a full stop."""
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else "."


def unknown_setting(key: str, names: Sequence[str]) -> str:
    """What to say of a key of a file that is none of these settings."""
    flag = as_flag(key)
    if (own := key.removeprefix("no_")) in arguments():
        return f"unknown setting {key!r}: vLLM's own arguments are lines such as engine_arg: {own}=VALUE."
    return f"{key} {MOVED[flag]}." if flag in MOVED else f"unknown setting {key!r}{did_you_mean(key, names)}"


def no_such_file(flag: str, name: str, names: Sequence[str]) -> UsageError:
    """What to say of a value that is neither a file nor one of `names`."""
    return UsageError(f"{flag} {name}: not a file, and not one of {', '.join(names)}{did_you_mean(name, names)}")


def as_flag(name: str) -> str:
    """max_num_seqs -> --max-num-seqs"""
    return "--" + name.replace("_", "-")


def require(ok: bool, name: str, wanted: str, got: object = None) -> None:
    if not ok:
        shown = hide_word(got) if isinstance(got, str) else got
        raise UsageError(f"{name} takes {wanted}" + (f"; got {shown!r}." if got is not None else "."))


def check_printable(name: str, text: str) -> None:
    """Raises UsageError for a value, which may be a secret, with control characters or bytes that are not UTF-8."""
    if UNPRINTABLE.search(text):
        raise UsageError(f"{name}: control characters, or invalid UTF-8, in a value.")


def check_path(name: str, value: object) -> None:
    """Raises UsageError for an address where a path may stand: it is not shown, for it may hold a secret."""
    if ADDRESS.match(str(value)):
        raise UsageError(f"{name} takes no address, but a path: download the file first if it is to be read.")


def check_types(config: Any) -> None:
    """Holds each field to its annotation, so that a --config file meets the same checks as the command line."""
    hints = get_type_hints(type(config))
    for name, metadata in ((item.name, item.metadata) for item in fields(config)):
        hint, value = hints[name], getattr(config, name)
        if isinstance(value, str):
            check_printable(as_flag(name), value)
        try:
            value = coerce(value, hint)
        except ValueError:
            raise UsageError(f"{as_flag(name)} takes {describe(hint, metadata['metavar'])}; got {value!r}.") from None
        check_path(as_flag(name), value)
        object.__setattr__(config, name, value)
