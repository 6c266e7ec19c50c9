"""Command lines of every command, with one value of one option or argument to be tried."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from harness.__main__ import command_of
from harness.commands import COMMANDS
from harness.core.command import Group
from tests.conftest import ROOT

# What a command needs besides the value that is tried, so that it comes to read it; nothing of it is begun.
NEEDS = {
    "run": {"--model": "demo", "--dry-run": "1", "--mode": "performance"},
    "mmlu": {"--model": "demo", "--data": "nothing-there"},
    "sweep": {"--dry-run": ""},
    "submission build": {"--submitter": "x", "--system": "x.json"},
}
ARGUMENTS = {"sweep": str(ROOT / "sweeps" / "demo.yaml")}  # of a command that reads it first
WITH = {  # the flags that an option needs, or cannot be beside
    "--baseline": {"--fail-if": "answers changed"},
    "--arrivals": {},
}


def commands() -> Iterator[tuple[str, Any]]:
    """Every command, with its name as it is typed."""
    for name in COMMANDS:
        entry = command_of(name)
        if isinstance(entry, Group):
            yield from ((f"{name} {part}", command) for part, command in entry.commands.items())
        else:
            yield name, entry


def command_words(words: str, parameter: Any, value: str, place: Path) -> list[str]:
    """The command line that gives a parameter this value, and everything else that the command requires."""
    command = dict(commands())[words]
    given: dict[str, str | None] = dict(NEEDS.get(words, {}))
    options = {each.opts[0]: each for each in command.params if each.param_type_name == "option"}
    for name, option in options.items():
        if option.required and name not in given:
            given[name] = "1" if option.bare_type() in ("int", "float") else str(place / "nothing")
    flag = parameter.opts[0] if parameter.param_type_name == "option" else ""
    given |= WITH.get(flag, {})
    if "--results-dir" in options and "--results-dir" not in given:
        given["--results-dir"] = str(place / "results")
    if flag:
        given[flag] = value
    arguments = [
        value if each.name == parameter.name else ARGUMENTS.get(words, str(place / "nothing"))
        for each in command.params
        if each.param_type_name == "argument" and (each.required or each.name == parameter.name or words == "report")
    ]
    if words == "report" and flag in ("--compare", "--plot", "--csv"):
        arguments = []
        given |= {} if flag == "--compare" else {"--compare": str(place / "nothing")}
    return [
        *words.split(),
        *arguments,
        *(f"{name}={text}" if text != "" or name == flag else name for name, text in given.items() if text is not None),
    ]


def end(code: int, *_: object) -> NoReturn:
    """In place of `ending.exit`, which ends this process at once, and all that it started."""
    raise SystemExit(code)
