"""The search for the highest VALID rate: its logic, and once for real with short probes."""

import io
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from rich.console import Console

from benchmarks.search import CASES, Batching, Bench, Case, Prefill, shared
from harness.config import mlperf
from harness.config.patterns import SURE_QUERIES
from harness.config.plan import Plan, resolve
from harness.config.run import RunConfig
from harness.core.errors import NotAcceptedError, UsageError
from harness.core.screen import Display
from harness.loadgen import log as loadgen_log
from harness.loadgen import outcome
from harness.loadgen.folder import new_folder
from harness.loadgen.log import TestResult
from harness.loadgen.outcome import Outcome, Queue
from harness.rates import probing, search
from harness.rates import source as rates
from harness.rates.search import BRACKET, MOST_PROBES, Candidate, Evidence, Goal, TpotLine
from harness.rates.source import SearchedRate, rate_source
from tests import made
from tests.conftest import run, tells
from tests.warm import Warm

QUICK = ("capacity, 5/s", "capacity, 60/s", "capacity, 60/s, slow start", "TPOT, 40/s", "an H200, Server")
QUICK += (
    "an H200, Interactive",
    "a faster H200, Interactive",
    "shared, 30/s, 30 ms",
    "shared, by prompts, 60/s, 30 ms",
)
BLIND = Goal(600, 459, 1e9, 1e9)  # limits that no latency tells of
GOAL = Goal(600, 459, 2000, 100)


def probe(limit: float) -> Callable[[Candidate], Outcome]:
    """An engine that keeps the limits up to a rate, and tells nothing else."""
    return lambda one: made.probe(one.rate, one.rate <= limit, 10 * one.rate, one.rate)


@given(st.floats(0.5, 500), st.floats(0.1, 9))
def test_the_limit_is_bracketed(limit: float, share: float) -> None:
    tried = search.search(share * limit, probe(limit), BLIND)
    best = search.highest_held(tried)
    assert best is not None
    lowest = min(p.load for p in tried if not p.valid)
    assert best.load <= limit < lowest
    assert lowest / best.load <= BRACKET or len(tried) == MOST_PROBES
    assert len(tried) <= MOST_PROBES


@pytest.mark.parametrize("capacity", [30, *(pytest.param(rate, marks=pytest.mark.slow) for rate in (60, 300))])
@settings(deadline=None, max_examples=2)
@given(seed=st.integers(0, 10**6), share=st.floats(0.6, 1.1))
def test_five_probes_are_enough_for_a_server_of_known_capacity(capacity: int, seed: int, share: float) -> None:
    server = Bench(Case("", Prefill(capacity)), seed)
    tried = search.search(share * capacity, server.probe, GOAL)
    assert len(tried) <= 5
    found = search.best_rate(Evidence(GOAL, tried))
    most = probing.rate_by_ttft(capacity, 2, 600, 459)
    assert found is not None and 0.95 <= found / most <= 1.02


@pytest.mark.slow
@pytest.mark.parametrize("number", [n for n, case in enumerate(CASES) if case.name in QUICK])
def test_what_a_search_finds_holds_a_full_test(number: int) -> None:
    server = Bench(CASES[number], number)
    tried = search.search(0.9 * server.trial(), server.probe, server.goal)
    assert len(tried) <= 8 and server.spent_s < 15 * 60
    rate = search.best_rate(Evidence(server.goal, tried))
    assert rate and server.test(rate, 600).valid


@pytest.mark.parametrize(
    ("case", "count", "least", "most"),
    [
        ("Interactive, steps of 4,096", 3, 48, 52),
        ("Interactive, steps of 1,536, graphs to 1,024", 5, 42, 47),
        ("Server, steps of 5,120", 4, 58, 61),
    ],
)
def test_the_next_rate_after_probes_of_an_h200(case: str, count: int, least: float, most: float) -> None:
    following = search.next_probe(Evidence(LIMITS[case.split(",")[0]], recorded(case)[:count]))
    assert following is not None and least < following.rate < most


def test_the_law_of_a_shared_server() -> None:
    """Mean TPOT = alone / (1 - rate / capacity), in what was recorded on an H200 as in a simulated server."""
    probes = recorded("Interactive, steps of 4,096")
    line = TpotLine.of(probes[:3], LIMITS["Interactive"])
    assert line is not None and "2 probes" in str(line)
    assert 1000 * line.alone_s == pytest.approx(3.18, abs=0.01) and line.capacity == pytest.approx(60.9, abs=0.1)
    alone = TpotLine.of(probes[2:3], LIMITS["Interactive"])
    assert alone is not None and "the queries at 62.13" in str(alone)
    server = Bench(Case("", shared(60, prompts=0.8), limits=mlperf.SCENARIO["interactive"].limits), 1)
    found = TpotLine.of([server.test(40, 30)], server.goal)
    assert found is not None and found.capacity == pytest.approx(60, rel=0.04)
    assert (1000 * found.alone_s, found.prompts) == (pytest.approx(3.2, rel=0.06), pytest.approx(0.8, abs=0.05))


