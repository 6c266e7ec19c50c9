"""The search for the highest VALID rate: its logic, and once for real with short probes."""

import io
import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.search import (
    CASES,
    MORE,
    OTHERS,
    UNSEEN,
    Bench,
    Case,
    find_rate,
)
from benchmarks.simulated_servers import Engine, Pace, Prefill, shared
from harness.benchmark import rate as rates
from harness.benchmark.rate import DoneTests, SearchedRate, rate_source
from harness.config import mlperf
from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan, resolve
from harness.config.run import RunConfig
from harness.core.document import number
from harness.core.errors import NotAcceptedError, UsageError
from harness.core.screen import Display
from harness.loadgen import log as loadgen_log
from harness.loadgen import outcome
from harness.loadgen.folder import new_folder
from harness.loadgen.log import TestResult
from harness.loadgen.outcome import Outcome, Queue
from harness.rates import law, probing, quick, search
from harness.rates.law import Alone, Goal, SharedServer, approached
from harness.rates.search import SearchFacts, crossing, rate_after
from harness.results import load
from tests import made
from tests.conftest import run, tells
from tests.warm import Warm

GOAL = Goal(600, 459, 2000, 100)
INTERACTIVE = mlperf.SCENARIO["interactive"].limits
SHARED = shared(60, prompts=0.8)
BY_NAME = {case.name: case for case in (*CASES, *OTHERS, *MORE, *UNSEEN)}


@given(st.floats(1, 1e3), st.floats(0.3, 3), st.floats(0.5, 2))
def test_the_rate_that_implies_itself_is_found(truth: float, start: float, slope: float) -> None:
    """Of a server whose probes imply a rate that is off by a share of their distance to the truth."""
    points = list[tuple[float, float]]()
    rate = start * truth
    for _ in range(8):
        points.append((rate, max(truth + (1 - slope) * (rate - truth), truth / 9)))
        rate = crossing(points)
    assert rate == pytest.approx(truth, rel=0.01)


def test_the_law_of_a_shared_server() -> None:
    """Mean TPOT = alone / (1 - rate / capacity), in a simulated server: the capacity and the prompts' share of work."""
    server = Bench(Case("", SHARED, limits=INTERACTIVE), 1)
    alone, queue = server.alone(), server.test(40, 30).queue
    assert queue is not None and 1000 * alone.tpot_s == pytest.approx(3.2, rel=0.01)
    assert queue.shared_capacity(alone.tpot_s) == pytest.approx(60, rel=0.04)
    assert queue.prompts == pytest.approx(0.8, abs=0.05) and queue.scatter < 0.02


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10**6), share=st.floats(0.6, 0.95), prompts=st.floats(0, 0.9))
def test_any_load_tells_the_capacity(seed: int, share: float, prompts: float) -> None:
    server = Bench(Case("", shared(60, prompts=prompts), limits=INTERACTIVE), seed)
    queue = server.test(60 * share, 30).queue
    assert queue is not None and queue.shared_capacity(0.0032) == pytest.approx(60, rel=0.08)


def test_company_that_costs_nothing_has_no_capacity() -> None:
    queue = Bench(Case("", Prefill(60)), 1).test(40, 30).queue
    assert queue is not None and queue.shared_capacity(0.004) == np.inf


QUICK = ("capacity, 60/s", "shared, 30/s, 30 ms")
SLOW = (
    "capacity, 60/s, slow start",
    "96 at once",
    "an H200, Server",
    "TPOT, 40/s",
    "an H200, Interactive",
    "shared, by prompts, 60/s, 30 ms",
    "waves",
    "draft tokens",
)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_what_a_search_finds_holds_a_full_test(name: str) -> None:
    server = Bench(BY_NAME[name], 7)
    found = find_rate(server)
    assert found.rate and found.attempts <= 2 and found.probes <= search.MOST_PROBES


@pytest.mark.parametrize(("name", "seed", "truth"), [("32 at once, 15/s", 510, 9.15), ("waves", 513, 10.4)])
def test_a_server_unlike_the_law_ends_near_what_holds(name: str, seed: int, truth: float) -> None:
    """Queries wait for less than in a queue of random work, or for whole batches; the law of waits tells neither."""
    found = find_rate(Bench(BY_NAME[name], seed))
    assert found.rate and 0.9 * truth < found.rate < 1.1 * truth


