"""The rates of the full tests of a search: what the tests before them decide."""

import json
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.mlperf import SEEDS_BY_ROUND
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.loadgen.log import TestResult
from harness.rates.full_tests import (
    FIRST_SHARE,
    MOST_FULL_TESTS,
    MOST_RISE_RATIO,
    SAFE_SHARE,
    FullTests,
    early_stopping_share,
    failure_text,
    first_rate,
    passing_share,
    rate_that_waits_allow,
)
from harness.rates.goal import Goal
from harness.rates.measurements import ROOM_SHARE, Measurements, rate_on_fitted_line, rate_on_line
from harness.rates.prediction import rate_toward_limit
from harness.rates.server_model import LoneRequest
from harness.rates.simulation import allowed_late
from harness.results.outcome import Outcome, Queue
from harness.runner.load_source import DoneTests
from harness.runner.rate import rate_source
from tests.conftest import tells
from tests.rates.outcomes import full, overloaded, steady
from tests.support import example_runs

GOAL = Goal(600, 459, 2000, 100, 1, 7)
SEARCHED = resolve(RunConfig(scenario="server", server_target_qps="max"), [], 0)


LONE = LoneRequest(0.0175, 0.0033, 0.44)


def after(
    *tests: Outcome, probes: tuple[Outcome, ...] = (), goal: Goal = GOAL, lone: LoneRequest | None = None
) -> float | None:
    return FullTests(tests, probes, goal, lone).next_rate


def test_two_failed_tests_lead_to_the_limit_between_rate_and_p99() -> None:
    """1 / p99 falls evenly: 0.8 at 60, 0.9 at 56, so that the limit is reached at 52, and early stopping is sure a
    little below.
    """
    found = after(full(60, 125.0, False), full(56, 100 / 0.9, False))
    expected = 56 - (1 / passing_share(33_600) - 0.9) / (0.1 / 4)
    assert found == pytest.approx(expected, rel=1e-3) and 51 < found < 52
    assert passing_share(2_000) < 0.92 < 0.97 < passing_share(33_600) < 1


@given(st.floats(1.001, 1.03), st.floats(1.02, 1.3))
def test_after_a_near_miss_the_third_test_is_near(over: float, before: float) -> None:
    """It is no fixed tenth below: 0.95 to 0.98 where the curve is as steep as near a capacity."""
    tests = full(58, 100 * (over + before * 0.2), False), full(56, 100 * over, False)
    found = after(*tests)
    assert found is not None and 0.9 * 56 < found <= 0.98 * 56


def test_tests_that_contradict_each_other_go_by_the_worst() -> None:
    """A tenant came and went: the lower rate had the higher p99."""
    found, steeper = (after(full(50, 110, False), full(48, worst, False)) for worst in (112, 160))
    assert found is not None and steeper is not None and 0.8 * 48 < steeper < found < 0.98 * 48


@given(st.lists(st.floats(1.01, 5), min_size=MOST_FULL_TESTS, max_size=MOST_FULL_TESTS))
@settings(deadline=None, max_examples=5)
def test_a_search_ends_after_four_full_tests_and_never_goes_up_again_while_none_held(shares: list[float]) -> None:
    tests, rate = list[Outcome](), 50.0
    for share in shares:
        tests.append(full(rate, 100 * share, False))
        following = after(*tests)
        if len(tests) == MOST_FULL_TESTS:
            assert following is None
            return
        assert following is not None and 0.59 * rate < following < rate
        rate = following


def test_a_third_test_lies_between_one_that_held_with_room_and_one_that_failed_far_above() -> None:
    held, failed = full(40, 50, True), full(55, 150, False)
    found = after(failed, held)
    assert found is not None and 43 < found < 53
    assert after(full(41, 110, False), full(40, 50, True)) is None  # the gap is not worth a test
    assert after(failed, full(40, 90, True)) is None  # nor is it where the limit is near


