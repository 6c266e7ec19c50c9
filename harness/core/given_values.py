"""Values that a user gave: files, paths, names and numbers, each refused in one line that names the flag."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from harness.core import reading
from harness.core.errors import UsageError
from harness.core.message_text import why
from harness.core.moved_commands import REPLACEMENTS
from harness.core.secrets import hide_word
from harness.core.vllm_source import arguments

ParsedText = TypeVar("ParsedText")

# Control characters but the tab, which no value has, and bytes of the command line that are not UTF-8.
UNPRINTABLE = "[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]"
ADDRESS_PATTERN = r"(?!hf:)\w[\w+.-]+:/"  # as a path, with one slash, too
# Older names of settings, which are still taken.
RENAMED_SETTINGS = {"version": "round", "total_limit": "total_sample_count", "data": "dataset_path"}


def read_given(
    flag: str,
    path: Path,
    kind: str,
    parse: Callable[[str], ParsedText],
    wrong: type[Exception] = ValueError,
    *,
    most: int,
) -> ParsedText:
    """The content of a file, which the user may have named with `flag`. Raises UsageError when it cannot be read or
    parsed.

    Only regular files of at most `most` bytes are read: a device has no end.
    """
    try:
        return parse(reading.read_text(path, most))
    except OSError as error:
        raise UsageError(f"{path}: {why(error)}.", flag, path) from None
    except (wrong, ValueError, RecursionError) as error:  # also deep nesting, or a date that is none
        reason = " ".join(str(error).split()).removesuffix(".")
        raise UsageError(f"{path}: not {kind}: {reason}.", flag, path) from None


def did_you_mean(word: str, names: Sequence[str]) -> str:
    """`; did you mean ...?` for a misspelt name, or a full stop."""
    close = get_close_matches(word, names, n=3, cutoff=0.6)
    return f"; did you mean {', '.join(close)}?" if close else "."


def unknown_setting(key: str, names: Sequence[str]) -> str:
    """Return what to say of a key of a file that is none of these settings."""
    flag = as_flag(key)
    positive_name = key.removeprefix("no_")
    if positive_name in arguments():
        return f"unknown setting {key!r}: vLLM's own arguments are lines such as engine_arg: {positive_name}=VALUE."
    if flag in REPLACEMENTS:
        return f"{key} {REPLACEMENTS[flag]}."
    return f"unknown setting {key!r}{did_you_mean(key, names)}"


def unknown_file_error(flag: str, name: str, names: Sequence[str]) -> UsageError:
    """Return what to say of a value that is neither a file nor one of `names`."""
    return UsageError(f"{name}: not a file, and not one of {', '.join(names)}{did_you_mean(name, names)}", flag)


def as_flag(name: str) -> str:
    """Return a setting's name as a flag, as in --max-num-seqs."""
    return "--" + name.replace("_", "-")


def require(ok: bool, name: str, wanted: str, got: str) -> None:
    if not ok:
        raise not_taken(name, wanted, got)


def not_taken(name: str, wanted: str, got: str) -> UsageError:
    """The error of a value that a setting, or a cell of a file, does not take."""
    return UsageError(f"{name} takes {wanted}; got {hide_word(got)!r}.")


def check_printable(name: str, text: str) -> None:
    """Raises UsageError for a value, which may be a secret, with control characters or bytes that are not UTF-8."""
    if re.search(UNPRINTABLE, text):
        raise UsageError(f"{name}: control characters, or invalid UTF-8, in a value.")


def check_path(name: str, value: object) -> None:
    """Raises UsageError for an address where a path may stand: it is not shown, for it may hold a secret."""
    if re.match(ADDRESS_PATTERN, str(value)):
        raise UsageError(f"{name} takes no address, but a path: download the file first if it is to be read.")


def check_folder_name(what: str, name: object) -> None:
    """Raises UsageError for a text that cannot be the name of a folder: from a file it may lead anywhere else."""
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.+-]{0,99}", name)):
        raise UsageError(f"{what} {name!r} is not a folder name: use at most 100 letters, digits, '.', '+', '-', '_'.")
