"""Values that a user gave: hints at how a name is spelled."""

from harness.core.formatting import alternatives
from harness.core.given_values import spelling_hint


def test_a_hint_disregards_the_case() -> None:
    assert spelling_hint("SEED", ["seed", "label"]) == "; did you mean seed?"
    assert spelling_hint("lavel", ["seed", "Label"]) == "; did you mean Label?"
    assert spelling_hint("zzz", ["seed", "label"]) == "."


def test_the_last_of_several_alternatives_follows_or() -> None:
    texts = [alternatives(["a"]), alternatives(["a", "b"]), alternatives(["a", "b", "c"])]
    assert texts == ["a", "a or b", "a, b or c"]
