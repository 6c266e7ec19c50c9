"""The Korean guide says what the English pages say: the same commands, flags, files, messages and bounds."""

import re

import pytest

from tests.conftest import ROOT
from tests.docs.test_readme import ENGLISH, blocks, prose, targets

KOREAN = (ROOT / "README.ko.md").read_text()
COMMENT = re.compile(r"(?:^| +)# (.*)$", re.M)  # in a block of code


def code(text: str) -> list[str]:
    """Fenced code, without its comments, which are translated."""
    return [COMMENT.sub("", block) for block in blocks(text)]


def spans(text: str) -> list[str]:
    """What stands between backticks in the prose, in any order: the languages put words differently."""
    return sorted(re.findall(r"`([^`\n]+)`", prose(text)))


def shape(text: str) -> list[str]:
    """Headings as their depth, list items and table rows as their kind, in order."""
    kinds = re.findall(r"^(#+ |- |\||!\[)", prose(text), re.M)
    return [kind.strip() for kind in kinds]


@pytest.mark.parametrize("aspect", [code, spans, shape])
def test_the_readmes_keep_step(aspect: object) -> None:
    assert aspect(KOREAN) == aspect(ENGLISH)  # type: ignore[operator]


def test_the_readmes_links_are_the_same() -> None:
    assert sorted(targets(KOREAN)) == sorted(targets(ENGLISH))


def test_a_comment_is_found_and_no_code_with_it() -> None:
    text = "```\n# on a line\nmake punkt   # after code\npython run.py --label a#1\n```\n"
    assert code(text) == ["\nmake punkt\npython run.py --label a#1\n"]