def test_an_estimate_below_a_rate_that_held_with_room_is_not_believed() -> None:
    _, held, failed, _ = recorded("Interactive, steps of 4,096")
    assert held.queue is not None
    low = made.changed(held, queue=replace(held.queue, each_s=1 / 45))  # the queries within it say 45 queries/s
    evidence = Evidence(LIMITS["Interactive"], [low, failed])
    assert evidence.tpot_line is not None and evidence.tpot_line.rate(evidence.goal) < held.load
    assert evidence.candidate.rate == pytest.approx((held.load * failed.load) ** 0.5)
    assert tells(evidence.candidate.reason, "(43.15)", "(62.13)")
    tight = made.changed(low, tpot_p99=25.0)
    assert Evidence(LIMITS["Interactive"], [tight, failed]).candidate.rate < held.load


def test_a_search_ends_in_time() -> None:
    asked: list[Candidate] = []

    def probe(one: Candidate) -> Outcome:
        asked.append(one)
        return made.probe(one.rate, one.rate <= 0.4, 10 * one.rate, one.rate, seconds=one.seconds)

    search.search(0.5, probe, BLIND)
    spent = sum(one.seconds for one in asked)
    assert len(asked) < 5 and spent <= 1.4 * BLIND.full_s(0.4)


def test_a_short_full_test_leaves_time_for_a_search() -> None:
    """A full test of 10 s: 1.4 of it would be over after the first probe of 30 s."""
    short = Goal(10.0, 100, 2000, 100)
    tried = search.search(17.0, lambda one: made.probe(one.rate, one.rate < 12, 10, 1, seconds=one.seconds), short)
    assert search.highest_held(tried) is not None and len(tried) > 2


def test_it_gives_up_where_nothing_holds() -> None:
    tried = search.search(10, lambda one: made.probe(one.rate, False, None, None), GOAL)
    assert search.highest_held(tried) is None
    assert tried[-1].load == 1
    assert len(tried) < MOST_PROBES
    plan = resolve(RunConfig(scenario="server", server_target_qps="max"), [], 0)
    with pytest.raises(NotAcceptedError, match="6 probes at 1 to 10 queries/s"):
        rates.from_search(plan, tried)


def test_a_probe_is_long_enough_for_early_stopping() -> None:
    for qps in (0.1, 5, 50, 500):
        assert GOAL.probe_s(qps) * qps >= SURE_QUERIES


def test_max_is_for_server_scenarios_alone() -> None:
    assert type(rate_source(RunConfig(scenario="server", server_target_qps="max"))) is SearchedRate
    for wrong in ({"scenario": "singlestream"}, {"scenario": "server", "mode": "accuracy"}):
        with pytest.raises(UsageError):
            RunConfig(server_target_qps="max", **wrong)
    with pytest.raises(UsageError):
        RunConfig(scenario="offline", offline_expected_qps="max")


@pytest.mark.parametrize(("rate", "grew"), [(50, False), (58, False), (70, True), (120, True)])
def test_a_queue_that_grows_tells_the_capacity(rate: float, grew: bool) -> None:
    came = np.cumsum(np.random.default_rng(1).exponential(1 / rate, int(30 * rate)))
    _, left = Prefill(60).answer(came, np.ones(1000))
    seen = probing.queue_of(came.tolist(), left.tolist())
    assert seen is not None and seen.has_grown is grew
    assert seen.capacity == (pytest.approx(60, rel=0.01) if grew else None)
    assert probing.queue_of(came[:10].tolist(), left[:10].tolist()) is None


def test_what_a_long_test_can_keep() -> None:
    assert 58 < probing.rate_by_ttft(60, 1.98, 600) < 59
    assert 53 < probing.rate_by_ttft(60, 0.48, 600) < 56
    assert probing.rate_by_ttft(60, 1.98, 600, dispersion=1.0) < 57.5
    assert probing.rate_by_ttft(2000, 2, 600) == 2000  # so many come that their chance evens out
    assert probing.detection_s(62, 0.02) > 200  # seconds: half a minute does not see an overload of 2 %
    alone, together = (probing.rate_by_tpot(1.05, 20, share, 4.0, 600) for share in (0, 0.8))
    assert 10 < together < 11 < alone < 20 * (1 - 1.05 / 4)  # prompts make latencies less even
    assert probing.rate_by_tpot(5.0, 20, 0, 4.0, 600) == 0


