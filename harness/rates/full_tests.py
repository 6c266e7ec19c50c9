"""The rates of the full tests: the first by the search's candidate, each further one by the tests before it."""

from collections.abc import Sequence
from math import inf, log
from typing import NamedTuple

from harness.config.plan import duration_text
from harness.core.formatting import number
from harness.rates.clock import heat_margin
from harness.rates.goal import Goal
from harness.rates.measurements import ROOM_SHARE, Measurements, rate_on_line
from harness.rates.prediction import rate_toward_limit
from harness.rates.server_model import LoneRequest, ServerModel
from harness.rates.simulation import allowed_late
from harness.results.outcome import Outcome, load_of

# Each constant was chosen by the cases of benchmarks.search that it names.
MOST_FULL_TESTS = 4
# The first test is at this share of the candidate: ten minutes show what one minute does not ("three replicas at
# random", "a sine of 3 % in ten minutes").
FIRST_SHARE = 0.975
SAFE_SHARE = 0.97  # After a failure the next test is at this share of the model's rate ("a neighbor of 5 in 45 s").
RETRY_SHARE = 0.97  # The next test is at most at this share of the rate that failed.
# The next test is at least at these shares of it, after one, two and three failures ("a neighbor of 3 in 90 s").
LEAST_RETRY_SHARES = (0.8, 0.8, 0.6)
LAST_SHARE = 0.95  # The last test there is has this further margin ("a neighbor of 3 in 90 s").
UNTOLD_SHARE = 0.9  # the next rate as a share of a failed one, if nothing shows how much too high that was
# The tail beyond p99 is exponential: the latency that 1/e as many queries exceed is longer by this share of the limit
# ("2/s").
TAIL_SHARE = 0.15
WORTHWHILE_RATIO = 1.02  # the smallest rise over a rate that held with room that is worth a test
MOST_RISE_RATIO = 1.4  # the largest rise; farther off a model is a guess ("faster over ten minutes")
GAP_RATIO = 1.07  # the smallest ratio of a failed rate to one that held for which a test between them is worth it
LEAST_STEP, MOST_STEP = 0.3, 0.8  # the shares of the gap between which that test is


def first_rate(measurements: Measurements) -> float:
    """Return the rate of the first full test: the candidate, less a margin for what short probes cannot show.

    The margin is larger if heat lowered the GPUs' clock in a probe.
    """
    falls = [probe.clock_fall for probe in measurements.probes if probe.clock_fall is not None]
    margin = heat_margin(max(falls, default=None))
    return FIRST_SHARE * (1 - margin) * measurements.candidate.rate


