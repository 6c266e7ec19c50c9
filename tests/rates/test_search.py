"""The search for the highest VALID rate on simulated servers, and once for real with short probes."""

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

from benchmarks.search import ALL, Bench, Case, find_rate
from benchmarks.simulated_servers import Engine, Pace, Prefill, sharing_engine
from harness.config import mlperf
from harness.config.patterns import SURE_QUERIES
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import EndpointError, NotAcceptedError, UsageError
from harness.core.formatting import number
from harness.core.progress import Display
from harness.loadgen import log as loadgen_log
from harness.rates import bench as real_bench
from harness.rates import measurements, search
from harness.rates.goal import Goal
from harness.rates.measurements import ROOM_SHARE, SAME_RATE_SHARE, Candidate, Measurements, probe_s, self_implying_rate
from harness.results import outcome, queue_fit, test_outcome
from harness.results.outcome import Outcome
from harness.runner.rate import rate_source
from harness.runner.search_rate import SearchedRate, plan_from_curve, plan_from_search
from harness.runs.run_folder import new_folder
from tests.conftest import run, tells
from tests.rates.outcomes import overloaded, queue, steady
from tests.support import example_runs
from tests.support.warm_process import Warm

GOAL = Goal(600, 459, 2000, 100, 1, 7)
INTERACTIVE = mlperf.SCENARIOS["interactive"].limits
SHARED = sharing_engine(60, prompt_share=0.8)
BY_NAME = {case.name: case for case in ALL}


def measured(server: Bench) -> Measurements:
    """A lone request and a saturated server."""
    found = Measurements(server.goal)
    search.measure(server, found, search.SATURATED_S)
    return found


@given(st.floats(1, 1e3), st.floats(0.3, 3), st.floats(0.5, 2))
def test_the_rate_that_implies_itself_is_found(truth: float, start: float, slope: float) -> None:
    """Of a server whose probes imply a rate that is off by a share of their distance to the truth."""
    points = list[tuple[float, float]]()
    rate = start * truth
    for _ in range(8):
        points.append((rate, max(truth + (1 - slope) * (rate - truth), truth / 9)))
        rate = self_implying_rate(points)
    # Two tests whose rates are nearly the same make no line, so the rate stays as near as the first test was.
    tolerance = max(0.01, abs(start - 1)) if abs(start - 1) < SAME_RATE_SHARE else 0.01
    assert rate == pytest.approx(truth, rel=tolerance)


def test_two_probes_of_nearly_one_rate_make_no_line() -> None:
    assert self_implying_rate([(1.213, 0.337), (1.2, 0.344)]) == 0.344
    assert 45 < self_implying_rate([(60, 40.0), (40, 50.0)]) < 48


def test_the_law_of_a_shared_server() -> None:
    """Mean TPOT = alone / (1 - rate / capacity), in a simulated server: the capacity and the prompts' share of work."""
    server = Bench(Case("", SHARED, limits=INTERACTIVE), 1)
    lone, found = server.lone_request(), server.test(40, 30).queue
    assert found is not None and 1000 * lone.tpot_s == pytest.approx(3.2, rel=0.01)
    assert found.shared_capacity(lone.tpot_s) == pytest.approx(60, rel=0.04)
    assert found.prompts == pytest.approx(0.8, abs=0.05) and found.scatter < 0.02


@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 10**6), share=st.floats(0.6, 0.95), prompts=st.floats(0, 0.9))
def test_any_load_tells_the_capacity(seed: int, share: float, prompts: float) -> None:
    server = Bench(Case("", sharing_engine(60, prompt_share=prompts), limits=INTERACTIVE), seed)
    found = server.test(60 * share, 30).queue
    assert found is not None and found.shared_capacity(0.0032) == pytest.approx(60, rel=0.08)


def test_company_that_costs_nothing_has_no_capacity() -> None:
    found = Bench(Case("", Prefill(60)), 1).test(40, 30).queue
    assert found is not None and found.shared_capacity(0.004) == np.inf