def test_a_cap_on_running_requests_leaves_the_first_token_to_be_judged() -> None:
    """What a saturated server completes decides, where its cap keeps TPOT within the limit."""
    server = Bench(BY_NAME["96 at once"], 3)
    facts = search.measure(server)
    assert facts.server.is_bounded
    assert facts.candidate.rate < facts.server.waited.completed
    assert tells(facts.candidate.reason, "the capacity of")


def test_a_server_that_changes_is_measured_again() -> None:
    """It warms up for a minute: a request alone is faster after the saturated probe than before it, so that both are
    measured again, and what the first probe said does not count."""
    server = Bench(Case("", Prefill(60), Pace(slow_s=60)), 2)
    facts = search.measure(server)
    assert len(server.probes) > len(facts.probes) and server.probes[0].queue
    assert server.probes[0].queue.completed < 57
    assert facts.server.waited.completed == pytest.approx(60, rel=0.02)


def test_a_rate_that_held_with_room_is_not_undercut() -> None:
    """Steps that take longer the more run tell too low a rate; a probe that held says otherwise."""
    server = Bench(BY_NAME["steps that bend, Server"], 68)
    facts = search.search(server)
    held = [one.load for one in facts.probes if one.has_held and max(server.goal.shares(one)) < search.ROOM]
    assert held and facts.candidate.rate >= max(held)


def test_two_probes_of_nearly_one_rate_make_no_line() -> None:
    assert search.crossing([(1.213, 0.337), (1.2, 0.344)]) == 0.344
    assert 45 < search.crossing([(60, 40.0), (40, 50.0)]) < 48


def test_what_a_slow_server_can_keep() -> None:
    """Of `0.3/s` 95 % of tests hold at 0.037/s: a test has 459 queries, of which none may be late."""
    assert 0.03 < law.rate_by_company(6.35, 0.31, 0.2, 0.0, 0.01, 19.05, GOAL) < 0.07


@pytest.mark.slow
def test_a_slow_server_is_searched_for_as_long_as_it_takes() -> None:
    """Every probe has the queries that early stopping takes; where that is as long as a full test, there is one."""
    server = Bench(Case("", shared(0.5, alone_s=0.05), limits=mlperf.Limits(1e5, 250)), 3)
    facts = search.search(server)
    assert 0.1 < facts.chosen.rate / 0.5 < 1 and len(facts.probes) <= 2
    assert all((one.duration_s or 0) * one.load > 0.9 * SURE_QUERIES for one in facts.probes)


def test_a_request_alone_over_a_limit_ends_a_search() -> None:
    server = Bench(Case("", shared(60, alone_s=0.05, prompts=0.75), limits=INTERACTIVE), 1)
    facts = search.search(server)
    assert facts.candidate.rate == 0
    plan = resolve(RunConfig(scenario="interactive", server_target_qps="max"), [], 0)
    with pytest.raises(NotAcceptedError, match=r"single request is over the limits \(TTFT .* TPOT 50"):
        rates.from_search(plan, facts)


def test_an_engine_that_keeps_up_with_all_that_is_sent() -> None:
    """Nothing tells a limit: the fastest rate that was tried, which what is in flight at most bounds."""

    class Instant(Bench):
        at_once = 64

    server = Instant(Case("", Engine(0.004, 1e-9)), 1)
    facts = search.search(server)
    most = 1.3 * 64 / facts.alone.latency_s
    assert facts.candidate.rate == pytest.approx(most) and "nothing tells a limit" in facts.candidate.reason


def test_a_probe_is_long_enough_for_early_stopping() -> None:
    for qps in (0.1, 5, 50, 500):
        assert search.probe_s(qps, GOAL) * qps >= SURE_QUERIES - 1e-6
    assert search.probe_s(50, Goal(10, 100, 2000, 100)) == 10


