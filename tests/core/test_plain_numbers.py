"""Numbers as people and programs write them: one reader, ASCII digits alone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.arrival_patterns import parse_arrivals
from harness.config.engine import failure_allowance
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.plain_numbers import decimal_number, whole_number
from harness.report import regression


@pytest.mark.parametrize(
    ("value", "count"),
    [
        *((form, 16) for form in (16, 16.0, "16", "16.0", "16.", " 16 ", "016")),
        *((form, 1000) for form in (1000, 1e3, "1e3", "1E3", "1e+3", "1000.00")),
        *((form, 0) for form in (0, 0.0, "0")),
        *((form, None) for form in (True, None, "", "-1", -1, -0.5, 1.5, "1.5", "1_000", "0x10", "１６", "١٦", "a")),
        *((form, None) for form in (float("nan"), float("inf"), "nan", "inf", [16], {}, "1e-3", "1 6", "1,000")),
    ],
    ids=repr,
)
def test_a_whole_number_is_read_in_each_of_its_forms(value: object, count: int | None) -> None:
    assert whole_number(value) == count


@given(count=st.integers(0, 10**15))
def test_every_form_of_a_count_is_the_same_count(count: int) -> None:
    assert {whole_number(form) for form in (count, float(count), str(count), f"{count}.0", f"{count}e0")} == {count}


@given(text=st.text(st.characters(categories=["Nd", "Po", "Pc"]), min_size=1, max_size=8))
def test_digits_of_other_scripts_are_no_number(text: str) -> None:
    if not text.isascii():
        assert whole_number(text) is None and decimal_number(text) is None


DIGITS = {"ascii": "15", "fullwidth": "１５", "arabic": "١٥", "devanagari": "१५", "underscore": "1_5"}


@pytest.mark.parametrize("digits", DIGITS.values(), ids=list(DIGITS))
@pytest.mark.parametrize(
    "read",
    [
        lambda text: failure_allowance(text, 1000),
        lambda text: failure_allowance(f"{text}%", 1000),
        lambda text: parse_arrivals(f"gamma:{text}"),
        lambda text: parse_arrivals(f"ramp:{text}-{text}"),
        lambda text: regression.parse_condition(f"ttft_p99_ms>{text}"),
        lambda text: regression.parse_condition(f"answers changed > {text} %"),
        lambda text: RunConfig(total_sample_count=text) if "_" not in text else failure_allowance(text, 1),
        lambda text: RunConfig(min_duration=text) if "_" not in text else failure_allowance(text, 1),
        lambda text: (
            RunConfig(mode="performance", concurrency=f"{text},{text}1")
            if "_" not in text
            else failure_allowance("x", 1)
        ),
        lambda text: RunConfig(mode="performance", input_len=text, output_len=f"{text}~{text}"),
    ],
)
def test_every_number_takes_ascii_digits_alone(read: Any, digits: str) -> None:
    try:
        found = read(digits)
    except UsageError:
        found = None
    assert (found is not None) == (digits == "15")
