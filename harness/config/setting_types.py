"""The types of settings: numbers within bounds, lists without repetition, and the bounds themselves."""

from typing import Annotated, Literal, TypeVar

from pydantic import AfterValidator, Field
from pydantic.fields import FieldInfo

Setting = TypeVar("Setting")

# Beyond these times, LoadGen's counters overflow without an error.
LONGEST_SETTING_S, LONGEST_SETTING_MS = 30 * 24 * 3600, 10**6
MOST_CONCURRENT = 50_000  # each request in flight takes a connection, and a client has ports for roughly 60,000


def positive_bounds(most: float) -> FieldInfo:
    bounds: FieldInfo = Field(gt=0, le=most)
    return bounds


def check_distinct(numbers: tuple[Setting, ...]) -> tuple[Setting, ...]:
    """Return the numbers of a list unchanged. Raises ValueError if one is given twice, or if there are none."""
    if not numbers:
        raise ValueError("a list without a number")
    if len(set(numbers)) < len(numbers):
        raise ValueError("a number is given twice")
    return numbers


Auto = Literal["auto"]
Seconds = Annotated[float, positive_bounds(LONGEST_SETTING_S)]
Milliseconds = Annotated[int, positive_bounds(LONGEST_SETTING_MS)]
Concurrency = Annotated[int, positive_bounds(MOST_CONCURRENT)]
Count = Annotated[int, positive_bounds(10**6)]
Context = Annotated[int, positive_bounds(10**8)]  # tokens
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]
Rate = Annotated[float, positive_bounds(10**6)]
Distinct = AfterValidator(check_distinct)