def queue(completed: float, grew: float = 0.0) -> Queue:
    return Queue(completed + grew, completed, 0.2, grew, 0.5, 0.0)


def busy(qps: float, completed: float, ttft: float, **more: Any) -> Outcome:
    """A probe above what the server completes."""
    grew = queue(completed, qps - completed)
    usual = {"ttft_p50": ttft / 2, "latency_p50": ttft, "ttft_min": 20, "sent": qps, "seconds": 30.0}
    return made.probe(qps, ttft <= 2000, ttft, 50.0, queue=grew, **{**usual, **more})


def steady(qps: float, ttft: float, tpot: float = 50.0, seconds: float = 30.0) -> Outcome:
    sent = {"sent": qps, "seconds": seconds, "latency_p50": 5500.0, "ttft_p50": 150.0, "ttft_min": 20.0}
    return made.probe(qps, True, ttft, tpot, queue=queue(qps), **sent)


# An H200 that completes 60.8 a second: probes of 30 s at 54, 58 and 62 were VALID, a full test at 62 was not.
LIMITS = {"Interactive": Goal(600, 459, 500, 30), "Server": GOAL}


def recorded(case: str) -> list[Outcome]:
    """The probes of a search on an H200 (vLLM 0.32.0, random static fp8 weights, cuBLASLt and XQA, 2026-11-24 and 25,
    another run on the host's second card), with the mean TPOT of LoadGen's summaries."""
    probes = json.loads((Path(__file__).parent / "recorded.json").read_text())[case]
    return [made.probe(**{**probe, "queue": Queue(**probe["queue"])}) for probe in probes]


CARD = [steady(54, 214, 37), steady(58, 258, 47), steady(62, 360, 59)]
CURVE = resolve(RunConfig(scenario="server", server_target_qps=(54, 58, 62)), [], 0)


def test_a_list_of_rates_ends_below_the_capacity() -> None:
    assert rates.from_curve(CURVE, CARD).target_qps == 62  # nothing tells the capacity yet
    assert search.rate_beyond(Evidence(Goal.of(CURVE), CARD)) == pytest.approx(1.2 * 62)
    found = rates.from_curve(CURVE, [*CARD, busy(74.4, 60.8, 6000)])
    assert found.target_qps == 58
    assert tells(found.notes[-1], "62 would not last: ", " 60.8 ")


def failed(qps: float) -> TestResult:
    return Mock(failed=("latency", "early_stopping"), queries=40_104, duration_s=659.5)


def corrected(plan: Plan, result: TestResult, tests: list[Outcome]) -> Plan | None:
    return rate_source(plan.config).correct(plan, result, tests)


def test_what_a_full_test_measured_decides_the_next_rate() -> None:
    full = busy(62, 60.8, 18_212, seconds=647.0, why="TTFT p99 18,212 of 2,000 ms")
    again = corrected(replace(CURVE, target_qps=62.0), failed(62), [*CARD, full])
    assert again is not None and again.target_qps == 58
    assert tells(again.notes[-1], "62 queries/s was INVALID", "(TTFT p99 18,212 of 2,000 ms)", " 58")
    searched = resolve(RunConfig(scenario="server", server_target_qps="max"), [], 0)
    lower = corrected(replace(searched, target_qps=62.0), failed(62), [*CARD, full])
    assert lower is not None and lower.target_qps is not None and 57.5 < lower.target_qps < 60.1
    lowest = replace(CURVE, target_qps=54.0)
    assert corrected(lowest, failed(54), [*CARD, full]) is None


@pytest.mark.parametrize(
    ("tpot", "capacity", "least", "most"),
    [(105.0, None, 0.95, 0.97), (105.0, 61.0, 0.96, 0.97), (142.0, 61.0, 0.9, 0.95), (300.0, None, 0.33, 0.34)],
)
def test_a_near_miss_lowers_the_rate_a_little(tpot: float, capacity: float | None, least: float, most: float) -> None:
    above = [steady(54, 214, 60), steady(58, 258, 70)]  # probes above the full test, which held
    full = made.changed(steady(51.6, 300, tpot, seconds=640.0), valid=False)
    known = [busy(66, capacity, 9000)] if capacity else []
    next_rate = search.rate_below(Evidence(GOAL, [*known, *above, full]), 51.6)
    assert least <= next_rate / 51.6 <= most


