"""What pages show as output was printed by a command, which stands above it."""

import re
from pathlib import Path

import pytest

from docs.generate import screens
from tests.docs.test_readme import PAGES

SHOWN = re.compile(r"^```\n\$ ", re.M)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_output_on_a_page_is_made(page: Path) -> None:
    text = page.read_text()
    assert len(screens.BLOCK.findall(text)) == len(SHOWN.findall(text))


def test_an_output_is_made_again() -> None:
    block = f"before\n{screens.BLOCK_COMMENT}\n```\n$ echo {{}}; pwd\nold\n```\nafter\n"
    made = screens.page(block.replace("{}", "one"))
    assert made.startswith("before\n") and made.endswith("\n```\nafter\n")
    assert "$ echo one; pwd\none\n" in made and "old" not in made
    assert screens.page("```\n$ echo one\nold\n```\n") == "```\n$ echo one\nold\n```\n"
