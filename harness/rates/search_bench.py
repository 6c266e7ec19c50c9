"""The place where a search tries loads: a server that is measured, or a simulated one in virtual time."""

from collections.abc import Sequence
from typing import Protocol

from harness.rates.first_requests import BurstResult
from harness.rates.goal import Goal
from harness.rates.measurements import Candidate
from harness.rates.server_model import LoneRequest
from harness.results.outcome import Outcome


class SearchBench(Protocol):
    """A bench that tries loads on a server, one after the other."""

    @property
    def goal(self) -> Goal:
        """The limits and the length of a full test."""

    @property
    def at_once(self) -> int:
        """The most requests that may be in flight."""

    @property
    def left_s(self) -> float:
        """The seconds left for measuring; infinity without a limit."""

    @property
    def may_shorten(self) -> bool:
        """Tell whether probes may have fewer queries than LoadGen needs for a verdict."""

    def say(self, text: str) -> None:
        """Print a finding for the user."""

    def lone_request(self) -> LoneRequest:
        """Measure requests that run alone."""

    def burst(self, size: int) -> BurstResult:
        """Send `size` requests at once."""

    def probe(self, candidate: Candidate) -> Outcome:
        """Test a rate for a short time."""

    def discard(self, probes: Sequence[Outcome]) -> None:
        """Let probes no longer count, because the server has changed since."""

    def limit_in_flight(self, most: int) -> None:
        """Keep at most `most` requests at the server from now on."""
