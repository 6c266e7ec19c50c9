"""A server as its measurements show it: the model that full tests are simulated with, and what is judged in them."""

from collections.abc import Sequence
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
        """Fit the model to tests, given in the order in which they ran. In at least one, the queue was measured."""
        overload = surest_overload(tests, goal)
        # If TPOT keeps its limit though queries always wait, the server caps the number of running requests. Without an
        # overload, or if its TPOT is unknown, no cap shows.
        is_capped = overload is not None and (overload.tpot_ms.p99 or inf) <= goal.tpot_ms
        return cls(
            lone,
            sharing=last_fitted_queue(tests),
            saturated=overload.queue if overload else None,
            is_capped=is_capped,
            ttft_s=ttft_without_wait_s(tests, lone),
        )

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
        """The rate in queries/s that the server completes with as many requests running as it allows; infinity without
        a saturated test, which is one in which queries always waited.
        """
        if not self.saturated:
            return inf
        measured_rate = self.saturated.completed
        # In the saturated test, all answers begin and end together, and the server completes 3 to 9 % more than usual
        # (an H200, Interactive). So the rate is limited to what follows from the usual time of an answer beside as many
        # others.
        other_requests = self.running_at_cap - 1
        added_by_each_s = 1 / self.sharing_capacity
        usual_answer_s = self.lone_answer_s + other_requests * added_by_each_s
        if usual_answer_s <= 0:  # Times that are not known are stored as 0.
            return measured_rate
        return min(measured_rate, self.running_at_cap / usual_answer_s)

    @property
    def running_at_cap(self) -> float:
        """The mean number of running requests while others always wait, by Little's law; infinity if no test had
        requests always waiting.
        """
        if not self.saturated:
            return inf
        return max(self.saturated.completed * self.saturated.answer_s, 1.0)

    def highest_rate(self, goal: Goal) -> float:
        """Return the highest rate in queries/s that a full test should keep, by simulation.

        0 if a request that runs alone is over a limit, infinity if nothing shows a highest rate.
        """
        if self.lone.is_over(goal):
            return 0.0
        if self.engine_model is None:  # Concurrency does not slow answers, as far as was measured.
            return inf
        return rate_within(self.engine_model, self.limits(goal), goal)

    def rate_by_p99_of(self, test: Outcome, shares: tuple[float, float], test_goal: Goal, goal: Goal) -> float:
        """Estimate the highest rate for a full test from the p99 of another test; infinity if the p99 show no limit.

        `shares` are the other test's p99 of TTFT and of TPOT, as shares of their limits. `test_goal` describes that
        test, and `goal` the full test.
        """
        ttft_share, tpot_share = shares
        limits = self.limits(goal)
        answer_s = tpot_share * goal.tpot_ms / 1000 * self.sharing.tokens  # TPOT's p99, for all tokens of an answer
        # A p99 far below its limit tells nothing about the server. It is made infinite, so that it is ignored.
        p99 = TimeLimits(
            wait_s=telling_p99_s(self.waited_s(ttft_share, goal), limits.wait_s),
            answer_s=telling_p99_s(answer_s, limits.answer_s),
        )
        is_any_p99_telling = min(p99) < inf
        rate_by_model = inf
        if self.engine_model and is_any_p99_telling:
            rate_by_model = rate_after_test(self.engine_model, test.load, p99, limits, test_goal, goal)
        return min(rate_by_model, self.rate_by_late_ttft(test, ttft_share))

    def rate_by_late_ttft(self, test: Outcome, ttft_share: float) -> float:
        """Return the rate at which TTFT would keep its limit, if a test was over it for a reason outside the model.

        `ttft_share` is the p99 of TTFT as a share of its limit. Infinity if the limit was kept, if the model
        explains the TTFT, or if the rate was not below the capacity.
        """
        # Without a cap on running requests, no query waits in the model.
        is_unexplained = ttft_share > 1 and not self.is_capped
        is_below_capacity = test.rate < self.capacity < inf
        if not is_unexplained or not is_below_capacity:
            return inf
        sent_rate_at_limit = rate_toward_limit(self.capacity, test.rate, ttft_share)
        # Random gaps make the sent rate (`test.rate`) differ from the rate that was asked for (`test.load`). The result
        # is a rate to ask for.
        return sent_rate_at_limit * test.load / test.rate

    @property
    def engine_model(self) -> EngineModel | None:
        """The model of the engine for simulating full tests; None if nothing shows a highest rate.

        A highest rate shows if the server caps the number of running requests, or if answers slow each other down.
        """
        if self.is_capped:
            return self.capped_engine
        was_measured = self.sharing.tokens > 0
        if not was_measured or self.sharing_capacity == inf:  # Infinity: answers do not slow each other down.
            return None
        return self.engine_with(lone_s=self.lone_answer_s, capacity=self.sharing_capacity, most_running=inf)

    @property
    def capped_engine(self) -> EngineModel:
        """The model of an engine that caps the number of running requests.

        Usually an answer takes longer beside others.
        """
        most_running = self.running_at_cap
        # The time of an answer beside as many others as the cap allows, by Little's law: `capped_capacity` is the rate
        # at which answers end then.
        busiest_answer_s = most_running / self.capped_capacity
        other_requests = most_running - 1
        runs_one_at_a_time = other_requests < LEAST_OTHERS
        is_slowed_by_others = 0 < self.lone_answer_s < busiest_answer_s
        if runs_one_at_a_time or not is_slowed_by_others:  # Each answer takes the measured time, whatever else runs.
            return self.engine_with(lone_s=busiest_answer_s, capacity=NO_COST_QPS, most_running=most_running)
        added_by_others_s = busiest_answer_s - self.lone_answer_s
        capacity = other_requests / added_by_others_s  # Each other request adds 1 / capacity seconds to an answer.
        return self.engine_with(lone_s=self.lone_answer_s, capacity=capacity, most_running=most_running)

    @property
    def lone_answer_s(self) -> float:
        """The seconds that an answer of mean length takes alone, after its first token; 0 if that was not measured."""
        return self.lone.tpot_s * self.sharing.tokens

    def engine_with(self, lone_s: float, capacity: float, most_running: float) -> EngineModel:
        """Return an engine's model with these speeds, and with the prompts and the scatter of answers as measured."""
        measured = self.sharing
        scatter = measured.scatter
        if measured.has_grown or measured.drift:
            # The queue grew or the server's speed changed. Answers then take more or less time as the test goes on,
            # which is no scatter of a steady server.
            scatter = 0.0
        prompt_spread = min(measured.spread, MOST_PROMPT_SPREAD)  # The simulation knows no prompts that differ more.
        return EngineModel(lone_s, capacity, most_running, measured.prompts, prompt_spread, scatter)

    def limits(self, goal: Goal) -> TimeLimits:
        """Return the one limit that a rising rate reaches first; the other is infinite."""
        if self.is_capped:
            # No more requests run at once than the cap allows, so TPOT stays within its limit however many queries
            # wait. TTFT has the wait in it, so it reaches its limit.
            return TimeLimits(wait_s=self.longest_wait_s(goal), answer_s=inf)
        # Without a cap no query waits, and TPOT grows with each request that runs.
        return TimeLimits(wait_s=inf, answer_s=goal.tpot_ms * self.sharing.tokens / 1000)

    def longest_wait_s(self, goal: Goal) -> float:
        """Return the seconds that a query may wait before its first token comes too late."""
        limit_s = goal.ttft_ms / 1000
        # `ttft_s` is the time without a wait. Should it take nearly all of the limit, a share of the limit is left.
        return max(limit_s - self.ttft_s, LEAST_WAIT_SHARE * limit_s)

    def waited_s(self, ttft_share: float, goal: Goal) -> float:
        """Return the p99 of waits in seconds, given the p99 of TTFT as a share of its limit.

        If TTFT is just at its limit, a query waited for `longest_wait_s`. Any further TTFT is a longer wait.
        """
        limit_s = goal.ttft_ms / 1000
        ttft_beyond_limit_s = (ttft_share - 1) * limit_s  # negative if TTFT is within its limit
        return self.longest_wait_s(goal) + ttft_beyond_limit_s


