"""The steady part of a test: without the ramp at its start and the drain at its end."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.loadgen.requests import Request, without_failures


@dataclass(frozen=True)
class SteadyPart:
    """The part of a test in which the engine had all its work: after as many answers as it takes at once, and before as
    few are left. `ended`: the requests whose answers ended in it; `window`: those that were sent in it as well."""

    begin_s: float
    end_s: float
    ended: tuple[Request, ...]
    window: tuple[Request, ...]

    @property
    def seconds(self) -> float:
        return self.end_s - self.begin_s

    @property
    def tokens_per_sec(self) -> float:
        """Output tokens of the answers that ended in it."""
        return sum(each.output_tokens for each in self.ended) / self.seconds

    @property
    def input_tokens_per_sec(self) -> float:
        """Their prompts' tokens."""
        return sum(each.prompt_tokens for each in without_failures(self.ended)) / self.seconds

    @property
    def samples_per_sec(self) -> float:
        return len(without_failures(self.ended)) / self.seconds

    @property
    def trend(self) -> float:
        """The speed of its second half over that of its first."""
        middle = (self.begin_s + self.end_s) / 2
        late = sum(each.output_tokens for each in self.ended if (each.done_s or 0.0) > middle)
        early = sum(each.output_tokens for each in self.ended) - late
        return late / early

    @cached_property
    def requests(self) -> list[Request]:
        """Those that were sent and answered in it."""
        return without_failures(self.window)


def steady_part(requests: Sequence[Request], at_once: int) -> SteadyPart | None:
    """The steady part of a test that computes `at_once` requests at a time; None where there are too few for one."""
    done = sorted((request for request in requests if request.done_s is not None), key=lambda each: each.done_s or 0.0)
    if len(done) < len(requests) or len(done) < 4 * at_once:
        return None
    first, last = at_once - 1, len(done) - at_once - 1
    begin, end = done[first].done_s or 0.0, done[last].done_s or 0.0
    ended = tuple(done[first + 1 : last + 1])
    middle = (begin + end) / 2
    if not begin < middle < end or not any(each.output_tokens for each in ended if (each.done_s or 0.0) <= middle):
        return None
    window = (each for each in requests if (each.issued_s or 0.0) >= begin and (each.done_s or 0.0) <= end)
    return SteadyPart(begin, end, ended, tuple(window))
