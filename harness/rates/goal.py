"""The full test that a search is for: its length, its limits, and the arrivals that it will be sent."""

from typing import NamedTuple, Self

from harness.config import loadgen_schedule
from harness.config.mlperf import LatencyLimits
from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan
from harness.results.outcome import Outcome

# The last answers of a test come after its last query, so its time is reserved with this ratio.
RESERVE_RATIO = 1.05


class Goal(NamedTuple):
    """The full test that a search is for."""

    least_s: float
    least_queries: int
    ttft_ms: float  # The p99 of TTFT has this limit.
    tpot_ms: float  # The p99 of TPOT has this limit.
    pass_queries: int = 1  # the number of queries in a pass; LoadGen sends whole passes
    seed: int | None = None  # the seed of LoadGen's schedule; None if it is not known
    holds_for_any_arrivals: bool = False  # The limits are to hold with nearly all arrivals, not the seed's alone.

    @classmethod
    def of(cls, plan: Plan, limits: LatencyLimits | None = None) -> Self:
        """Return the goal of a plan: a full test that keeps `limits` or, if None, the plan's own limits.

        A full test has at least the queries that early stopping needs.
        """
        held_to = limits or plan.limits
        assert held_to is not None  # a search is for the rate at which the limits are kept
        pass_queries = plan.pass_queries
        seed = plan.seeds.schedule
        queries = max(plan.min_queries, SURE_QUERIES)
        return cls(plan.min_duration_s, queries, held_to.ttft, held_to.tpot, pass_queries, seed)

    def full_queries(self, qps: float) -> int:
        """Return the number of queries in a full test at this rate, given its fewest seconds and queries.

        LoadGen sends whole passes over its queries.
        """
        return loadgen_schedule.queries_of_test(self.seed, qps, self.least_s, self.least_queries, self.pass_queries)

    def full_s(self, qps: float) -> float:
        """Return the length of a full test at this rate, in seconds."""
        return self.full_queries(qps) / qps

    def reserved_s(self, qps: float) -> float:
        """Return the seconds to keep free for a full test at this rate, with its last answers."""
        return RESERVE_RATIO * self.full_s(qps)

    def rate_in_time(self, qps: float, left_s: float) -> float | None:
        """Return a rate whose full test fits in `left_s` seconds: `qps`, or else a lower rate with one pass less.

        A pass is one use of all samples, and LoadGen sends whole passes. None if no such test fits.
        """
        if self.reserved_s(qps) <= left_s:
            return qps
        fewer_queries = self.full_queries(qps) - self.pass_queries
        if fewer_queries < max(self.least_queries, 1):
            return None
        # The highest rate at which the fewer queries still take the least duration of a full test.
        lower_qps = min(loadgen_schedule.highest_rate_of(self.seed, fewer_queries, self.least_s), qps)
        return lower_qps if self.reserved_s(lower_qps) <= left_s else None

    @property
    def simulated_seed(self) -> int | None:
        """The seed of the arrivals to simulate; None if they are to be random, or LoadGen's seed is not known."""
        return None if self.holds_for_any_arrivals else self.seed

    def of_test(self, test: Outcome) -> Self:
        """Return the goal for simulating a test that was run: with its queries, at the times of LoadGen's seed.

        It has no least duration, and passes of a single query, so that the simulation has just as many queries.
        """
        queries = test.queries or round(test.load * (test.issue_s or 0.0))  # an estimate if they were not counted
        fewest_to_simulate = 2  # A test has the length from its first query to its last.
        return self._replace(
            least_s=0.0,
            least_queries=max(queries, fewest_to_simulate),
            pass_queries=1,
            holds_for_any_arrivals=False,
        )

    def shares(self, test: Outcome) -> tuple[float, float]:
        """Return the p99 of TTFT and of TPOT, each as a share of its limit; 0 for one that was not measured."""
        return (test.ttft_ms.p99 or 0.0) / self.ttft_ms, (test.tpot_ms.p99 or 0.0) / self.tpot_ms
