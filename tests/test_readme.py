"""The README in its two languages says the same: headings, commands, flags, links; and what it names exists."""

import re
from pathlib import Path

import pytest

from harness.config import RunConfig
from harness.rules import ROOT
from harness.values import as_flag

ENGLISH, KOREAN = ((ROOT / name).read_text() for name in ("README.md", "README.ko.md"))


def blocks(text: str) -> list[str]:
    """Fenced code, word by word."""
    return re.findall(r"^```\n(.*?)^```$", text, re.M | re.S)


def prose(text: str) -> str:
    return re.sub(r"^```\n.*?^```$", "", text, flags=re.M | re.S)


def code(text: str) -> list[str]:
    """What stands between backticks in the prose, in any order: the languages put words differently."""
    return sorted(re.findall(r"`([^`\n]+)`", prose(text)))


def targets(text: str) -> list[str]:
    return [link for link in re.findall(r"\]\(([^)]+)\)", text) if not link.startswith("README")]


def shape(text: str) -> list[str]:
    """Headings as their depth, list items and table rows as their kind, in order."""
    kinds = re.findall(r"^(#+ |- |\||!\[)", prose(text), re.M)
    return [kind.strip() for kind in kinds]


@pytest.mark.parametrize("part", [blocks, code, shape])
def test_the_languages_keep_step(part: object) -> None:
    assert part(KOREAN) == part(ENGLISH)  # type: ignore[operator]


def test_the_links_are_the_same_and_lead_somewhere() -> None:
    assert sorted(targets(KOREAN)) == sorted(targets(ENGLISH))
    for target in targets(ENGLISH):
        assert (ROOT / target.partition("#")[0]).exists(), target


def test_the_flags_exist() -> None:
    own = {as_flag(name) for name in RunConfig.__dataclass_fields__} | {"--config"}
    table = re.findall(r"^\| (`--.*?) \|", ENGLISH, re.M)
    named = {flag for cell in table for flag in re.findall(r"--[a-z0-9-]+", cell)}
    named |= {
        flag for line in re.findall(r"python run\.py.*", ENGLISH) for flag in re.findall(r" (--[a-z0-9-]+)", line)
    }
    assert len(named) > 20
    assert named <= own | {"--help"}


def test_the_files_it_names_exist() -> None:
    for name in re.findall(r"`((?:sweeps|docs|templates|requirements)[\w./-]*\.(?:md|json|txt))`", ENGLISH):
        assert Path(ROOT / name).exists(), name