def test_the_fourth_test_only_follows_a_third_that_held_with_room() -> None:
    first, second = full(30, 30, True), full(55, 150, False)
    assert after(first, second, full(45, 105, False)) is None
    assert after(first, second, full(40, 60, True)) is not None
    assert after(first, second, full(40, 90, True)) is None


def test_room_that_is_left_is_tried() -> None:
    higher = after(full(40, 40, True))
    assert higher is not None and 40 < higher <= MOST_RISE_RATIO * 40
    assert after(full(50, 85, True)) is None


@given(st.floats(0.1, 0.3), st.floats(30, 79))
@settings(deadline=None, max_examples=5)
def test_a_server_that_became_faster_is_tried_at_a_higher_rate(drift: float, tpot: float) -> None:
    before = full(40, tpot, True)
    assert before.queue
    later = before.model_copy(update={"queue": replace(before.queue, drift=drift)})
    assert 40 < (after(later) or 0) <= MOST_RISE_RATIO * 40 + 1e-9


@given(st.floats(-0.01, 0.0), st.floats(5, 79))
@settings(deadline=None, max_examples=10)
def test_a_fit_that_leaves_an_answer_no_time_of_its_own_ends_no_search(token_s: float, tpot: float) -> None:
    before = full(50, tpot, True)
    assert before.queue
    odd = before.model_copy(update={"queue": replace(before.queue, token_s=token_s, answer_s=4.0, beside=240.0)})
    assert (after(odd) or 50) >= 50


def test_a_failure_that_tells_nothing_lowers_the_rate_by_a_tenth() -> None:
    silent = example_runs.probe(50.0, False, 2100, 50, seconds=640.0, sent=50.0)
    assert after(silent) == pytest.approx(0.9 * SAFE_SHARE * 50)


def test_early_stopping_alone_tells_how_far_it_was() -> None:
    """Of 2,100 queries ten may be over the limit; 17 were, so that the 99.5th percentile is above it."""
    more = next(count for count in range(2000) if allowed_late(2100 + count) >= 17)
    test = full(3.5, 85, False, capacity=5.0, more=more, queries=2100)
    assert 1.2 < (early_stopping_share(test, GOAL) or 0) < 1.6
    assert early_stopping_share(full(3.5, 85, True, capacity=5.0), GOAL) is None
    lower, plain = after(test), after(example_runs.changed(test, more=None))
    assert lower is not None and plain is not None and lower < min(plain, 0.95 * 3.5)


@given(st.floats(0.01, 100), st.floats(1, 79))
def test_no_latency_leads_to_a_rate_below_half(share: float, rate: float) -> None:
    assert 0 < rate / 2 <= rate_toward_limit(80.0, rate, share) <= 80


def test_a_line_through_two_tests() -> None:
    assert rate_on_line((50, 0.5), (60, 1.0), 0.8) == pytest.approx(57.5)
    assert rate_on_line((50, 1.0), (60, 1.0)) is None


def test_a_line_through_many_tests() -> None:
    """Of two it is the line through both; a third one at a higher rate weighs more than a small slope between two."""
    points = [(50, 1.1), (60, 1.375)]
    assert rate_on_fitted_line(points) == pytest.approx(rate_on_line(*points))
    assert rate_on_fitted_line([(50, 1.1), (52, 1.101), (60, 1.375)]) == pytest.approx(46.2, abs=0.1)
    assert rate_on_fitted_line([(50, 1.2), (60, 1.1)]) is None
    assert rate_on_fitted_line([(50, 1.100), (60, 1.101)]) == 25


RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())
INTERACTIVE = Goal(600, 13368, 500, 30, 13368, 18209322760996052031)


def recorded(name: str) -> list[Outcome]:
    return [example_runs.probe(**{**test, "queue": Queue(**test["queue"])}) for test in RECORDED[name]]


def test_the_next_rate_after_the_full_test_of_an_h200() -> None:
    """Interactive at 52.18/s sent: mean TPOT 20.5, p99 42.8 of 30 ms over 769 s; 46.62 was steady after it."""
    following = after(*recorded("Interactive, a full test at 51.61"), goal=INTERACTIVE)
    assert following is not None and 45 < following < 48.5


