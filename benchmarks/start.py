"""How a script that starts processes begins, so that none of them outlives it."""

import sys
from collections.abc import Callable
from typing import NoReturn

from harness.core import processes
from harness.core.errors import one_line_errors


def start(main: Callable[[], int | None]) -> NoReturn:
    """Runs `main` and ends with its exit code. SIGTERM ends it as Ctrl-C does; what it started ends with it, however it
    dies.
    """
    processes.install_signal_handlers()
    with one_line_errors():
        sys.exit(main())