class FullTests(NamedTuple):
    """The full tests of a search so far, in their order, and the probes before them."""

    full: Sequence[Outcome]
    probes: Sequence[Outcome]
    goal: Goal
    lone: LoneRequest | None = None

    @property
    def last(self) -> Outcome:
        return self.full[-1]

    @property
    def held(self) -> Outcome | None:
        """The test with the highest rate that the server held; None if it held no test's rate.

        It held a rate if the test was VALID, its queue did not grow, and no request was refused.
        """
        tests = [test for test in self.full if test.has_held]
        return max(tests, key=load_of, default=None)

    @property
    def failed(self) -> list[Outcome]:
        """The tests whose rate the server did not hold, from the highest rate to the lowest."""
        tests = [test for test in self.full if not test.has_held]
        return sorted(tests, key=load_of, reverse=True)

    def failed_above(self, rate: float) -> list[Outcome]:
        """Return the tests that failed at a higher rate, the lowest rate last."""
        return [test for test in self.failed if test.load > rate]

    @property
    def server(self) -> ServerModel | None:
        """The model of the server, fitted to all probes and full tests; None if the last test's queue was not measured.

        If no lone request was measured, the shortest times of any request replace it.
        """
        if self.last.queue is None:
            return None
        tests = [*self.probes, *self.full]
        return ServerModel.fit(self.lone or shortest_times(tests), tests, self.goal)

    def share(self, test: Outcome) -> float:
        """Return how near a test came to its limits: p99 / limit of TTFT or of TPOT, whichever is higher."""
        ttft_share, tpot_share = self.goal.shares(test)
        # Where a cap on running requests keeps TPOT within its limit at any rate, TPOT does not show how near a failure
        # is. In a test that failed, both count, since TPOT may be why it failed.
        if test.has_held and self.has_cap_kept_tpot:
            return ttft_share
        return max(ttft_share, tpot_share)

    @property
    def has_cap_kept_tpot(self) -> bool:
        """Tell whether the server caps its running requests, and the cap kept TPOT within its limit in each test."""
        if self.server is None or not self.server.is_capped:
            return False
        # Probes at lower rates count, too: a less busy server may exceed a limit that a saturated one keeps. After a
        # lull, many prompts come at once, and hold up the answers that run.
        tpot_shares = [self.goal.shares(test)[1] for test in (*self.probes, *self.full)]
        return max(tpot_shares) <= 1

    def point(self, test: Outcome) -> tuple[float, float]:
        """Return a test's rate, and how near the test was to failing: 1 is the border between passing and failing.

        A line through two such points gives the rate, between them or beyond them, at which a test would just pass.
        """
        queries = test.queries or round(test.load * (test.issue_s or 0.0))  # an estimate if they were not counted
        # A test must stay below its limits by some margin to pass early stopping, so the border is `passing_share`.
        share_of_border = self.share(test) / passing_share(queries)
        if test.has_held:
            return test.load, share_of_border
        # A test that failed by early stopping alone has a measure of its own. Any failed test lies beyond the border,
        # also one that failed for another reason than its latencies, such as a queue that grew.
        failed_share = early_stopping_share(test, self.goal) or share_of_border
        return test.load, max(failed_share, 1.0)

    @property
    def next_rate(self) -> float | None:
        """The rate of the next full test in queries/s; None if no further test is worth its time."""
        if len(self.full) >= MOST_FULL_TESTS:
            return None
        held = self.held  # the test with the highest rate that the server held
        if held is None:
            return self.lower_rate
        has_one_test_left = len(self.full) == MOST_FULL_TESTS - 1
        if has_one_test_left and self.last is not held:  # A higher rate has just failed, so the held one is the result.
            return None
        if self.share(held) >= ROOM_SHARE:  # A latency is near its limit already.
            return None
        failed_above = self.failed_above(held.load)
        if not failed_above:
            return self.higher_rate(held)
        lowest_failed = failed_above[-1]
        if lowest_failed.load <= GAP_RATIO * held.load:  # The two rates are too near for a test between them.
            return None
        return self.rate_between(held, lowest_failed)

    @property
    def lower_rate(self) -> float:
        """The next rate if no test held its rate: below the lowest rate that failed, within bounds."""
        lowest = self.failed[-1]
        if len(self.failed) == 1:
            rate = SAFE_SHARE * self.modelled_rate(lowest, self.goal.shares(lowest))
        else:
            rate = self.extrapolated_rate
        has_one_test_left = len(self.full) == MOST_FULL_TESTS - 1
        if has_one_test_left:  # If this test fails, too, the search has no result. So it gets a further margin.
            rate *= LAST_SHARE
        # The more tests failed, the lower the next rate may be. The last share is for all later failures.
        share_index = min(len(self.failed), len(LEAST_RETRY_SHARES)) - 1
        least = LEAST_RETRY_SHARES[share_index] * lowest.load
        most = RETRY_SHARE * lowest.load
        return min(max(rate, least), most)

    @property
    def extrapolated_rate(self) -> float:
        """The rate at which the latencies should keep their limits, by the failed tests with the two lowest rates."""
        higher, lower = self.failed[-2:]
        rate = rate_on_line(self.point(lower), self.point(higher))
        if rate is not None:
            return rate
        # p99 was no better at the lower rate, so the tests contradict each other. Then the model decides, with a margin
        # and from the worst p99 of all tests.
        worst = max(share for _, share in map(self.point, self.full))
        return SAFE_SHARE * self.modelled_rate(lower, shares=(worst, worst))  # for TTFT and TPOT alike

    def higher_rate(self, held: Outcome) -> float | None:
        """Return a rate above a test whose latencies were well below their limits; None if the gain is not worth a
        test.

        The model gives the rate, but no more than MOST_RISE_RATIO times the rate of the test: farther off it is a
        guess.
        """
        rate = min(self.modelled_rate(held, self.goal.shares(held)), MOST_RISE_RATIO * held.load)
        if rate <= WORTHWHILE_RATIO * held.load:
            return None
        return rate

    def rate_between(self, held: Outcome, failed: Outcome) -> float:
        """Return the rate between two tests at which p99 should reach its limit.

        `held` is the test whose rate the server held, `failed` a test at a higher rate that failed.
        """
        gap = failed.load - held.load
        share_of_gap = LEAST_STEP
        rate = rate_on_line(self.point(held), self.point(failed))
        if rate is not None:
            share_of_gap = (rate - held.load) / gap
        # A rate near to either test would show little.
        return held.load + min(max(share_of_gap, LEAST_STEP), MOST_STEP) * gap

    def modelled_rate(self, test: Outcome, shares: tuple[float, float]) -> float:
        """Estimate the highest rate at which a full test should hold, from one full test and the model of the server.

        `shares` are the p99 of TTFT and of TPOT, as shares of their limits. Infinity if the test held and nothing shows
        a limit.
        """
        server, queue = self.server, test.queue
        rate = inf
        if server is not None and queue is not None:
            by_p99 = self.rate_by_p99(server, test, queue.drift, shares)
            rate = min(by_p99, self.rate_by_early_stopping(server, test))
        if rate == inf and not test.has_held:  # Nothing shows how much too high the failed rate was.
            return UNTOLD_SHARE * test.load
        return rate

    def rate_by_p99(self, server: ServerModel, test: Outcome, drift: float, shares: tuple[float, float]) -> float:
        """Return the highest rate that a full test should keep by a test's p99; infinity if no limit shows.

        `drift` is the change of the server's speed during the test. `shares` are the p99 of TTFT and of TPOT, as shares
        of their limits.
        """
        rate = server.rate_by_p99_of(test, shares, test_goal=self.goal, goal=self.goal)
        # If the server became faster during a test that held, the p99 is of the time when the server was slower, and a
        # higher rate may hold.
        is_p99_too_high = test.has_held and drift > 0
        if rate < inf and not is_p99_too_high:
            return rate
        # The p99 shows no limit, or only that of the slower server, so the model decides alone.
        gain_in_speed = max(drift, 0.0)
        return server.highest_rate(self.goal) * (1 + gain_in_speed)

    def rate_by_early_stopping(self, server: ServerModel, test: Outcome) -> float:
        """Return the rate at which a test should pass early stopping; infinity if early stopping did not fail it.

        Infinity also if the capacity of the server is not known, or the test's rate was not below it.
        """
        has_failed_by_early_stopping = test.more is not None  # LoadGen asked for more queries.
        is_below_capacity = test.rate < server.capacity < inf
        if not has_failed_by_early_stopping or not is_below_capacity:
            return inf
        _, share_of_border = self.point(test)  # how far the test was beyond the border between passing and failing
        passing_rate = rate_toward_limit(server.capacity, test.rate, share_of_border)
        # Random gaps make the sent rate (`test.rate`) differ from the rate that was asked for (`test.load`). The model
        # works with sent rates, but the result is a rate to ask for.
        return passing_rate * test.load / test.rate

    @property
    def summary(self) -> str:
        """What is known of the highest rate, in words."""
        held = self.held
        if held is None:
            return self.summary_of_failures
        sentence = f"VALID at {number(held.load)} queries/s for {duration_text(held.issue_s or 0.0)}"
        failed_above = self.failed_above(held.load)
        if failed_above:
            lowest_failed = failed_above[-1]
            sentence += f", {failure_text(lowest_failed)}"
        elif self.share(held) < ROOM_SHARE:
            higher = self.higher_rate(held)
            if higher:
                sentence += f"; VALID with margin: up to {number(higher)} queries/s may be VALID"
        return sentence

    @property
    def summary_of_failures(self) -> str:
        """What is known if all tests failed: "<the failure at the lowest rate>, as all 3 full tests; next: <flag>"."""
        failure = failure_text(self.failed[-1], unit=" queries/s")
        failed_tests = "the full test"
        if len(self.failed) > 1:
            failed_tests = f"all {len(self.failed)} full tests"
        next_rate = number(self.lower_rate, 3).replace(",", "")  # A flag's value has no thousands separator.
        return f"{failure}, as {failed_tests}; next: --server-target-qps {next_rate}"


