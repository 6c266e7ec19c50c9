"""What .dockerignore lets into the image. `make docker-check` builds it."""

import subprocess
from pathlib import Path

from tests.conftest import ROOT

LEFT_OUT = {".ci", ".github", "benchmarks", "deploy", "docs", "results", "tests", "third_party"}


def test_no_folder_is_forgotten() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {path.split("/")[0] for path in tracked if "/" in path}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert not folders - let_in - LEFT_OUT, "new folders: into .dockerignore with them, or into LEFT_OUT"


def test_a_torch_that_does_not_load_ends_the_set_up(tmp_path: Path) -> None:
    """As where pip finds only the build for CUDA, without its libraries."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" != -c ]\n')  # pip does its work, and nothing can be imported
    python.chmod(0o755)
    ready = f"{tmp_path}/venv/.ready-requirements-cpu.txt"
    made = subprocess.run(
        [
            "make",
            f"VENV={tmp_path}/venv",
            "REQUIREMENTS=requirements-cpu.txt",
            "TORCH_CPU_INDEX=https://other/cpu",
            ready,
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert made.returncode == 2, made.stdout
    assert (
        "torch does not load" in made.stderr and "TORCH_CPU_INDEX" in made.stderr and "https://other/cpu" in made.stderr
    )
    assert not Path(ready).exists()
