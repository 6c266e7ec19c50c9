"""The highest rate that keeps the limits: searched, the best of a list, or estimated."""

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from time import monotonic

from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan, TestPart, minutes
from harness.core import files
from harness.core.errors import EndpointError, NotAcceptedError
from harness.core.formatting import number, plural
from harness.loadgen.log import TestResult
from harness.rates import quick, search
from harness.rates.bench import Bench, at_rate
from harness.rates.full_tests import MOST_FULL_TESTS, MOST_RISE_RATIO, FullTests, first_rate, rate_that_waits_allow
from harness.rates.goal import Goal
from harness.rates.measurements import PROBE_S, Measurements, probe_s
from harness.rates.state_left import state_left
from harness.results.outcome import Outcome
from harness.runner.load_source import DoneTests, RateSource

TYPICAL_PROBES = 3  # Most searches of benchmarks.search take so many.
SEARCH_S = 180.0  # A search takes about so many seconds before its full test (an H200).
# --minutes keeps this share of a full test's time for it: its last answers come after its last query.
FULL_TEST_RESERVE = 1.05


class SearchedRate(RateSource):
    """The highest rate that a full test should keep; a lower one where it did not, a higher one where it had room."""

    corrections = MOST_FULL_TESTS - 1
    before = TestPart(
        "search for the highest rate",
        f"{TYPICAL_PROBES} probes or so of at least {minutes(PROBE_S)} each",
        SEARCH_S,
    )

    def least_s(self, plan: Plan) -> float | None:
        return plan.min_duration_s + SEARCH_S

    def total(self, plan: Plan) -> str:
        """Return what the run will do, with what may follow or when it ends."""
        sentence = super().total(plan)
        if plan.config.minutes:
            return f"{sentence}; about {minutes(60 * plan.config.minutes)} at most"
        return f"{sentence}; up to {MOST_FULL_TESTS - 1} more full tests may follow"

    def find(self, bench: Bench) -> Plan:
        plan = bench.plan
        reserve_s = FULL_TEST_RESERVE * plan.min_duration_s
        measurements = search.search(replace(bench, until=bench.until - reserve_s))
        return from_search(bench.plan, measurements)

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        if not is_correctable(plan, result):
            return None
        rate = self.next_rate(plan, tests)
        if not rate or tests.left_s < FULL_TEST_RESERVE * Goal.of(plan).full_s(rate):
            return None
        return plan.with_note(f"{held_text(plan, result, tests)}; retrying at {number(rate)}", target_qps=rate)

    def next_rate(self, plan: Plan, tests: DoneTests) -> float | None:
        """Return the rate of another full test. None if no other is worth it."""
        return FullTests(tests.attempts, probes_without_refusals(tests.probes), Goal.of(plan), tests.lone).next_rate

    def conclude(self, plan: Plan, tests: DoneTests) -> Plan:
        """Return the plan of the full test that counts, with a note about all tests and the ones left out."""
        goal = Goal.of(plan)
        full = FullTests(tests.attempts, probes_without_refusals(tests.probes), goal, tests.lone)
        sentence = full.summary
        rate = full.next_rate
        if rate and tests.left_s < inf:
            length = minutes(goal.full_s(rate))
            given_minutes = plan.config.minutes
            sentence += (
                f"; left out for --minutes {given_minutes:g}: a full test of {length} at {number(rate)} queries/s"
            )
        if state := state_left(tests.all):
            sentence += f"; {state}"
        if full.held is None:
            return plan.with_note(sentence)
        return plan.with_note(sentence, target_qps=full.held.load)


class CurveRate(RateSource):
    """The best of the rates that were given, each a short test."""

    corrections = 2

    def outlook(self, plan: Plan) -> TestPart | None:
        rates = fitting_rates(plan)
        lengths = {rate: probe_s(rate, Goal.of(plan)) for rate in rates}
        queries = round(min(rate * seconds for rate, seconds in lengths.items()))
        total_s = sum(lengths.values())
        return TestPart(f"{len(lengths)} rates", f"of {queries:,} queries or more, about {minutes(total_s)}", total_s)

    def least_s(self, plan: Plan) -> float | None:
        highest = max(given_rates(plan))
        goal = Goal.of(plan)
        return goal.full_s(highest) + probe_s(highest, goal)

    def find(self, bench: Bench) -> Plan:
        """Test the given rates. Return the plan with the best one."""
        plan = bench.plan
        rates = fitting_rates(plan)
        if left_out := [rate for rate in given_rates(plan) if rate not in rates]:
            names = ", ".join(map(number, left_out))
            bench.say(f"left out for --minutes {plan.config.minutes:g}: {names} queries/s")
        for qps in rates:
            bench.test(at_rate(plan, qps))
        if all(probe.has_held for probe in bench.run.facts.probes):  # The capacity is not known yet.
            bench.test(at_rate(plan, MOST_RISE_RATIO * rates[-1]))
        return from_curve(plan, bench.run.facts.probes)

    def correct(self, plan: Plan, result: TestResult, tests: DoneTests) -> Plan | None:
        if result.valid or not is_correctable(plan, result):
            return None
        rate = best_given(plan, tests.all, below=plan.target_qps or 0.0)
        if not rate or tests.left_s < FULL_TEST_RESERVE * Goal.of(plan).full_s(rate):
            return None
        return plan.with_note(f"{held_text(plan, result, tests)}; retrying at {number(rate)}", target_qps=rate)


