"""What a command leaves behind: nothing, whatever its threads are doing when it ends; and what ended its engine."""

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from harness.core.errors import EngineError
from harness.runs import ending
from tests.conftest import ROOT

FORKING = """
import os, sys, threading, time
from pathlib import Path
from harness.core import secrets
from harness.runs import ending

def fork():
    while True:
        if not os.fork():
            time.sleep(60)
            os._exit(0)
        time.sleep(0.001)

threading.Thread(target=fork, daemon=True).start()
time.sleep(0.1)
log = Path(sys.argv[1])
log.write_text("secret " * 2_000_000)  # hiding it takes a while
secrets.noted_secrets.add("secret")
ending.exit(130, log)
"""


def test_a_log_is_named_only_where_it_says_something(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.touch()
    assert ending.explain(EngineError("it hangs"), log) == "it hangs"
    log.write_text("vLLM starts\n")
    assert ending.explain(EngineError("it hangs"), log) == f"it hangs; more in {log}"


def test_a_thread_that_starts_processes_until_the_end(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    ended = subprocess.run([sys.executable, "-c", FORKING, log], cwd=ROOT, timeout=60)
    assert ended.returncode == 130
    assert "secret" not in log.read_text()
    time.sleep(0.2)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(log) in (p.info["cmdline"] or [])]


def test_a_log_that_cannot_be_written_changes_no_exit_code(tmp_path: Path) -> None:
    (log := tmp_path / "engine.log").write_text("secret")
    code = f"from pathlib import Path; from harness.core import secrets; from harness.runs import ending; {REFUSED}"
    done = subprocess.run([sys.executable, "-c", code, log], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (3, "")


REFUSED = """import errno, sys
def refused(path, data): raise OSError(errno.EROFS, "Read-only file system", str(path))
Path.write_bytes = refused
secrets.noted_secrets.add("secret")
ending.exit(3, Path(sys.argv[1]))
"""
DIED = (
    "(EngineCore pid=7) ERROR 11-23 16:18:39 [x.py:315] Worker proc VllmWorker-3 died unexpectedly (exit code: {}), so"
)
FATAL = """Fatal Python error: Illegal instruction

Thread 0x01 (most recent call first):
  File "/a/other.py", line 1 in wait

Current thread 0x02 (most recent call first):
  File "/a/attention.py", line 12 in forward
  File "/a/model.py", line 7 in run
"""
PLACE = " in forward, /a/attention.py:12"
CANCELLED = "(EngineCore pid=7) ERROR [core.py:1512] RuntimeError: cancelled"


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ([DIED.format(-9), CANCELLED], "worker 3 died by SIGKILL (killed)"),
        ([DIED.format(-250), CANCELLED], "worker 3 died by signal 250"),
        (
            [FATAL, CANCELLED, DIED.format(None)],
            "worker 3 died by SIGILL (illegal instruction)" + PLACE,
        ),
        ([FATAL, CANCELLED], "a process of it died by SIGILL (illegal instruction)" + PLACE),
        ([DIED.format(None), CANCELLED], "worker 3 died"),
        ([DIED.format(None), "ValueError: no such layer"], "ValueError: no such layer"),
        ([CANCELLED], ""),
        ([DIED.format(1), "ValueError: no such layer"], "ValueError: no such layer"),
        (["all is well"], ""),
    ],
)
def test_what_ended_an_engine(log: list[str], cause: str, tmp_path: Path) -> None:
    path = tmp_path / "engine.log"
    path.write_text("\n".join(log))
    assert ending.root_cause(path) == cause


def test_workers_on_a_cpu_ask_for_amx() -> None:
    asked = "import torch; torch.cpu._init_amx = lambda: print('asked'); import harness.engines.worker"
    assert subprocess.run([sys.executable, "-c", asked], cwd=ROOT, capture_output=True).stdout == b"asked\n"


@pytest.mark.parametrize(("name", "is_result"), [("engine.log", False), ("Performance/mlperf_log_detail.txt", True)])
def test_a_run_that_measured_nothing_has_no_partial_results(tmp_path: Path, name: str, is_result: bool) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("a line\n")
    assert ending.has_results(tmp_path) is is_result
