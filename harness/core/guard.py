"""The guard: a separate process that ends what a command leaves behind, however the command dies.

Only the command holds the guard's standard input open, so its end shows that the command died. Until then the guard
notes the processes below the command, and the forks whose ids it reads from its input. At the end it ends these, what
they started, and whatever was started with the command's mark in its environment. It sends SIGTERM, then SIGKILL. The
mark alone does not suffice, since vLLM's processes write their titles over their environments.
"""

import contextlib
import os
import select
import signal
import sys
import time

GUARD_GRACE_S = 3.0
SHORTEST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 4.0  # between two looks at the processes
Processes = dict[int, tuple[int, str]]  # the parent's id and the start time, in the kernel's ticks, by process id


def main(command: int, mark: str) -> None:
    """Wait until a command has closed its end of the pipe, then end what it left behind.

    `command` is a process id. `mark` is NAME=VALUE of a variable in the environment of the processes that the command
    started.
    """
    ignore_signals()  # A signal that ends the command must not end its guard.
    noted = watch(command)  # waits until the command has ended
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        for pid in remaining_processes(noted, mark):
            with contextlib.suppress(OSError):
                os.kill(pid, signal_number)
        end_of_grace = time.monotonic() + GUARD_GRACE_S
        while remaining_processes(noted, mark) and time.monotonic() < end_of_grace:
            time.sleep(0.05)


def ignore_signals() -> None:
    """Ignore the signals that would end the guard. It must outlive the command, and ends by itself soon after it."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def watch(command: int) -> dict[int, str]:
    """Note the processes below a command until the standard input ends, which shows that the command has ended.

    A line of the input is the id of a new fork of the command. Return the start time of each noted process, by process
    id.
    """
    noted = dict[int, str]()
    pause = SHORTEST_PAUSE_S
    while True:
        line = ""
        has_input, _, _ = select.select([sys.stdin], [], [], pause)  # waits for a line, at most for the pause
        if has_input:
            line = sys.stdin.readline()
            if not line:  # the end of the input
                return noted
        table = running_processes()
        pids = descendants(table, {command})
        if line and int(line) in table:
            pids.add(int(line))  # a fork whose parent has died is no longer below the command
        start_times = {pid: table[pid][1] for pid in pids}
        has_new_process = bool(start_times.items() - noted.items())  # also if a new one has the id of an old one
        noted |= start_times
        # More processes may follow a new one soon.
        pause = SHORTEST_PAUSE_S if has_new_process else min(2 * pause, LONGEST_PAUSE_S)


def remaining_processes(noted: dict[int, str], mark: str) -> list[int]:
    """Return the ids of the command's processes that are still running.

    They are the processes in `noted` (start times by id) that still run, all processes below these, and those with the
    command's mark in their environment.
    """
    table = running_processes()
    still_running = set()
    for pid, noted_start in noted.items():
        if pid not in table:
            continue
        _parent, start = table[pid]
        if start == noted_start:  # With another start time, it is a new process that got the id of an old one.
            still_running.add(pid)
    marked = {pid for pid in table if is_marked(pid, mark.encode())}
    return sorted(still_running | descendants(table, still_running) | marked)


def descendants(table: Processes, roots: set[int]) -> set[int]:
    """Return the ids of the processes that descend from `roots`, except this process, the guard."""
    below = set[int]()
    generation = roots
    while generation:
        children = {pid for pid, (parent, _) in table.items() if parent in generation}
        generation = children - below - {os.getpid()}
        below |= generation
    return below


def running_processes() -> Processes:
    """Return the parent and the start time of each process of this machine, by process id. Zombies are left out."""
    table = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                # The name of the program, which may have spaces, is in parentheses before these fields.
                state, parent, *later_fields = file.read().rpartition(")")[2].split()
        except OSError:  # the process ended meanwhile
            continue
        start_time = later_fields[17]  # field 22 of proc(5), of which `later_fields` begins with field 5
        if state != "Z":
            table[int(name)] = int(parent), start_time
    return table


def is_marked(pid: int, mark: bytes) -> bool:
    """Return whether a process was started with the mark among its environment variables. False if it has ended."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