def test_max_is_for_server_scenarios_alone() -> None:
    assert type(rate_source(RunConfig(scenario="server", server_target_qps="max"))) is SearchedRate
    for wrong in ({"scenario": "singlestream"}, {"scenario": "server", "mode": "accuracy"}):
        with pytest.raises(UsageError):
            RunConfig(server_target_qps="max", **wrong)
    with pytest.raises(UsageError):
        RunConfig(scenario="offline", offline_expected_qps="max")


@pytest.mark.parametrize(("rate", "grew"), [(50, False), (58, False), (70, True), (120, True)])
def test_a_queue_that_grows_tells_the_capacity(rate: float, grew: bool) -> None:
    queue = Bench(Case("", Prefill(60)), 1).test(rate, 30).queue
    assert queue is not None and queue.has_grown is grew
    assert not grew or queue.completed == pytest.approx(60, rel=0.01)
    few = np.arange(10.0)
    assert load.from_times(few, few, few, few, few) is None


@pytest.mark.parametrize("seed", range(4))
def test_answers_that_end_in_waves_tell_the_capacity_in_half_a_minute(seed: int) -> None:
    """With a cap on running requests they begin and end together: one wave more or less is several percent."""
    case = BY_NAME["noise of 5 %, 150 at once"]
    short, long = (Bench(case, seed).test(100, seconds).queue for seconds in (30, 600))
    assert short and long and short.dispersion < 0.2 and long.completed == pytest.approx(65.5, rel=0.01)
    assert short.completed_error < 0.02 * short.completed
    assert short.completed == pytest.approx(long.completed, rel=0.03)


def test_what_a_long_test_can_keep() -> None:
    assert 58 < law.rate_by_waits(60, 0, 1.0, 0.0, 1.98, GOAL) < 59
    assert 53 < law.rate_by_waits(60, 0, 1.0, 0.0, 0.48, GOAL) < 56
    assert law.rate_by_waits(60, 1.0, 1.0, 0.0, 1.98, GOAL) < 57.5
    assert law.rate_by_waits(2000, 0, 1.0, 0.0, 2, GOAL) > 1990  # so many come that their chance evens out
    few, many = (law.rate_by_waits(60, 0, running, 0.4, 0.48, GOAL) for running in (30.0, 200.0))
    assert 54 < few < many < 60  # of those that run none waits
    alone, together = (law.rate_by_company(1.05, 20, share, 0, 0, 4.0, GOAL) for share in (0, 0.8))
    assert 10 < together < 11 < alone < 20 * (1 - 1.05 / 4)  # prompts make latencies less even
    assert law.rate_by_company(1.05, 20, 0.8, 1.0, 0, 4.0, GOAL) < together  # and prompts of any length, less still
    assert law.rate_by_company(5.0, 20, 0, 0, 0, 4.0, GOAL) == 0


@given(st.floats(0.5, 60), st.floats(0.1, 100), st.floats(0, 1), st.floats(1.1, 20), st.floats(0.5, 3))
@settings(deadline=None, max_examples=10)
def test_a_test_shorter_than_an_answer_has_a_rate(
    alone_s: float, capacity: float, share: float, limit: float, seconds: float
) -> None:
    goal = Goal(seconds, 1, 0, 0)
    assert 0 < law.rate_by_company(alone_s, capacity, share, 0.2, 0.1, limit * alone_s, goal) <= capacity
    assert 0 < law.rate_by_waits(capacity, 0.5, 8.0, 1 / capacity, limit, goal) <= capacity


def queue(completed: float, grew: float = 0.0, **known: float) -> Queue:
    return Queue(completed + grew, completed, 0.2, grew, 0.5, 0.0, **known)


def busy(qps: float, completed: float, ttft: float, **more: Any) -> Outcome:
    """A probe above what the server completes."""
    grew = queue(completed, qps - completed)
    usual = {"ttft_p50": ttft / 2, "latency_p50": ttft, "ttft_min": 20, "sent": qps, "seconds": 30.0}
    return made.probe(qps, ttft <= 2000, ttft, 50.0, queue=grew, **{**usual, **more})