QUICK = ("capacity, 60/s", "shared, 30/s, 30 ms")
SLOW = (
    "capacity, 60/s, slow start",
    "96 at once",
    "an H200, Server",
    "TPOT, 40/s",
    "an H200, Interactive",
    "an H200 of at most 208, Interactive",
    "shared, by prompts, 60/s, 30 ms",
    "draft tokens",
)


@pytest.mark.parametrize("name", [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)])
def test_what_a_search_finds_holds_a_full_test(name: str) -> None:
    server = Bench(BY_NAME[name], 7)
    found = find_rate(server)
    assert found.rate and found.attempts <= 2 and found.probes <= search.MOST_PROBES


# What holds of benchmarks.search; a search has its own arrivals, which may allow more.
UNLIKE = (
    ("32 at once, 15/s", 52, 9.15),
    ("waves", 1050, 10.4),
    ("2/s", 61, 0.766),
    ("a neighbor of 3 in 90 s", 0, 20.5),
    ("a neighbor of 3 in 90 s", 2, 20.5),
)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "seed", "truth"), UNLIKE)
def test_a_server_unlike_the_model_ends_near_what_holds(name: str, seed: int, truth: float) -> None:
    """Batches that begin together, few queries, a tenant that comes and goes: the full tests themselves lead there."""
    found = find_rate(Bench(BY_NAME[name], seed))
    assert found.rate and 0.85 * truth < found.rate < 1.2 * truth


def test_a_cap_on_running_requests_leaves_the_first_token_to_be_judged() -> None:
    """What a saturated server completes decides, where its cap keeps TPOT within the limit."""
    found = measured(Bench(BY_NAME["96 at once"], 3))
    assert found.server.is_capped and found.server.saturated
    assert found.candidate.rate < found.server.saturated.completed
    assert tells(found.candidate.reason, "the capacity of")


def test_a_server_that_changes_is_measured_again() -> None:
    """It warms up for two minutes: a lone request is faster after the saturated probe than before it, so that both are
    measured again, and what the first probe said does not count.
    """
    server = Bench(Case("", Prefill(60), Pace(warm_up_s=120)), 2)
    found = measured(server)
    assert len(server.probes) > len(found.probes) and server.probes[0].queue
    assert server.probes[0].queue.completed < 57
    assert found.server.saturated and found.server.saturated.completed == pytest.approx(60, rel=0.02)


def test_a_rate_that_held_with_room_is_not_undercut() -> None:
    """Steps that take longer the more run tell too low a rate; a probe that held says otherwise."""
    server = Bench(BY_NAME["steps that bend, Server"], 68)
    found = search.search(server)
    held = [one.load for one in found.probes if one.has_held and max(server.goal.shares(one)) < ROOM_SHARE]
    assert held and found.candidate.rate >= max(held)


def test_probes_that_contradict_the_model_lead_to_the_rate_themselves() -> None:
    """Of `waves`: two at the model's rates were late, and 1 / p99 falls evenly with the rate."""
    found = Measurements(GOAL, probes=[steady(20.1, 2872), steady(17.5, 2574)])
    assert found.rate_by_curve == pytest.approx(10.3, abs=0.1)
    found.probes.append(steady(9.0, 1800))
    assert found.rate_by_curve is not None and 11 < found.rate_by_curve < 12
    assert Measurements(GOAL, probes=[steady(20.1, 2872), steady(9.0, 1800)]).rate_by_curve is None


