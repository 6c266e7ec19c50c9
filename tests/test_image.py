"""What .dockerignore lets into the image, and what the Dockerfile makes of it. `make docker-check` builds it."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path, PurePath

import pytest

from harness.core.software import VERSION
from tests.conftest import ROOT

LEFT_OUT = {".ci", ".github", "benchmarks", "deploy", "docs", "results", "tests", "third_party"}
DOCKERFILE = (ROOT / "Dockerfile").read_text()
CACHES = (
    "XDG_CACHE_HOME",
    "FLASHINFER_WORKSPACE_BASE",
    "TRITON_CACHE_DIR",
)  # of the hub and vLLM, of FlashInfer, of Triton


def tracked() -> list[str]:
    words = ["git", "ls-files", "-co", "--exclude-standard"]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def is_let_in(path: str) -> bool:
    """By Docker's rule: of the patterns that name the path or a folder above it the last decides."""
    let_in = True
    for pattern in (ROOT / ".dockerignore").read_text().split("\n"):
        named = re.escape(pattern.removeprefix("!")).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*")
        holds = any(re.fullmatch(named, str(each)) for each in (PurePath(path), *PurePath(path).parents))
        if holds and pattern and not pattern.startswith("#"):
            let_in = pattern.startswith("!")
    return let_in


def test_no_folder_is_forgotten() -> None:
    folders = {path.split("/")[0] for path in tracked() if "/" in path}
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().split() if line.startswith("!")}
    assert not folders - let_in - LEFT_OUT, "new folders: into .dockerignore with them, or into LEFT_OUT"


def test_what_the_wheel_holds_is_in_the_image() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    sources = (*wheel["packages"], *wheel["force-include"])
    held = [path for path in tracked() if any(PurePath(path).is_relative_to(each) for each in sources)]
    assert len(held) > 100 and not [path for path in held if not is_let_in(path)]
    stages = DOCKERFILE.split("\nFROM base AS ")[1:]
    assert len(stages) == 2 and all("\nCOPY . .\n" in stage for stage in stages)


@pytest.mark.parametrize("path", [".env", ".git/config", "results/a/summary.json", "harness/__pycache__/a.pyc"])
def test_no_secret_and_no_result_is_in_the_image(path: str) -> None:
    assert not is_let_in(path)


def test_a_page_that_the_image_writes_explains_its_terms(tmp_path: Path) -> None:
    for path in filter(is_let_in, tracked()):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / path, tmp_path / path)
    line = "from harness.report import page; print(page.__file__); print(len(page.glossary()))"
    done = subprocess.run([sys.executable, "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    module, terms = done.stdout.split()
    assert module.startswith(str(tmp_path)) and int(terms) > 20


def test_one_volume_keeps_every_cache() -> None:
    caches = {name: value for name, value in re.findall(r"\b([A-Z_]+)=(/cache\S*)", DOCKERFILE) if name in CACHES}
    assert set(caches) == set(CACHES)
    for page in ("README.md", "README.ko.md", "docs/clusters.md", "docs/ko/docker.md"):
        commands = (ROOT / page).read_text().replace("\\\n", "").split("\n")
        starts = [line for line in commands if line.startswith("docker run") and "--gpus" in line]
        assert starts and all(re.search(r"-v \S+:/cache ", line) for line in starts), page


def test_the_image_has_the_version() -> None:
    assert f'org.opencontainers.image.version="{VERSION}"' in DOCKERFILE


def test_a_torch_that_does_not_load_ends_the_set_up(tmp_path: Path) -> None:
    """As where pip finds only the build for CUDA, without its libraries."""
    python = tmp_path / "venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text('#!/bin/sh\n[ "$1" != -c ]\n')  # pip does its work, and nothing can be imported
    python.chmod(0o755)
    ready = f"{tmp_path}/venv/.ready-cpu"
    made = subprocess.run(
        [
            "make",
            f"VENV={tmp_path}/venv",
            "REQUIREMENTS=requirements/cpu.txt",
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