def steady(qps: float, ttft: float, tpot: float = 50.0, seconds: float = 30.0, **known: float) -> Outcome:
    sent = {"sent": qps, "seconds": seconds, "latency_p50": 5500.0, "ttft_p50": 150.0, "ttft_min": 20.0}
    return made.probe(qps, True, ttft, tpot, queue=queue(qps, **known), **sent)


CARD = [steady(54, 214, 37), steady(58, 258, 47), steady(62, 360, 59)]
CURVE = resolve(RunConfig(scenario="server", server_target_qps=(54, 58, 62)), [], 0)
SEARCHED = resolve(RunConfig(scenario="server", server_target_qps="max"), [], 0)


def test_a_list_of_rates_ends_below_the_capacity() -> None:
    held = rates.from_curve(CURVE, [*CARD, steady(74.4, 360, 59)])  # nothing tells the capacity yet
    assert held.target_qps == 62 and held.notes[-1].endswith("(the highest that is VALID of 3 rates)")
    found = rates.from_curve(CURVE, [*CARD, busy(74.4, 60.8, 6000)])
    assert found.target_qps == 58
    assert tells(found.notes[-1], "62 would not last")


def failed(qps: float) -> TestResult:
    return Mock(failed=("latency", "early_stopping"), queries=40_104, duration_s=659.5, valid=False)


def corrected(plan: Plan, result: TestResult, probes: list[Outcome], *attempts: Outcome) -> Plan | None:
    return rate_source(plan.config).correct(plan, result, DoneTests(probes, attempts))


def test_what_a_full_test_measured_decides_the_next_rate() -> None:
    full = busy(62, 60.8, 18_212, seconds=647.0, why="TTFT p99 18,212 of 2,000 ms")
    again = corrected(replace(CURVE, target_qps=62.0), failed(62), CARD, full)
    assert again is not None and again.target_qps == 58
    assert tells(again.notes[-1], "62 queries/s was INVALID", "(TTFT p99 18,212 of 2,000 ms)", " 58")
    lower = corrected(replace(SEARCHED, target_qps=62.0), failed(62), CARD, full)
    assert lower is not None and lower.target_qps is not None and 57.5 < lower.target_qps < 60.1
    assert corrected(replace(CURVE, target_qps=54.0), failed(54), CARD, full) is None


def full(qps: float, tpot: float, valid: bool, capacity: float = 61.0) -> Outcome:
    """A full test of a shared server."""
    work = {"each_s": 0.2 / capacity, "prompt_s": 0.8 / capacity, "token_s": 0.0032, "tokens": 127.0}
    return made.changed(steady(qps, 300, tpot, seconds=640.0, **work), valid=valid)


@given(st.floats(1.001, 1.4), st.floats(62, 70), st.lists(st.floats(40, 60), max_size=3))
def test_a_near_miss_never_halves_the_rate(over: float, capacity: float, held: list[float]) -> None:
    """Whatever held or fell before: 105 of 100 ms is at most 0.97 of the rate, and never much less."""
    probes = [steady(qps, 214, 60) for qps in held]
    following = rate_after([*probes, full(56, 100 * over, False, capacity)], GOAL)
    assert following is not None and 0.84 * 56 < following <= 0.97 * 56
    assert over > 1.05 or following > 0.94 * 56


def test_a_failure_that_tells_nothing_lowers_the_rate_by_a_tenth() -> None:
    late = made.changed(steady(50, 2100, 50, seconds=640.0), valid=False)
    assert rate_after([late], GOAL) == pytest.approx(45)
    short = made.changed(steady(50, 300, 50, seconds=640.0), valid=False)  # early stopping alone
    assert rate_after([short], GOAL) == pytest.approx(48.5)
    few = made.changed(short, more=int(0.3 * 50 * 640))  # of 459 queries one is late: chance
    assert rate_after([few], GOAL) == pytest.approx(45)


@given(st.floats(1.01, 50), st.floats(50, 79))
def test_waits_in_a_queue_that_grows_tell_nothing(over: float, qps: float) -> None:
    """Seventeen times the limit in an overload is no rate below nothing: the next is a tenth lower."""
    test = full(qps, 100 * over, False, capacity=80.0)
    assert test.queue
    grown = test.model_copy(update={"queue": replace(test.queue, growth=10.0, chance=0.1)})
    assert rate_after([grown], GOAL) == pytest.approx(0.9 * qps)


