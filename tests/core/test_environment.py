"""A command outside its environment says so in one line; errors go where errors belong."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT

COMMANDS = ("run.py", "mmlu.py", "sweep.py", "report.py")
OLD = "import sys; sys.version_info = (3, 9, 18); import harness"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_python_without_the_packages_is_told_in_one_line(command: str) -> None:
    done = outside(command, "--help")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
    assert ".venv/bin/python" in done.stderr


def test_an_old_python_is_told_in_one_line() -> None:
    done = outside("-c", OLD)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1 and "3.11 or later" in done.stderr


def test_logs_are_read_without_any_package() -> None:
    assert outside("util_logs.py", "--help").returncode == 0


def outside(*words: str) -> subprocess.CompletedProcess[str]:
    """A Python that has nothing but its own library."""
    return subprocess.run([sys.executable, "-S", "-B", *words], cwd=ROOT, capture_output=True, text=True, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "flags"),
    [
        ("run.py", ("--endpoint", "http://127.0.0.1:9/v1", "--mode", "performance")),
        ("mmlu.py", ("--data", "demo/nothing-there")),
    ],
)
def test_errors_of_a_run_are_on_standard_error(tmp_path: Path, command: str, flags: tuple[str, ...]) -> None:
    words = [sys.executable, command, "--model", "demo", "--results-dir", str(tmp_path), *flags]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert done.stderr.startswith("error: ") and "run folder: " in done.stderr
    assert "error" not in done.stdout.replace(str(tmp_path), "")
    assert list(tmp_path.rglob("status.json"))


@pytest.mark.parametrize("command", [*COMMANDS, "util_logs.py"])
def test_a_script_finds_its_package_where_python_does_not_look_beside_it(command: str) -> None:
    """PYTHONSAFEPATH keeps the folder of a script out of the path."""
    words = [sys.executable, str(ROOT / command), "-h"]
    done = subprocess.run(words, cwd="/", env={**os.environ, "PYTHONSAFEPATH": "1"}, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
