"""The start of a script that starts processes, so that none of them outlives it."""

import sys
from collections.abc import Callable
from typing import NoReturn

from harness.core import processes
from harness.core.errors import one_line_errors


def start(main: Callable[[], int | None]) -> NoReturn:
    """Run `main` and end this process with its exit code.

    SIGTERM ends the process as Ctrl-C does. The processes that it started end with it, however it dies.
    """
    processes.install_signal_handlers()
    with one_line_errors():
        sys.exit(main())
