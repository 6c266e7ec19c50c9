"""Every command that the pages print is one: its program, its flags, and what it makes of them."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import Any

import pytest

from harness.__main__ import main
from harness.commands import COMMANDS
from harness.config.config_command import config_command
from harness.config.run import RunConfig
from harness.core import command, startup
from harness.mmlu.mmlu_config import MMLUConfig
from tests.conftest import ROOT, called
from tests.docs.test_readme import FOLDERS, PAGES

CONFIGS: dict[str, Any] = {"run.py": RunConfig, "mmlu.py": MMLUConfig}
EXAMPLES = {"URL": "http://host:8000/v1", "N": "2", "S": "2", "[NAME": "chat"}  # for what a reader puts there
WITH_PARTS = ("submission",)  # commands whose first word has flags of its own


def printed(text: str) -> Iterator[list[str]]:
    """The commands of this repository in a page, word by word, with the variables that a block of code sets."""
    fenced = re.findall(r"^```\w*\n(.*?)^```$", text, re.M | re.S)
    inline = re.findall(r"`([^`\n]+)`", re.sub(r"^```.*?^```$", "", text, flags=re.M | re.S))
    for block in [*fenced, *inline]:
        known = dict(re.findall(r"^(\w+)=\"(.*)\"$", block, re.M))
        lines = re.sub(r"\\\n\s*", "", block).splitlines()
        for line in lines:
            filled = line
            for name, value in known.items():
                filled = filled.replace(f"${name}", value)
            yield from commands(filled.removeprefix("$ "))


def commands(line: str) -> Iterator[list[str]]:
    line = line.replace("llama31-mlperf run", "python run.py").replace(" 2>&1", "")  # as `pip install .` calls it
    found = re.search(rf"\bpython3? ((?:-m (?:{FOLDERS})\b|[a-z_]+\.py\b)(?:'[^']*'|[^`|>;&)'])*)", line)
    if found:
        words = shlex.split(found[1].partition(" #")[0].replace("[--", "--").replace("]", "").replace("…", ""))
        yield [word for word in words if not word.startswith("...")]


FOUND = sorted(  # by command: what several pages print is asked for its help in one process of the tests
    {(page.name, shlex.join(words)) for page in PAGES for words in printed(page.read_text())},
    key=lambda found: found[::-1],
)


def test_commands_are_found() -> None:
    assert len(FOUND) > 60
    assert {"run.py", "mmlu.py", "sweep.py", "report.py"} <= {command.split()[0] for _, command in FOUND}
    assert ("serving.md", "-m benchmarks.endpoint") in FOUND


@pytest.mark.parametrize(("page", "printed_command"), FOUND)
def test_a_printed_command_is_one(page: str, printed_command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program, *words = shlex.split(printed_command)
    if program == "-m":
        program, words = f"-m {words[0]}", words[1:]
    if program in CONFIGS:
        assert is_accepted(program, [EXAMPLES.get(word, word) for word in words], monkeypatch) != [], printed_command
    elif flags := [word.partition("=")[0] for word in words if word.startswith("--")]:
        parts = 2 if words[0] in WITH_PARTS else int(program == "-m harness")
        known = help_of(program, " ".join(words[:parts]))
        assert set(flags) <= known, printed_command
    else:
        name = program.removeprefix("-m ").replace(".", "/").removesuffix("/py")
        assert (ROOT / f"{name}.py").exists() or (ROOT / name / "__main__.py").exists(), printed_command


def is_accepted(program: str, words: list[str], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What became of a command line: its settings could be made, or not."""
    made: list[str] = []
    monkeypatch.setattr(startup, "prepare", lambda: None)
    monkeypatch.setattr(sys, "argv", [program, *words])
    with pytest.raises(SystemExit):
        command.start(config_command(CONFIGS[program], lambda config: made.append("made"), ""))
    return made or ["help"] * (words in (["--help"], ["--help-all"], ["--version"]))


@cache
def help_of(program: str, part: str) -> set[str]:
    """The flags in a program's help; our commands show it in this process."""
    words = [*part.split(), "--help"]
    name = "" if program == "-m harness" else program.removesuffix(".py")
    if name in ("", *COMMANDS):
        said = called(partial(main, name), program, *words)
    else:
        said = subprocess.run([sys.executable, *program.split(), *words], cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stderr
    return set(re.findall(r"--[a-z][a-z-]*", said.stdout))


@pytest.mark.slow
def test_the_clients_benchmark_runs() -> None:
    words = ["-m", "benchmarks.endpoint", "2", "1000", "1"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["2", "1", "1,000"]