@pytest.mark.slow
def test_the_first_full_test_of_a_card_that_failed_at_56_5_and_was_steady_at_53_3() -> None:
    """At most 208 running: 58.2 queries/s held for a minute, 56.52 had a TTFT p99 of 1,042 of 500 ms."""
    *probes, lost = recorded("Interactive, 58.2 for a minute")
    found = Measurements(INTERACTIVE, LONE, probes)
    assert 0.97 * 53.3 < first_rate(found) < 55
    following = after(lost, probes=tuple(probes), goal=INTERACTIVE, lone=LONE)
    assert following is not None and 51 < following < 54.5


@pytest.mark.slow
def test_a_full_queue_completes_more_than_a_test_that_does_not_grow() -> None:
    """208 answers that begin and end together: 59.7 a second. In a test at 51.81/s, where each begins by itself, 53.2
    were too few for ten minutes (TTFT p99 2,007 of 500 ms).
    """
    *probes, lost = recorded("Interactive, at most 208 running")
    found = Measurements(INTERACTIVE, LoneRequest(0.018, 0.0033, 0.44), probes)
    assert found.server.saturated and found.server.saturated.completed > 59
    assert 53 < found.server.capped_capacity < 55.5
    assert 44 < first_rate(found) < 51
    following = after(lost, probes=tuple(probes), goal=INTERACTIVE)
    assert following is not None and 0.8 < following / lost.load < 0.92


@pytest.mark.slow
def test_two_overloads_are_no_line_to_the_limit() -> None:
    """TTFT p99 of 5,440 and 1,310 of 500 ms on a host that left the GPU idle for a quarter of the time.

    A line through both led to 29.9 queries/s, on a card whose like kept 42.8 with room.
    """
    goal = INTERACTIVE._replace(seed=SEEDS_BY_ROUND["6.1"].schedule)
    found = Measurements(goal, LONE, recorded("Interactive, a host that leaves the GPU idle"))
    assert 40 < first_rate(found) < 45


SLOWED = "Interactive, a host whose CPU slowed in minutes"


@pytest.mark.slow
def test_two_overloads_of_nearly_one_p99_are_no_line_to_the_limit() -> None:
    """48.93 queries/s had a p99 of 1.163 of its limit and 52.29 one of 1.171, though 48.43 had held.

    A line through the two led to a probe at 24.46.
    """
    until_then = recorded(SLOWED)[:6]
    found = Measurements(INTERACTIVE, LONE, until_then)
    assert 46 < found.candidate.rate < 49


def test_a_cap_that_did_not_keep_tpot_leaves_no_room() -> None:
    """At most 208 ran: TPOT kept its limit while saturated, but not in probes at 47.05 and 48.93 queries/s.

    A full test at 45.35 was VALID with a TPOT p99 of 28.94 of 30 ms. One at 46.54 followed, for nine minutes.
    """
    *probes, held = recorded(SLOWED)
    tests = FullTests([held], probes, INTERACTIVE, LONE)
    assert tests.server is not None and tests.server.is_capped
    assert not tests.has_cap_kept_tpot
    assert tests.share(held) == pytest.approx(28.94 / 30, rel=1e-3)
    assert tests.next_rate is None
    kept_tpot = [probe for probe in probes if probe.tpot_ms.p99 < 30]
    assert FullTests([held], kept_tpot, INTERACTIVE, LONE).has_cap_kept_tpot


def test_a_valid_test_whose_queue_grew_is_not_called_invalid() -> None:
    growing = overloaded(52, completed=45, ttft=900, seconds=600)
    assert growing.valid and not growing.has_held
    assert "VALID at 52" in failure_text(growing) and "INVALID" not in failure_text(growing)


def test_the_first_rate_has_a_margin_for_heat_that_the_card_shows() -> None:
    cool = Measurements(INTERACTIVE, LoneRequest(0.0175, 0.0033, 0.44), recorded("Interactive, 58.2 for a minute")[:2])
    hot = Measurements(cool.goal, cool.lone, [example_runs.changed(probe, clock_fall=0.01) for probe in cool.probes])
    assert first_rate(cool) == pytest.approx(FIRST_SHARE * cool.candidate.rate)
    assert 0.96 * first_rate(cool) < first_rate(hot) < 0.98 * first_rate(cool)


