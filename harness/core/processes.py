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
from harness.core.software import PROGRAM_NAME, module_words, was_called_by_name

GROUP_GRACE_S = 20.0  # between SIGTERM and SIGKILL to a command, which first ends its own engine
CHILDREN_GRACE_S = 1.0  # between SIGTERM and SIGKILL to child processes
COMMAND_MARK = "LLAMA31_MLPERF_COMMAND"  # the variable that marks the programs that a command starts
ignore_signals = guard.ignore_signals
guards: dict[int, "subprocess.Popen[bytes]"] = {}  # the guard of each guarded process, by that process's id


def install_signal_handlers() -> None:
    """Make SIGTERM and SIGHUP end this command as Ctrl-C does, by KeyboardInterrupt. Under nohup, SIGHUP stays ignored.

    Also start the guard, which ends the processes of this command if the command is killed.
    """
    start_guard()
    interrupts.enable_interrupts()
    signal(SIGTERM, default_int_handler)
    if getsignal(SIGHUP) is not SIG_IGN:
        signal(SIGHUP, default_int_handler)


def signal_handlers() -> dict[int, Any]:
    """Return the handler of each signal that ends a command, so that `set_signal_handlers` can restore it."""
    return {number: getsignal(number) for number in (SIGINT, SIGTERM, SIGHUP)}


def set_signal_handlers(handlers: Mapping[int, Any]) -> None:
    """Set the handler of each signal, as `signal_handlers` returned them, for instance after signals were ignored."""
    for number, handler in handlers.items():
        signal(number, handler)


def start_guard() -> None:
    """Start the guard of this process, unless it has one: a process that ends what this one leaves behind.

    From now on, every program that this process starts inherits a mark in its environment, by which the guard finds it.
    """
    if os.getpid() in guards:
        return
    # If another command of this program started this one, the environment has the mark of that command, and its guard
    # ends every process with that mark. The new guard must not be ended so: it ends by itself, after its own work.
    guard_environment = dict(os.environ)
    guard_environment.pop(COMMAND_MARK, None)
    mark = f"{os.getpid()}-{time.time_ns()}"
    os.environ[COMMAND_MARK] = mark
    # The guard has a session of its own, so that Ctrl-C and the end of the terminal do not end it with the command. By
    # -I and -S, Python starts it without the modules and settings of the user.
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
    # The guard looks for the mark in the environment with which a process's program was started: the kernel shows no
    # other. A fork of this process starts no program, so it shows no mark, and reports its id to the guard instead.
    os.register_at_fork(after_in_child=partial(report_fork, process.stdin.fileno()))


def report_fork(pipe: int) -> None:
    """Write the id of this fork to its parent's guard, and close the fork's copy of the pipe.

    The guard takes the end of the pipe as a sign that the command has ended, so only the command itself may hold the
    pipe open.
    """
    with suppress(OSError):
        os.write(pipe, f"{os.getpid()}\n".encode())
        os.close(pipe)


def command_line() -> str:
    """Return the command line that runs this command again, with its secrets masked."""
    begin = module_words() or program_words()
    return shlex.join([*begin, *map(hide_word, sys.argv[1:])])


def program_words() -> list[str]:
    """Return the first words of this command's line, which name the program.

    They are the installed program's name, or `python` with the file that was called, as a path from the current folder.
    A program that imports this one may have put its own words in place of the file.
    """
    if was_called_by_name():
        return [PROGRAM_NAME]
    file = sys.argv[0]
    if os.path.exists(file):
        return ["python", hide_word(os.path.relpath(file))]
    return file.split()  # the words of a program that imports this one


def command_of(name: str) -> str:
    """Return how to type another command of this program: as the installed program, a file of the checkout, or `-m`."""
    if was_called_by_name():
        return f"{PROGRAM_NAME} {name}"
    if (locations.CHECKOUT / f"{name}.py").exists():
        return f"python {name}.py"
    return f"python -m harness {name}"


def command_to_type(name: str, *words: object) -> str:
    """Return another command of this program with arguments, quoted so that a shell takes each as one word."""
    return shlex.join([*command_of(name).split(), *map(str, words)])


def adopt_orphans() -> None:
    """Make this process the parent of any descendant whose own parent dies, so that `end_children` finds it.

    On a system that cannot do this, the call has no effect.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(36, 1)  # PR_SET_CHILD_SUBREAPER


def end_children() -> None:
    """End every process below this one, except the guards, which end by themselves.

    Processes that still run CHILDREN_GRACE_S after SIGTERM are killed.
    """
    guard_ids = {process.pid for process in guards.values()}
    children = [child for child in psutil.Process().children(recursive=True) if child.pid not in guard_ids]
    for child in children:
        with suppress(psutil.NoSuchProcess):
            child.terminate()
    _, alive = psutil.wait_procs(children, timeout=CHILDREN_GRACE_S)
    for child in alive:
        with suppress(psutil.NoSuchProcess):
            child.kill()


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End the process that leads a process group, then kill what is left of the group.

    The leader has GROUP_GRACE_S seconds to end after SIGTERM. If it has ended already, the remaining processes of its
    group are killed all the same.
    """
    if process.poll() is None:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(GROUP_GRACE_S)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)  # A group has the id of its leader.
    process.wait()


def command_with_flag(command: str, flag: str, value: str) -> str:
    """Return a command line with the first occurrence of a flag set to `value`.

    The form in which the flag is given stays: `FLAG VALUE` or `FLAG=VALUE`. A flag that is not there is appended.
    """
    words = shlex.split(command)
    flags = [word.partition("=")[0] for word in words]
    if flag not in flags:
        return shlex.join([*words, flag, value])
    index = flags.index(flag)
    if words[index] == flag:
        words[index : index + 2] = [flag, value]
    else:
        words[index] = f"{flag}={value}"
    return shlex.join(words)


def signal_text(number: int) -> str:
    """Return how a process ended that a signal ended, such as "died by SIGILL (illegal instruction)".

    A signal without a name is given by its number.
    """
    with suppress(ValueError):
        description = strsignal(number) or ""
        return f"died by {Signals(number).name} ({description.lower()})"
    return f"died by signal {number}"
