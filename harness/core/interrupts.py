"""Ctrl-C before a command has begun: it ends with a line, and no stack.

`harness` imports this before anything else, and it imports next to nothing itself.
"""

import os
import sys
from signal import SIGINT, default_int_handler, getsignal, signal
from types import TracebackType

INTERRUPTED = 130  # the exit code
RESEND_S = 0.02  # until a lost Ctrl-C is sent again
MESSAGE = b"interrupted\n"


def end_at_once(number: int, frame: object) -> None:
    """End this process at once, with one line, at a Ctrl-C before a command has begun.

    There is nothing to keep yet, and modules are half imported, so that nothing else of Python may run. `number` and
    `frame` are what Python passes to the handler of a signal.
    """
    os.write(2, MESSAGE)
    os._exit(INTERRUPTED)


def enable_interrupts() -> None:
    """Make Ctrl-C raise KeyboardInterrupt, also if it comes during a finalizer.

    If Ctrl-C was ignored when this process began, as in a background job of a script, it stays ignored.
    """
    sys.unraisablehook = raise_again
    if getsignal(SIGINT) is end_at_once:  # The handler from before the command began: Ctrl-C is not ignored.
        signal(SIGINT, default_int_handler)


def raise_again(failure: "sys.UnraisableHookArgs") -> None:
    """Repeat a Ctrl-C that came during a finalizer. Report any other failure of a finalizer as Python does.

    Python drops what a finalizer raises, so a timer sends the signal again.
    """
    if not issubclass(failure.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(failure)
        return
    from threading import Timer

    timer = Timer(RESEND_S, os.kill, (os.getpid(), SIGINT))
    timer.daemon = True
    timer.start()


def print_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an exception that nothing caught. Ctrl-C is no mistake of this program, so it has no stack trace."""
    if issubclass(kind, KeyboardInterrupt):
        os.write(2, MESSAGE)
    else:
        sys.__excepthook__(kind, error, trace)


def command_file() -> str | None:
    """Return the path of the file of this program that the process runs, such as run.py.

    "-m" for `python -m harness...`, if Python has not found the module's file yet. None if the process runs another
    program, which only imports this one.
    """
    has_module_of_program = any(word.split(".")[0] == "harness" for word in sys.orig_argv)
    if sys.argv[:1] == ["-m"] and has_module_of_program:  # Until Python has found the file, argv has "-m" in its place.
        return "-m"
    main_file = getattr(sys.modules["__main__"], "__file__", None)
    path = os.path.realpath(main_file or "")
    checkout = os.path.realpath(__file__).partition(f"{os.sep}harness{os.sep}")[0]
    return path if os.path.dirname(path) == checkout else None


COMMAND_FILE = command_file()
if COMMAND_FILE:
    sys.excepthook = print_uncaught
    if COMMAND_FILE != "-m" and getsignal(SIGINT) is default_int_handler:
        signal(SIGINT, end_at_once)
