"""One application, a sub-command each: `python -m harness`, or `llama31-mlperf` where it is installed."""

import harness.common.environment  # noqa: F401

# isort: split
from collections.abc import Mapping
from importlib import import_module
from typing import Any, NoReturn

from harness.commands import COMMANDS
from harness.common.coerce import did_you_mean
from harness.common.system import NAME
from harness.terminal.command import HELP, Group, start


class Application(Group):
    """All sub-commands; the module of one is imported when it is called."""

    def about(self) -> Mapping[str, str]:
        return {name: each.about for name, each in COMMANDS.items()}

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            ctx.fail(f"no command {cmd_name!r:.60}{did_you_mean(cmd_name, list(COMMANDS))}")
        return import_module(COMMANDS[cmd_name].module).command


def main() -> NoReturn:
    """Runs the sub-command that is named; its own flags follow."""
    start(Application(help="Llama-3.1-8B by MLPerf's rules.", context_settings=HELP), NAME)


if __name__ == "__main__":
    main()
