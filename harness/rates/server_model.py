"""A server as its measurements show it: the model that full tests are simulated with, and what is judged in them."""

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import NamedTuple, Self

from harness.rates.goal import Goal
from harness.rates.prediction import rate_after_test, rate_toward_limit, rate_within
from harness.rates.simulation import EngineModel, TimeLimits
from harness.results.outcome import Outcome, Queue

TELLING_SHARE = 0.3  # A p99 below this share of its limit does not tell how near the limit is.
# A query may wait for at least this share of TTFT's limit, even if the first token without a wait takes more.
LEAST_WAIT_SHARE = 0.5
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
    sharing: Queue  # statistics of the last test that shows how answers slow each other down
    saturated: Queue | None  # statistics of the surest overload, in which queries always waited; None without one
    is_capped: bool  # TPOT keeps its limit however many queries wait.
    ttft_s: float  # seconds until the first token of a query that does not wait, under load

    @classmethod
    def fit(cls, lone: LoneRequest, tests: Sequence[Outcome], goal: Goal) -> Self:
        """Fit the model to tests, given in the order in which they ran. In at least one, the queue was measured.

        The last test whose answers could be fitted shows how answers slow each other down. The last test without
        waiting queries gives TTFT under load; without such a test, the lone request does. Of the tests that overloaded
        the server, the one whose completions have the smallest error gives the speed when saturated, and shows whether
        the server caps the running requests. Without an overload, no cap is known.
        """
        queues = [test.queue for test in tests if test.queue]
        sharing = next((queue for queue in reversed(queues) if queue.tokens), queues[-1])
        ttft_s = lone.ttft_s
        steady = [test for test in tests if not test.has_waited and test.ttft_ms.p50]
        if steady:
            ttft_s = (steady[-1].ttft_ms.p50 or 0.0) / 1000
        overloads = []
        for test in tests:
            if is_overloaded(test, goal) and completed_error(test.queue) < MOST_ERROR_SHARE:
                overloads.append(test)
        surest = min(overloads, key=lambda test: completed_error(test.queue), default=None)
        if surest is None:
            return cls(lone, sharing, saturated=None, is_capped=False, ttft_s=ttft_s)
        # TPOT within its limit though queries always wait: the server caps the number of running requests.
        is_capped = (surest.tpot_ms.p99 or inf) <= goal.tpot_ms
        return cls(lone, sharing, saturated=surest.queue, is_capped=is_capped, ttft_s=ttft_s)

    @property
    def capacity(self) -> float:
        """The highest rate in queries/s that the server can complete: the lower of its two capacities.

        Infinity if neither is known.
        """
        return min(self.sharing_capacity, self.capped_capacity)

    @property
    def sharing_capacity(self) -> float:
        """The rate in queries/s from which queries come faster than their answers can end.

        Each further answer slows all others, so that ever more of them run at once. Infinity if answers do not slow
        each other.
        """
        return self.sharing.shared_capacity(self.lone.tpot_s)

    @property
    def capped_capacity(self) -> float:
        """The rate in queries/s that the server completes with as many requests running as it allows; infinity if no
        test had queries always waiting.

        In such a test, answers run in step, and the server completes 3 to 9 % more than usual (an H200, Interactive).
        So the rate is limited to what follows from how answers slow each other down in other tests.
        """
        if not self.saturated:
            return inf
        lone_s = self.lone.tpot_s * self.sharing.tokens  # of an answer that runs alone
        answer_s = lone_s + (self.running_at_cap - 1) / self.sharing_capacity
        if answer_s <= 0:  # The times of answers are not known.
            return self.saturated.completed
        return min(self.saturated.completed, self.running_at_cap / answer_s)

    @property
    def running_at_cap(self) -> float:
        """The mean number of running requests while others always wait, by Little's law; infinity if no test had
        requests always waiting.
        """
        if not self.saturated:
            return inf
        return max(self.saturated.completed * self.saturated.answer_s, 1.0)

    def highest_rate(self, goal: Goal) -> float:
        """Return the highest rate in queries/s that a full test should keep.

        If TPOT keeps its limit however many queries wait, TTFT decides. Else TPOT decides, because it is over its limit
        before any query waits. Returns 0 if a lone request is over a limit, and infinity if nothing shows a limit,
        because concurrency does not slow answers.
        """
        if self.lone.is_over(goal):
            return 0.0
        if self.engine_model is None:
            return inf
        return rate_within(self.engine_model, self.limits(goal), goal)

    def rate_after(self, test: Outcome, shares: tuple[float, float], test_goal: Goal, goal: Goal) -> float:
        """Estimate the highest rate for a full test from another test's p99 of TTFT and of TPOT.

        `shares` are these p99 as shares of their limits; one far below its limit is ignored. `test_goal` is the goal
        with that test's length, `goal` that of the full test. Returns infinity if the test shows no limit.
        """
        ttft_share, tpot_share = shares
        limits, model = self.limits(goal), self.engine_model
        p99 = TimeLimits(
            wait_s=telling(self.waited_s(ttft_share, goal), limits.wait_s),
            answer_s=telling(tpot_share * goal.tpot_ms / 1000 * self.sharing.tokens, limits.answer_s),
        )
        rates = [inf]
        if model and min(p99) < inf:
            rates.append(rate_after_test(model, test.load, p99, limits, test_goal, goal))
        if ttft_share > 1 and p99.wait_s == inf and test.rate < self.capacity < inf:
            # TTFT is over its limit though the model expects no waits, so the rate follows without the model. It is
            # scaled from the rate that was sent in fact (`test.rate`) to the rate that was asked for (`test.load`).
            rates.append(rate_toward_limit(self.capacity, test.rate, ttft_share) * test.load / test.rate)
        return min(rates)

    @property
    def engine_model(self) -> EngineModel | None:
        """The model for simulating full tests; None if the server has no cap and answers do not slow each other down.

        Without a cap on running requests, the model has the capacity of answers that share the server. With a cap, the
        capacity is such that answers take the measured time when as many requests run as the cap allows.
        """
        measured = self.sharing
        lone_s = self.lone.tpot_s * measured.tokens  # of an answer that runs alone
        # If answers grew longer or shorter during the test, that alone makes them scatter around the fit.
        scatter = 0.0 if measured.has_grown or measured.drift else measured.scatter
        spread = min(measured.spread, MOST_PROMPT_SPREAD)
        make_model = partial(EngineModel, prompt_share=measured.prompts, prompt_spread=spread, scatter=scatter)
        if not self.is_capped:
            if not measured.tokens or self.sharing_capacity == inf:
                return None
            return make_model(lone_s=lone_s, capacity=self.sharing_capacity, most_running=inf)
        busiest_answer_s = self.running_at_cap / self.capped_capacity
        other_requests = self.running_at_cap - 1
        # If requests run one at a time, or cost others nothing, each takes the measured time, whatever else runs.
        if other_requests < LEAST_OTHERS or not 0 < lone_s < busiest_answer_s:
            return make_model(lone_s=busiest_answer_s, capacity=NO_COST_QPS, most_running=self.running_at_cap)
        capacity = other_requests / (busiest_answer_s - lone_s)
        return make_model(lone_s=lone_s, capacity=capacity, most_running=self.running_at_cap)

    def limits(self, goal: Goal) -> TimeLimits:
        """Return the one limit that decides; the other is infinite.

        If TPOT keeps its limit however many queries wait (`is_capped`), the wait decides. Else an answer's time does.
        """
        if self.is_capped:
            return TimeLimits(self.longest_wait_s(goal), inf)
        return TimeLimits(inf, goal.tpot_ms * self.sharing.tokens / 1000)

    def longest_wait_s(self, goal: Goal) -> float:
        """Return the seconds that a query may wait before its first token comes too late.

        TTFT without a wait is taken off the limit, but a share of the limit is always left.
        """
        limit_s = goal.ttft_ms / 1000
        return max(limit_s - self.ttft_s, LEAST_WAIT_SHARE * limit_s)

    def waited_s(self, ttft_share: float, goal: Goal) -> float:
        """Return the p99 of waits in seconds, given the p99 of TTFT as a share of its limit.

        TTFT is taken as a wait plus a constant. A TTFT at its limit is a wait of `longest_wait_s`, which fixes the
        constant.
        """
        limit_s = goal.ttft_ms / 1000
        return self.longest_wait_s(goal) + (ttft_share - 1) * limit_s


def telling(p99_s: float, limit_s: float) -> float:
    """Return the p99 if it is near its limit or over it; else infinity, which means that it is ignored.

    A p99 far below its limit does not tell how near the limit is, and an infinite limit is not judged.
    """
    if limit_s == inf or p99_s <= TELLING_SHARE * limit_s:
        return inf
    return p99_s


def is_overloaded(test: Outcome, goal: Goal) -> bool:
    """Tell whether a test overloaded the server: queries always waited, and more came than were completed.

    The growth of the queue must be clearly beyond chance (`has_grown`). If TTFT is over its limit as well, growth by
    more than one standard error (`chance`) suffices. Returns False if the test has no queue.
    """
    queue = test.queue
    if queue is None or not test.has_waited:
        return False
    ttft_share, _ = goal.shares(test)
    is_late = ttft_share > 1
    return queue.has_grown or (is_late and queue.growth > queue.chance)


def completed_error(queue: Queue | None) -> float:
    """Return the standard error of the completion rate as a share of the rate; infinity if nothing was completed, or
    if the test has no queue.
    """
    if queue is None or not queue.completed:
        return inf
    return queue.completed_error / queue.completed