@given(st.floats(0.01, 100), st.floats(1, 79))
def test_no_latency_leads_to_a_rate_below_half(share: float, rate: float) -> None:
    assert 0 < rate / 2 <= approached(80.0, rate, share) <= 80


def test_room_that_is_left_is_tried_once() -> None:
    assert rate_after([full(50, 85, True)], GOAL) is None
    higher = rate_after([full(50, 60, True)], GOAL)
    assert higher is not None and 51 < higher < 56
    plan = replace(SEARCHED, target_qps=50.0)
    held = Mock(failed=(), queries=40_104, duration_s=659.5, valid=True)
    again = corrected(plan, held, [], full(50, 60, True))
    assert again is not None and again.target_qps == higher
    assert tells(again.notes[-1], "50 queries/s was VALID", " with room; retrying at ")
    after = made.changed(full(higher, 104, False), why="TPOT p99 104 of 100 ms")
    assert corrected(replace(plan, target_qps=higher), failed(higher), [], full(50, 60, True), after) is None
    assert corrected(replace(plan, target_qps=higher), held, [], full(50, 60, True), full(higher, 60, True)) is None
    said = rate_source(plan.config).conclude(plan, DoneTests((), (full(50, 60, True), after)))
    assert said.target_qps == 50
    assert tells(said.notes[-1], "VALID at 50 queries/s for 10.7 min, INVALID at ", "(TPOT p99 104 of 100 ms)")
    alone = rate_source(plan.config).conclude(plan, DoneTests((), (full(50, 60, True),)))
    assert tells(alone.notes[-1], "VALID with margin: up to ", " queries/s may be VALID")


@given(st.floats(-0.01, 0.0), st.floats(5, 79))
@settings(deadline=None, max_examples=20)
def test_a_fit_that_leaves_an_answer_no_time_of_its_own_ends_no_search(token_s: float, tpot: float) -> None:
    before = full(50, tpot, True)
    assert before.queue
    odd = before.model_copy(update={"queue": replace(before.queue, token_s=token_s, answer_s=4.0, beside=240.0)})
    assert (rate_after([odd], GOAL) or 50) >= 50


@given(st.floats(0.0, 0.3), st.floats(30, 79))
def test_a_server_that_became_faster_is_tried_at_a_higher_rate(drift: float, tpot: float) -> None:
    before = full(50, tpot, True)
    assert before.queue
    after = before.model_copy(update={"queue": replace(before.queue, drift=drift)})
    least, most = rate_after([before], GOAL) or 50, rate_after([after], GOAL) or 50
    assert least <= most <= search.HIGHER * 50 + 1e-9


RECORDED = json.loads((Path(__file__).parent / "recorded.json").read_text())


def recorded(name: str) -> list[Outcome]:
    return [made.probe(**{**test, "queue": Queue(**test["queue"])}) for test in RECORDED[name]]


def test_the_next_rate_after_the_full_test_of_an_h200() -> None:
    """Interactive at 52.18/s sent: mean TPOT 20.5, p99 42.8 of 30 ms over 769 s; 46.62 was steady after it."""
    following = rate_after(recorded("Interactive, a full test at 51.61"), Goal(600, 459, 500, 30))
    assert following is not None and 45 < following < 48.5


def test_a_full_queue_completes_more_than_a_test_that_does_not_grow() -> None:
    """208 answers that begin and end together: 59.7 a second. In a test at 51.81/s, where each begins by itself, 53.2
    were too few for ten minutes (TTFT p99 2,007 of 500 ms)."""
    *probes, lost = recorded("Interactive, at most 208 running")
    goal = Goal(600, 459, 500, 30)
    facts = search.SearchFacts(goal, Alone(0.018, 0.0033, 0.44), probes)
    assert facts.server.waited and facts.server.waited.completed > 59
    assert 53 < facts.server.served_qps < 55.5
    assert 48 < facts.chosen.rate < 51
    following = rate_after([*probes, lost], goal)
    assert following is not None and 0.89 < following / lost.load < 0.92


