"""Requests of others at a server, which its metrics show: they are more than what this run sent and got."""

from collections.abc import Iterator, Sequence
from statistics import median_low

from harness.engines.server_metrics import GENERATED, growth
from harness.loadgen.test_run import Recording

# An engine's counter of tokens may exceed those that came by this share or number, whichever is larger: by the tokens
# that end answers, and by requests that were broken off.
TOKEN_MARGIN_SHARE, TOKEN_MARGIN = 0.1, 100


def signs_of_others(
    recording: Recording, in_flight: int, before: Sequence[str], after: Sequence[str], came: int | None
) -> Iterator[str]:
    """Yield a sentence for each sign in a server's metrics that others use it.

    `in_flight` is the most requests that this client had in flight, `came` the tokens that it got. `before` and `after`
    are pages of metrics.
    """
    readings = [value for value in recording.column("requests_running") if value is not None]
    if readings:
        running = median_low(readings)  # not the highest, which may count an answer that has just ended
        if running > in_flight:
            yield (
                f"others use the server: {running:,.0f} requests ran at once by its metrics, this run had "
                f"{in_flight:,} in flight at most"
            )
    increase_of = growth(before, after)
    generated = increase_of(GENERATED)
    if came is None or generated is None:
        return
    if generated - came > max(TOKEN_MARGIN_SHARE * came, TOKEN_MARGIN):
        yield (
            f"others use the server: it generated {generated:,.0f} tokens by its metrics, {came:,} of them for this run"
        )