def test_a_burst_that_fits_at_once_shows_no_more_than_it_completed() -> None:
    """At first a hundred times as many were taken for the capacity, and said."""
    server = Bench(Case("", Engine(0.005, 1e-7, most_running=64)), 1)
    said = list[str]()
    server.say = said.append  # type: ignore[method-assign]
    found = Measurements(server.goal, server.lone_request())
    qps = search.burst_qps(server, found)
    assert found.burst and found.burst.answered == 93  # the larger one, which does not fit
    assert qps < 2 * 64 / found.lone.latency_s
    small = Bench(Case("", Engine(0.005, 1e-7)), 1, in_flight=32)
    small.say = said.append  # type: ignore[method-assign]
    assert search.burst_qps(small, Measurements(small.goal, small.lone_request())) <= 32 / found.lone.latency_s
    assert tells(said[-1], "no limit")


def test_a_lone_request_over_a_limit_ends_the_measurements() -> None:
    server = Bench(replace(BY_NAME["shared, 30/s, 30 ms"], limits=mlperf.LatencyLimits(500, 1)), 3)
    found = search.search(server)
    assert found.lone.is_over(server.goal) and not found.probes and found.burst is None


def test_probes_before_an_autoscaler_grew_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    discarded: list[Outcome] = []
    monkeypatch.setattr(Bench, "discard", lambda self, probes: discarded.extend(probes))
    server = Bench(BY_NAME["an autoscaler to 3 replicas"], 1)
    kept = measured(server).probes
    assert discarded
    assert [*discarded, *kept] == server.probes


def test_an_outdated_probe_is_marked_in_the_record() -> None:
    old, new = (example_runs.changed(steady(rate, 300), folder=f"probe {rate}") for rate in (20.0, 40.0))
    run = Mock(facts=Mock(probes=[old, new]))
    real_bench.Bench(run, Mock()).discard([old])
    marked, unmarked = run.facts.probes
    assert marked == old.model_copy(update={"is_outdated": True})
    assert unmarked == new
    run.save.assert_called_once()


def test_a_server_that_refuses_with_the_fewest_in_flight_ends_the_search() -> None:
    server = Bench(BY_NAME["refuses beyond 8"], 1, in_flight=2)
    server.limit_in_flight = lambda most: None  # type: ignore[method-assign]
    refused = example_runs.changed(example_runs.probe(qps=5), refused=3, full_at=2)
    server.probe = lambda chosen: refused  # type: ignore[method-assign]
    with pytest.raises(EndpointError, match="even with 2 in flight"):
        search.probe(server, Candidate(5.0, ""))


def test_a_minute_of_time_is_kept_for_what_follows() -> None:
    """With --minutes a search ends in time for its full test, by what it has measured until then."""
    case = BY_NAME["shared, 30/s, 30 ms"]
    server = Bench(case, 3, until_s=150.0 + Bench(case, 3).goal.reserved_s(30))
    found = search.search(server)
    assert found.probes and server.spent_s < 150
    everything = search.search(Bench(BY_NAME["shared, 30/s, 30 ms"], 3))
    assert len(found.probes) < len(everything.probes)


@pytest.mark.slow
def test_a_slow_server_is_searched_for_as_long_as_it_takes() -> None:
    """Every probe has the queries that early stopping takes; where that is as long as a full test, there is one."""
    server = Bench(Case("", sharing_engine(0.5, lone_tpot_s=0.05), limits=mlperf.LatencyLimits(1e5, 250)), 3)
    found = search.search(server)
    assert 0.1 < found.candidate.rate / 0.5 < 1 and len(found.probes) <= 2
    assert all((one.issue_s or 0) * one.load > 0.9 * SURE_QUERIES for one in found.probes)


def test_a_lone_request_over_a_limit_ends_a_search() -> None:
    server = Bench(Case("", sharing_engine(60, lone_tpot_s=0.05, prompt_share=0.75), limits=INTERACTIVE), 1)
    found = search.search(server)
    assert found.candidate.rate == 0
    plan = resolve(RunConfig(scenario="interactive", server_target_qps="max"), [], 0)
    with pytest.raises(NotAcceptedError, match=r"single request is over the limits \(TTFT .* TPOT 50"):
        plan_from_search(plan, found)


