"""What a search for the highest rate is held to: its constants, and the full test that it prepares."""

from dataclasses import dataclass, field
from typing import Self

from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan


@dataclass(frozen=True)
class SearchRules:
    """The constants of the search in the words of docs/evidence/rates.md, chosen while watching `benchmarks.search`."""

    probe_s: float = 30.0  # seconds of a probe, at least
    probe_queries: int = 600  # queries of a probe, at least
    confirming_s: float = 120.0  # seconds of the probe that confirms the last candidate, at most; longer for ...
    confirming_queries: int = 2400  # ... so many queries
    capacity_s: float = 90.0  # seconds of a probe that measures the capacity again
    long_s: float = 54.0  # seconds of a probe from which on its waits are more than chance
    most_longer: float = 4.0  # times as long, at most, where early stopping alone wants more queries
    most_probes: int = 8  # probes of a search
    most_tests: float = 1.4  # length of a search, in full tests
    step: float = 1.2  # ratio of rates while one side alone is known; the second is its square, and so on up to 2
    lowest: float = 0.1  # share of the first rate; if that fails, the limits are out of reach
    overload: float = 1.15  # ratio to a capacity of the rate that measures it again
    surely: float = 1.2  # ratio to the seconds after which the capacity should be known
    vague: float = 0.01  # standard error of a capacity, as a share, from which on it is measured again
    margin: float = 0.993  # of an estimate, or of a rate that just failed: a full test sees more than a probe
    fewest_waiting: float = 30.0  # queries within the allowed wait; a simulated queue of fewer tells nothing
    spread: float = 1.15  # ratio of the rates that a line of TPOT is drawn through, at least
    room: float = 0.7  # share of the limits up to which a p99 leaves room for a higher rate
    confirmed: float = 1.02  # ratio of the estimate to a rate that confirms it
    bracket: float = 1.04  # ratio of the lowest rate that failed to the highest that held, at the end


RULES = SearchRules()


@dataclass(frozen=True)
class Goal:
    """What the full test is held to: its length, and the p99 limits in milliseconds."""

    seconds: float
    queries: int
    ttft_ms: float
    tpot_ms: float
    rules: SearchRules = field(default_factory=lambda: RULES)

    @classmethod
    def of(cls, plan: Plan) -> Self:
        """For scenarios with limits."""
        assert plan.limits is not None
        return cls(plan.min_duration_s, plan.min_queries, plan.limits.ttft, plan.limits.tpot)

    def full_s(self, qps: float) -> float:
        """Seconds of the full test at this rate."""
        return max(self.seconds, max(self.queries, SURE_QUERIES) / qps)

    def probe_s(self, qps: float) -> float:
        """Seconds of a probe at this rate: no longer than the full test."""
        return min(max(self.rules.probe_s, self.rules.probe_queries / qps), self.full_s(qps))