def last_fitted_queue(tests: Sequence[Outcome]) -> Queue:
    """Return the queue of the last test that shows how answers slow each other down.

    Such a test had enough answers for a fit. If none had, the last queue that was measured is returned.
    """
    queues = [test.queue for test in tests if test.queue]
    fitted = [queue for queue in queues if queue.tokens]  # Without a fit, the mean tokens of an answer are 0.
    return (fitted or queues)[-1]


def ttft_without_wait_s(tests: Sequence[Outcome], lone: LoneRequest) -> float:
    """Return the median TTFT in seconds of the last test in which queries did not wait, else that of a lone request."""
    for test in reversed(tests):
        if not test.has_waited and test.ttft_ms.p50:
            return test.ttft_ms.p50 / 1000
    return lone.ttft_s


def surest_overload(tests: Sequence[Outcome], goal: Goal) -> Outcome | None:
    """Return the overloaded test whose completion rate has the smallest error.

    None if no test was overloaded, or if that error is MOST_ERROR_SHARE or more.
    """
    overloads = [test for test in tests if is_overloaded(test, goal)]
    surest = min(overloads, key=lambda test: completed_error(test.queue), default=None)
    if surest is None or completed_error(surest.queue) >= MOST_ERROR_SHARE:
        return None
    return surest


def telling_p99_s(p99_s: float, limit_s: float) -> float:
    """Return the p99 if it is near its limit or over it; else infinity, which means that it tells nothing.

    A p99 far below its limit does not tell how near the limit is, and an infinite limit is not judged.
    """
    if limit_s == inf or p99_s <= TELLING_SHARE * limit_s:
        return inf
    return p99_s


def is_overloaded(test: Outcome, goal: Goal) -> bool:
    """Tell whether a test overloaded the server: queries always waited, and more came than were completed.

    Returns False if the test has no queue.
    """
    queue = test.queue
    if queue is None or not test.has_waited:
        return False
    if queue.has_grown:  # by more than chance explains
        return True
    # A TTFT over its limit is a second sign of overload, so weaker growth suffices: more than one standard error.
    ttft_share, _ = goal.shares(test)
    return ttft_share > 1 and queue.growth > queue.chance


def completed_error(queue: Queue | None) -> float:
    """Return the standard error of the completion rate as a share of the rate; infinity if nothing was completed, or
    if the test has no queue.
    """
    if queue is None or not queue.completed:
        return inf
    return queue.completed_error / queue.completed
