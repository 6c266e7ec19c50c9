"""The search for the highest VALID rate: its logic, and once for real with short probes."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import loadgen_log, rates, rules, search
from harness.config import RunConfig
from harness.errors import NotAcceptedError, UsageError
from harness.plan import resolve
from harness.search import Probe
from tests.conftest import run
from tests.warm import Warm


def probe(limit: float) -> Callable[[float], Probe]:
    """An engine that keeps the limits up to a rate."""
    return lambda qps: Probe(qps, qps <= limit, 10 * qps, qps)


@given(st.floats(0.5, 500), st.floats(0.1, 9))
def test_the_limit_is_bracketed(limit: float, share: float) -> None:
    probes = search.search(share * limit, probe(limit))
    best = search.highest(probes)
    assert best is not None
    lowest = min(p.qps for p in probes if not p.valid)
    assert best.qps <= limit < lowest
    assert lowest / best.qps <= search.CLOSE
    assert len(probes) <= search.MOST


@given(st.floats(10, 500), st.floats(0.55, 1.0), st.sampled_from(["server", "interactive"]))
def test_five_probes_are_enough_from_a_known_offline_rate(offline: float, share: float, scenario: str) -> None:
    start = (rules.SCENARIO[scenario].search_share or 1) * offline
    probes = search.search(start, probe(share * offline), search.FLOOR * offline, search.CEILING * offline)
    assert len(probes) <= 5
    best = search.highest(probes)
    assert best is not None
    assert share * offline / best.qps <= 1.06
    assert search.PROBE_S * len(probes) <= 180


def test_it_gives_up_where_nothing_holds() -> None:
    probes = search.search(10, lambda qps: Probe(qps, False, None, None))
    assert search.highest(probes) is None
    assert probes[-1].qps == 1
    assert len(probes) < search.MOST
    plan = resolve(RunConfig(scenario="server", server_target_qps="max"), [], 0)
    with pytest.raises(NotAcceptedError, match="no rate is VALID: 6 probes from 1 to 10 queries/s"):
        rates.from_search(plan, probes)


def test_a_probe_is_long_enough_for_early_stopping() -> None:
    for qps in (0.1, 5, 50, 500):
        assert search.seconds(qps) * qps >= search.SURE_QUERIES


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
