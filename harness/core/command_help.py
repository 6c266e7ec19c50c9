"""The help of a command: a line or two for each flag, topic by topic, then examples and exit codes."""

import re
import shutil
from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperArgument, TyperOption

FLAG_COLUMNS = 30  # columns of the flags; their descriptions begin beside them
WIDEST_HELP = 100  # columns of the whole help at most
SENTENCE_END = re.compile(r"(?<=[a-z)0-9])\.\s")


def exit_codes_text(not_accepted: str, bad_input: str) -> str:
    """Return the exit codes of a command. `not_accepted` and `bad_input` are the meanings of 1 and 2.

    An empty meaning is that of a code with which the command never ends.
    """
    meanings = {
        0: "done",
        1: not_accepted,
        2: bad_input,
        3: "the engine or LoadGen failed",
        130: "interrupted",
    }
    return f"Exit codes: {'; '.join(f'{code} {meaning}' for code, meaning in meanings.items() if meaning)}."


def help_width() -> int:
    """Return the columns of the help, which is never wider than the terminal."""
    return min(WIDEST_HELP, shutil.get_terminal_size().columns)


def first_sentence(text: str) -> str:
    """Return the first sentence of a text, without its full stop."""
    return SENTENCE_END.split(text, 1)[0].rstrip(".")


def flag_entry(parameter: "TyperArgument | TyperOption", width: int, brief: bool) -> str:
    """Return the lines of the help for one flag, `width` columns wide.

    A `brief` entry has only the first sentence of the description.
    """
    indent = " " * FLAG_COLUMNS
    name = name_column(parameter)
    is_long = len(name) >= FLAG_COLUMNS - 1  # so that no space would be left before the description
    text = fill(
        description_of(parameter, brief),
        width,
        initial_indent=indent if is_long else name.ljust(FLAG_COLUMNS),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    if not is_long:
        return text
    # `fill` breaks lines only at spaces, so a space lets it break a list of choices after a "|".
    flag_lines = fill(name.replace("|", "| "), width, subsequent_indent=indent).replace("| ", "|")
    return f"{flag_lines}\n{text}"


def name_column(parameter: "TyperArgument | TyperOption") -> str:
    """Return how the help names a parameter: its flags, the shortest first, and the name of the value.

    A parameter without a flag is named by its value alone.
    """
    words = []
    if parameter.param_type_name == "option":
        words.append(", ".join(sorted(parameter.opts, key=len)))
    if parameter.metavar:
        words.append(parameter.metavar)
    return f"  {' '.join(words)}"


def description_of(parameter: "TyperArgument | TyperOption", brief: bool) -> str:
    """Return what the help says about a flag, only the first sentence of it if `brief`, and the flag's default.

    A flag that must be given is marked as required.
    """
    description = parameter.help or ""
    if brief:
        description = first_sentence(description)
    if parameter.param_type_name == "option" and parameter.required:
        description += " (required)"
    default = shown_default(parameter)
    if default:
        description += f" [{default}]"
    return description


def list_entries(summaries: Mapping[str, str], width: int) -> list[str]:
    """Return the lines of a list in the help: each name with its summary beside it."""
    indent = " " * FLAG_COLUMNS
    entries = []
    for name, summary in summaries.items():
        row = f"  {name}".ljust(FLAG_COLUMNS) + summary
        entries.append(fill(row, width, subsequent_indent=indent, break_on_hyphens=False))
    return entries


def shown_default(parameter: "TyperArgument | TyperOption") -> str:
    """Return the default of a flag as the help shows it.

    Empty if the default says nothing: None, an empty list, a switch that is off, or a value that is computed.
    """
    default = parameter.default
    if callable(default) or default is False or default in (None, [], ()):
        return ""
    return "1" if default is True else str(default)  # A switch may be given as 1 or 0.