@settings(deadline=None, max_examples=3)
@given(st.integers(0, 99), st.sampled_from(QUICK))
def test_a_quick_estimate_has_the_rate_within_its_range(seed: int, name: str) -> None:
    truths = {"capacity, 60/s": 58.47, "shared, 30/s, 30 ms": 23.74}  # of benchmarks.search
    server = Bench(BY_NAME[name], seed)
    found = quick.estimate_of(search.estimate(server), {"its limits": server.goal}, "python run.py --quick")
    low, high = found.ranges["its limits"]
    assert high is None or not found.capacity or high <= found.capacity + (found.capacity_error or 0.0) + 1e-9
    assert high is not None and low <= truths[name] <= high < 1.3 * low
    assert server.spent_s < 150


def test_what_a_quick_estimate_says() -> None:
    found = quick.Estimate(
        ttft_alone_ms=16.6,
        tpot_alone_ms=3.22,
        capacity=61.3,
        capacity_error=2.1,
        ranges={"Server's limits": (57.2, 62.1), "Interactive's limits": (46.0, 50.1)},
        rate=59.5,
        most_running=700,
        doubts=(),
        command="python run.py --server-target-qps max",
    )
    assert tells(
        str(found), "TPOT of a single request 3.2 ms", "capacity 61.3 \N{PLUS-MINUS SIGN} ", " queries/s; within"
    )
    assert tells(str(found), "within Server's limits about 57.2 to 62.1, within Interactive's limits about 46")
    assert tells(str(found), "a full test is needed to say VALID: python run.py --server-target-qps max")
    none = made_again(found, ranges={}, doubts=("it completes in waves",))
    assert tells(none, "the rates within limits cannot be estimated: it completes in waves")
    busy = made_again(found, background_load=("other programs used 0.6 of 2 CPU cores during the test",))
    assert tells(
        busy, "within Server's limits about 57.2 to 62.1", "; other programs used 0.6 of 2 CPU cores", "; a full"
    )
    assert tells(made_again(found, capacity=None, ranges={"your limits": (40.0, None)}), "not reached", "40 or more")
    assert tells(made_again(found, ranges={"your limits": (0.0, 0.0)}), "none: a single request is over them")


def made_again(found: quick.Estimate, **changes: Any) -> str:
    return str(found.model_copy(update=changes))


@pytest.mark.slow
def test_where_there_is_no_law_a_quick_estimate_says_so() -> None:
    server = Bench(BY_NAME["waves"], 5)
    found = quick.estimate_of(search.estimate(server), {"its limits": server.goal}, "")
    assert not found.ranges and found.doubts


def test_a_quick_estimate_is_for_scenarios_with_a_rate_and_makes_no_test() -> None:
    config = RunConfig(quick=True)
    assert (config.scenario, config.mode) == ("server", "performance")
    assert RunConfig(quick=True, scenario="interactive").scenario == "interactive"
    for wrong in ({"scenario": "offline"}, {"server_target_qps": 5}, {"json": True}, {"mode": "accuracy"}):
        with pytest.raises(UsageError, match="--quick"):
            RunConfig(quick=True, **wrong)
    plan = resolve(RunConfig(quick=True, tpot_limit=50), [], 0)
    assert [*quick.goals(plan)] == ["your limits"] and quick.goals(plan)["your limits"].tpot_ms == 50
    assert [*quick.goals(resolve(config, [], 0))] == ["Server's limits", "Interactive's limits"]


def test_facts_without_a_queue_tell_nothing_of_waits() -> None:
    assert search.rate_by_waits([made.probe(5.0, True, 100, 20)], GOAL) == np.inf
    known = SearchFacts(GOAL, Alone(0.02, 0.0032, 0.4), [busy(74.4, 60.8, 6000)])
    assert isinstance(known.server, SharedServer) and known.server.capacity == 60.8


