"""The steady part of a test: without the ramp at its start and the drain at its end."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.loadgen.requests import Request


@dataclass(frozen=True)
class SteadyPart:
    """The part of a test in which the engine had all its work: after as many answers as it takes at once, and before as
    few are left. `trend`: the rate of its second half over that of the first. `requests`: those that were sent and
    answered in it."""

    begin_s: float
    end_s: float
    tokens_per_sec: float
    trend: float
    requests: tuple[Request, ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s


def steady_part(requests: Sequence[Request], at_once: int) -> SteadyPart | None:
    """The steady part of a test that computes `at_once` requests at a time; None where there are too few for one."""
    done = sorted((request.done_s, request.output_tokens) for request in requests if request.done_s is not None)
    if len(done) < len(requests) or len(done) < 4 * at_once:
        return None
    first, last = at_once - 1, len(done) - at_once - 1
    begin, end = done[first][0], done[last][0]
    middle = (begin + end) / 2
    if not begin < middle < end:
        return None
    halves = [
        sum(count for time, count in done[first + 1 : last + 1] if (time > middle) == late) / (middle - begin)
        for late in (False, True)
    ]
    if not halves[0]:
        return None
    within = (
        request
        for request in requests
        if not request.failure and (request.issued_s or 0.0) >= begin and (request.done_s or 0.0) <= end
    )
    return SteadyPart(begin, end, sum(halves) / 2, halves[1] / halves[0], tuple(within))
