"""Full tests, simulated: the p99 that ten minutes of arrivals bring, of which a probe of a minute sees little.

Queries share an engine as programs share a processor (M. Harchol-Balter, Performance Modeling and Design of Computer
Systems, 2013, chapter 30): mean TPOT = TPOT of a lone request / (1 - rate / capacity). Where no more than some run at
once, others wait. Times are in seconds, rates in queries/s.
"""

from math import floor, inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from harness.config.loadgen_schedule import arrival_times
from harness.rates.goal import Goal
from harness.results.outcome import SURE

SIMULATED_QUERIES = 1_200_000  # queries in all tests together, unless that makes too few or too many tests
FEWEST_TESTS, MOST_TESTS = 60, 100  # the number of simulated tests with random arrivals
KNOWN_TESTS = 20  # simulated tests with LoadGen's own arrivals; only the server varies by chance
LEAST_ANSWER_STEPS, MOST_ANSWER_STEPS = 48, 96  # the number of steps in which an answer is simulated ("TPOT, 40/s")
LIMIT_STEPS = 8  # the fewest steps in a wait at its limit, with all places taken
MOST_STEPS = 24_000  # the most steps of a test
MOST_SHORT_STEPS = 4 * MOST_STEPS  # the most steps of a test whose answers are so short that each is one step
LEAST_QUERY = 1e-6  # A smaller part of a query is an error of rounding.


class TimeLimits(NamedTuple):
    """The limits of the p99 of waits and of answers, in seconds; infinite where it is not judged."""

    wait_s: float
    answer_s: float


class SimulatedTimes(NamedTuple):
    """The times of groups of queries in simulated tests, and how many queries each group has. A row for each group, a
    column for each test.
    """

    seconds: Any
    queries: Any

    def judged_p99_s(self, pass_share: float) -> float:
        """Return the limit in seconds that `pass_share` of the simulated tests would keep, by LoadGen's early stopping.

        Early stopping allows fewer than 1 % of a test's queries over the limit, so the result is above the plain p99.
        """
        queries_by_test = self.queries.sum(axis=0)
        allowed = [allowed_late(int(queries)) for queries in queries_by_test]
        return float(np.quantile(self.tails(allowed), pass_share))

    @property
    def p99_of_test_s(self) -> float:
        """The plain p99 in seconds, which 1 % of a test's queries exceed: its median over the tests."""
        queries_by_test = self.queries.sum(axis=0)
        exceeding = [int(0.01 * queries) for queries in queries_by_test]
        return float(np.median(self.tails(exceeding)))

    def tails(self, allowed: list[int]) -> Any:
        """Return for each test the shortest time that only the allowed number of its queries (`allowed`) exceed.

        In `seconds` and `queries`, a column is a test, and a row is a group of queries with the same time.
        """
        order = np.argsort(-self.seconds, axis=0)  # each test's groups from the longest time to the shortest
        sorted_seconds = np.take_along_axis(self.seconds, order, axis=0)
        sorted_queries = np.take_along_axis(self.queries, order, axis=0)
        queries_so_far = np.cumsum(sorted_queries, axis=0)
        # The first group with which there are more queries than allowed. If there is none, the last group counts.
        row = (queries_so_far <= allowed).sum(axis=0).clip(max=len(order) - 1)
        column = np.arange(len(row))  # every test once
        return sorted_seconds[row, column]


class SimulatedTests(NamedTuple):
    """The times that queries wait until their prompt is computed, beyond the median, and the times of their answers
    after the first token.
    """

    waits: SimulatedTimes
    answers: SimulatedTimes


class EngineModel(NamedTuple):
    """An engine that runs at most `most_running` queries at once.

    A lone answer takes `lone_s` seconds. Each other running query adds 1 / `capacity` seconds to it, so the number of
    running queries grows without end as the rate comes near `capacity`.
    """

    lone_s: float
    capacity: float  # in queries/s
    most_running: float  # infinity if there is no such limit
    prompt_share: float  # the share of a query's work that is done at its beginning, while all answers wait
    prompt_spread: float  # the variance of that work over its mean squared
    scatter: float  # the standard deviation of the logarithm of answers' times

    @property
    def busiest_answer_s(self) -> float:
        """The seconds of an answer while as many requests run as the cap allows.

        Each other request that runs meanwhile adds its own work, which takes the engine 1 / capacity seconds. Without a
        cap there is no such number, and the seconds are those of a lone answer.
        """
        if self.most_running == inf:
            return self.lone_s
        return self.lone_s + max(self.most_running - 1, 0.0) / self.capacity

    @property
    def capped_capacity(self) -> float:
        """The highest rate that the engine completes, in queries/s."""
        if self.most_running == inf:
            return self.capacity
        completed_with_all_running = self.most_running / self.busiest_answer_s
        return min(completed_with_all_running, self.capacity)

    def answer_steps(self, seconds: float, limits: TimeLimits) -> int:
        """Return the number of steps into which the simulation divides an answer, in a test of `seconds` seconds."""
        steps = LEAST_ANSWER_STEPS
        if limits.wait_s < inf:  # The longest wait that is allowed must take LIMIT_STEPS steps, or it would not show.
            longest_step_s = limits.wait_s / LIMIT_STEPS
            steps = max(steps, int(self.busiest_answer_s / longest_step_s))
        # The whole test, which is as long as seconds / busiest_answer_s answers, has MOST_STEPS steps at most.
        most_for_test = int(MOST_STEPS * self.busiest_answer_s / seconds)
        return max(1, min(steps, MOST_ANSWER_STEPS, most_for_test))

    def simulate(self, rate: float, goal: Goal, limits: TimeLimits) -> SimulatedTests:
        """Simulate several full tests at a rate and return the times of their waits and answers.

        The limits only decide how fine the simulation is.
        """
        simulation = Simulation(self, rate, goal, limits)
        while not simulation.is_over:
            simulation.step()
        return SimulatedTests(simulation.waits, simulation.answers)