def test_an_engine_that_keeps_up_with_all_that_is_sent() -> None:
    """What this client has in flight at most bounds the rate; without that no limit shows."""
    server = Bench(Case("", Engine(0.004, 1e-9)), 1, in_flight=64)
    found = search.search(server)
    assert found.candidate.rate == pytest.approx(64 / found.lone.latency_s, rel=0.02)
    untold = Measurements(GOAL, found.lone, [steady(50, 100), steady(80, 100)])
    assert untold.candidate.rate == 80 and "no limit shows" in untold.candidate.reason


def test_a_probe_is_long_enough_for_early_stopping() -> None:
    for qps in (0.1, 5, 50, 500):
        assert probe_s(qps, GOAL) * qps >= SURE_QUERIES - 1e-6
    assert probe_s(50, Goal(10, 100, 2000, 100)) == 10


def test_max_is_for_server_scenarios_alone() -> None:
    assert type(rate_source(RunConfig(scenario="server", server_target_qps="max"))) is SearchedRate
    for wrong in ({"scenario": "singlestream"}, {"scenario": "server", "mode": "accuracy"}):
        with pytest.raises(UsageError):
            RunConfig(server_target_qps="max", **wrong)
    with pytest.raises(UsageError):
        RunConfig(scenario="offline", offline_expected_qps="max")


@pytest.mark.parametrize(("rate", "grew"), [(50, False), (58, False), (70, True), (120, True)])
def test_a_queue_that_grows_tells_the_capacity(rate: float, grew: bool) -> None:
    found = Bench(Case("", Prefill(60)), 1).test(rate, 30).queue
    assert found is not None and found.has_grown is grew
    assert not grew or found.completed == pytest.approx(60, rel=0.01)
    few = np.arange(10.0)
    assert queue_fit.queue_from_times(few, few, few, few, few) is None


@pytest.mark.parametrize("seed", range(4))
def test_answers_that_end_in_waves_tell_the_capacity_in_half_a_minute(seed: int) -> None:
    """With a cap on running requests they begin and end together: one wave more or less is several percent."""
    case = BY_NAME["noise of 5 %, 150 at once"]
    short, long = (Bench(case, seed).test(100, seconds).queue for seconds in (30, 600))
    assert short and long and short.dispersion < 0.2 and long.completed == pytest.approx(65.5, rel=0.01)
    assert short.completed_error < 0.02 * short.completed
    assert short.completed == pytest.approx(long.completed, rel=0.03)


CARD = [steady(54, 214, 37), steady(58, 258, 47), steady(62, 360, 59)]
CURVE = resolve(RunConfig(scenario="server", server_target_qps=(54, 58, 62)), [], 0)


def test_a_list_of_rates_ends_below_the_capacity() -> None:
    held = plan_from_curve(CURVE, [*CARD, steady(74.4, 360, 59)])  # nothing tells the capacity yet
    assert held.target_qps == 62 and held.notes[-1].endswith("(the highest that should stay VALID of 3 rates)")
    found = plan_from_curve(CURVE, [*CARD, overloaded(74.4, 60.8, 6000)])
    assert found.target_qps == 58
    assert tells(found.notes[-1], "62 was VALID only for a short time")


def why(*about: Any, is_few: bool) -> list[str]:
    return [each.what for each in test_outcome.reasons(*about, is_few=is_few)]


def test_why_a_probe_fell() -> None:
    plan = replace(CURVE, target_qps=62.0)
    late = Mock(ttft_ms=Mock(p99=2310.0), tpot_ms=Mock(p99=59.0), failed=("latency", "early_stopping"), valid=False)
    assert why(late, plan, queue(60.8, 1.0), is_few=False) == ["TTFT p99 2,310 ms, over the limit of 2,000 ms"]
    assert why(late, plan, queue(60.8, 5.2), is_few=True)[1:] == ["the queue grew by 5.2 queries a second"]
    early = {"early_stopping_ttft_result": "Run successful.", "early_stopping_tpot_result": "at least 336 more queries"}
    late.configure_mock(**{"ttft_ms.p99": 300.0}, failed=("early_stopping",), early_stopping=early)
    assert why(late, plan, None, is_few=False) == ["336 more queries needed"]


