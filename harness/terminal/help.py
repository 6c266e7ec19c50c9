"""The help of a command: a line or two a flag, topic by topic, what is needed first, first; examples and exit codes."""

import re
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

FLAG_COLUMNS, WIDEST_HELP = 30, 100  # columns of the flags, and of all at most
EXIT_CODES = (
    "Exit codes: 0 done, 1 not accepted, 2 wrong usage or input, 3 the engine or LoadGen failed, 130 interrupted."
)
SENTENCE = re.compile(r"(?<=[a-z)0-9])\.\s")


def usage(path: str, parameters: Iterable[Any]) -> str:
    words = [str(each.metavar) for each in parameters if each.param_type_name == "argument"]
    return " ".join([f"usage: {path}", *words, "[FLAGS]"])


def contents(path: str, about: str, commands: Mapping[str, str]) -> str:
    """The help of several commands: what each is for."""
    width = min(WIDEST_HELP, shutil.get_terminal_size().columns)
    column = max(map(len, commands)) + 4
    shown = [
        textwrap.fill(
            f"{text[:1].upper()}{SENTENCE.split(text[1:], 1)[0].rstrip('.')}",
            width,
            initial_indent=f"  {name}".ljust(column),
            subsequent_indent=" " * column,
        )
        for name, text in commands.items()
    ]
    return "\n\n".join([f"usage: {path} COMMAND [-h] ...", textwrap.fill(about, width), "\n".join(shown)]) + "\n"


def page(usage: str, about: str, parameters: Iterable[Any], order: Sequence[str], examples: Sequence[str]) -> str:
    """The whole help. `parameters` are click's, with a panel each; panels in `order` come first."""
    width = min(WIDEST_HELP, shutil.get_terminal_size().columns)
    panels: dict[str, list[Any]] = {name: [] for name in order}
    for each in parameters:
        if "--help" not in each.opts and not getattr(each, "hidden", False):  # who reads this knows --help
            panels.setdefault(getattr(each, "rich_help_panel", None) or "Options", []).append(each)
    blocks = [textwrap.fill(usage, width), textwrap.fill(about, width)]
    blocks += [f"{name}:\n{lines(found, width)}" for name, found in panels.items() if found]
    if examples:
        blocks.append("Examples:\n" + "\n".join(f"  {example}" for example in examples))
    return "\n\n".join([*blocks, textwrap.fill(EXIT_CODES, width, break_on_hyphens=False)]) + "\n"


def lines(parameters: Sequence[Any], width: int) -> str:
    return "\n".join(line for each in parameters for line in entry(each, width))


def entry(parameter: Any, width: int) -> list[str]:
    """A flag and the first sentence of what it is for; the docs have the others."""
    name = f"  {', '.join(sorted(parameter.opts, key=len))}" if parameter.param_type_name == "option" else "  "
    name = f"{name} {value(parameter)}".rstrip() if parameter.param_type_name == "option" else f"  {value(parameter)}"
    said = SENTENCE.split(getattr(parameter, "help", None) or "", 1)[0].rstrip(".")
    if parameter.param_type_name == "option" and getattr(parameter, "required", False):
        said += " (required)"
    if default := shown_default(parameter):
        said += f" [{default}]"
    text = textwrap.wrap(said, width - FLAG_COLUMNS, break_on_hyphens=False, break_long_words=False)
    if len(name) >= FLAG_COLUMNS - 1:
        return [*broken(name, width), *(" " * FLAG_COLUMNS + line for line in text)]
    return [f"{name:{FLAG_COLUMNS}}{text[0] if text else ''}", *(" " * FLAG_COLUMNS + line for line in text[1:])]


def broken(name: str, width: int) -> list[str]:
    """A flag with what it takes, its choices in two lines where one is too short."""
    if len(name) <= width:
        return [name]
    at = name.rfind("|", 0, width) + 1
    return [name[:at], *broken(" " * FLAG_COLUMNS + name[at:], width)]


def value(parameter: Any) -> str:
    """What a flag takes, in short; nothing for a switch."""
    if getattr(parameter, "is_flag", False):
        return ""
    return str(parameter.metavar or "")


def shown_default(parameter: Any) -> str:
    """The default where it says something: not of a switch that is off, a list that is empty, or None."""
    default = getattr(parameter, "default", None)
    if getattr(parameter, "is_flag", False) or callable(default) or default in (None, "0", [], (), "None"):
        return ""
    return str(default)
