"""The help of a command: a line or two for each flag, topic by topic, then examples and exit codes."""

import re
from collections.abc import Mapping
from textwrap import fill
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typer.core import TyperArgument, TyperOption

# The help lists the flags topic by topic, the most needed topics first, then examples and exit codes.
FLAG_COLUMNS, WIDEST_HELP = 30, 100  # columns of the flags, and of all at most
EXIT_CODES = (
    "Exit codes: 0 done, 1 not accepted, 2 wrong usage or input, 3 the engine or LoadGen failed, 130 interrupted."
)
SENTENCE = re.compile(r"(?<=[a-z)0-9])\.\s")


def entry(parameter: "TyperArgument | TyperOption", width: int, brief: bool) -> str:
    """Return the lines of the help for one flag.

    The description is beside the flag, or below a flag that is too long.
    """
    is_option = parameter.param_type_name == "option"
    description = parameter.help or ""
    if brief:
        description = SENTENCE.split(description, 1)[0].rstrip(".")
    flags = ", ".join(sorted(parameter.opts, key=len)) if is_option else ""
    name = f"  {' '.join(filter(None, [flags, parameter.metavar]))}"
    if is_option and parameter.required:
        description += " (required)"
    if default := shown_default(parameter):
        description += f" [{default}]"
    indent = " " * FLAG_COLUMNS
    is_long = len(name) >= FLAG_COLUMNS - 1
    text = fill(
        description,
        width,
        initial_indent=indent if is_long else name.ljust(FLAG_COLUMNS),
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )
    above = fill(name.replace("|", "| "), width, subsequent_indent=indent).replace("| ", "|")  # a line may end in "|"
    return f"{above}\n{text}" if is_long else text


def list_entries(summaries: Mapping[str, str], width: int) -> list[str]:
    """Return the lines of a list in the help: each name with its summary beside it."""
    indent = " " * FLAG_COLUMNS
    return [
        fill(f"  {name}".ljust(FLAG_COLUMNS) + summary, width, subsequent_indent=indent, break_on_hyphens=False)
        for name, summary in summaries.items()
    ]


def shown_default(parameter: "TyperArgument | TyperOption") -> str:
    """Return the default of a flag as the help shows it.

    Empty if the default says nothing: None, an empty list, a switch that is off, or a value that is computed.
    """
    default = parameter.default
    if callable(default) or default is False or default in (None, [], ()):
        return ""
    return "1" if default is True else str(default)
