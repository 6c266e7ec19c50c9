"""The steady part of a test: without the ramp at its start and the drain at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter

from harness.loadgen.requests import Request, output_token_sum, prompt_token_sum, successful_requests

# A steady part is at least this share of a test's time. With enough waves of requests it is half or more.
LEAST_STEADY_SHARE = 0.1


@dataclass(frozen=True)
class SteadyWindow:
    """The part of a test in which the engine was fully occupied, in seconds since the first request, with its requests.

    It begins when as many answers have ended as the engine takes at once, and ends when only as many are left.
    """

    begin_s: float
    end_s: float
    ended_requests: tuple[Request, ...]
    """Requests whose answers ended in the window."""
    whole_requests: tuple[Request, ...]
    """Requests that were also sent in the window."""

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def tokens_per_sec(self) -> float:
        """Output tokens per second of the answers that ended in the window."""
        return output_token_sum(self.ended_requests) / self.seconds

    @property
    def input_tokens_per_sec(self) -> float:
        """Prompt tokens per second of the answers that ended in the window."""
        return prompt_token_sum(successful_requests(self.ended_requests)) / self.seconds

    @property
    def total_tokens_per_sec(self) -> float:
        """Prompt and output tokens per second."""
        return self.input_tokens_per_sec + self.tokens_per_sec

    @property
    def samples_per_sec(self) -> float:
        return len(successful_requests(self.ended_requests)) / self.seconds

    @property
    def halves(self) -> tuple[int, int]:
        """Output tokens of the answers that ended in the first half of the window's time, and in the second half."""
        middle_s = (self.begin_s + self.end_s) / 2
        second_half = output_token_sum(request for request in self.ended_requests if request.end_s > middle_s)
        return output_token_sum(self.ended_requests) - second_half, second_half

    @property
    def trend(self) -> float:
        """The speed in the second half of the window divided by that in the first half."""
        first_half, second_half = self.halves
        return second_half / first_half

    @cached_property
    def requests(self) -> list[Request]:
        """The requests that were sent and successfully answered in the window."""
        return successful_requests(self.whole_requests)


def steady_window(requests: Sequence[Request], at_once: int) -> SteadyWindow | None:
    """Return the steady part of a test: from the first `at_once` answers (the ramp) to the last (the drain).

    None if the test has no such part, or if the end of an answer is not known.
    """
    ramp_and_drain = 2 * at_once
    is_mostly_ramp = ramp_and_drain > len(requests) / 2
    has_unknown_end = any(request.done_s is None for request in requests)
    if is_mostly_ramp or has_unknown_end:
        return None
    by_end = sorted(requests, key=attrgetter("end_s"))
    last_of_ramp, last_before_drain = at_once - 1, len(by_end) - at_once - 1
    begin_s, end_s = by_end[last_of_ramp].end_s, by_end[last_before_drain].end_s
    ended_requests = by_end[last_of_ramp + 1 : last_before_drain + 1]
    # Requests that were both sent and answered within the part.
    whole_requests = [request for request in requests if request.begin_s >= begin_s and request.end_s <= end_s]
    window = SteadyWindow(begin_s, end_s, tuple(ended_requests), tuple(whole_requests))
    # If most answers ended at about the same time, no part of the test is steady: the part is short, or all its answers
    # end in its second half.
    is_short = window.seconds <= LEAST_STEADY_SHARE * by_end[-1].end_s
    tokens_in_first_half, _tokens_in_second_half = window.halves
    if is_short or not tokens_in_first_half:
        return None
    return window
