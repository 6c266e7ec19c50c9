"""The way into every command: `llama31-mlperf NAME`, `python -m harness NAME`, or a file beside the package."""

import sys
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, NoReturn

from harness.core.errors import BAD_INPUT
from harness.core.locations import ROOT
from harness.core.remedies import install_command

if missing := [name for name in ("typer", "pydantic", "jinja2") if not find_spec(name)]:
    print(
        f"error: {sys.executable} has no {missing[0]}: use .venv/bin/python, which `{install_command('cpu')}` makes, "
        f"or `{sys.executable} -m pip install {ROOT}`.",
        file=sys.stderr,
    )
    raise SystemExit(BAD_INPUT)

# isort: split
from harness.commands import COMMANDS
from harness.core.command import HELP, Command, Group, start
from harness.core.given_values import spelling_hint
from harness.core.software import PROGRAM_NAME

if TYPE_CHECKING:
    from typer._click.core import Context


class Application(Group):
    """All sub-commands; the module of one is imported when it is called."""

    def about(self) -> Mapping[str, str]:
        """Return a line on each sub-command, by its name."""
        return COMMANDS

    def list_commands(self, ctx: "Context") -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: "Context", cmd_name: str) -> Command | Group:
        if cmd_name not in COMMANDS:
            ctx.fail(f"no command {cmd_name!r:.60}{spelling_hint(cmd_name, list(COMMANDS))}")
        return command_of(cmd_name)


def command_of(name: str) -> Command | Group:
    """The sub-command of a name."""
    command: Command | Group = import_module(f"harness.commands.{name}").command
    return command


def main(name: str = "") -> NoReturn:
    """Run the sub-command `name`, or the one that the first word of the command line names; its flags follow."""
    if name:
        start(command_of(name))  # The process ends with it.
    start(Application(help="Llama-3.1-8B by MLPerf's rules.", context_settings=HELP), PROGRAM_NAME)


if __name__ == "__main__":
    main()
