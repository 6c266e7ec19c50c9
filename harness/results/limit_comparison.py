"""The measurements of a run beside the limits of its card: both, their ratio, and the kernels that make the gap."""

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from harness.core.formatting import number
from harness.core.tables import Table
from harness.results.card_limits import CardLimits, MeanLengths
from harness.results.kernel_profile import Profile
from harness.results.outcome import Outcome
from harness.results.records import RunFacts

MATRIX_PRODUCTS = "matrix products"  # the kind of kernels whose work both limits of speed are computed from


class LimitComparison(NamedTuple):
    """A limit and what was measured of the same quantity."""

    quantity: str
    limit: float
    measured: float

    @property
    def percent(self) -> float:
        return 100 * self.measured / self.limit


def comparisons(facts: RunFacts, test: Outcome) -> list[LimitComparison]:
    """Return the computed limits of a run's GPUs, each beside the measured value.

    Empty if the run used no GPU of this machine, or if its lengths were not recorded.
    """
    state, limits, lengths = facts.plan.engine_state, facts.card_limits, mean_lengths(test)
    may_cache_prefixes = state.prefix_caching is not False  # None: not known
    # With speculation or prefix caching, the engine may do less work than the limits count.
    if limits is None or lengths is None or state.speculation or may_cache_prefixes:
        return []
    return list(measured_limits(limits, lengths, test))


def mean_lengths(test: Outcome) -> MeanLengths | None:
    """Return the mean tokens of the test's prompts and answers; None if they were not recorded."""
    prompts, answers = test.details.input_lengths, test.details.output_lengths
    if prompts is None or answers is None:
        return None
    return MeanLengths(prompts.mean, answers.mean)


def measured_limits(limits: CardLimits, lengths: MeanLengths, test: Outcome) -> Iterator[LimitComparison]:
    """Yield each limit that is known and whose quantity the test measured.

    `lengths` are those of prompts and answers.
    """
    rate = limits.samples_per_s(lengths)
    if rate and test.samples_per_sec:
        yield LimitComparison("samples/s", rate, test.samples_per_sec)
    speed = limits.request_tokens_per_s(lengths)
    # If a buffer delivered the tokens, their time is not the engine's.
    if speed and test.tpot_ms.p50 and not test.is_buffered:
        yield LimitComparison("tokens/s of one request (1,000 / TPOT p50)", speed, 1000 / test.tpot_ms.p50)
    count = limits.sequences(lengths)
    running = test.details.usage.get("requests_running")
    if count and running and running.max:
        yield LimitComparison("sequences in the KV cache (most that ran)", count, running.max)


def comparison_table(comparisons: list[LimitComparison]) -> Table:
    """Return a table with a row for each limit: the quantity, the limit, the measured
    value, and their ratio in percent.
    """
    rows = []
    for row in comparisons:
        rows.append([row.quantity, number(row.limit, 3), number(row.measured), number(row.percent, 3)])
    return Table(["", "limit, computed", "measured", "measured of the limit, %"], rows)


def gap_kernels(profile: Profile | None) -> str:
    """Return a sentence on the kind of kernels that takes the most time beside matrix products; empty if there is none.

    The limits count matrix products alone, so this kind explains most of the gap between a limit and the measured
    value.
    """
    if profile is None or profile.device != "GPU":
        return ""
    other_kinds = [share for share in profile.kinds if share.name != MATRIX_PRODUCTS]
    if not other_kinds:
        return ""
    largest = max(other_kinds, key=attrgetter("percent"))
    products = profile.shares.get(MATRIX_PRODUCTS, 0.0)
    return (
        f"Beside matrix products ({number(products, 3)} % of kernel time) most goes to {largest.name} "
        f"({number(largest.percent, 3)} %)."
    )
