"""The times at which requests arrive: random patterns, and recorded times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from math import floor, sqrt
from random import Random
from statistics import fmean, pstdev
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.formatting import number, plural
from harness.core.plain_numbers import decimal_number

MOST_REQUESTS = 10**7  # in one test
MOST_RATE = 10**6  # requests a second
MOST_CV, LEAST_CV = 20.0, 0.05  # the coefficient of variation of the gaps between requests
Numbers = tuple[float, ...]


class Shape(NamedTuple):
    """A shape of random or regular arrivals. `gap` draws the time to the next request, in units of the mean time."""

    name: str
    form: str
    gap: Callable[[Random, Numbers], float]
    number_count: int = 0  # how many numbers stand after the colon; each is positive, and from `least` to `most`
    least: float = 0.0
    most: float = MOST_RATE
    is_ramp: bool = False  # the numbers are the rates at the beginning and the end; otherwise the rate is constant

    def read(self, text: str) -> Numbers:
        """Return the numbers in `text`, such as 1.0 and 5.0 of "1-5". An empty text has no numbers.

        Raises ValueError if the shape takes another count of numbers, or if a number is 0 or out of bounds.
        """
        number_texts = []
        if text:
            # Only the last number may itself have a minus sign, in its exponent, since the text is split only as often
            # as the shape needs. For a shape without numbers (-1: no limit), the count below is wrong in any case.
            number_texts = text.split("-", self.number_count - 1)
        if len(number_texts) != self.number_count:
            raise ValueError  # The caller's message names the form that the shape takes.
        numbers = []
        for number_text in number_texts:
            value = decimal_number(number_text)
            if value is None or value == 0 or not self.least <= value <= self.most:
                raise ValueError
            numbers.append(value)
        return tuple(numbers)


def exponential_gap(source: Random, numbers: Numbers) -> float:
    """Return a gap with the mean 1, as between random arrivals (Poisson). The shape's `numbers` have no effect."""
    return source.expovariate(1.0)


def constant_gap(source: Random, numbers: Numbers) -> float:
    """Return 1, the gap between regular arrivals. There is no chance, and the shape's `numbers` have no effect."""
    return 1.0


def gamma_gap(source: Random, numbers: Numbers) -> float:
    """Return a random gap between two arrivals, with the mean 1 and, as standard deviation, the number `cv`."""
    (cv,) = numbers  # the coefficient of variation
    return source.gammavariate(cv**-2, cv**2)


ARRIVAL_SHAPES = {
    shape.name: shape
    for shape in (
        Shape("poisson", "poisson", exponential_gap),
        Shape("constant", "constant", constant_gap),
        Shape("gamma", "gamma:CV", gamma_gap, 1, LEAST_CV, MOST_CV),
        Shape("ramp", "ramp:A-B", exponential_gap, 2, is_ramp=True),
    )
}
TRACE_COLUMNS = "seconds,input_tokens,output_tokens"  # columns that every recorded trace has
TRACE_PREFIX_COLUMNS = ",prefix_id,prefix_tokens"  # further columns of a trace whose prompts share beginnings
ARRIVAL_FORMS = "|".join((*(shape.form for shape in ARRIVAL_SHAPES.values()), "FILE"))


def parse_arrivals(text: str) -> tuple[Shape, Numbers] | None:
    """Return the shape and the numbers in a value of --arrivals, such as "gamma:2".

    None if the value is a path. Raises UsageError if the shape does not allow the numbers.
    """
    name, _, numbers_text = text.partition(":")
    shape = ARRIVAL_SHAPES.get(name)
    if shape is None:  # The text is a path.
        return None
    try:
        return shape, shape.read(numbers_text)
    except ValueError:
        raise UsageError(
            f"{text}: must be {shape.form}; CV is between {LEAST_CV:g} and {MOST_CV:g}, rates A and B above "
            f"0 and at most {MOST_RATE:,} requests/s.",
            flag="--arrivals",
        ) from None


@lru_cache(maxsize=4)  # A run asks often for the times of the same few tests.
def arrival_times(text: str, rate: float, seconds: float, seed: int) -> tuple[float, ...]:
    """Return the times at which requests arrive, in seconds from the first one. Only the last is at `seconds` or later.

    `text` is a shape such as "gamma:2", `rate` the mean in requests a second. Raises UsageError for too many requests.
    """
    parsed = parse_arrivals(text)
    assert parsed is not None  # callers pass a shape, not a file
    shape, numbers = parsed
    if rate * seconds > MOST_REQUESTS:
        raise UsageError(f"{text}: {rate * seconds:,.0f} requests; {MOST_REQUESTS:,} at most.", flag="--arrivals")
    first_rate = last_rate = rate
    if shape.is_ramp:
        first, last = numbers
        scale = rate / ((first + last) / 2)  # so that the mean rate of the ramp is `rate`
        first_rate, last_rate = scale * first, scale * last
    source = Random(seed)
    # The gaps have a mean of 1, so their sum counts requests. `arrival_s` returns when so many have arrived on average,
    # at a rate that goes from the first to the last one.
    mean_count = 0.0
    times = [0.0]
    while times[-1] < seconds:
        mean_count += shape.gap(source, numbers)
        times.append(arrival_s(mean_count, first_rate, last_rate, seconds))
    return tuple(times)


def arrival_s(count: float, first_rate: float, last_rate: float, seconds: float) -> float:
    """Return after how many seconds `count` requests have arrived, if their rate is a ramp. `count` need not be whole.

    The rate, in requests a second, changes linearly from `first_rate` to `last_rate` within `seconds`. After that time,
    requests arrive at `last_rate`.
    """
    if not count:  # No time passes before the first request.
        return 0.0
    arrived_in_ramp = (first_rate + last_rate) / 2 * seconds
    if count > arrived_in_ramp:
        after_ramp_s = (count - arrived_in_ramp) / last_rate
        return seconds + after_ramp_s
    # At a time t of the ramp, the rate is r = first + slope t, and count = first t + slope t² / 2 requests have
    # arrived. It follows that r² = first² + 2 slope count, where slope = (last - first) / seconds.
    rate = sqrt(first_rate**2 + 2 * (last_rate - first_rate) * count / seconds)
    mean_rate = (first_rate + rate) / 2
    return count / mean_rate


def gap_variation(times: Sequence[float]) -> float | None:
    """Return the coefficient of variation of the gaps between arrivals, whose times are given in any order.

    0 means regular arrivals, 1 random arrivals (Poisson), and more than 1 bursts. None if there are no gaps, or if all
    requests arrive at once.
    """
    gaps = [after - before for before, after in pairwise(sorted(times))]
    if not any(gaps):
        return None
    return pstdev(gaps) / fmean(gaps)


@dataclass(frozen=True)
class Replay:
    """The arrivals of a trace as a run replays them. `seconds` is the time of the last arrival."""

    requests: int
    seconds: float

    def __str__(self) -> str:
        seconds, rate = number(self.seconds), number(self.rate)
        return f"arrivals: {plural(self.requests, 'request')} in {seconds} s, {rate} a second on average"

    @property
    def rate(self) -> float:
        """The mean rate in requests a second."""
        return (self.requests - 1) / self.seconds

    def least_s(self, given: float | None) -> float:
        """Return the minimum duration of the test in seconds: `given`, or if that is None the time of the last arrival.

        The time is in whole milliseconds, LoadGen's unit. It is rounded down, since the arrivals end before a time that
        was rounded up.
        """
        if given is not None:
            return given
        last_ms = floor(1000 * self.seconds)
        return max(1, last_ms) / 1000  # at least 1 ms, since a test needs a duration
