"""Pages that are made are wrapped once; what is no running text stays as it is."""

from pathlib import Path

import pytest

from docs.generate.wrapping import WIDTH, wrapped
from tests.conftest import ROOT

WORDS = "word " * 40
MADE = ("reference/flags.md", "reference/metrics.md", "comparability.md", "evidence/performance.md")


@pytest.mark.parametrize("name", MADE)
def test_a_page_that_is_made_is_wrapped(name: str) -> None:
    text = (ROOT / "docs" / name).read_text()
    assert wrapped(text) == text


def test_a_paragraph_is_filled_and_a_second_time_stays() -> None:
    text = wrapped(f"one\ntwo {WORDS}\n\n- item {WORDS}\n  more\n- next\n\n> quote {WORDS}\n> of it\n")
    assert wrapped(text) == text and all(len(line) <= WIDTH for line in text.split("\n"))
    paragraph, items, quote = text.strip().split("\n\n")
    assert paragraph.startswith("one two word")
    assert [line[:2] for line in items.split("\n")] == ["- ", "  ", "- "] and "word more" in items
    assert {line[:2] for line in quote.split("\n")} == {"> "}


def test_code_tables_headings_and_comments_stay() -> None:
    text = f"# {WORDS}\n\n| {WORDS}|\n|---|\n\n```\n{WORDS}\n- {WORDS}\n```\n<!-- {WORDS}-->\n![{WORDS}](x.png)\n"
    assert wrapped(text) == text


def test_a_span_of_code_stays_on_one_line() -> None:
    assert "`python run.py --model demo`" in wrapped(f"{'x' * 110} `python run.py --model demo` end")


def test_the_program_rewrites_a_page(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(f"a\nb\n{WORDS}\n")
    assert wrapped(page.read_text()).startswith("a b word")