def test_early_stopping_alone_is_prolonged() -> None:
    few = made.changed(steady(33.75, 400), valid=False, more=336)
    assert search.longer_s(few, GOAL) == pytest.approx(1.2 * 30 * (1 + 336 / (33.75 * 30)))
    again = search.next_probe(Evidence(GOAL, [few]))
    assert again and (again.rate, again.seconds) == (33.75, search.longer_s(few, GOAL)) and " 336 " in again.reason
    evidence = Evidence(GOAL, [few])
    assert (evidence.low, evidence.high) == (None, None)  # neither held nor too fast
    assert search.longer_s(made.changed(few, more=30_000), GOAL) is None
    assert search.longer_s(made.changed(few, more=None), GOAL) is None


def test_a_disturbed_probe_does_not_hold_the_search_down() -> None:
    disturbed = made.changed(steady(44.6, 3042), valid=False, why="TTFT p99 3,042 of 2,000 ms")
    done = [disturbed, steady(53.5, 990, seconds=31.0), busy(77.0, 60.0, 7700)]
    assert 57 < Evidence(GOAL, done).candidate.rate < 58.5
    again = search.next_probe(Evidence(GOAL, done))
    assert again is not None and 57 < again.rate < 58.5
    assert Evidence(GOAL, done[:1]).candidate.rate < 44.6


def fallen(
    qps: float, completed: float, error: float, growth: float, ttft: tuple[float, float], took: float, seconds: float
) -> Outcome:
    """A probe that fell on an H200 (vLLM 0.32.0, FlashAttention 3, 2026-11-24): TTFT p50 and p99 and a query's time p50
    in milliseconds."""
    queue = Queue(completed + growth, completed, error, growth, 2.0, 0.25, base_s=5.0, each_s=0.009)
    times = {"ttft_p50": ttft[0], "ttft_p99": ttft[1], "ttft_min": 25.0, "tpot_p50": 84.6, "tpot_p99": 84.7}
    return made.probe(qps, valid=False, **times, latency_p50=took, seconds=seconds, queue=queue)


def test_a_capacity_told_by_waits_of_seconds_is_not_asked_for_twice() -> None:
    held = made.probe(
        50.1, True, 200.0, 33.4, ttft_p50=92.0, tpot_p50=26.0, latency_p50=3444.0, ttft_min=25.0, seconds=31.0
    )
    fell = [
        fallen(72.14, 54.42, 0.93, 14.0, (3187, 7739), 12859, seconds=31.0),
        fallen(86.57, 52.60, 0.95, 30.1, (7475, 16000), 18115, seconds=31.0),
        fallen(60.49, 53.06, 0.52, 7.6, (3269, 9600), 13815, seconds=90.0),
    ]
    assert [one.capacity for one in fell] == [54.42, 52.60, 53.06]
    next_ = search.next_probe(Evidence(GOAL, [held, *fell]))
    assert next_ is not None and next_.rate == pytest.approx(50.4, abs=0.3)


def test_a_queue_that_grew_is_tested_for_longer_not_faster() -> None:
    """Replicas complete their queries in waves, so that half a minute does not tell how many a second."""
    done = recorded("Server, two replicas of 512")
    grew = done[2]
    assert grew.queue and grew.queue.has_grown and grew.capacity is None and not grew.has_grown
    following = search.next_probe(Evidence(GOAL, done[:3]))
    assert following and tells(following.reason, "grew", "capacity")
    assert following.rate == pytest.approx(1.15 * grew.queue.completed) and following.rate < grew.load
    assert following.seconds == pytest.approx(1.2 * 30.4 * (0.0846 / 0.04) ** 2, rel=0.01)
    longer = made.changed(grew, qps=following.rate, sent=following.rate, seconds=following.seconds)
    last = search.next_probe(Evidence(GOAL, [*done[:3], longer]))  # which told no more than the short one
    assert last and done[1].load < last.rate < grew.load
    assert max(one.load for one in done) > 1.19 * grew.load  # as it was tried before


