"""The search for the highest VALID rate: its logic, and once for real with short probes."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.search import CASES, Bench, Case, Prefill
from harness import loadgen_log, queueing, rates, rules, search
from harness.config import RunConfig
from harness.errors import NotAcceptedError, UsageError
from harness.plan import resolve
from harness.search import Goal, Probe
from tests.conftest import run
from tests.warm import Warm

QUICK = ("capacity, 5/s", "capacity, 60/s", "capacity, 60/s, slow start", "TPOT, 40/s", "an H200, Server")
BLIND = Goal(600, 459, 1e9, 1e9)  # limits that no latency tells of
GOAL = Goal(600, 459, 2000, 100)


def probe(limit: float) -> Callable[[float, float], Probe]:
    """An engine that keeps the limits up to a rate, and tells nothing else."""
    return lambda qps, seconds: Probe(qps, qps <= limit, 10 * qps, qps)


@given(st.floats(0.5, 500), st.floats(0.1, 9))
def test_the_limit_is_bracketed(limit: float, share: float) -> None:
    probes = search.search(share * limit, probe(limit), BLIND)
    best = search.highest(probes)
    assert best is not None and best.qps
    lowest = min(p.qps for p in probes if not p.valid and p.qps)
    assert best.qps <= limit < lowest
    assert lowest / best.qps <= search.BRACKET
    assert len(probes) <= search.MOST


@settings(deadline=None, max_examples=4)
@given(st.integers(0, 10**6), st.floats(0.6, 1.1), st.sampled_from([30, 60, 300]))
def test_five_probes_are_enough_for_a_server_of_known_capacity(seed: int, share: float, capacity: int) -> None:
    server = Bench(Case("", Prefill(capacity)), seed)
    probes = search.search(share * capacity, server.test, GOAL)
    assert len(probes) <= 5
    found = search.chosen(GOAL, probes)
    most = queueing.sustainable(capacity, 2, 600, 459)
    assert found is not None and 0.95 <= found / most <= 1.02


@pytest.mark.parametrize("number", [n for n, case in enumerate(CASES) if case.name in QUICK])
def test_what_a_search_finds_holds_a_full_test(number: int) -> None:
    server = Bench(CASES[number], number)
    probes = search.search(0.9 * server.trial(), server.test, server.goal)
    rate = search.chosen(server.goal, probes)
    assert rate and server.test(rate, 600).valid


def test_it_gives_up_where_nothing_holds() -> None:
    probes = search.search(10, lambda qps, seconds: Probe(qps, False, None, None), GOAL)
    assert search.highest(probes) is None
    assert probes[-1].qps == 1
    assert len(probes) < search.MOST
    plan = resolve(RunConfig(scenario="server", server_target_qps="max"), [], 0)
    with pytest.raises(NotAcceptedError, match="no rate is VALID: 6 probes from 1 to 10 queries/s"):
        rates.from_search(plan, probes)


def test_a_probe_is_long_enough_for_early_stopping() -> None:
    for qps in (0.1, 5, 50, 500):
        assert GOAL.short(qps) * qps >= rules.SURE_QUERIES


def test_max_is_for_server_scenarios_alone() -> None:
    assert rates.needed(RunConfig(scenario="server", server_target_qps="max")) == "max"
    for wrong in ({"scenario": "offline"}, {"scenario": "server", "mode": "accuracy"}):
        with pytest.raises(UsageError):
            RunConfig(server_target_qps="max", **wrong)
    with pytest.raises(UsageError):
        RunConfig(scenario="offline", offline_expected_qps="max")


def short_probes() -> None:
    search.PROBE_S, search.PROBE_QUERIES, search.MOST = 2.0, 470, 3


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
    assert all(p["qps"] > 0 and p["ttft_p99"] > 0 and p["tpot_p99"] > 0 for p in probes)
    assert len(list((folder / "Probes").iterdir())) == len(probes)
    valid = [p["qps"] for p in probes if p["valid"]]
    expected = search.MARGIN * max(valid) if valid else min(p["qps"] for p in probes)
    assert any("server_target_qps = " in note for note in summary["meta"]["notes"])
    assert summary["run"]["performance"]["target_qps"] <= 1.001 * expected
    assert (folder / "plots" / "search.png").exists()
    asked, given = (loadgen_log.read(folder / place) for place in ("Performance", f"Probes/{probes[0]['qps']:.4g}"))
    assert asked.effective["min_duration_ms"] == 1000 * duration(folder) != given.effective["min_duration_ms"]
    assert asked.effective["performance_sample_count"] == summary["meta"]["samples"]


def duration(folder: Path) -> float:
    return float(json.loads((folder / "config.json").read_text())["plan"]["min_duration_s"])
