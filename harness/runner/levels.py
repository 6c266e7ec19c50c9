"""Levels of concurrency: one after the other, or the highest that keeps both limits."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import inf, isqrt
from time import monotonic
from typing import NamedTuple

from harness.config.patterns import SURE_P90_QUERIES
from harness.config.plan import Plan, TestPart, duration_text
from harness.config.setting_types import MOST_CONCURRENT
from harness.core.errors import NotAcceptedError
from harness.core.formatting import number, plural
from harness.rates.bench import OFFLINE_MARGIN, Bench, as_probe
from harness.rates.goal import Goal
from harness.rates.measurements import PROBE_S
from harness.rates.trials import TRIAL_S
from harness.results.outcome import Outcome
from harness.runner.load_source import RateSource

LEVEL_RATIO = 4  # Levels that are chosen here rise by this ratio.
FINAL_RATIO = 1.1  # A search ends once the lowest level that failed is within this ratio of the highest that held.
MOST_LEVEL_TESTS = 24
MOST_TESTS_OF_ONE_LEVEL = 3  # A level near its limit is tested so often.
CLEAR_RATIO = 1.5  # If a p99 is farther than this ratio from its limit, one test is enough.
LEAST_LEVELS = 3  # A search tests so many levels at least.
MOST_SEARCH_S = 1800.0  # No further level is tested after these seconds.


class LevelCurve(RateSource):
    """The highest level of concurrency; each lower level is a separate test before it, of the same length."""

    def part_before(self, plan: Plan) -> TestPart | None:
        """Return what the run does before its performance test: a test at each lower number of requests in flight.

        None if there is no lower level.
        """
        if not plan.config.levels:
            # The user gave no levels, so their number, and with it the time, is known only once the engine runs.
            text = "up to what the engine computes at once, each as long as the last"
            return TestPart("a test at each power of four", text, seconds=None)
        *lower, _highest = fitting_levels(plan.config.levels, plan)
        if not lower:
            return None
        total_s = 0.0
        for level in lower:
            seconds = plan.min_duration_s
            length = plan.pattern.length(plan.with_concurrency(level))
            if length:  # The number of requests and the seconds of this level's test are known.
                _requests, seconds = length
            total_s += seconds
        # LoadGen needs SURE_P90_QUERIES requests for its estimate of the p90 latency.
        level_text = f"each of {SURE_P90_QUERIES} requests or more, after a trial of at most {duration_text(TRIAL_S)}"
        # The time is a lower bound: slow requests make a test longer, and the trials are not counted.
        text = f"at least {duration_text(total_s)}, {level_text}"
        return TestPart(plural(len(lower), "lower level"), text, total_s, bound="at least ")

    def least_s(self, plan: Plan) -> float | None:
        return plan.min_duration_s

    def find(self, bench: Bench) -> Plan:
        """Test the lower levels (numbers of requests in flight), lowest first, and return the plan of the highest.

        The test at the highest level is the performance test, which does not run here.
        """
        all_levels = levels_of(bench.plan.config.levels, bench.at_once)
        levels = fitting_levels(all_levels, bench.plan)
        unfit = ", ".join(f"{level:,}" for level in all_levels if level not in levels)
        if unfit:
            bench.say(f"left out for --minutes {bench.plan.config.minutes:g}: {unfit} in flight")
        *lower, highest = levels
        for level in lower:
            plan = plan_at_level(bench, level)  # with the rate of a short trial
            if level == lower[0]:  # The first trial's rate tells how long all tests take.
                bench.say(self.duration_line(plan))  # the parts of the run, and how long they take
            bench.test(plan)
        return plan_at_level(bench, highest)


class LevelSearch(RateSource):
    """The highest concurrency that keeps both limits, by short tests."""

    before = TestPart(
        "search for the highest concurrency",
        f"{duration_text(LEAST_LEVELS * PROBE_S)} to {duration_text(MOST_SEARCH_S)}: levels of at least "
        f"{duration_text(PROBE_S)}, each "
        f"after a trial of at most {duration_text(TRIAL_S)}",  # The trial tells LoadGen its rate.
        LEAST_LEVELS * PROBE_S,
        "at least ",
    )

    def least_s(self, plan: Plan) -> float | None:
        """Return the fewest seconds of a search: its least number of short tests, and the full test."""
        return plan.min_duration_s + LEAST_LEVELS * min(PROBE_S, plan.min_duration_s)

    def duration_line(self, plan: Plan) -> str:
        """Return the parts of the run in words, with the most time that it takes, since the search has a time limit."""
        most_s = MOST_SEARCH_S + level_s(plan)
        if plan.config.minutes:
            most_s = min(most_s, 60 * plan.config.minutes)
        return f"{super().duration_line(plan)}; about {duration_text(most_s)} at most"

    def find(self, bench: Bench) -> Plan:
        """Return the plan of the highest level (number of requests in flight) that keeps the limits.

        Raises NotAcceptedError if no tested level keeps the limits.
        """
        # If --minutes sets an end (`bench.until`), the search ends early enough for the full test.
        until = min(monotonic() + MOST_SEARCH_S, bench.until - level_s(bench.plan))
        # The search begins at a quarter of what the engine computes at once, since a full engine may exceed a limit.
        search = LevelSearchState(bench.goal, partial(run_level, bench), until)
        highest = search.highest(first=max(1, bench.at_once // 4), most=MOST_CONCURRENT)
        if search.is_out_of_time:
            bench.say("no further level is tested: the time for the search is over")
        if highest:
            return plan_at_level(bench, highest)
        if not search.levels:
            last_test = duration_text(level_s(bench.plan))
            raise NotAcceptedError(
                f"no level was tested: --minutes {bench.plan.config.minutes:g} leaves no time for it beside the last "
                f"test, which may take {last_test}; give more."
            )
        lowest = min(search.levels)
        if lowest > 1:  # The search ended before it came to the lowest possible level, a single request.
            raise NotAcceptedError(
                f"{plural(lowest, 'request')} in flight, the lowest level that was tested, exceed the limits, and the "
                f"search is over: --concurrency {max(1, lowest // 4)} tests a lower one."
            )
        raise NotAcceptedError("a single request in flight exceeds the limits: see Probes/ in the run's folder.")


def level_s(plan: Plan) -> float:
    """Return the seconds that a test of full length at one level takes, with the trial before it."""
    return plan.min_duration_s + TRIAL_S


def levels_of(given: Sequence[int], concurrency: int) -> list[int]:
    """Return the levels (numbers of requests in flight) to test, in ascending order.

    They are the `given` levels or, if there are none, the powers of LEVEL_RATIO below `concurrency` and then
    `concurrency` itself: the number of requests that the engine computes at once.
    """
    if given:
        return list(given)
    levels = []
    level = 1
    while level < concurrency:
        levels.append(level)
        level *= LEVEL_RATIO
    return [*levels, concurrency]


def fitting_levels(levels: Sequence[int], plan: Plan) -> list[int]:
    """Return the levels (numbers of requests in flight) that --minutes has time to test, spread evenly over the list.

    The last level is always among them. Without --minutes, all are returned.
    """
    if not plan.config.minutes:
        return list(levels)
    most_levels = max(1, int(60 * plan.config.minutes / level_s(plan)))
    if most_levels >= len(levels):
        return list(levels)
    if most_levels == 1:
        return [levels[-1]]
    last_place = len(levels) - 1
    fitting = []
    for index in range(most_levels):  # from the first place in the list to the last, in even steps
        place = round(index * last_place / (most_levels - 1))
        fitting.append(levels[place])
    return fitting


def plan_at_level(bench: Bench, level: int) -> Plan:
    """Return the plan of a test at a level (a number of requests in flight), after a short trial at this level."""
    trial = bench.trial(replace(bench.plan, concurrency=level))
    # LoadGen plans the number of samples by this rate: too few would make the test INVALID.
    rate = OFFLINE_MARGIN * trial.samples_per_sec
    note = f"concurrency {level:,}: {number(rate)} samples/s expected ({OFFLINE_MARGIN} x {trial})"
    return bench.plan.with_note(note, concurrency=level, target_qps=rate)


def run_level(bench: Bench, level: int) -> Outcome | None:
    """Test a level (a number of requests in flight) briefly, and return its outcome.

    If the level was tested before, `bench.test` joins the outcomes. None if the server refuses requests, because so
    many are in flight.
    """
    # The trial sends the load without LoadGen, to measure the rate.
    # As a probe, the trial does not fail if the server refuses requests.
    trial = bench.trial(replace(bench.plan, concurrency=level), is_probe=True)
    if trial.full_at is not None:  # Requests were refused while the server was answering `full_at` others.
        bench.say(f"{level:,} in flight: the server refused some, full at {trial.full_at:,} in flight")
        bench.run.facts.full_at = trial.full_at
        bench.run.save()
        return None
    # LoadGen plans enough samples for the rate that it is told. The margin allows for an engine that turns out faster
    # than in its trial: too few samples would make the test INVALID, too many only longer.
    rate = OFFLINE_MARGIN * trial.samples_per_sec
    short_plan = as_probe(replace(bench.plan, concurrency=level, target_qps=rate))
    return bench.test(short_plan)


class LevelResult(NamedTuple):
    """The tests of a level (a number of requests in flight), all of whose requests count together.

    `p99_share` is the p99 of TTFT or that of TPOT, as a share of its limit: the larger of the two shares, and infinite
    if the server refused requests. `is_doubtful` says that the latencies may not be the engine's: a buffer held answers
    back, or other programs were busy on the machine.
    """

    test_count: int
    p99_share: float
    is_doubtful: bool = False

    @property
    def keeps_limits(self) -> bool:
        """Tell whether both p99, over all tests of the level, are within their limits."""
        return self.p99_share <= 1

    @property
    def is_sure(self) -> bool:
        """Tell whether the level (a number of requests in flight) needs no further test."""
        is_near_limit = 1 / CLEAR_RATIO < self.p99_share < CLEAR_RATIO
        is_clear = not is_near_limit and not self.is_doubtful
        has_failed_again = self.test_count > 1 and not self.keeps_limits
        has_most_tests = self.test_count >= MOST_TESTS_OF_ONE_LEVEL
        return is_clear or has_failed_again or has_most_tests


class LevelSearchState:
    """A search for the highest level that keeps the limits.

    Latencies of a few hundred requests are noisy. So a level near its limit is tested again, and all tests of a level
    count as one.
    """

    def __init__(self, goal: Goal, test: Callable[[int], Outcome | None], until: float = inf) -> None:
        """Begin a search for the highest level (number of requests in flight) that keeps the limits of `goal`.

        `test` tests a level once more and returns the outcome of all its tests together, None if the server refused
        requests. `until` is the time on the monotonic clock from which on no further level is tested.
        """
        self.goal, self.test, self.until = goal, test, until
        self.levels: dict[int, LevelResult] = {}  # the tested levels
        self.test_count = 0  # the tests of all levels

    @property
    def is_out_of_time(self) -> bool:
        """Tell whether no further level may be tested, since the search has lasted too long."""
        return monotonic() >= self.until

    @property
    def is_over(self) -> bool:
        """Tell whether the search has made the most tests or has no time for another."""
        return self.test_count >= MOST_LEVEL_TESTS or self.is_out_of_time

    def highest(self, first: int, most: int) -> int | None:
        """Return the highest level (number of requests in flight) up to `most` that keeps the limits, or None.

        Levels double from `first` until one fails. Then the gap between the highest that kept the limits and the lowest
        that failed is narrowed to FINAL_RATIO.
        """
        while not self.is_over:
            low, high = self.ends(most)  # low is 0 if no level has kept the limits; high is most + 1 if none has failed
            is_gap_closed = high - low <= 1 or (low > 0 and high / low <= FINAL_RATIO)
            if not self.levels:
                self.test_until_sure(min(first, most), is_final=False)
            elif not is_gap_closed:
                self.test_until_sure(level_between(low, high, most), is_final=False)
            elif not low:  # Even a level of 1 failed.
                return None
            else:
                self.test_until_sure(low, is_final=True)
                if self.levels[low].keeps_limits:
                    return low
        low, _high = self.ends(most)  # The time or the tests ran out.
        return low or None

    def ends(self, most: int) -> tuple[int, int]:
        """Return the two levels (numbers of requests in flight) between which the search goes on, the lower first.

        The lower level keeps the limits, or is 0. The upper level exceeds a limit, or is `most` + 1.
        """
        high = most + 1
        for level, level_result in self.levels.items():
            if not level_result.keeps_limits:
                high = min(high, level)
        low = 0
        for level, level_result in self.levels.items():
            if level_result.keeps_limits and level < high:
                low = max(low, level)
        return low, high

    def test_until_sure(self, level: int, is_final: bool) -> None:
        """Test a level (a number of requests in flight) until it needs no further test, or the search is over.

        A level that seems to be the result of the search (`is_final`) is confirmed by a second test if the first was
        not sure. Each test brings the result of the level up to date: its larger p99, as a share of the limit.
        """
        while not self.is_over and self.needs_test(level, is_final):
            self.test_count += 1
            earlier = self.levels.get(level)
            tests_of_level = earlier.test_count + 1 if earlier else 1
            outcome = self.test(level)  # of all tests of this level together
            if outcome is None:  # The server refused requests. So clear a result needs no second test.
                self.levels[level] = LevelResult(tests_of_level, p99_share=inf)
            else:
                # A buffer held answers back, or other programs were busy: the latencies may not be the engine's.
                is_doubtful = outcome.is_buffered or bool(outcome.background_load)
                p99_share = max(self.goal.shares(outcome))  # of TTFT's limit or of TPOT's, whichever is larger
                self.levels[level] = LevelResult(tests_of_level, p99_share, is_doubtful)

    def needs_test(self, level: int, is_final: bool) -> bool:
        """Tell whether a level must be tested, for the first time or again.

        A level that is not sure is tested again if it exceeds the limits, or if it was tested only once and may be the
        result of the search (`is_final`).
        """
        result = self.levels.get(level)
        if result is None:
            return True
        if result.is_sure:
            return False
        needs_confirmation = is_final and result.test_count == 1
        return not result.keeps_limits or needs_confirmation


def level_between(low: int, high: int, most: int) -> int:
    """Return the level (number of requests in flight) to test next, above `low` and below `high`.

    `low` keeps the limits, or is 0 if no level does. `high` exceeds a limit, or is `most` + 1 if no level does. One of
    the two was tested, or both.
    """
    has_failed_level = high <= most
    if not has_failed_level:
        return min(2 * low, most)
    middle = isqrt(max(low, 1) * high)  # the geometric mean, the middle in terms of ratios
    return min(max(middle, low + 1), high - 1)  # `low` and `high` have been tested already.
