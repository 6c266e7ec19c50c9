"""docs/comparability.md has what each tool means by its figures, and what each comparison asks two runs to share."""

from docs.generate import comparability as pages
from harness.config import comparability
from harness.config.comparability import Comparable


def test_the_sections_are_current() -> None:
    assert len(pages.SECTION.findall(pages.PAGE.read_text())) == 2
    assert pages.PAGE.read_text() == pages.page(), "run python -m docs.generate.comparability"


def test_each_aspect_is_explained_and_each_ignored_name_is_one() -> None:
    aspects = [*Comparable._fields]
    assert aspects == list(pages.MEANING)
    known = {*aspects, *(name for names in pages.NAMES.values() for name in names)}
    assert {name for ignored in pages.COMPARISONS.values() for name in ignored} <= known


def test_a_cell_says_what_is_ignored() -> None:
    assert pages.cell("machine", ("machine",)) == "any"
    assert pages.cell("machine", ("driver", "scenario")) == "the same but: driver"
    assert pages.cell("work", ("scenario",)) == "the same but: --scenario"
    assert pages.cell("validity", (comparability.INVALID,)) == "none but: INVALID by LoadGen"
