"""Every command that the pages print is one: its program, its flags, and what it makes of them."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest

from harness.__main__ import command_of
from harness.commands import COMMANDS
from harness.config import server_addresses
from harness.config.config_command import config_command
from harness.config.run import RunConfig
from harness.core import command, startup
from harness.core.errors import UsageError
from harness.mmlu.mmlu_config import MMLUConfig
from tests.conftest import ROOT, patience
from tests.docs.test_readme import FOLDERS, PAGES

CONFIGS: dict[str, Any] = {"run.py": RunConfig, "mmlu.py": MMLUConfig}
EXAMPLES = {"URL": "http://host:8000/v1", "N": "2", "S": "2", "[NAME": "chat"}  # for what a reader puts there
# A module without a command of its own is no script.
BENCHMARKS = sorted(
    path.stem for path in (ROOT / "benchmarks").glob("*.py") if '__name__ == "__main__"' in path.read_text()
)


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
        return
    filled = [EXAMPLES.get(word, word) for word in words]
    if program.startswith("-m benchmarks."):
        parse_script(program.removeprefix("-m "), filled)
    elif program == "-m harness" and words and words[0] in COMMANDS:
        parse_command(words[0], filled[1:])
    elif program.removesuffix(".py") in COMMANDS and words:
        parse_command(program.removesuffix(".py"), filled)
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


def parse_command(name: str, words: list[str]) -> None:
    """Read the arguments of one of our commands, and of the command below it, as it does before it begins."""
    found = command_of(name)
    if words and words[0] in getattr(found, "commands", {}):
        found, words = found.commands[words[0]], words[1:]
    if words and not set(words) & {"-h", "--help", "--help-all"}:  # else a page only names the command
        found.make_context(name, words)


def parse_script(name: str, words: list[str]) -> None:
    """Read the arguments of a script of benchmarks/."""
    module = import_module(name)
    if not words:  # a page only names it
        return
    if hasattr(module, "parser"):
        module.parser().parse_args(words)
    else:
        module.command.make_context(name, words)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_says_how_it_is_used(name: str) -> None:
    words = [sys.executable, "-m", f"benchmarks.{name}", "--help"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=patience(60))
    assert done.returncode == 0 and done.stdout.startswith("usage: "), done.stderr


def test_an_address_is_a_path_only_where_a_path_is_wanted() -> None:
    parse_script("benchmarks.crosscheck", ["--endpoint", "http://host:8000/v1", "--model", "demo"])
    with pytest.raises(UsageError, match="--results-dir takes no address"):
        parse_command("runs", ["--results-dir", "http://host/results"])


@pytest.mark.parametrize("query", ["", "?", "?gpu=", "?gpu=,", "?host=", "?gpu=&host=node", "?gpu=0&host="])
def test_an_empty_list_of_gpus_names_none(query: str) -> None:
    with pytest.raises(UsageError, match="name the server's GPUs"):
        server_addresses.parse_exporter_address(f"http://host:9400/metrics{query}")


@pytest.mark.slow
def test_the_clients_benchmark_runs() -> None:
    words = ["-m", "benchmarks.endpoint", "--row", "2", "1000", "1"]
    done = subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[:3] == ["2", "1", "1,000"]