class Simulation:
    """Several tests of an engine at a rate, at the same time, in steps. A step is a part of an answer: the longer, the
    more queries run. Each array has a value for each test.
    """

    def __init__(self, model: EngineModel, rate: float, goal: Goal, limits: TimeLimits) -> None:
        """Begin several tests at `rate`, which are simulated side by side, in steps: equal parts of an answer.

        A test begins with the number of running queries that the rate gives if no query slows another one down.
        """
        self.model = model
        self.seconds = goal.full_s(rate)
        self.random = np.random.default_rng(0)
        self.arrivals = Arrivals(rate, goal, self.random)
        answer_steps = model.answer_steps(self.seconds, limits)
        self.answer_steps = answer_steps
        self.lone_step_s = model.lone_s / answer_steps  # what a step takes if one query runs
        # A query is work of 1 / capacity seconds for the engine: a part at the beginning for its prompt, the rest in
        # equal parts in the steps of its answer. So each other query makes a step longer by `added_step_s`.
        self.prompt_work_s = model.prompt_share / model.capacity
        self.added_step_s = (1 - model.prompt_share) / model.capacity / answer_steps
        self.least_step_s = self.seconds / MOST_SHORT_STEPS  # Very short answers would take too many steps.
        tests = self.arrivals.tests
        running = min(rate * model.lone_s, model.most_running)
        self.running, self.waiting = np.full(tests, running), np.zeros(tests)
        self.step_s = np.full(tests, self.lone_step_s)
        # `step` appends to each list below. An entry is an array with a value for each test.
        self.clocks = [np.zeros(tests)]  # when each step began, after the beginning of the test
        self.arrived = list[Any]()  # how many queries arrived in each step
        self.prompt_s = list[Any]()  # the time that prompts took in each step
        # How many queries began to run in each step. The list has `answer_steps` more entries than the others, before
        # theirs: the queries that run at the beginning of the test count as begun evenly over the steps before it.
        self.all_begun = [np.full(tests, running / answer_steps)] * answer_steps

    @property
    def begun(self) -> Any:
        """How many queries began to run in each step of each test, as an array of steps by tests.

        Those that run when the test begins are left out.
        """
        return np.array(self.all_begun[self.answer_steps :])

    @property
    def is_over(self) -> bool:
        """Tell whether the simulation may stop: all tests lasted for their time, and some answers ended in them."""
        last_clock = self.clocks[-1]  # when the last step began, in each test
        have_lasted = bool(last_clock.min() >= self.seconds)
        # An answer takes `answer_steps` steps. After twice as many, those that began in the first half have ended.
        steps = len(self.arrived)  # The list has an entry for each step.
        has_enough_steps = steps >= 2 * self.answer_steps
        return have_lasted and has_enough_steps

    def step(self) -> None:
        """Advance all tests by one step: end answers that had all their steps, begin queries, and compute the seconds
        that the step takes.

        Each value is an array with a number for each test.
        """
        most_running = self.model.most_running
        begin_s = self.clocks[-1] + self.step_s  # The last step ends now, and the new one begins.
        arrived = self.arrivals.until(begin_s, self.step_s)  # during the last step
        ended = self.all_begun[-self.answer_steps]  # Queries that began so many steps ago have had all their steps.
        running = self.running - ended
        begun = arrived
        if most_running < inf:  # The engine caps the running queries, so that further ones wait.
            waiting = self.waiting + arrived
            begun = np.minimum(waiting, most_running - running)
            self.waiting = waiting - begun
        self.running = running + begun
        prompt_s = self.prompt_times(begun)
        other_queries = np.maximum(self.running - 1, 0.0)
        step_s = prompt_s + self.lone_step_s + self.added_step_s * other_queries
        self.step_s = np.maximum(step_s, self.least_step_s)
        self.clocks.append(begin_s)
        self.arrived.append(arrived)
        self.all_begun.append(begun)
        self.prompt_s.append(prompt_s)

    def prompt_times(self, begun: Any) -> Any:
        """Return the seconds that the prompts of the queries that begin in a step take, in each test.

        `begun` is the number of these queries in each test. If prompts differ in length, their time varies by chance.
        """
        mean_s = self.prompt_work_s * begun
        if not self.model.prompt_spread:
            return mean_s
        # The spread is a variance over the mean squared. The variances of single prompts add up.
        standard_deviation_s = self.prompt_work_s * np.sqrt(self.model.prompt_spread * begun)
        return np.maximum(mean_s + standard_deviation_s * self.random.standard_normal(len(begun)), 0.0)

    @property
    def waits(self) -> SimulatedTimes:
        """The waiting times of the queries, by the step in which they came; 0 if the engine has no cap.

        The median wait of a test is subtracted, since ServerModel.ttft_s contains it already.
        """
        # Each array has a row for each step and a column for each test: numbers of queries, or seconds.
        arrived, prompt_s = np.array(self.arrived), np.array(self.prompt_s)
        seconds = np.zeros(arrived.shape)
        if self.model.most_running == inf:
            return SimulatedTimes(seconds, arrived)
        step_begins_s = np.array(self.clocks[1:])  # The first clock is the beginning of the test.
        begun = self.begun
        for test in range(arrived.shape[1]):
            waits_s = waits_by_step(arrived[:, test], begun[:, test], step_begins_s[:, test], prompt_s[:, test])
            waits_by_query = np.repeat(waits_s, arrived[:, test].astype(int))
            seconds[:, test] = waits_s - np.median(waits_by_query)
        return SimulatedTimes(seconds, arrived)

    @property
    def answers(self) -> SimulatedTimes:
        """The times of the answers by the step in which they began, without the time of the answers' own prompts.

        Answers that have not ended are left out.
        """
        answer_steps = self.answer_steps
        step_begins_s = np.array(self.clocks[1:])  # The first clock is the beginning of the test.
        # An answer ends `answer_steps` steps after it began, so those that began in the last steps have not ended.
        ended_steps = len(step_begins_s) - answer_steps  # the number of steps whose answers have ended
        begin_s, end_s = step_begins_s[:ended_steps], step_begins_s[answer_steps:]
        begun = self.begun[:ended_steps]
        prompt_s = np.array(self.prompt_s)[:ended_steps]
        own_prompt_s = prompt_s / np.maximum(begun, 1)  # the time of all prompts of a step, shared evenly
        # The model's `scatter` is the standard deviation of the factor's logarithm.
        random_factor = np.exp(self.model.scatter * self.random.standard_normal(end_s.shape))
        return SimulatedTimes((end_s - begin_s - own_prompt_s) * random_factor, begun)