def test_the_reason_of_a_probe_is_on_the_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen = io.StringIO()
    with Display(Console(file=screen, width=200)) as display:
        session = Mock(folder=Mock(path=tmp_path, sub=lambda name: tmp_path), display=display)
        monkeypatch.setattr(probing.TestRun, "read", Mock())
        monkeypatch.setattr(probing, "outcome_of", Mock(return_value=steady(48.2, 300)))
        probing.Bench(Mock(), session).test(replace(CURVE, target_qps=48.2), "every rate held so far")
    assert tells(screen.getvalue(), "probe at 48.2 queries/s", "\n         every rate held so far\n")
    assert tells(display.stages[-1].name, "48.2") and "held" not in display.stages[-1].name  # which pictures show


def why(*about: Any, is_few: bool) -> list[str]:
    return [each.what for each in load.reasons(*about, is_few=is_few)]


def test_why_a_probe_fell() -> None:
    plan = replace(CURVE, target_qps=62.0)
    late = Mock(ttft_ms=Mock(p99=2310.0), tpot_ms=Mock(p99=59.0), failed=("latency", "early_stopping"), valid=False)
    assert why(late, plan, queue(60.8, 1.0), is_few=False) == ["TTFT p99 2,310 of 2,000 ms"]
    assert why(late, plan, queue(60.8, 5.2), is_few=True)[1:] == ["queue grew by 5.2 a second"]
    early = {"early_stopping_ttft_result": "Run successful.", "early_stopping_tpot_result": "at least 336 more queries"}
    late.configure_mock(**{"ttft_ms.p99": 300.0}, failed=("early_stopping",), early_stopping=early)
    assert why(late, plan, None, is_few=False) == ["336 more queries needed"]


def test_rates_that_agree_in_four_digits_have_folders_of_their_own(tmp_path: Path) -> None:
    assert [new_folder(tmp_path, f"{qps:.4g}").name for qps in (20.001, 20.002)] == ["20", "20-2"]


def test_the_length_of_a_test_is_known_before_it() -> None:
    assert replace(CURVE, target_qps=62.0).length == "40,104 queries in about 10.8 min"
    offline = replace(resolve(RunConfig(), [], 0), target_qps=57.0)
    assert offline.length == "40,104 samples in about 11.7 min"
    assert resolve(RunConfig(), [], 0).length == ""


def short_probes() -> None:
    outcome.SETTLED = 0
    search.SATURATED_S, search.MOST_PROBES, search.CONFIRMING_S = 2.0, 3, 4.0


@pytest.mark.engine
def test_a_search_on_the_demo(tmp_path: Path) -> None:
    flags = ["--scenario", "server", "--mode", "performance", "--server-target-qps", "max"]
    flags += ["--input-len", "32", "--output-len", "4", "--total-sample-count", "64", "--min-duration", "6"]
    flags += ["--ttft-limit", "30000", "--tpot-limit", "5000"]  # which a busy machine keeps, too
    done = run(tmp_path, *flags, start=partial(Warm, before=short_probes))
    assert done.code == 0, done.output
    folder = (tmp_path / "latest").resolve()
    summary = json.loads((folder / "summary.json").read_text())
    probes = summary["run"]["search"]
    assert 1 <= len(probes) <= 3 * search.REPEATS  # where a request alone took another time after them
    assert all(p["load"] > 0 and p["ttft_ms"]["p99"] > 0 and p["tpot_ms"]["p99"] > 0 for p in probes)
    assert len(list((folder / "Probes").iterdir())) == len(probes)
    valid = [max(p["load"], p["sent"]) for p in probes if p["valid"]]
    expected = max(valid) if valid else min(p["load"] for p in probes)
    assert any("server_target_qps = " in note for note in summary["meta"]["notes"])
    assert summary["run"]["performance"]["target_qps"] <= 1.001 * expected
    assert (folder / "plots" / "search.png").exists()
    asked, given = (loadgen_log.read(folder / place) for place in ("Performance", probes[0]["folder"]))
    assert probes[0]["folder"] == f"Probes/{number(probes[0]['load'])}" and probes[0]["queue"]["sent"] > 0
    assert asked.effective["min_duration_ms"] == 1000 * duration(folder) != given.effective["min_duration_ms"]
    assert asked.effective["performance_sample_count"] == summary["meta"]["samples"]


def duration(folder: Path) -> float:
    return float(json.loads((folder / "config.json").read_text())["plan"]["min_duration_s"])
