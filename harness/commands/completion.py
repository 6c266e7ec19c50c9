"""A shell's completion of the installed command: `eval "$(llama31-mlperf completion bash)"`.

Names, flags and choices are those of the commands when the script is made, so completing starts no Python.
"""

import harness.common.environment  # noqa: F401

# isort: split
import re
import shlex
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Literal, NoReturn

import typer

from harness.commands import COMMANDS
from harness.common.errors import DONE
from harness.common.system import NAME
from harness.terminal.command import Command, Group, make_command, start

CHOICE = re.compile(r"[\w.]+")  # one word of a placeholder such as N|auto; no [0|1]
Flags = Mapping[str, list[str]]  # the choices of each flag; none where any text will do

BASH = """{shim}_{function}() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} words=
    if [ "$COMP_CWORD" -eq 1 ]; then words={names}; else
        case "${{COMP_WORDS[1]}}:$before" in
{choices}
        *) case "${{COMP_WORDS[1]}}" in
{flags}
           esac ;;
        esac
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}}
complete -o default -F _{function} {name}
"""
SHIM = {"bash": "", "zsh": "autoload -U +X bashcompinit && bashcompinit\n"}  # zsh reads what bash does


def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"], typer.Argument(metavar="[bash|zsh|fish]", help="Whose script is printed.")
    ] = "bash",
) -> int:
    """A shell's completion of the installed command."""
    found = {name: flags_of(import_module(each.module).command) for name, each in COMMANDS.items()}
    about = {name: each.about for name, each in COMMANDS.items()}
    print(fish(found, about) if shell == "fish" else bash(found, SHIM[shell]), end="")
    return DONE


def flags_of(command: Command | Group) -> Flags:
    """The flags of a command with their choices; of a group, the names of its commands and the flags of all."""
    found: dict[str, list[str]] = {}
    if isinstance(command, Group):
        found |= {name: [] for name in command.commands}
        for each in command.commands.values():
            found |= {flag: words for flag, words in flags_of(each).items() if flag not in found}  # type: ignore[arg-type]
        return found
    for parameter in command.params:
        if not getattr(parameter, "hidden", False):
            words = (parameter.metavar or "").split("|")
            choices = [word for word in words if CHOICE.fullmatch(word) and not word.isupper()] if words[1:] else []
            found |= {name: choices for name in parameter.opts if name.startswith("--")}
    return found


def bash(found: Mapping[str, Flags], shim: str) -> str:
    """The script for bash."""
    choices = [
        f"        {command}:{flag}) words={shlex.quote(' '.join(words))} ;;"
        for command, flags in found.items()
        for flag, words in flags.items()
        if words
    ]
    flags = [f"           {command}) words={shlex.quote(' '.join(flags))} ;;" for command, flags in found.items()]
    return BASH.format(
        shim=shim,
        function=NAME.replace("-", "_"),
        name=NAME,
        names=shlex.quote(" ".join(found)),
        choices="\n".join(choices),
        flags="\n".join(flags),
    )


def fish(found: Mapping[str, Flags], about: Mapping[str, str]) -> str:
    """The script for fish."""
    lines = [
        f"complete -c {NAME} -n __fish_use_subcommand -f -a {command} -d {shlex.quote(about[command])}"
        for command in found
    ]
    for command, flags in found.items():
        here = f"complete -c {NAME} -n '__fish_seen_subcommand_from {command}'"
        lines += [f"{here} -f -a {name}" for name in flags if not name.startswith("--")]
        lines += [
            f"{here} -l {flag.removeprefix('--')}" + (f" -x -a {shlex.quote(' '.join(words))}" if words else "")
            for flag, words in flags.items()
            if flag.startswith("--")
        ]
    return "\n".join(lines) + "\n"


command = make_command(completion, prints=True)


def main() -> NoReturn:
    start(command)
