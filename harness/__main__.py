"""One application, a sub-command each: `python -m harness`, or `llama31-mlperf` where it is installed."""

import harness.common.environment  # noqa: F401

# isort: split
import sys
from importlib import import_module

from harness.commands import COMMANDS
from harness.common.coerce import did_you_mean
from harness.common.errors import BAD_INPUT, DONE
from harness.common.system import NAME, program


def main() -> int | None:
    """Runs the sub-command that is named; its own flags follow. Returns the exit code."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(program())
        return DONE
    if words[:1] in ([], ["-h"], ["--help"]):
        print(usage())
        return DONE if words else BAD_INPUT
    if words[0] not in COMMANDS:
        print(
            f"error: no command {words[0]!r:.60}{did_you_mean(words[0], list(COMMANDS))}\n\n{usage()}", file=sys.stderr
        )
        return BAD_INPUT
    sys.argv = [f"{NAME} {words[0]}", *words[1:]]
    code: int | None = import_module(COMMANDS[words[0]].module).main()
    return code


def usage() -> str:
    """What there is, a line each."""
    wide = max(map(len, COMMANDS))
    lines = [f"  {name:{wide}}  {command.about}" for name, command in COMMANDS.items()]
    return "\n".join([f"usage: {NAME} COMMAND [-h] ...   or --version", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
