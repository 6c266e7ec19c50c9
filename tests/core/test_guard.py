"""What a command started ends with it, however the command dies."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests.conftest import ROOT

# Three children of a command: one with its own session and environment, one that ignores SIGTERM, and a fork.
COMMAND = """
import os, subprocess, sys, time
from harness.core import processes
processes.start_guard()
processes.start_guard()
words = [sys.executable, "-c", "import time; time.sleep(60)"]
deaf = [sys.executable, "-c", "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"]
ids = [subprocess.Popen(words, env={}, start_new_session=True).pid, subprocess.Popen(deaf).pid, os.fork()]
if not ids[-1]:
    os.setsid()
    time.sleep(60)
time.sleep(1)
print(*ids, processes.guards[os.getpid()].pid, flush=True)
time.sleep(float(sys.argv[1]))
"""


def there(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("seconds", ["60", "0"], ids=["killed", "ended"])
def test_nothing_outlives_a_command(seconds: str) -> None:
    command = subprocess.Popen([sys.executable, "-c", COMMAND, seconds], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert command.stdout
    ids = [int(word) for word in command.stdout.readline().split()]
    assert len(ids) == 4
    if seconds == "60":
        assert all(map(there, ids))
        os.kill(command.pid, signal.SIGKILL)
    command.wait()
    until = time.monotonic() + 10
    while any(map(there, ids)) and time.monotonic() < until:
        time.sleep(0.1)
    assert not any(map(there, ids))
