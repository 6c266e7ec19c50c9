"""Load by other programs: noticed, said, and no verdict of a sweep."""

import os
import subprocess
import sys
import time

import pytest

from harness import others
from harness.others import Others

BURN = "import time\nend = time.monotonic() + 60\nwhile time.monotonic() < end: pass"
WATCH = """
import time
from harness import others
with others.watched([], False) as found:
    time.sleep(2)
print(found.cpu_cores, *found.said, sep="\\n")
"""


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_what_this_process_and_its_children_use_is_its_own() -> None:
    before = others.own_s()
    with subprocess.Popen([sys.executable, "-c", BURN]) as child:
        spin(2)
        both = others.own_s() - before
        child.kill()
    assert both > 1.0  # seconds of the processor, on however busy a machine
    assert others.own_s() - before > 1.0  # of a child that has ended, too


def test_what_another_program_uses_is_noticed() -> None:
    # A process of its own looks: to this one, which may adopt orphans by now, the burner is a child.
    with subprocess.Popen([sys.executable, "-c", BURN]) as burner:
        found = subprocess.run([sys.executable, "-c", WATCH], capture_output=True, text=True, check=True)
        burner.kill()
    cores, said = found.stdout.splitlines()
    assert float(cores) > 0.5
    assert "CPU cores during the test" in said


@pytest.mark.skipif(len(others.affinity()) < 2, reason="takes two cores")
def test_what_another_program_uses_of_other_cores_takes_nothing() -> None:
    mine, theirs, *_ = sorted(others.affinity())
    with subprocess.Popen([sys.executable, "-c", BURN]) as burner:
        os.sched_setaffinity(burner.pid, {theirs})
        bound = f"import os\nos.sched_setaffinity(0, {{{mine}}})\n{WATCH}"
        found = subprocess.run([sys.executable, "-c", bound], capture_output=True, text=True, check=True)
        burner.kill()
    assert float(found.stdout.splitlines()[0]) < 0.5


def test_a_gpu_that_others_hold_is_named() -> None:
    assert Others(cpu_cores=1.0, cores=64, gpus=[1], has_gpus=True).said == ["other programs held memory of GPU 1"]
    assert Others(cpu_cores=1.0, cores=64, has_gpus=True).said == []
    assert Others(cpu_cores=0.1, cores=2).said == []
    assert Others(cpu_cores=1.5, cores=2).said == ["other programs used 1.5 of 2 CPU cores during the test"]
