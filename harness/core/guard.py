"""Ends what a command leaves behind, however it dies: its own program, whose standard input that command alone
holds open.

Until the end of its input it notes the processes below the command, and those whose ids it reads, which are forks that
have just begun. At the end these, what they started, and whatever was started with the command's mark in its
environment are asked to end, and killed if they do not. (vLLM's processes write their titles over their environments.)
"""

import contextlib
import os
import select
import signal
import sys
import time

GUARD_GRACE_S = 3.0
SHORTEST_LOOK_S, LONGEST_LOOK_S = 0.25, 4.0  # between two looks; the pause grows while nothing changes
Processes = dict[int, tuple[int, str]]  # processes by id: the parent's id, and when it began, as the kernel counts


def main(command: int, mark: str) -> None:
    """End what a command left behind, once the command's end of the pipe is closed."""
    ignore_signals()
    noted = watch(command)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in remaining_processes(noted, mark):
            with contextlib.suppress(OSError):
                os.kill(pid, number)
        until = time.monotonic() + GUARD_GRACE_S
        while remaining_processes(noted, mark) and time.monotonic() < until:
            time.sleep(0.05)


def ignore_signals() -> None:
    """Ignore the signals that would end this process. All that it still does is to end other processes."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def watch(command: int) -> dict[int, str]:
    """Note the processes below a command until the standard input ends.

    Return them by id, with the time when each began.
    """
    noted = dict[int, str]()
    pause = SHORTEST_LOOK_S
    while True:
        line = ""
        ready, _, _ = select.select([sys.stdin], [], [], pause)
        if ready:
            line = sys.stdin.readline()
            if not line:
                return noted
        table = running_processes()
        pids = descendants(table, {command})
        if line and int(line) in table:
            pids.add(int(line))  # a fork that has just begun
        started = {pid: table[pid][1] for pid in pids}
        pause = min(2 * pause, LONGEST_LOOK_S)
        if started.items() - noted.items():
            pause = SHORTEST_LOOK_S
        noted |= started


def remaining_processes(noted: dict[int, str], mark: str) -> list[int]:
    """Return the ids of the command's processes that are still running."""
    table = running_processes()
    mine = set()
    for pid, start in noted.items():
        if pid in table and table[pid][1] == start:
            mine.add(pid)
    marked = {pid for pid in table if is_marked(pid, mark.encode())}
    return sorted(mine | descendants(table, mine) | marked)


def descendants(table: Processes, roots: set[int]) -> set[int]:
    """Return the ids of the processes that descend from `roots`, without this process."""
    below = set[int]()
    generation = roots
    while generation:
        children = {pid for pid, (parent, _) in table.items() if parent in generation}
        generation = children - below - {os.getpid()}
        below |= generation
    return below


def running_processes() -> Processes:
    """Return all processes of this machine that have not ended."""
    table = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                state, parent, *rest = file.read().rpartition(")")[2].split()
        except OSError:
            continue
        if state != "Z":
            table[int(name)] = int(parent), rest[17]
    return table


def is_marked(pid: int, mark: bytes) -> bool:
    """Return whether a process was started with the mark among its environment variables."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except OSError:
        return False


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
