"""The processes of a command: none left behind, signals that end it well, and the reason in one line."""

import contextlib
import ctypes
import os
import shlex
import signal
import sys

import psutil

from harness.common.interrupts import interruptible
from harness.common.secrets import hide_word

LAST_CALL_S = 1.0  # for children that were asked to end, before they are killed


def install_signal_handlers() -> None:
    """SIGTERM, and the end of the terminal (but not under nohup), end a command as Ctrl-C does."""
    interruptible()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.default_int_handler)


def ignore_signals() -> None:
    """What follows is only to end well."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def command_line() -> str:
    """This command as one would type it again, secrets left out."""
    begun = sys.argv[0]
    program = ["python", hide_word(os.path.relpath(begun))] if os.path.exists(begun) else begun.split()
    return shlex.join([*program, *map(hide_word, sys.argv[1:])])


def adopt_orphans() -> None:
    """Makes this process the parent of any grandchild whose own parent dies, so that none can be left behind."""
    with contextlib.suppress(OSError, AttributeError):
        PR_SET_CHILD_SUBREAPER = 36
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_children(grace: float = LAST_CALL_S) -> None:
    """Ends every process below this one: asked first, killed after `grace` seconds."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=grace)
    for child in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
