"""A server as its measurements show it: the model that full tests are simulated with, and what is judged in them."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple, Self

from harness.rates.goal import Goal
from harness.rates.prediction import rate_after_test, rate_toward_limit, rate_within
from harness.rates.simulation import EngineModel, TimeLimits
from harness.results.outcome import Outcome, Queue

TELLING_SHARE = 0.3  # A p99 below this share of its limit does not tell how near the limit is.
LEAST_WAIT_SHARE = 0.5  # A query may wait for this share of TTFT's limit at least.
LEAST_OTHERS = 0.5  # With fewer other queries running beside a query, the server runs one at a time.
NO_COST_QPS = 1e9  # stands for the capacity of a server in which queries do not slow each other down
MOST_ERROR_SHARE = 0.25  # the largest usable standard error of the completions, as a share of them
# A few prompts that are much longer are no distribution: no larger variance over the mean squared is simulated.
MOST_PROMPT_SPREAD = 4.0


class LoneRequest(NamedTuple):
    """The times of a request that runs alone, in seconds: until its first token, for each further token, and in all."""

    ttft_s: float = 0.0
    tpot_s: float = 0.0
    latency_s: float = 0.0

    def is_over(self, goal: Goal) -> bool:
        """Tell whether a request that runs alone is over a limit. Then no rate keeps the limits."""
        return self.tpot_s * 1000 > goal.tpot_ms or self.ttft_s * 1000 > goal.ttft_ms


class ServerModel(NamedTuple):
    """A server as its tests show it."""

    lone: LoneRequest
    sharing: Queue  # The last test that tells how answers slow each other down had this queue.
    saturated: Queue | None  # The best test in which some queries always waited had this one; None where none did.
    is_capped: bool  # TPOT keeps its limit however many queries wait.
    ttft_s: float  # A query that does not wait has its first token after this time, under load.

    @classmethod
    def fit(cls, lone: LoneRequest, tests: Sequence[Outcome], goal: Goal) -> Self:
        """Fit the model to tests, at least one of which has a queue."""
        queues = [test.queue for test in tests if test.queue]
        sharing = next((queue for queue in reversed(queues) if queue.tokens), queues[-1])
        steady = [test for test in tests if not test.has_waited and test.ttft_ms.p50]
        ttft_s = (steady[-1].ttft_ms.p50 or 0.0) / 1000 if steady else lone.ttft_s
        full = [test for test in tests if is_full(test, goal) and completed_error(test.queue) < MOST_ERROR_SHARE]
        best = min(full, key=lambda test: completed_error(test.queue), default=None)
        if best is None:
            return cls(lone, sharing, None, False, ttft_s)
        return cls(lone, sharing, best.queue, (best.tpot_ms.p99 or inf) <= goal.tpot_ms, ttft_s)

    @property
    def capacity(self) -> float:
        """The highest rate in queries/s that the server can complete: the lower of its two capacities.

        Infinity if neither is known.
        """
        return min(self.sharing_capacity, self.full_capacity)

    @property
    def sharing_capacity(self) -> float:
        """The rate in queries/s at which concurrent answers would slow each other down without end."""
        return self.sharing.shared_capacity(self.lone.tpot_s)

    @property
    def full_capacity(self) -> float:
        """The rate in queries/s that the server completes with all places taken; infinity if no test had queries always
        waiting.

        Answers of a full queue begin and end together, which is faster than usual (3 to 9 % on an H200, Interactive).
        So the rate is limited to what follows from how answers slow each other down in other tests.
        """
        if not self.saturated:
            return inf
        lone_s = self.lone.tpot_s * self.sharing.tokens
        answer_s = lone_s + (self.full_running - 1) / self.sharing_capacity
        if answer_s <= 0:
            return self.saturated.completed
        return min(self.saturated.completed, self.full_running / answer_s)

    @property
    def full_running(self) -> float:
        """The mean number of running requests while others always wait; infinity if no test had that."""
        if not self.saturated:
            return inf
        return max(self.saturated.completed * self.saturated.answer_s, 1.0)

    def highest_rate(self, goal: Goal) -> float:
        """Return the highest rate in queries/s that a full test should keep.

        If TPOT keeps its limit however many queries wait, TTFT decides. Else TPOT decides, because it is over its limit
        before any query waits. Returns infinity if nothing shows a limit, 0 if a lone request is over a limit.
        """
        if self.lone.is_over(goal):
            return 0.0
        if self.engine_model is None:
            return inf
        return rate_within(self.engine_model, self.limits(goal), goal)

    def rate_after(self, test: Outcome, shares: tuple[float, float], test_goal: Goal, goal: Goal) -> float:
        """Estimate the highest rate for a full test from a test's p99 latencies, given as shares of their limits.

        `test_goal` has the length of that test. Returns infinity if the test shows no limit.
        """
        ttft_share, tpot_share = shares
        limits, model = self.limits(goal), self.engine_model
        p99 = TimeLimits(
            wait_s=telling(ttft_share * goal.ttft_ms / 1000 - self.ttft_s, limits.wait_s),
            answer_s=telling(tpot_share * goal.tpot_ms / 1000 * self.sharing.tokens, limits.answer_s),
        )
        rates = [inf]
        if model and min(p99) < inf:
            rates.append(rate_after_test(model, test.load, p99, limits, test_goal, goal))
        if ttft_share > 1 and p99.wait_s == inf and test.rate < self.capacity < inf:
            rates.append(rate_toward_limit(self.capacity, test.rate, ttft_share) * test.load / test.rate)
        return min(rates)

    @property
    def engine_model(self) -> EngineModel | None:
        """The model for simulating full tests; None if answers do not slow each other down."""
        seen = self.sharing
        lone_s = self.lone.tpot_s * seen.tokens
        # If answers grew longer or shorter during the test, that alone makes them scatter around the fit.
        scatter = 0.0 if seen.has_grown or seen.drift else seen.scatter
        spread = min(seen.spread, MOST_PROMPT_SPREAD)
        if not self.is_capped:
            if not seen.tokens or self.sharing_capacity == inf:
                return None
            return EngineModel(lone_s, self.sharing_capacity, inf, seen.prompts, spread, scatter)
        full_s = self.full_running / self.full_capacity
        other_requests = self.full_running - 1
        if (
            other_requests < LEAST_OTHERS or not 0 < lone_s < full_s
        ):  # Requests run one at a time, or cost others nothing.
            return EngineModel(full_s, NO_COST_QPS, self.full_running, seen.prompts, spread, scatter)
        return EngineModel(lone_s, other_requests / (full_s - lone_s), self.full_running, seen.prompts, spread, scatter)

    def limits(self, goal: Goal) -> TimeLimits:
        """Return the limits that decide: of the wait if TPOT keeps its limit however many queries wait, else of the
        answer.
        """
        if self.is_capped:
            wait_s = goal.ttft_ms / 1000 - self.ttft_s
            return TimeLimits(max(wait_s, LEAST_WAIT_SHARE * goal.ttft_ms / 1000), inf)
        return TimeLimits(inf, goal.tpot_ms * self.sharing.tokens / 1000)


def telling(p99_s: float, limit_s: float) -> float:
    """Return the p99 if it is close enough to its limit to tell something, else infinity."""
    if limit_s == inf or p99_s <= TELLING_SHARE * limit_s:
        return inf
    return p99_s


def is_full(test: Outcome, goal: Goal) -> bool:
    """Tell whether queries always waited, and more came than were completed: by more than chance, or with TTFT over its
    limit.
    """
    queue = test.queue
    if queue is None or not test.has_waited:
        return False
    is_late = goal.shares(test)[0] > 1
    return queue.has_grown or (is_late and queue.growth > queue.chance)


def completed_error(queue: Queue | None) -> float:
    """Return the standard error of the completions as a share of them; infinity if there are none."""
    if queue is None or not queue.completed:
        return inf
    return queue.completed_error / queue.completed
