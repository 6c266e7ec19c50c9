"""The figures of a level of concurrency that was tested several times, from all its tests. Needs no package."""

from collections.abc import Sequence
from itertools import chain

from harness.core.formatting import Measured
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun


def seconds_of(test: TestRun) -> float:
    """Return the seconds over which a test's speeds were measured: its steady part or, without one, the whole test."""
    if test.window:
        return test.window.seconds
    return test.result.duration_s or 0.0


def mean_by_time(speeds: Sequence[Measured], seconds: Sequence[float]) -> Measured:
    """Return the mean of a speed over tests, weighted by the seconds of each test.

    None if the speed of a test is not known, or if the tests have no seconds.
    """
    total = 0.0
    for speed, weight in zip(speeds, seconds, strict=True):
        if speed is None:
            return None
        total += speed * weight
    return total / sum(seconds) if sum(seconds) else None


def timed_requests(tests: Sequence[TestRun], are_buffered: Sequence[bool]) -> list[Request]:
    """Return the requests whose times are the level's: the counted ones of all tests.

    `are_buffered` tells of each test whether a buffer held its answers back. Its TTFT and TPOT do not describe the
    engine then, so such tests are left out, unless all are buffered.
    """
    unbuffered_tests = [test for test, is_buffered in zip(tests, are_buffered, strict=True) if not is_buffered]
    return [*chain.from_iterable(test.counted_requests for test in unbuffered_tests or tests)]


def speed_range(speeds: Sequence[Measured]) -> tuple[float, float] | None:
    """Return the speed of the slowest and of the fastest test; None if no speed is known."""
    known_speeds = [speed for speed in speeds if speed is not None]
    if not known_speeds:
        return None
    return min(known_speeds), max(known_speeds)
