"""Numbers as people read them."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core import markdown
from harness.core.formatting import number
from tests.conftest import ROOT


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((9999.7, "10,000"), (27020.4, "27,020"), (0.0000123, "0.0000123"), (0.0, "0"), (-5.123456, "-5.123")),
        *((100.0, "100"), (99.96, "99.96"), (10**9, "1,000,000,000"), (None, "–"), (float("nan"), "–")),
    ],
)
def test_a_number_has_four_significant_digits_and_no_exponent(value: float | None, text: str) -> None:
    assert number(value) == text


@given(st.floats(-1e15, 1e15))
def test_a_number_reads_as_itself(value: float) -> None:
    text = number(value, 4)
    assert "e" not in text and not text.endswith(".")
    assert float(text.replace(",", "")) == pytest.approx(value, rel=5.1e-4)


def test_no_message_can_show_an_exponent() -> None:
    """`:.4g` writes 20,160 as 2.016e+04; `number` never does. LoadGen's own files may."""
    may = {"loadgen_test.py", "formatting.py"}
    found = [
        f"{path.relative_to(ROOT)}:{at}"
        for path in (ROOT / "harness").rglob("*.py")
        for at, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(r":[+,]*\.\d+g\}", line) and path.name not in may
    ]
    assert found == []


def test_a_condition_is_shown_as_it_was_typed_and_a_tag_is_not() -> None:
    assert markdown.escape_text("output_tokens_per_s<100000") == "output_tokens_per_s<100000"
    assert markdown.escape_text("<b>") == "&lt;b>" and markdown.escape_text("</b><!-- -->") == "&lt;/b>&lt;!-- -->"
