"""How a command ends: the reason in one line, the status kept, every process it started gone."""

import contextlib
import os
import shlex
import signal
import sys
import traceback
from typing import TYPE_CHECKING, NoReturn

from harness import engine
from harness.errors import ENGINE_FAILED, INTERRUPTED, BenchmarkError, EngineError, first_line
from harness.results import RunFolder, check_space, hide_secret

if TYPE_CHECKING:
    from rich.console import Console


def heed_signals() -> None:
    """SIGTERM, and the end of the terminal (but not under nohup), end a command as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def ignore_signals() -> None:
    """What follows is only to end well."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def give_up(error: BaseException, run: RunFolder, console: "Console") -> int:
    """Says in one line why a run cannot go on, keeps it in the status, and returns the exit code."""
    ignore_signals()
    log = run.path / "engine.log"
    if isinstance(error, EngineError | OSError):
        try:
            check_space(run.path)
        except BenchmarkError as cause:
            error = cause
    interrupted = isinstance(error, KeyboardInterrupt)
    if interrupted:
        code, line = INTERRUPTED, "interrupted"
    elif isinstance(error, EngineError):
        code, line = error.exit_code, engine.explain(error, log)
    elif isinstance(error, BenchmarkError):
        code, line = error.exit_code, str(error)
    else:
        traceback.print_exception(error)  # to engine.log
        code, line = ENGINE_FAILED, f"{type(error).__name__}: {first_line(error)}"
    with contextlib.suppress(OSError):  # a full disk must not keep the process alive
        run.give_up("interrupted" if interrupted else "failed", line)
    console.print(line if interrupted else f"error: {line}", style="red", markup=False, soft_wrap=True)
    console.print(f"what there is so far: {run.path}", markup=False, soft_wrap=True)
    return code


def leave(code: int) -> NoReturn:
    """Ends this process and all it started, at once: threads in C++ may still wait for answers that never come."""
    engine.end_children()
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def command_line() -> str:
    """This command as one would type it again, secrets left out."""
    return shlex.join(["python", *map(hide_secret, [os.path.relpath(sys.argv[0]), *sys.argv[1:]])])