def test_a_probe_with_refusals_has_not_held_and_says_where_it_was_full() -> None:
    probe = real_bench.with_refusals(example_runs.changed(steady(48.2, 300), queries=70), 30, 8)
    assert not probe.has_held and (probe.refused, probe.full_at) == (30, 8)
    assert tells(probe.why, "refused 30 of 100 requests", "full at 8 in flight")


def test_the_reason_of_a_probe_is_on_the_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen = io.StringIO()
    with Display(Console(file=screen, width=200)) as display:
        session = Mock(folder=Mock(path=tmp_path, subfolder=lambda name: tmp_path), display=display)
        session.drive.return_value.admission.refusal_times = []
        monkeypatch.setattr(real_bench.TestRun, "read", Mock())
        monkeypatch.setattr(real_bench, "outcome_of", Mock(return_value=steady(48.2, 300)))
        facts = Mock(probes=[])
        bench = real_bench.Bench(Mock(plan=CURVE, facts=facts, config=CURVE.config), session)
        bench.test(replace(CURVE, target_qps=48.2), "every rate held so far")
    assert "probe at 48.2 queries/s\n" in screen.getvalue() and "; every rate held so far\n" in screen.getvalue()
    assert tells(display.stages[-1].name, "48.2") and "held" not in display.stages[-1].name  # which pictures show
    assert [probe.load for probe in facts.probes] == [48.2]


def test_rates_that_agree_in_four_digits_have_folders_of_their_own(tmp_path: Path) -> None:
    assert [new_folder(tmp_path, f"{qps:.4g}").name for qps in (20.001, 20.002)] == ["20", "20-2"]


def test_the_length_of_a_test_is_known_before_it() -> None:
    assert replace(CURVE, target_qps=62.0).length == "40,104 queries in about 10.8 min"
    offline = replace(resolve(RunConfig(), [], 0), target_qps=57.0)
    assert offline.length == "40,104 samples in about 11.7 min"
    assert resolve(RunConfig(), [], 0).length == ""


def test_a_candidate_says_what_it_rests_on() -> None:
    found = Measurements(GOAL, probes=[overloaded(74.4, 60.8, 6000)])
    assert isinstance(found.candidate, Candidate) and found.candidate.reason


def short_probes() -> None:
    outcome.SETTLED = 0
    search.SATURATED_S, search.MOST_PROBES, measurements.CONFIRMING_S = 2.0, 3, 4.0


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
    assert 1 <= len(probes) <= 3 * search.MOST_REPEATS  # where a lone request took another time after them
    assert all(p["load"] > 0 and p["ttft_ms"]["p99"] > 0 and p["tpot_ms"]["p99"] > 0 for p in probes)
    assert len(list((folder / "Probes").iterdir())) == len(probes)
    assert any("server_target_qps = " in note for note in summary["meta"]["notes"])
    assert (folder / "plots" / "search.png").exists()
    asked, given = (loadgen_log.read(folder / place) for place in ("Performance", probes[0]["folder"]))
    assert probes[0]["folder"] == f"Probes/{number(probes[0]['load'])}" and probes[0]["queue"]["sent"] > 0
    assert asked.effective["min_duration_ms"] == 1000 * duration(folder) != given.effective["min_duration_ms"]
    assert asked.effective["performance_sample_count"] == summary["meta"]["samples"]
    assert len(json.loads((folder / "config.json").read_text())["lone_request_s"]) == 3


def duration(folder: Path) -> float:
    return float(json.loads((folder / "config.json").read_text())["plan"]["min_duration_s"])
