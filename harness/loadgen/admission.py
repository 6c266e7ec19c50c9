"""The requests that a server took and those that it refused, and how many it was answering when it refused others."""

from dataclasses import dataclass, field
from math import inf

from harness.core.errors import EndpointError, ServerFullError
from harness.core.formatting import plural


@dataclass
class Admission:
    """The requests of a test or a trial at a server. Times are in seconds, by time.perf_counter."""

    answer_spans: list[tuple[float, float]] = field(default_factory=list)
    """For each answered request, when it was sent and when it was answered."""
    refusal_times: list[float] = field(default_factory=list)
    """For each refused request, when it was refused."""
    in_progress: dict[int, float] = field(default_factory=dict)
    """For each request in flight, by its number, when it was sent."""
    sent: int = 0

    def note_sent(self, at_s: float) -> int:
        """Note that a request was sent at `at_s`. Return the request's number, for the call that notes how it ended."""
        self.sent += 1
        self.in_progress[self.sent] = at_s
        return self.sent

    def note_answered(self, number: int, at_s: float, sent_s: float | None = None) -> None:
        """Note that request `number` was answered at `at_s`.

        `sent_s` is when it really went to the server, if it waited in this client after `note_sent`.
        """
        noted_s = self.in_progress.pop(number)
        if sent_s is None:
            sent_s = noted_s
        self.answer_spans.append((sent_s, at_s))

    def forget(self, number: int) -> None:
        """Forget a request that failed for a reason other than a refusal."""
        self.in_progress.pop(number, None)

    def note_refused(self, number: int, at_s: float, error: ServerFullError) -> None:
        """Note that the server refused a request at `at_s`, with `error`, because it was full.

        Raises EndpointError if no other request is in progress: the server cannot be full then, so the refusal must
        have another cause.
        """
        del self.in_progress[number]
        self.refusal_times.append(at_s)
        if not self.in_progress:
            raise EndpointError(
                f"{str(error).removesuffix('.')}, with no other request in flight: it is not full"
            ) from error

    @property
    def full_at(self) -> int | None:
        """The median number of requests that the server was answering when it refused another, at least 1.

        None if it refused none. A request counts as being answered from when it was sent to the end of its answer.
        """
        if not self.refusal_times:
            return None
        import numpy as np

        begins = list(self.in_progress.values())
        ends = [inf] * len(self.in_progress)  # these have not ended yet
        for begin, end in self.answer_spans:
            begins.append(begin)
            ends.append(end)
        begins.sort()
        ends.sort()
        refusals = np.sort(self.refusal_times)
        # For each refusal, how many requests had been sent and how many had been answered by then.
        begun, ended = np.searchsorted(begins, refusals, "right"), np.searchsorted(ends, refusals, "right")
        being_answered = begun - ended
        return max(1, int(np.median(being_answered)))


def remedy_for_full_server(others: int, flag: str) -> str:
    """Return the end of an error message on a refused request: the flag that avoids refusals, with a value for it.

    `others` is the number of other requests in flight when the request was refused, `flag` the one that limits how many
    there are. Empty if there were none, because a lower limit would not help.
    """
    if not others:
        return ""
    others_text = plural(others, "other")
    return f", with {others_text} in flight: {flag} {others} sends no more at once"
