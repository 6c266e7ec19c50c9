"""No script of benchmarks/ leaves a process running, however it is ended."""

import ast
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.conftest import ROOT, patience

STARTING = {"subprocess", "multiprocessing", "concurrent"}
INSTALLS = "    processes.install_signal_handlers()"


def imported(tree: ast.AST) -> set[str]:
    """The packages that a script imports, wherever."""
    modules = [each.module or "" for each in ast.walk(tree) if isinstance(each, ast.ImportFrom)]
    modules += [alias.name for each in ast.walk(tree) if isinstance(each, ast.Import) for alias in each.names]
    return {name.split(".")[0] for name in modules}


SCRIPTS = [
    path for path in sorted((ROOT / "benchmarks").glob("*.py")) if imported(ast.parse(path.read_text())) & STARTING
]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_that_starts_processes_is_guarded(path: Path) -> None:
    text = path.read_text()
    is_command = "= make_command(" in text and "start(command)" in text and INSTALLS in text  # once it is begun
    assert is_command or text.endswith('\n\nif __name__ == "__main__":\n    start(main)\n')


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_a_script(number: signal.Signals, tmp_path: Path) -> None:
    """A server, and a run of the benchmark that waits for it."""
    words = [sys.executable, "-m", "benchmarks.known_capacity", "--results-dir", str(tmp_path)]
    script = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + patience(60)
    while not list(tmp_path.glob("2*")) and time.monotonic() < until and script.poll() is None:
        time.sleep(0.1)
    begun = psutil.Process(script.pid).children(recursive=True)
    assert len(begun) > 2 and list(tmp_path.glob("2*"))
    script.send_signal(number)
    _, said = script.communicate(timeout=patience(30))
    assert script.returncode == (130 if number == signal.SIGTERM else -number) and "Traceback" not in said
    _, left = psutil.wait_procs(begun, timeout=patience(15))
    assert not [process.cmdline() for process in left]
