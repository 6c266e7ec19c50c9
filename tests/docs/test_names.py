"""The names of code on the pages for developers are there: files, modules, functions, classes and tables."""

import re
from functools import cache
from pathlib import Path

import pytest

from tests.conftest import ROOT

PAGES = ("CONTRIBUTING.md", "docs/reference/architecture.md")
FOLDERS = ("harness", "docs", "tests", "benchmarks", ".github")
PATH_PATTERN = re.compile(r"(?:\.?[\w-]+/)+[\w.-]*|[\w-]+\.(?:py|csv|md|toml|txt|yml|json|jsonl)")
NAME_PATTERN = re.compile(r"[A-Z]{3,}[A-Z_]*|(?:[A-Z][a-z]+){2,}[A-Za-z]*")  # a constant, a class
DOTTED_PATTERN = re.compile(r"(?:[a-z_0-9]+\.)+\w+")
EXAMPLES = ("NAME", "PAGE", "PYTHON")  # stand for a name of the reader's
OF_A_RUN = ("summary.json", "report.md", "config.json", "status.json", "history.jsonl", "engine.log", "report.html")


@cache
def sources() -> str:
    """The text of all code but this file, which names what is gone."""
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    return "\n".join(path.read_text() for path in paths if path != Path(__file__))


def words_of(page: str) -> list[str]:
    """The texts in backticks outside blocks of commands."""
    text = re.sub(r"(?s)```.*?```", "", (ROOT / page).read_text())
    return re.findall(r"`([^`]+)`", text)


def is_there(word: str) -> bool:
    if any(example in word for example in EXAMPLES) or word in OF_A_RUN:
        return True
    if PATH_PATTERN.fullmatch(word):
        return any((place / word).exists() for place in (ROOT, ROOT / "harness"))
    if NAME_PATTERN.fullmatch(word):
        return re.search(rf"\b{word}\b", sources()) is not None
    if DOTTED_PATTERN.fullmatch(word):
        return has_module(word)
    return True


def has_module(word: str) -> bool:
    """Whether a dotted name is a module of the program, or something that a module has."""
    if word.startswith("docs."):
        return (ROOT / f"{word.replace('.', '/')}.py").exists()
    *modules, last = word.split(".")
    path = ROOT / "harness" / "/".join([*modules, last])
    if path.is_dir() or path.with_suffix(".py").exists():
        return True
    module = (ROOT / "harness" / "/".join(modules)).with_suffix(".py")
    package = ROOT / "harness" / "/".join(modules) / "__init__.py"
    return any(file.exists() and re.search(rf"\b{last}\b", file.read_text()) for file in (module, package))


@pytest.mark.parametrize("page", PAGES)
def test_every_name_of_code_is_there(page: str) -> None:
    words = words_of(page)
    assert len(words) > 30
    assert [word for word in words if not is_there(word)] == []


@pytest.mark.parametrize("word", ["IMITATED", "harness/config/gone.py", "runner.gone", "GoneFromHere", "core/gone.py"])
def test_a_name_that_is_gone_is_found(word: str) -> None:
    assert not is_there(word)
