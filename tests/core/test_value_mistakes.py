"""Values that pydantic refuses: in our words, with the name of what is meant."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError

from harness.core.value_mistakes import refusal_text
from tests.conftest import ended

LETTERS = r"^[a-z]+$"
Name = Annotated[str, Field(pattern=LETTERS, max_length=5)]


def refused(number: int) -> int:
    raise ValueError(f"{number} is taken.")


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Name, "b 1", "x takes small letters; got 'b 1'"),
        (Name, "abcdef", "x takes text of at most 5 characters; got 'abcdef'"),
        (Name, 3, "x takes text; got 3"),
        (dict[str, int], 3, "x takes lines of `name: value`; got 3"),
        (list[int], {"a": 1}, "x takes a list; got names with values"),
        (Annotated[list[int], Field(min_length=1)], [], "x takes a list of 1 or more values; got an empty list"),
        (Annotated[int, Field(ge=1)], "0", "x takes a number of at least 1; got '0'"),
        (Annotated[float, Field(le=2592000.0)], 3e6, "x takes a number of at most 2,592,000; got 3000000.0"),
        (int, "1.5", "x takes a whole number; got '1.5'"),
        (int, True, "x takes a whole number; got true"),
        (float, None, "x takes a number; got nothing"),
        (Literal["a", "b"], "c", "x takes 'a' or 'b'; got 'c'"),
        (Annotated[int, AfterValidator(refused)], 7, "x: 7 is taken"),
    ],
)
def test_a_refused_value_is_named(kind: Any, value: object, text: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value, strict=value is True)
    assert refusal_text("x", caught.value.errors()[0], {LETTERS: "small letters"}) == text


def test_a_secret_in_a_refused_value_is_masked() -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(int).validate_python("hf_" + "a" * 34)
    assert "hf_aaa" not in refusal_text("x", caught.value.errors()[0])


def test_a_flag_names_itself() -> None:
    done = ended("sweep.py", "demo", "--repeat", "0")
    assert done.returncode == 2
    assert done.stderr == "error: --repeat takes a number of at least 1; got '0'; sweep.py -h lists what it takes.\n"