def failed_result(queries: int = 40_104) -> TestResult:
    return Mock(failed=("latency", "early_stopping"), queries=queries, duration_s=659.5, valid=False)


def corrected(
    plan: Plan, result: TestResult, probes: list[Outcome], *attempts: Outcome, left_s: float = 1e9
) -> Plan | None:
    return rate_source(plan.config).correct(plan, result, DoneTests(probes, attempts, left_s))


def test_the_run_goes_on_at_the_next_rate_and_says_why() -> None:
    plan = replace(SEARCHED, target_qps=56.0)
    lost = example_runs.changed(full(56, 110, False), why="TPOT p99 110 of 100 ms")
    again = corrected(plan, failed_result(), [], lost)
    assert again is not None and again.target_qps is not None and again.target_qps < 0.98 * 56
    assert tells(again.notes[-1], "56 queries/s was INVALID", "(TPOT p99 110 of 100 ms)", "retrying at")
    assert corrected(plan, failed_result(queries=200), [], lost) is not None  # a latency was over its limit
    short = Mock(failed=("early_stopping",), queries=200, duration_s=659.5, valid=False)
    assert corrected(plan, short, [], lost) is None
    assert corrected(plan, failed_result(), [], lost, left_s=500.0) is None  # --minutes has no time for it


def test_a_probe_of_the_server_before_it_changed_does_not_count() -> None:
    plan = replace(SEARCHED, target_qps=56.0)
    lost = example_runs.changed(full(56, 110, False), why="TPOT p99 110 of 100 ms")
    before_change = overloaded(74.4, 20.0, 6000)
    outdated = example_runs.changed(before_change, is_outdated=True)
    assert corrected(plan, failed_result(), [outdated], lost) == corrected(plan, failed_result(), [], lost)
    assert corrected(plan, failed_result(), [before_change], lost) != corrected(plan, failed_result(), [], lost)


def test_what_is_known_in_the_end_is_said() -> None:
    held = full(50, 85, True)
    lost = example_runs.changed(full(52, 104, False), why="TPOT p99 104 of 100 ms")
    source = rate_source(SEARCHED.config)
    said = source.conclude(SEARCHED, DoneTests((), (lost, held)))
    assert said.target_qps == 50
    assert tells(said.notes[-1], "VALID at 50 queries/s for 10.7 min, INVALID at 52", "(TPOT p99 104 of 100 ms)")
    none = source.conclude(SEARCHED, DoneTests((), tuple(full(rate, 120, False) for rate in (50, 48, 40, 30))))
    assert none.target_qps == SEARCHED.target_qps
    assert tells(none.notes[-1], "INVALID at 30 queries/s", "all 4 full tests", "--server-target-qps 2")
    with_room = source.conclude(SEARCHED, DoneTests((), (full(40, 40, True),)))
    assert tells(with_room.notes[-1], "VALID with margin: up to ", " queries/s may be VALID")
    cut = replace(SEARCHED, config=SEARCHED.config.with_settings(minutes=20.0))
    late = source.conclude(cut, DoneTests((), (full(50, 120, False),), 300.0))
    assert tells(late.notes[-1], "--minutes 20", "a full test of", "queries/s")


def test_facts_without_a_queue_tell_nothing_of_waits() -> None:
    assert rate_that_waits_allow([example_runs.probe(5.0, True, 100, 20)], GOAL) == float("inf")
    known = Measurements(GOAL, LoneRequest(0.02, 0.0032, 0.4), [overloaded(74.4, 60.8, 6000)])
    assert known.server.capped_capacity == 60.8


def test_a_share_of_the_limits_is_room() -> None:
    assert ROOM_SHARE == 0.8 and max(GOAL.shares(steady(50, 300, 79))) < ROOM_SHARE