def waits_by_step(arrived: Any, begun: Any, step_begins_s: Any, prompt_s: Any) -> Any:
    """Return for each step of a test how long the queries that arrived in it wait until their prompts are computed.

    The arguments have for each step: how many queries arrived, how many began, when the step began, and how long the
    prompts took that began in it. Times are in seconds.
    """
    # Queries begin in the order of their arrival. So the last of a step's arrivals begins in the first step by whose
    # end the queries that began are as many as those that had arrived. LEAST_QUERY allows for errors of rounding.
    arrived_so_far, begun_so_far = np.cumsum(arrived), np.cumsum(begun) + LEAST_QUERY
    step_of_begin = np.searchsorted(begun_so_far, arrived_so_far).clip(max=len(arrived) - 1)
    seconds_until_begin = (step_begins_s[step_of_begin] - step_begins_s).clip(min=0.0)
    return seconds_until_begin + prompt_s[step_of_begin]


class Arrivals:
    """The arrivals of several tests at a rate: LoadGen's own in each test where its seed is known, else random."""

    def __init__(self, rate: float, goal: Goal, random: Any) -> None:
        """Prepare the arrivals at `rate`. `random` is numpy's generator.

        Without a known seed, the number of simulated tests is such that they have about SIMULATED_QUERIES queries
        together. With one, all tests have the same arrivals, so fewer tests suffice.
        """
        self.rate, self.random = rate, random
        self.arrived_before: Any = 0  # the queries that came in the steps so far
        queries = goal.full_queries(rate)
        if goal.simulated_seed is None:
            self.times: Any = None  # The arrivals are drawn step by step.
            self.tests = round(min(MOST_TESTS, max(FEWEST_TESTS, SIMULATED_QUERIES / queries)))
        else:
            self.times = arrival_times(goal.simulated_seed, queries) / rate  # in seconds from the start
            self.tests = KNOWN_TESTS

    def until(self, end_s: Any, step_s: Any) -> Any:
        """Return how many queries arrive in the step that ends at `end_s` and takes `step_s` seconds, in each test.

        Must be called for the steps in their order, as arrivals of earlier calls are not counted again.
        """
        if self.times is None:
            return self.random.poisson(self.rate * step_s)
        count = np.searchsorted(self.times, end_s)
        came, self.arrived_before = count - self.arrived_before, count
        return came


def allowed_late(queries: int) -> int:
    """Return how many of `queries` may be over a p99 limit so that early stopping still passes, at 99 % confidence.

    The number of late queries scatters by chance, so the result is 1 % of them less a margin for the scatter.
    """
    late_share = 0.01
    standard_deviation = sqrt(late_share * (1 - late_share) * queries)
    # The normal approximation of a binomial distribution; 0.38 fits it to the exact number.
    return max(0, floor(late_share * queries - SURE * standard_deviation + 0.38))
