"""The state in which a search leaves the server. If its load changed the server, a result holds of that state alone."""

from collections.abc import Sequence

from harness.core.formatting import number
from harness.results.outcome import Outcome, load_of

LEAST_CHANGE = 0.1  # A smaller change of a server's speed, as a share, is not worth saying.


def caution_on_changed_server(tests: Sequence[Outcome]) -> str:
    """Return a caution if the server changed under the search's load, for example by an autoscaler; empty if it did
    not.

    The rate that was found then belongs to the changed server, and the caution follows it: "<the rate>, of the state
    that the search left: ...". `tests` are in the order in which they ran.
    """
    change = change_within(tests) or change_between(tests)
    if not change:
        return ""
    return f"of the state that the search left: {change}; a cold start may keep less"


def change_within(tests: Sequence[Outcome]) -> str:
    """Return in words the largest change of the server's speed within a test; empty if none is worth saying."""
    changes = [test.queue.drift for test in tests if test.queue]
    largest = max(changes, key=abs, default=0.0)
    if abs(largest) < LEAST_CHANGE:
        return ""
    return f"{drift_text(largest)} within a test"


def drift_text(drift: float) -> str:
    """Return in words by how much a server became faster or slower. `drift` is a share, negative for slower."""
    direction = "faster" if drift > 0 else "slower"
    return f"the server became {abs(drift):.0%} {direction}"


def change_between(tests: Sequence[Outcome]) -> str:
    """Return in words that the server held a rate after it had failed at a clearly lower one; empty if it never did.

    A test with refused requests does not count as failed: later tests have fewer requests in flight, so their success
    shows no change of the server.
    """
    for index, later in enumerate(tests):
        failed = [test for test in tests[:index] if not test.has_held and not test.refused]
        lowest = min(failed, key=load_of, default=None)
        if lowest is None or not later.has_held:
            continue
        if later.load > (1 + LEAST_CHANGE) * lowest.load:
            return f"{number(later.load)} queries/s held after {number(lowest.load)} had failed"
    return ""