def failure_text(test: Outcome, unit: str = "") -> str:
    """Return in words that a test failed, with its rate and length, and why, if a reason is known.

    `unit` is written after the rate. A test that LoadGen calls VALID has failed all the same if its queue grew.
    """
    text = f"{test.verdict.word} at {number(test.load)}{unit} for {duration_text(test.issue_s or 0.0)}"
    if test.has_grown and test.valid:
        return f"{text}, but its queue grew"
    return f"{text} ({test.why})" if test.why else text


def early_stopping_share(test: Outcome, goal: Goal) -> float | None:
    """Return the deciding latency of a test that failed by early stopping alone, as a share of the latency's limit.

    If early stopping allows ten late queries, the deciding latency is that which ten queries exceed. None for any other
    test.
    """
    p99_share = max(goal.shares(test))  # the p99 of TTFT or of TPOT, whichever is nearer to its limit
    has_failed_by_early_stopping_alone = test.more is not None and p99_share < 1
    queries = test.queries or round(test.load * (test.issue_s or 0.0))  # an estimate if they were not counted
    if not has_failed_by_early_stopping_alone or not queries:
        return None
    # Three points of the tail of latencies are known: how many queries exceed the p99, the limit and the deciding
    # latency. LoadGen does not log how many were over the limit. But it asks for so many `more` queries that their
    # number would be allowed.
    over_p99 = 0.01 * queries
    over_limit = max(allowed_late(queries + (test.more or 0)), 1)
    over_deciding = nonzero_allowed_late(queries)
    is_in_order = over_deciding < over_limit < over_p99
    if not is_in_order:  # The numbers contradict each other: the test counts as just at the limit.
        return 1.0
    # The tail is taken to be exponential: where n times fewer queries exceed a latency, it is higher by pace * log(n).
    # From the p99 to the limit it rises by 1 - p99_share, which gives the pace.
    pace = (1 - p99_share) / log(over_p99 / over_limit)
    return 1 + pace * log(over_limit / over_deciding)


