"""What a command leaves behind: nothing, whatever its threads are doing when it ends."""

import subprocess
import sys
import time
from pathlib import Path

import psutil

from harness import processes
from harness.errors import EngineError
from tests.conftest import ROOT

FORKING = """
import os, sys, threading, time
from pathlib import Path
from harness import processes

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
processes.exit(130, log, {"secret"})
"""


def test_a_log_is_named_only_where_it_says_something(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.touch()
    assert processes.explain(EngineError("it hangs"), log) == "it hangs"
    log.write_text("vLLM starts\n")
    assert processes.explain(EngineError("it hangs"), log) == f"it hangs; more in {log}"


def test_a_thread_that_starts_processes_until_the_end(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    ended = subprocess.run([sys.executable, "-c", FORKING, log], cwd=ROOT, timeout=60)
    assert ended.returncode == 130
    assert "secret" not in log.read_text()
    time.sleep(0.2)
    assert not [p for p in psutil.process_iter(["cmdline"]) if str(log) in (p.info["cmdline"] or [])]