class QuickEstimate(RateSource):
    """No rate, but what the first measurements of a search tell of it."""

    before = TestPart(
        "lone requests, a burst, two probes", f"at most {minutes(quick.CEILING_S)}", quick.CEILING_S, "at most "
    )

    def least_s(self, plan: Plan) -> float | None:
        return 0.0

    def find(self, bench: Bench) -> Plan:
        """Write an estimate of the rates that keep the limits. Return the plan with the estimate as a note."""
        ceiling_s = 60 * bench.plan.config.minutes if bench.plan.config.minutes else quick.CEILING_S
        until, before = monotonic() + ceiling_s, bench.run.config.max_in_flight
        bench.session.until = until
        measurements = search.estimate(replace(bench, until=until, may_shorten=True))
        if not measurements.lone.latency_s:
            raise EndpointError(f"no request was answered within {minutes(ceiling_s)}: see the server's log.")
        plan = bench.plan
        full_at = plan.config.max_in_flight if plan.config.max_in_flight != before else None
        estimate = quick.estimate_of(measurements, quick.goals(plan), bench.run.facts.command, full_at)
        files.write_json(bench.run.folder.path / quick.FILE, estimate.model_dump())
        return plan.with_note(str(estimate))


def probes_without_refusals(probes: Sequence[Outcome]) -> list[Outcome]:
    """Return the probes in which no request was refused. In any other, too many requests were in flight."""
    return [probe for probe in probes if not probe.refused]


def is_correctable(plan: Plan, result: TestResult) -> bool:
    """Return whether another rate may change the result of a test. It cannot if the test was too short or failed."""
    is_unsure = "early_stopping" in result.failed and (result.queries or 0) >= SURE_QUERIES
    return bool(plan.target_qps and (result.valid or is_unsure or "latency" in result.failed))


def held_text(plan: Plan, result: TestResult, tests: DoneTests) -> str:
    """Return in words how the last full test ended."""
    last = tests.attempts[-1]
    why = f" ({last.why})" if last.why else ""
    if last.has_held:
        why = " with room"
    return f"{number(plan.target_qps)} queries/s was {last.verdict.word} over {result.duration_s:.1f} s{why}"


def from_search(plan: Plan, found: Measurements) -> Plan:
    """Return the plan with the highest rate that a full test is expected to keep.

    Raises NotAcceptedError if a single request already exceeds a limit.
    """
    chosen, loads = found.candidate, [probe.load for probe in found.probes]
    if not chosen.rate:
        raise NotAcceptedError(
            f"a single request is over the limits (TTFT {number(1000 * found.lone.ttft_s)} ms and TPOT "
            f"{number(1000 * found.lone.tpot_s)} ms): no rate keeps them; see --tpot-limit."
        )
    rate = first_rate(found)
    ends = " to ".join(dict.fromkeys((number(min(loads)), number(max(loads)))))
    note = (
        f"server_target_qps = {number(rate)} queries/s ({chosen.reason}, after {plural(len(loads), 'probe')} at {ends} "
        "queries/s)"
    )
    return plan.with_note(note, target_qps=rate)


def given_rates(plan: Plan) -> list[float]:
    """Return the rates that the user gave, in ascending order. Empty if the user gave no list."""
    rates = plan.config.server_target_qps
    return sorted(rates) if isinstance(rates, tuple) else []


def fitting_rates(plan: Plan) -> list[float]:
    """Return the given rates that --minutes has time for.

    The lowest are left out first. Probes at low rates take longest, and tell least about the limit.
    """
    rates, goal = given_rates(plan), Goal.of(plan)
    if not plan.config.minutes:
        return rates
    left_s = 60 * plan.config.minutes - FULL_TEST_RESERVE * goal.full_s(rates[-1])
    fitting = list[float]()
    for rate in reversed(rates):
        left_s -= probe_s(rate, goal)
        if left_s < 0 and fitting:
            break
        fitting.append(rate)
    return sorted(fitting)


def from_curve(plan: Plan, tried: list[Outcome]) -> Plan:
    """Return the plan with the highest of the given rates that is VALID and that a full test can keep steadily.

    If no rate is VALID, the lowest one is used.
    """
    rate, lowest = best_given(plan, tried), min(probe.load for probe in tried)
    asked = given_rates(plan)
    top = max((probe.load for probe in tried if probe.has_held and probe.load in asked), default=0.0)
    choice = "the highest that is VALID" if rate else "the lowest, since none is VALID,"
    most = f"; {number(top)} would not last: the engine's capacity is too near" if rate and top > rate else ""
    note = f"server_target_qps = {number(rate or lowest)} queries/s ({choice} of {len(asked)} rates{most})"
    return plan.with_note(note, target_qps=rate or lowest)


def best_given(plan: Plan, tried: list[Outcome], below: float = inf) -> float | None:
    """Return the highest of the given rates below `below` that held and that the engine's capacity allows.

    None if none did.
    """
    most = rate_that_waits_allow(tried, Goal.of(plan))
    held = {probe.load for probe in tried if probe.has_held}
    fitting = [rate for rate in given_rates(plan) if rate in held and rate < below]
    return max((rate for rate in fitting if rate <= most), default=None)
