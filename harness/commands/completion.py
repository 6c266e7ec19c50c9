"""A shell's completion of the installed command: `eval "$(llama31-mlperf completion bash)"`.

Names, flags and choices are taken from each command's own help when the script is made, so completing starts no Python.
"""

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from harness.commands import COMMANDS
from harness.common.errors import DONE, Arguments
from harness.common.system import NAME
from harness.config.cli import prepare

FLAG = re.compile(r"(?<![\w-])(--[a-z][a-z0-9-]*)(?:[ =](?:\{([^}]+)\}|((?:[\w.]+\|)+[\w.]+)))?")
SUBCOMMAND = re.compile(r"^ {4}([a-z]+)  +\w", re.MULTILINE)  # a command of a command, in argparse's help
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


def main() -> int:
    """Prints the script of a shell."""
    prepare()
    parser = Arguments(prog=f"{NAME} completion", description=(__doc__ or "").partition(":")[0] + ".")
    parser.add_argument(
        "shell", choices=[*SHIM, "fish"], default="bash", nargs="?", help="whose script is printed [bash]"
    )
    shell = parser.parse_args().shell
    with ThreadPoolExecutor() as pool:
        found = dict(zip(COMMANDS, pool.map(flags_of, COMMANDS), strict=True))
    about = {name: command.about for name, command in COMMANDS.items()}
    print(fish(found, about) if shell == "fish" else bash(found, SHIM[shell]), end="")
    return DONE


def flags_of(command: str) -> Flags:
    """The flags that a command's help shows, and the names of its own commands."""
    words = [sys.executable, "-m", "harness", command, "-h"]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    found: dict[str, list[str]] = {name: [] for name in SUBCOMMAND.findall(shown)}
    for flag, *given in FLAG.findall(shown):  # the first time, it stands with what it takes
        found.setdefault(flag, [word for word in re.split(r"[|,]", "".join(given)) if word and not word.isupper()])
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
