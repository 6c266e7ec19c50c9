"""Ctrl-C at any moment is one line, also while a command is imported."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, ended


@pytest.mark.parametrize("command", ["run.py", "mmlu.py", "sweep.py", "report.py", "util_logs.py"])
def test_ctrl_c_while_a_command_is_imported(command: str) -> None:
    begin = "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler)"
    path = ROOT / command
    code = f"{begin}; sys.modules['__main__'].__file__ = {str(path)!r}; import harness.core.interrupts"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}; os.kill(os.getpid(), signal.SIGINT)"], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (130, "interrupted\n")
    first = [line for line in path.read_text().splitlines() if line.startswith(("import ", "from "))]
    assert first[0] == "import sys" and "harness" in first[1]  # sys is there before Python is


@pytest.mark.parametrize("command", ["-m harness submission", "-m harness accuracy", "-m harness", "util_logs.py"])
def test_ctrl_c_that_nothing_catches_shows_no_stack(command: str, tmp_path: Path) -> None:
    """At every package that is imported: a signal there is what Ctrl-C is."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(name, *more):\n"
        "        if name == os.environ['AT']: os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    for package in ("harness.core.errors", "json"):
        around = os.environ | {"PYTHONPATH": str(tmp_path), "AT": package}
        done = subprocess.run([sys.executable, *command.split()], cwd=ROOT, env=around, capture_output=True, text=True)
        assert done.returncode in (130, -signal.SIGINT) and done.stderr == "interrupted\n", (package, done.stderr)


def test_a_program_that_imports_us_keeps_its_own_ctrl_c() -> None:
    code = "import harness, signal, sys; sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    assert ended("-c", code).returncode == 0
    assert ended("-m", "pytest", "--version").returncode == 0


def test_ctrl_c_in_a_finalizer_comes_again() -> None:
    code = """if True:
        import os, signal, time
        from harness.core.interrupts import enable_interrupts
        enable_interrupts()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Kept:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)
        kept = Kept()
        try:
            del kept
            time.sleep(10)
        except KeyboardInterrupt:
            print("caught")
        class Broken:
            def __del__(self):
                raise ValueError("mine")
        broken = Broken()
        del broken
    """
    done = ended("-c", code)
    assert (done.returncode, done.stdout) == (0, "caught\n")
    assert "KeyboardInterrupt" not in done.stderr and "ValueError: mine" in done.stderr
