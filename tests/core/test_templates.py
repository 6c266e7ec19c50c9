"""The pages' templates: short lines, and no arithmetic; numbers come in as they are shown."""

import re
from pathlib import Path

import pytest

from harness.core.formatting import number, percent
from harness.core.locations import ROOT
from harness.core.markdown import MarkdownText
from harness.core.tables import Table

TEMPLATES = sorted((ROOT / "templates").rglob("*.j2"))
LONGEST = 300  # characters
TAGS = re.compile(r"{[{%](.*?)[}%]}", re.S)
TEXT = re.compile(r"\"[^\"]*\"|'[^']*'")
ARITHMETIC = re.compile(r"\d\s*[*/+]|[*/+]\s*\d|[\w)\]]\s+[-*/]\s+[\w(]|\s\+\s+\w")


def sums(text: str) -> list[str]:
    """What is reckoned within the tags of a template; texts may be put together."""
    return [tag for tag in TAGS.findall(text) if ARITHMETIC.search(TEXT.sub("", tag))]


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_a_template_has_short_lines_and_reckons_nothing(path: Path) -> None:
    text = path.read_text()
    assert [line for line in text.splitlines() if len(line) > LONGEST] == []
    assert sums(text) == []


def test_what_is_reckoned_is_found() -> None:
    for tag in (
        "{{ 100 * share }}",
        "{{ (price / 0.0036 / speed) | number }}",
        "{% if a | length - b > 0 %}",
        "{{ a + b }}",
    ):
        assert sums(tag)
    assert not sums('{{ ", " ~ name if name }}{{ a or "1 + 1" }}')


def test_a_table_is_made_of_items_and_escapes_what_they_say() -> None:
    each = Path("a|b<i>\n"), Path("c")
    columns = {
        "name": "name",
        "%": lambda path: percent(0.123),
        "n": lambda path: 12345,
        "link": lambda path: MarkdownText("[x](y|z)"),
    }
    assert str(Table.from_items(each, columns)).splitlines() == [
        "| name | % | n | link |",
        "|------|---|---|------|",
        "| a\\|b&lt;i> | 12.30 | 12,345 | [x](y|z) |",
        "| c | 12.30 | 12,345 | [x](y|z) |",
    ]
    assert str(Table(["a"], [[None], [1.23456]])).splitlines()[2:] == ["| – |", f"| {number(1.23456)} |"]
    assert percent(None) == "–" and percent(0.5, 0) == "50"
