"""Values that a user gave: files, paths, names and numbers, each refused in one line that names the flag."""

import re
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from harness.core import reading
from harness.core.errors import UsageError
from harness.core.formatting import alternatives
from harness.core.message_text import system_reason
from harness.core.moved_commands import REPLACEMENTS
from harness.core.secrets import hide_word
from harness.core.vllm_source import arguments

ParsedText = TypeVar("ParsedText")

# Characters that no value has: control characters except the tab, and bytes of the command line that are not UTF-8.
UNPRINTABLE = "[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]"
ADDRESS_PATTERN = r"(?!hf:)\w[\w+.-]+:/"  # pathlib turns "//" into one slash, so one is enough
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
    """Return the content of a regular file of at most `most` bytes as `parse` returns it.

    `flag` named the file, or is empty. `parse` raises `wrong` for what is not `kind`, such as "JSON". Raises UsageError
    if the file cannot be read or parsed.
    """
    try:
        return parse(reading.read_text(path, most))
    except OSError as error:
        raise UsageError(f"{path}: {system_reason(error)}.", flag, path) from None
    except (wrong, ValueError, RecursionError) as error:  # ValueError: an impossible date; RecursionError: deep nesting
        reason = " ".join(str(error).split()).removesuffix(".")
        raise UsageError(f"{path}: not {kind}: {reason}.", flag, path) from None


def spelling_hint(word: str, names: Sequence[str], otherwise: str = ".") -> str:
    """Return "; did you mean ...?" with the names that are like a misspelt word, or `otherwise` if none is like it."""
    close = similar_names(word, names)
    return f"; did you mean {alternatives(close)}?" if close else otherwise


def similar_names(word: str, names: Sequence[str]) -> list[str]:
    """Return up to three of the names that are like a misspelt word in any case, the most similar first."""
    names_by_small_letters = {name.lower(): name for name in names}
    close = get_close_matches(word.lower(), names_by_small_letters, n=3, cutoff=0.6)
    return [names_by_small_letters[name] for name in close]


def unknown_setting(key: str, names: Sequence[str]) -> str:
    """Return the message for a key of a file that is none of the settings `names`, with what to write in its place."""
    flag = flag_name(key)
    positive_name = key.removeprefix("no_")  # vLLM's own flags for switches may begin with --no-.
    if positive_name in arguments():
        return f"unknown setting {key!r}: vLLM's own arguments are lines such as engine_arg: {positive_name}=VALUE."
    if flag in REPLACEMENTS:
        return f"{key} {REPLACEMENTS[flag]}."
    return f"unknown setting {key!r}{spelling_hint(key, names)}"


def unknown_file_error(flag: str, name: str, names: Sequence[str]) -> UsageError:
    """Return the error for a value of `flag` that is neither a file nor one of `names`, with a hint at the spelling."""
    text = f"{name}: not a file, and not one of {', '.join(names)}{spelling_hint(name, names)}"
    return UsageError(text, flag, Path(name))


def flag_name(name: str) -> str:
    """Return a setting's name as a flag, such as --max-num-seqs for max_num_seqs."""
    return "--" + name.replace("_", "-")


def require(ok: bool, name: str, wanted: str, got: str) -> None:
    """Raise UsageError unless `ok`. The message says what `name` takes (`wanted`), and what it `got` instead."""
    if not ok:
        raise value_refusal(name, wanted, got)


def value_refusal(name: str, wanted: str, got: str) -> UsageError:
    """Return the error for a value that a setting, or a cell of a file, does not take. Secrets in it are masked."""
    return UsageError(f"{name} takes {wanted}; got {hide_word(got)!r}.")


def check_printable(name: str, text: str) -> None:
    """Raise UsageError if a value has control characters or is no valid UTF-8.

    The value may be a secret, so it is not shown.
    """
    if re.search(UNPRINTABLE, text):
        raise UsageError(f"{name}: control characters, or invalid UTF-8, in a value.")


def check_path(name: str, value: object) -> None:
    """Raise UsageError if an address is given in place of a path. The address may hold a secret, so it is not shown."""
    if re.match(ADDRESS_PATTERN, str(value)):
        raise UsageError(f"{name} takes no address, but a path: download the file first if it is to be read.")


def check_folder_name(what: str, name: object) -> None:
    """Raise UsageError if `name` is not a plain folder name. With slashes or "..", it could lead to any other folder.

    `what` says in the message what the name is for.
    """
    if not (isinstance(name, str) and re.fullmatch(r"\w[\w.+-]{0,99}", name)):
        raise UsageError(f"{what} {name!r} is not a folder name: use at most 100 letters, digits, '.', '+', '-', '_'.")
