"""The highest rate that keeps the limits: searched, the best of a list, or estimated."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, inf
from time import monotonic

from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan, TestPart, duration_text
from harness.core import files
from harness.core.errors import EndpointError, NotAcceptedError, UsageError
from harness.core.formatting import number, plural
from harness.loadgen.log import TestResult
from harness.rates import quick, search
from harness.rates.bench import Bench, at_rate
from harness.rates.full_tests import MOST_FULL_TESTS, MOST_RISE_RATIO, FullTests, first_rate, rate_that_waits_allow
from harness.rates.goal import Goal
from harness.rates.measurements import CONFIRMING_S, Measurements, probe_s
from harness.rates.state_left import caution_on_changed_server
from harness.results.outcome import Outcome
from harness.runner.load_source import DoneTests, RateSource

TYPICAL_PROBES = 3  # Most searches of benchmarks.search take so many.
SEARCH_S = 180.0  # A search takes about so many seconds before its full test (an H200).
# To fit in --minutes, the rate of a full test may be lowered to this share of what it should be.
LOWERED_SHARE = 0.85


class SearchedRate(RateSource):
    """The highest rate that a full test should keep, corrected after a full test that failed or had room."""

    corrections = MOST_FULL_TESTS - 1
    before = TestPart(
        "search for the highest rate",
        f"{TYPICAL_PROBES} probes or so of at least {duration_text(CONFIRMING_S)} each",
        SEARCH_S,
    )

    def least_s(self, plan: Plan) -> float | None:
        """Return the fewest seconds that the run takes: those of a search and one full test."""
        return plan.min_duration_s + SEARCH_S

    def duration_line(self, plan: Plan) -> str:
        """Return the parts of the run in words, and how long it takes at most or how many tests may follow."""
        sentence = super().duration_line(plan)
        if plan.config.minutes:
            return f"{sentence}; about {duration_text(60 * plan.config.minutes)} at most"
        return f"{sentence}; up to {MOST_FULL_TESTS - 1} more full tests may follow"

    def find(self, bench: Bench) -> Plan:
        """Search the highest rate by short tests, and return the plan of the first full test.

        Raises NotAcceptedError if no rate keeps the limits, and UsageError if --minutes is too short for a full test.
        """
        measurements = search.search(bench)
        return plan_from_search(bench.plan, measurements, bench.left_s)

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """Return the plan of another full test at a better rate; None if no other rate helps or there is no time."""
        if not is_correctable(plan, result):
            return None
        return retry_plan(plan, result, tests, self.next_rate(plan, tests))

    def next_rate(self, plan: Plan, tests: DoneTests) -> float | None:
        """Return the rate of another full test, from all tests so far. None if no other is worth it."""
        return FullTests(tests.attempts, probes_that_count(tests.probes), Goal.of(plan), tests.lone).next_rate

    def conclude(self, plan: Plan, tests: DoneTests) -> Plan:
        """Return the plan with the highest rate that a full test kept, and with a note about all full tests.

        If no full test was VALID, the plan keeps the rate of the last one.
        """
        goal = Goal.of(plan)
        full_tests = FullTests(tests.attempts, probes_that_count(tests.probes), goal, tests.lone)
        note = full_tests.summary
        next_rate = full_tests.next_rate  # the rate of a further test that is worth its time; None if none is
        if next_rate and tests.left_s < goal.reserved_s(next_rate):
            left_out = f"a full test of {duration_text(goal.full_s(next_rate))} at {number(next_rate)} queries/s"
            note += f"; left out for --minutes {plan.config.minutes:g}: {left_out}"
        server_change = caution_on_changed_server(tests.all)
        if server_change:
            note += f"; {server_change}"
        if full_tests.held is None:  # The server held no rate, so the plan keeps that of the last test.
            return plan.with_note(note)
        return plan.with_note(note, target_qps=full_tests.held.load)


class CurveRate(RateSource):
    """The best of the rates that the user gave, each a short test."""

    corrections = 2

    def part_before(self, plan: Plan) -> TestPart | None:
        """Return what the run does before its performance test, for the user.

        That is a short test at each of the given rates that --minutes has time for.
        """
        goal = Goal.of(plan)
        seconds_by_rate = {rate: probe_s(rate, goal) for rate in fitting_rates(plan)}
        query_counts = [rate * seconds for rate, seconds in seconds_by_rate.items()]  # of each test
        fewest_queries = round(min(query_counts))
        total_s = sum(seconds_by_rate.values())
        text = f"of {plural(fewest_queries, 'query')} or more, about {duration_text(total_s)}"
        return TestPart(plural(len(seconds_by_rate), "rate"), text, total_s)

    def least_s(self, plan: Plan) -> float | None:
        """Return the fewest seconds that the run takes: those of the highest rate, which is left out last."""
        return curve_s(given_rates(plan)[-1:], Goal.of(plan))

    def find(self, bench: Bench) -> Plan:
        """Test the given rates, lowest first, and return the plan with the best of them.

        Rates for which --minutes has no time are left out.
        """
        plan = bench.plan
        rates = fitting_rates(plan)
        unfit = ", ".join(number(rate) for rate in given_rates(plan) if rate not in rates)
        if unfit:
            bench.say(f"left out for --minutes {plan.config.minutes:g}: {unfit} queries/s")
        for rate in rates:
            bench.test(at_rate(plan, rate))
        # Only a rate that exceeds a limit shows the server's capacity.
        if all(probe.has_held for probe in bench.run.facts.probes):
            bench.test(at_rate(plan, MOST_RISE_RATIO * rates[-1]))
        return plan_from_curve(plan, bench.run.facts.probes)

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        """Return the plan of a full test at the next lower rate of the user's list whose probe kept the limits.

        None if the last test was VALID, or if no lower rate helps or has time for its test.
        """
        if result.valid or not is_correctable(plan, result):
            return None
        rate = best_given_rate(plan, tests.all, below=plan.target_qps or 0.0)
        return retry_plan(plan, result, tests, rate)


class QuickEstimate(RateSource):
    """No rate, but an estimate from the first measurements of a search."""

    def part_before(self, plan: Plan) -> TestPart | None:
        longest_s = self.longest_s(plan)
        name = "lone requests, a burst, two probes"
        # `bound` is for the sum of the run's parts.
        return TestPart(name, f"at most {duration_text(longest_s)}", longest_s, bound="at most ")

    def least_s(self, plan: Plan) -> float | None:
        """Return 0 as the fewest seconds: an estimate gives what it knows whenever its time ends."""
        return 0.0

    def longest_s(self, plan: Plan) -> float:
        """Return the most seconds that an estimate may take: those of --minutes, if given."""
        if plan.config.minutes:
            return 60 * plan.config.minutes
        return quick.CEILING_S

    def find(self, bench: Bench) -> Plan:
        """Estimate the rates that keep the limits, and write the estimate. Return the plan, whose load stays as it was.

        No full test follows. Raises EndpointError if no request was answered before the time was over.
        """
        longest_s = self.longest_s(bench.plan)
        given_max_in_flight = bench.run.config.max_in_flight  # The search may lower that of `bench.plan`.
        until = monotonic() + longest_s
        bench.session.until = until  # An unfinished measurement is cut off at this time.
        # `may_shorten`: a probe of an estimate needs no verdict of LoadGen, so it may have too few queries for one.
        measurements = search.estimate(replace(bench, until=until, may_shorten=True))
        if not measurements.lone.latency_s:  # 0: the first request, which is sent alone, was not answered.
            raise EndpointError(f"no request was answered within {duration_text(longest_s)}: see the server's log.")
        plan = bench.plan
        full_at = None
        if plan.config.max_in_flight != given_max_in_flight:
            # The server refused requests, so the measurements lowered the limit of requests in flight.
            full_at = plan.config.max_in_flight
        estimate = quick.estimate_of(measurements, quick.goals(plan), bench.run.facts.command, full_at)
        files.write_json(bench.run.folder.path / quick.FILE, estimate.model_dump())
        return plan


def probes_that_count(probes: Sequence[Outcome]) -> list[Outcome]:
    """Return the probes that show what the server does at their rate.

    If a server refused requests, the latencies are those of fewer requests than the rate says. If it changed after a
    probe, as an autoscaler does, the probe shows another server.
    """
    return [probe for probe in probes if not probe.refused and not probe.is_outdated]


def retry_plan(plan: Plan, result: TestResult, tests: DoneTests, rate: float | None) -> Plan | None:
    """Return the plan of another full test at this rate, with a note on the last full test.

    None if the rate is None, or if --minutes does not have enough time left for the test.
    """
    if not rate or tests.left_s < Goal.of(plan).reserved_s(rate):
        return None
    return plan.with_note(f"{attempt_text(plan, result, tests)}; retrying at {number(rate)}", target_qps=rate)


def is_correctable(plan: Plan, result: TestResult) -> bool:
    """Tell whether another rate may change the result of a full test.

    After a VALID test, a higher rate may be VALID, too. A lower rate may help if a latency was over its limit, or if
    LoadGen was not sure that the limits were kept although it had enough queries. Another rate does not help a test
    that was too short or failed otherwise. Without a rate, there is nothing to correct.
    """
    is_over_limit = "latency" in result.failed
    is_unsure = "early_stopping" in result.failed and (result.queries or 0) >= SURE_QUERIES
    return bool(plan.target_qps) and (result.valid or is_over_limit or is_unsure)


def attempt_text(plan: Plan, result: TestResult, tests: DoneTests) -> str:
    """Return in words at which rate the last full test ran, how it ended, and why. A further full test follows it."""
    last = tests.attempts[-1]
    reason = ""
    if last.has_held:  # A further test follows one that held only if a higher rate may hold, too.
        reason = " with room"
    elif last.why:
        reason = f" ({last.why})"
    return f"{number(plan.target_qps)} queries/s was {last.verdict.word} over {result.duration_s:.1f} s{reason}"


def plan_from_search(plan: Plan, measurements: Measurements, left_s: float = inf) -> Plan:
    """Return the plan of the first full test, at the highest rate that it is expected to keep by the measurements.

    Raises NotAcceptedError if a single request already exceeds a limit, and UsageError if --minutes is too short.
    """
    goal, lone = Goal.of(plan), measurements.lone  # `lone` has the times of a request with no other in flight.
    if lone.is_over(goal):
        raise NotAcceptedError(
            f"a single request is over the limits (TTFT {number(1000 * lone.ttft_s)} ms and TPOT "
            f"{number(1000 * lone.tpot_s)} ms): no rate keeps them; see --tpot-limit."
        )
    if not measurements.probes:  # There was no time for a probe, so the error message names a guessed rate.
        guessed_rate = 1 / lone.latency_s  # one request after the other
        if measurements.burst:  # Many requests were sent at once, which shows a higher rate.
            guessed_rate = measurements.burst.qps(lone)
        raise too_short(plan, guessed_rate, left_s)
    wanted_rate = first_rate(measurements)
    # LoadGen sends whole passes over the samples. A slightly lower rate may need a pass less, which is a shorter test.
    rate = goal.rate_in_time(wanted_rate, left_s)
    if rate is None or rate < LOWERED_SHARE * wanted_rate:
        raise too_short(plan, wanted_rate, left_s)
    reason = measurements.candidate.reason  # why the measurements imply this rate
    if rate < wanted_rate:
        reason += f", lowered from {number(wanted_rate)} for --minutes {plan.config.minutes:g}"
    note = f"server_target_qps = {number(rate)} queries/s ({reason}, after {probes_text(measurements.probes)})"
    return plan.with_note(note, target_qps=rate)


def probes_text(probes: Sequence[Outcome]) -> str:
    """Return in words how many probes ran at which rates."""
    loads = [probe.load for probe in probes]
    lowest, highest = number(min(loads)), number(max(loads))
    load_range = lowest if lowest == highest else f"{lowest} to {highest}"
    return f"{plural(len(loads), 'probe')} at {load_range} queries/s"


def too_short(plan: Plan, rate: float, left_s: float) -> UsageError:
    """Return the error for --minutes that are too few for a full test at about this rate.

    `left_s` are the seconds that are left of --minutes. The message names the minutes that the next run needs.
    """
    goal = Goal.of(plan)
    given_s = 60 * (plan.config.minutes or inf)
    used_s = given_s - left_s
    # The next search is taken to be as long as the one so far, and at least SEARCH_S.
    needed_s = max(used_s, SEARCH_S) + goal.reserved_s(rate)
    return UsageError(
        f"--minutes {plan.config.minutes:g}: a full test at about {number(rate)} queries/s takes "
        f"{duration_text(goal.full_s(rate))}, and {duration_text(max(left_s, 0.0))} are left: give --minutes "
        f"{ceil(needed_s / 60)}, or --quick for an estimate."
    )


def given_rates(plan: Plan) -> list[float]:
    """Return the rates that the user gave, in ascending order; empty if the user gave no list of rates."""
    rates = plan.config.server_target_qps
    return sorted(rates) if isinstance(rates, tuple) else []


def fitting_rates(plan: Plan) -> list[float]:
    """Return the given rates that --minutes has time for, in ascending order; all of them without --minutes.

    The lowest rates are left out first, since their tests take longest and say least about the limit. The highest
    always stays.
    """
    rates, goal = given_rates(plan), Goal.of(plan)
    if not plan.config.minutes:
        return rates
    while len(rates) > 1 and curve_s(rates, goal) > 60 * plan.config.minutes:
        del rates[0]
    return rates


def curve_s(rates: Sequence[float], goal: Goal) -> float:
    """Return the most seconds that it can take to probe ascending rates, and to run a full test at the best of them.

    The best rate is not known yet, so the longest of the full tests counts.
    """
    higher_rate = MOST_RISE_RATIO * rates[-1]  # It is probed only if all given rates keep the limits.
    probed_rates = [*rates, higher_rate]
    probes_s = sum(probe_s(rate, goal) for rate in probed_rates)
    longest_full_test_s = max(goal.reserved_s(rate) for rate in rates)
    return probes_s + longest_full_test_s


def plan_from_curve(plan: Plan, probes: list[Outcome]) -> Plan:
    """Return the plan with the highest of the given rates that was VALID in its probe and that a full test can keep.

    Without such a rate, the plan has the lowest rate that was probed.
    """
    rates_that_held = given_rates_that_held(plan, probes)  # those whose short probe was VALID, in ascending order
    best_rate = best_given_rate(plan, probes)
    lowest_rate = min(probe.load for probe in probes)
    if best_rate is not None:
        rate, choice = best_rate, "the highest that should stay VALID"
    elif rates_that_held:  # Some probes were VALID, but a full test at these rates would not be.
        rate, choice = lowest_rate, "the lowest, since none would last,"
    else:
        rate, choice = lowest_rate, "the lowest, since none is VALID,"
    warning = ""  # of a higher rate that held in its short probe but would not in a full test
    if rates_that_held and max(rates_that_held) > rate:
        warning = f"; {number(max(rates_that_held))} was VALID only for a short time: it is too near the capacity"
    rates_text = plural(len(given_rates(plan)), "rate")
    note = f"server_target_qps = {number(rate)} queries/s ({choice} of {rates_text}{warning})"
    return plan.with_note(note, target_qps=rate)


def best_given_rate(plan: Plan, probes: list[Outcome], below: float = inf) -> float | None:
    """Return the highest of the given rates below `below` whose probe kept the limits and that a full test can keep.

    None if there is no such rate. At a rate near its capacity, a server keeps the limits in a short probe, but not in a
    full test, in which the queue grows longer.
    """
    # The highest rate at which queries wait no longer than TTFT's limit in a full test, as the probes show.
    highest = rate_that_waits_allow(probes, Goal.of(plan))
    fitting = [rate for rate in given_rates_that_held(plan, probes) if rate < below and rate <= highest]
    return max(fitting, default=None)


def given_rates_that_held(plan: Plan, probes: list[Outcome]) -> list[float]:
    """Return the given rates whose probe kept the limits, in ascending order."""
    rates_that_held = {probe.load for probe in probes if probe.has_held}
    return [rate for rate in given_rates(plan) if rate in rates_that_held]