def passing_share(queries: int) -> float:
    """Return the largest p99, as a share of its limit, with which a test of so many queries passes early stopping.

    Early stopping allows fewer queries over the limit than the 1 % that exceed the p99, so the p99 must stay below the
    limit. The tail is taken to be exponential: where n times fewer queries exceed a latency, it is higher by TAIL_SHARE
    * log(n) of the limit.
    """
    over_p99 = 0.01 * queries
    fewer_ratio = over_p99 / nonzero_allowed_late(queries)
    return 1 - TAIL_SHARE * log(max(fewer_ratio, 1.0))


def nonzero_allowed_late(queries: int) -> float:
    """Return how many of `queries` may be over the limit in early stopping, but at least 0.5.

    The result divides other numbers, so it cannot be 0. Where none may be over, a half means that one of twice as many
    queries may.
    """
    return max(allowed_late(queries), 0.5)


def rate_that_waits_allow(tests: Sequence[Outcome], goal: Goal) -> float:
    """Return the highest rate at which queries wait no longer than TTFT's limit allows, in a full test.

    Returns infinity if waits set no limit, or if it is not known whether they do.
    """
    measured = [test for test in tests if test.queue]
    if not measured:
        return inf
    server = ServerModel.fit(shortest_times(measured), measured, goal)
    if not server.is_capped:  # As far as the tests show, the server runs every query at once, so none waits.
        return inf
    return server.highest_rate(goal)


def shortest_times(tests: Sequence[Outcome]) -> LoneRequest:
    """Return the shortest times of any request, 0 if unknown. They replace a lone request's if none was measured."""
    ttft_ms = [test.ttft_ms.min for test in tests if test.ttft_ms.min]
    tpot_ms = [test.tpot_ms.min for test in tests if test.tpot_ms.min]
    return LoneRequest(min(ttft_ms, default=0.0) / 1000, min(tpot_ms, default=0.0) / 1000)
