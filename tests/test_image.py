"""What .dockerignore lets into the image. `make docker-check` builds it."""

import subprocess

from tests.conftest import ROOT

LEFT_OUT = {".ci", "benchmarks", "docs", "results", "tests", "third_party"}


def test_no_folder_is_forgotten() -> None:
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    folders = {path.split("/")[0] for path in tracked if "/" in path}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert not folders - let_in - LEFT_OUT, "new folders: into .dockerignore with them, or into LEFT_OUT"
