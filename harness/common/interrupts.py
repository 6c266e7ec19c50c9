"""Ctrl-C while a command's packages are still imported: it ends at once, with a line.

Commands import this before anything else, and it imports next to nothing itself.
"""

import os
import signal
import sys


def ended(number: int, frame: object) -> None:
    """There is nothing to keep yet, and no stack to show."""
    from harness.common.errors import INTERRUPTED

    os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def interruptible() -> None:
    """From now on Ctrl-C is an exception, as Python has it, unless it was ignored from the beginning."""
    if signal.getsignal(signal.SIGINT) is ended:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_command() -> bool:
    """Whether this process is one of the commands here, rather than a program that imports them."""
    here = os.path.realpath(__file__).partition(f"{os.sep}harness{os.sep}")[0]
    begun = getattr(sys.modules["__main__"], "__file__", None) or ""
    return os.path.realpath(begun).startswith(here + os.sep)


if is_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, ended)
