"""The full test that a search is for: its length, its limits, and the arrivals that it will be sent."""

from math import ceil
from typing import NamedTuple, Self

from harness.config.mlperf import LatencyLimits
from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan
from harness.results.outcome import Outcome


class Goal(NamedTuple):
    """The full test that a search is for."""

    least_s: float
    least_queries: int
    ttft_ms: float  # The p99 of TTFT has this limit.
    tpot_ms: float  # The p99 of TPOT has this limit.
    pass_queries: int = 1  # the number of queries in a pass; LoadGen sends whole passes
    seed: int | None = None  # the seed of LoadGen's schedule; None if it is not known
    has_any_arrivals: bool = False  # The limits are to be kept with nearly all arrivals, not with the seed's alone.

    @classmethod
    def of(cls, plan: Plan, limits: LatencyLimits | None = None) -> Self:
        """Return the goal of a plan: its full test, with the plan's limits or with `limits`."""
        held_to = limits or plan.limits
        assert held_to is not None  # a search is for the rate at which the limits are kept
        pass_queries = 1 if plan.request_set else plan.samples
        seed = plan.seeds.schedule
        queries = max(plan.min_queries, SURE_QUERIES)
        return cls(plan.min_duration_s, queries, held_to.ttft, held_to.tpot, pass_queries, seed)

    def full_queries(self, qps: float) -> int:
        """Return the number of queries in a full test at this rate."""
        wanted = max(self.least_s * qps, self.least_queries)
        return ceil(wanted / self.pass_queries) * self.pass_queries

    def full_s(self, qps: float) -> float:
        """Return the length of a full test at this rate, in seconds."""
        return self.full_queries(qps) / qps

    @property
    def known_seed(self) -> int | None:
        """The seed of the arrivals; None if the goal is to hold with any arrivals."""
        return None if self.has_any_arrivals else self.seed

    def of_test(self, test: Outcome) -> Self:
        """Return the goal with the length of a given test. Its arrivals are the beginning of those of a full test."""
        queries = round(test.load * (test.issue_s or 0.0))
        return self._replace(least_s=0.0, least_queries=max(queries, 2), pass_queries=1, has_any_arrivals=False)

    def shares(self, test: Outcome) -> tuple[float, float]:
        """Return the p99 of TTFT and of TPOT, each as a share of its limit."""
        return (test.ttft_ms.p99 or 0.0) / self.ttft_ms, (test.tpot_ms.p99 or 0.0) / self.tpot_ms
