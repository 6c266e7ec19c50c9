"""One application: a sub-command each, and what is installed of it."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from harness.__main__ import COMMANDS, command_of, main
from harness.core.moved_commands import REPLACEMENTS
from harness.core.software import PROGRAM_NAME, VERSION
from tests.conftest import ROOT, called, ended


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_way_in(name: str) -> None:
    assert command_of(name).params is not None


@pytest.mark.parametrize("word", REPLACEMENTS)
def test_what_an_earlier_version_had_ends_in_a_line_with_what_serves_now(word: str) -> None:
    ways = [("run", word, "1"), ("mmlu", word)] if word.startswith("--") else [(word,), ("submission", word)]
    for words in ways:
        done = called(main, PROGRAM_NAME, *words)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1)
        assert REPLACEMENTS[word] in done.stderr


@pytest.mark.parametrize("word", [word for word in REPLACEMENTS if word.startswith("--")])
def test_a_setting_that_an_earlier_version_had_is_refused_in_a_file_with_what_serves_now(
    word: str, tmp_path: Path
) -> None:
    name, mine = word.removeprefix("--"), tmp_path / "mine.yaml"
    for key in (name, name.replace("-", "_")):
        for words, text in ((("run", "--config"), f"{key}: 1\n"), (("sweep",), f"grid: {{set: {{{key}: [1, 2]}}}}\n")):
            mine.write_text(text)
            done = called(main, PROGRAM_NAME, *words, str(mine), "--results-dir", str(tmp_path / "results"))
            assert (done.returncode, done.stderr.count("\n")) == (2, 1)
            assert REPLACEMENTS[word] in done.stderr and "mine.yaml" in done.stderr


@pytest.mark.parametrize("asked", ["source_bash", "source_zsh", "source_fish"])
def test_a_shell_completes_the_installed_command(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("_LLAMA31_MLPERF_COMPLETE", asked)
    done = called(main, PROGRAM_NAME)
    assert done.returncode == 0 and PROGRAM_NAME in done.stdout
    monkeypatch.setenv("_LLAMA31_MLPERF_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", f"{PROGRAM_NAME} run --scen")
    monkeypatch.setenv("COMP_CWORD", "2")
    assert called(main, PROGRAM_NAME).stdout.split() == ["--scenario"]


@pytest.mark.parametrize(
    "words", [("-h",), ("--help",), ("run", "-h"), ("report", "-h"), ("logs", "-h"), ("sweep", "-h")]
)
def test_help_is_everywhere(words: tuple[str, ...]) -> None:
    done = ended("-m", "harness", *words)
    assert (done.returncode, done.stderr) == (0, "") and "usage" in done.stdout.lower()


@pytest.mark.parametrize("door", ["run.py", "mmlu.py", "sweep.py", "report.py", "util_logs.py"])
def test_the_doors_know_the_short_flag(door: str) -> None:
    assert ended(door, "-h").returncode == 0


def test_a_misspelt_command_is_a_line() -> None:
    done = ended("-m", "harness", "swep")
    assert done.returncode == 2 and "did you mean sweep?" in done.stderr


def test_no_command_is_wrong_usage() -> None:
    assert ended("-m", "harness").returncode == 2


def test_the_version_names_loadgen() -> None:
    done = ended("-m", "harness", "--version")
    assert done.stdout.startswith(f"{PROGRAM_NAME} {VERSION}") and "mlcommons-loadgen 6" in done.stdout
    assert ended("run.py", "--version").stdout == done.stdout


def test_what_is_installed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert (project["project"]["name"], project["project"]["version"]) == (PROGRAM_NAME, VERSION)
    assert project["project"]["scripts"] == {PROGRAM_NAME: "harness.__main__:main"}
    data = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert all((ROOT / path).exists() for path in data)
    assert not {"torch", "vllm"} & set(project["project"]["dependencies"])


SLOW_MODULES = ("rich.console", "ctypes", "numpy", "torch", "transformers", "matplotlib", "aiohttp")


@pytest.mark.parametrize("script", ["run.py", "mmlu.py"])
def test_help_waits_for_no_slow_module(script: str) -> None:
    command = [sys.executable, "-X", "importtime", script, "-h"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")}
    assert "harness.config" in imported
    assert [module for module in SLOW_MODULES if module in imported] == []
