"""Every line that a page, a message or the Makefile prints for pip is one that pip can read."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from harness.runner.doctor import LOCKS
from tests.conftest import ROOT

PAGES = ["README.md", "README.ko.md", "CONTRIBUTING.md", "Makefile"]
PAGES += [str(path.relative_to(ROOT)) for path in ROOT.glob("docs/**/*.md") if "runs" not in path.parts]
PAGES += [str(path.relative_to(ROOT)) for path in (ROOT / "harness").rglob("*.py")]
INSTALL = re.compile(r"pip install ((?:[^\s`'\"|&;,\\#]+ ?)+)")
VARIABLE = re.compile(r"[$%{]|<|NAME|\(")
# pip's words for what it cannot read; a package that no index gives is none of them.
UNREADABLE = (
    "No such file",
    "Could not open",
    "no such option",
    "Invalid requirement",
    "ERROR: You must give",
    "Usage:",
)


def install_lines() -> dict[str, str]:
    """Return the arguments of each printed line, with the file that prints it."""
    lines = {}
    for name in PAGES:
        for arguments in INSTALL.findall((ROOT / name).read_text()):
            words = arguments.strip().rstrip(".)") or "."
            if not VARIABLE.search(words):
                lines[words] = name
    for install in LOCKS.values():
        lines[install.format("")] = "harness/runner/doctor.py"
    return lines


LINES = install_lines()


def test_lines_are_found() -> None:
    assert "-r requirements.txt -c requirements/constraints-gpu.txt" in LINES
    assert len(LINES) > 5


@pytest.mark.parametrize("arguments", sorted(LINES))
def test_pip_reads_a_printed_line(arguments: str, tmp_path: Path) -> None:
    words = [word for word in shlex.split(arguments) if word not in ("-e", ".", "-q")]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps", "--no-input"]
    done = subprocess.run([*command, *(words or ["pip"])], cwd=ROOT, capture_output=True, text=True, check=False)
    assert not [fault for fault in UNREADABLE if fault in done.stderr], done.stderr


def test_a_file_that_is_not_there_is_seen() -> None:
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "-r", "requirements-gone.txt"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert [fault for fault in UNREADABLE if fault in done.stderr]