def test_each_probe_has_its_reason() -> None:
    few = made.changed(steady(33.75, 400), valid=False, more=336)
    vague = made.changed(busy(74, 60.8, 6000), queue=replace(queue(60.8, 13.2), completed_error=1.0))
    apart = [steady(40, 200, 20), made.changed(steady(60, 300, 120), valid=False)]
    cases: list[tuple[tuple[str, ...], list[Outcome]]] = [
        (("early stopping", " 336 "), [few]),
        (("every", " held"), CARD),
        (("waited at 70", "capacity"), [made.changed(steady(70, 2500), valid=False)]),
        (("capacity of 60.8", "again"), [CARD[0], vague]),
        (("no rate", "held"), [made.changed(steady(40, 300, 120), valid=False)]),
        (("TPOT p99", "neighbouring"), apart),
        (("by the capacity of 60.8",), [CARD[0], busy(74, 60.8, 6000)]),
        (("between", "(40)", "(60)"), [steady(40, 200), made.changed(steady(60, 200), valid=False)]),
        (("below", "(41)"), [steady(40, 200), made.changed(steady(41, 200), valid=False)]),
    ]
    for reason, done in cases:
        following = search.next_probe(Evidence(GOAL, done))
        assert following is not None and tells(following.reason, *reason)


def test_the_reason_of_a_probe_is_on_the_screen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    screen = io.StringIO()
    with Display(Console(file=screen, width=200)) as display:
        session = Mock(folder=Mock(path=tmp_path, sub=lambda name: tmp_path), display=display)
        monkeypatch.setattr(probing.TestRun, "read", Mock())
        monkeypatch.setattr(probing, "probe_of", Mock(return_value=steady(48.2, 300)))
        probing.run_probe(session, replace(CURVE, target_qps=48.2), "every rate held so far")
    assert tells(screen.getvalue(), "probe at 48.2 queries/s", "\n         every rate held so far\n")
    assert tells(display.stages[-1].name, "48.2") and "held" not in display.stages[-1].name  # which pictures show


@settings(deadline=None, max_examples=6)
@given(st.integers(0, 10**6), st.sampled_from([case for case in CASES if case.name in QUICK]))
@example(299, next(case for case in CASES if case.name == "an H200, Server"))  # whose longer probe tells nothing new
def test_no_probe_is_made_twice(seed: int, case: Case) -> None:
    server = Bench(case, seed)
    made: list[tuple[float, float]] = []

    def probe(one: Candidate) -> Outcome:
        made.append((round(one.rate, 3), round(one.seconds)))
        return server.probe(one)

    search.search(0.9 * server.trial(), probe, server.goal)
    assert len(set(made)) == len(made)


def test_what_a_query_takes_alone_and_beside_others_is_found() -> None:
    case = next(case for case in CASES if case.name == "TPOT, 40/s")
    for server in (case.server, shared(60, prompts=0.8)):
        assert isinstance(server, Batching)
        queue = Bench(Case("", server), 1).test(38.0, 60.0).queue
        assert queue is not None
        assert queue.base_s == pytest.approx(server.tokens * server.base_s, rel=0.06)
        assert queue.each_s == pytest.approx(server.tokens * server.running_s, rel=0.2)
        assert queue.prompt_s == pytest.approx(server.prompt_s, rel=0.05, abs=0.001)


def why(*about: Any, is_few: bool) -> list[str]:
    return [each.what for each in probing.reasons(*about, is_few=is_few)]


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
    search.PROBE_S, search.PROBE_QUERIES, search.MOST_PROBES = 2.0, 470, 3
    search.CONFIRMING_S, search.CONFIRMING_QUERIES, search.CAPACITY_S = 4.0, 500, 4.0


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
    assert 1 <= len(probes) <= 3
    assert all(p["load"] > 0 and p["ttft_ms"]["p99"] > 0 and p["tpot_ms"]["p99"] > 0 for p in probes)
    assert len(list((folder / "Probes").iterdir())) == len(probes)
    valid = [max(p["load"], p["sent"]) for p in probes if p["valid"]]
    expected = max(valid) if valid else min(p["load"] for p in probes)
    assert any("server_target_qps = " in note for note in summary["meta"]["notes"])
    assert summary["run"]["performance"]["target_qps"] <= 1.001 * expected
    assert (folder / "plots" / "search.png").exists()
    asked, given = (loadgen_log.read(folder / place) for place in ("Performance", probes[0]["folder"]))
    assert probes[0]["folder"] == f"Probes/{probes[0]['load']:.4g}" and probes[0]["queue"]["sent"] > 0
    assert asked.effective["min_duration_ms"] == 1000 * duration(folder) != given.effective["min_duration_ms"]
    assert asked.effective["performance_sample_count"] == summary["meta"]["samples"]


def duration(folder: Path) -> float:
    return float(json.loads((folder / "config.json").read_text())["plan"]["min_duration_s"])
