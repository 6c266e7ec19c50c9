"""The processes of a command: none left behind, signals that end it well, and the reason in one line."""

import ctypes
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from signal import SIG_IGN, SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals, default_int_handler, getsignal, signal, strsignal
from typing import Any

import psutil

from harness.core import guard, interrupts, locations
from harness.core.secrets import hide_word
from harness.core.software import PROGRAM_NAME, module_words

GROUP_GRACE_S = 20.0  # for a command that ends its own engine when it is asked
LAST_CALL_S = 1.0  # for children that were asked to end, before they are killed
COMMAND_MARK = "LLAMA31_MLPERF_COMMAND"  # in the environment of all that a command starts
ignore_signals = guard.ignore_signals
guards: dict[int, "subprocess.Popen[bytes]"] = {}  # the guard of each guarded process, by that process's id


def install_signal_handlers() -> None:
    """Make SIGTERM, and SIGHUP unless under nohup, end this command as Ctrl-C does.

    Also start the guard, which ends the processes of this command if the command is killed.
    """
    start_guard()
    interrupts.enable_interrupts()
    signal(SIGTERM, default_int_handler)
    if getsignal(SIGHUP) is not SIG_IGN:
        signal(SIGHUP, default_int_handler)


def signal_handlers() -> dict[int, Any]:
    """Return what happens at each signal that ends a command."""
    return {number: getsignal(number) for number in (SIGINT, SIGTERM, SIGHUP)}


def set_signal_handlers(handlers: Mapping[int, Any]) -> None:
    """Set what happens at each signal, for instance after signals were ignored."""
    for number, handler in handlers.items():
        signal(number, handler)


def start_guard() -> None:
    """Start the process that ends whatever this one leaves behind (harness.core.guard), unless it is running."""
    if os.getpid() in guards:
        return
    guard_environment = dict(os.environ)
    guard_environment.pop(COMMAND_MARK, None)
    mark = f"{os.getpid()}-{time.time_ns()}"
    os.environ[COMMAND_MARK] = mark
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, str(os.getpid()), f"{COMMAND_MARK}={mark}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=guard_environment,
        start_new_session=True,
    )
    assert process.stdin
    guards[os.getpid()] = process
    os.register_at_fork(after_in_child=partial(tell_guard, process.stdin.fileno()))


def tell_guard(pipe: int) -> None:
    """Tell the guard the id of this fork, and close the fork's copy of the pipe. Only the parent holds it open."""
    with suppress(OSError):
        os.write(pipe, f"{os.getpid()}\n".encode())
        os.close(pipe)


def command_line() -> str:
    """Return the command line that runs this command again, without secrets."""
    begin = module_words() or program_words()
    return shlex.join([*begin, *map(hide_word, sys.argv[1:])])


def program_words() -> list[str]:
    """Return the first words of this command's line, which name the program."""
    if is_installed():
        return [PROGRAM_NAME]
    file = sys.argv[0]
    if os.path.exists(file):
        return ["python", hide_word(os.path.relpath(file))]
    return file.split()


def is_installed() -> bool:
    """Return whether the installed command was called, not a file of a checkout or a module."""
    return os.path.basename(sys.argv[0]) == PROGRAM_NAME


def command_of(name: str) -> str:
    """Return how to type another command of this program, in the way in which this one was called."""
    if is_installed():
        return f"{PROGRAM_NAME} {name}"
    if (locations.CHECKOUT / f"{name}.py").exists():
        return f"python {name}.py"
    return f"python -m harness {name}"


def adopt_orphans() -> None:
    """Make this process the parent of any grandchild whose own parent dies, so that none is left behind."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def end_children() -> None:
    """End every process below this one except the guards. Processes that still run after LAST_CALL_S are killed."""
    spared = {process.pid for process in guards.values()}
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in spared]
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=LAST_CALL_S)
    for child in alive:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process that leads a group, then kill whatever is left of the group, even if the leader died by itself."""
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GROUP_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)
    process.wait()


def command_with_flag(command: str, flag: str, value: str) -> str:
    """Return a command line with a flag set to another value. The flag is appended if it is not there."""
    words = shlex.split(command)
    flags = [word.partition("=")[0] for word in words]
    if flag not in flags:
        return shlex.join([*words, flag, value])
    place = flags.index(flag)
    if words[place] == flag:
        words[place : place + 2] = [flag, value]
    else:
        words[place] = f"{flag}={value}"
    return shlex.join(words)


def signal_text(number: int) -> str:
    """Return how a process ended that died by a signal, such as "died by SIGILL (illegal instruction)"."""
    with suppress(ValueError):
        description = strsignal(number) or ""
        return f"died by {Signals(number).name} ({description.lower()})"
    return f"died by signal {number}"
