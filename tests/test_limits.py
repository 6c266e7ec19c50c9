"""Latency limits of the user's own, the share of requests that keep them, and what tokens cost."""

import multiprocessing
import re
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.common.errors import UsageError
from harness.config import mlperf
from harness.config.plan import Plan, resolve
from harness.config.run import RunConfig
from harness.loadgen import request_times
from harness.loadgen import target_rate as rates
from harness.loadgen.driver import LoadGenSettings, user_conf
from harness.loadgen.log import LogError
from harness.loadgen.trace import TRACE, Sample
from harness.reporting import labels
from harness.reporting import load_curves as curves
from harness.reporting import report as rendering
from harness.reporting.style import pyplot
from harness.results import performance
from harness.results.summary import Performance
from harness.runs.folder import RunFolder
from harness.runs.probe import Probe
from harness.runs.records import Cost
from tests import made


def plan(**flags: Any) -> Plan:
    return resolve(RunConfig(**{"scenario": "server"} | flags), [], 0)


def test_own_limits_take_the_place_of_mlperfs_and_are_said() -> None:
    own = plan(ttft_limit=800)
    assert own.limits == mlperf.Limits(800, 100)
    assert own.deviations == ["custom latency limits (TTFT 800 ms, TPOT 100 ms)"]
    assert "llama3_1-8b.Server.ttft_latency = 800\n" in user_conf(own)
    assert plan().limits == mlperf.SERVER_LIMITS
    assert plan(ttft_limit=2000).deviations == []
    assert "latency = " not in user_conf(plan())


def held(folder: Path, end: Any) -> None:
    own = plan(scenario="interactive", ttft_limit=800, tpot_limit=12, server_target_qps=5)
    settings = LoadGenSettings().of(own, folder)
    end.put((settings.ttft_latency, settings.tpot_latency))


def test_loadgen_holds_them(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    end = spawn.Queue()
    spawn.Process(target=held, args=(tmp_path, end)).start()
    assert end.get(timeout=60) == (800e6, 12e6)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"ttft_limit": 0}, "--ttft-limit takes whole milliseconds above 0"),
        ({"tpot_limit": 12.5}, "--tpot-limit takes a whole number; got 12.5"),
        ({"ttft_limit": 10**7}, "at most 1,000,000"),
        ({"scenario": "offline", "tpot_limit": 10}, "--tpot-limit is for scenarios with limits"),
        ({"price_per_hour": -1}, "--price-per-hour takes a number of 0 or more"),
        ({"price_per_hour": float("inf")}, "--price-per-hour takes a number of 0 or more"),
    ],
)
def test_wrong_limits_and_prices_are_refused(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        plan(**flags)


def share(monkeypatch: pytest.MonkeyPatch, folder: Path, samples: list[Sample], tokens: list[int]) -> float | None:
    (folder / TRACE).touch()
    monkeypatch.setattr(request_times, "read_trace", lambda _: samples)
    return performance.slo_attainment(folder, tokens, mlperf.Limits(100, 10))


def test_goodput_counts_requests_that_keep_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = [
        Sample(0, 0, 0.0, 100.0, 200.0),  # 11 tokens: 10 ms each, both kept to the edge
        Sample(1, 0, 0.0, 101.0, 150.0),  # the first too late
        Sample(2, 0, 0.0, 50.0, 161.0),  # 11.1 ms each
        Sample(3, 0, 0.0, 50.0, 9000.0),  # one token alone
    ]
    assert share(monkeypatch, tmp_path, samples, [11, 11, 11, 1]) == 50.0
    assert share(monkeypatch, tmp_path, samples, [11]) is None
    assert performance.slo_attainment(tmp_path, [11], None) is None
    assert performance.slo_attainment(tmp_path / "none", [11], mlperf.Limits(1, 1)) is None


@given(st.floats(0.01, 1000), st.floats(1, 1e6))
def test_what_tokens_cost(price: float, speed: float) -> None:
    found = performance.cost(price, speed, 2 * speed, speed / 128)
    assert found is not None
    hours = 1e6 / speed / 3600
    assert found.per_million_output_tokens == pytest.approx(price * hours)
    assert found.per_million_tokens == pytest.approx(price * hours / 2)
    assert found.per_thousand_requests == pytest.approx(price * 128_000 / speed / 3600)
    assert performance.cost(None, speed, speed, speed) is None


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ("interrupted", "interrupted", r"interrupted at \d{4}-\S+\."),
        ("failed", "vLLM's engine process ended", r"failed at \d{4}-\S+: vLLM's engine process ended\."),
        ("running", "", r"it was killed, or still runs\."),
    ],
)
@pytest.mark.parametrize("log", ["none", "cut short"])
def test_a_run_that_ends_after_two_of_three_rates(
    tmp_path: Path, status: Any, reason: str, said: str, log: str
) -> None:
    folder = made.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    logs = folder / "Performance" / "mlperf_log_detail.txt"
    if log == "none":
        shutil.rmtree(folder / "Performance")
    else:
        logs.write_text("".join(line for line in logs.read_text().splitlines(True) if "result_" not in line))
    run = RunFolder(tmp_path, "run")
    probes = [Probe(qps, True, 10 * qps, qps, 5 * qps, qps / 2, 128 * qps, qps) for qps in (4.0, 8.5)]
    made.note(run, probes=[asdict(probe) for probe in probes])
    run.set_status(status, reason)
    summary, page = rendering.build(folder), (folder / "report.md").read_text()
    verdict = page.partition("## Verdict")[2].partition("## ")[0]
    assert re.search(rf"did not come to its end\*\*: {said} 2 loads were tried", verdict)
    assert "| 8.5 | VALID | 1,088 | 42.5 | 85 | 4.25 | 8.5 |" in page
    assert "![Latency by load" in page and (folder / "plots" / "search.png").exists()
    assert "the run did not come to its end" in summary.meta.deviations


def test_a_test_that_was_cut_short_is_no_result(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    logs = folder / "Performance" / "mlperf_log_detail.txt"
    logs.write_text("".join(line for line in logs.read_text().splitlines(True) if "result_" not in line))
    with pytest.raises(LogError, match="did not come to its end"):
        rendering.build(folder)
    RunFolder(tmp_path, "run").set_status("interrupted")
    with pytest.raises(UsageError, match="no test came to its end"):
        rendering.build(folder)


def test_several_rates_make_a_curve(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    probes = [
        Probe(qps, qps < 10, 10 * qps, qps, 5 * qps, qps / 2, 128 * min(qps, 10), min(qps, 10))
        for qps in (4.0, 8.5, 16.0)
    ]
    made.note(RunFolder(tmp_path, "run"), probes=[asdict(probe) for probe in probes])
    summary = rendering.build(folder)
    assert summary.run.search == probes
    page = (folder / "report.md").read_text()
    assert "| 8.5 | VALID | 1,088 | 42.5 | 85 | 4.25 | 8.5 |" in page
    assert "| 16 | INVALID |" in page
    assert (folder / "plots" / "search.png").exists()


def test_a_curve_ends_at_its_highest_valid_rate() -> None:
    curve = plan(server_target_qps=(5, 10, 20))
    assert rates.needed(curve.config) == "curve"
    probes = [Probe(qps, qps <= 10, None, None) for qps in (5.0, 10.0, 20.0)]
    found = rates.from_curve(curve, probes)
    assert (found.target_qps, found.notes[-1]) == (
        10.0,
        "server_target_qps = 10 queries/s (the highest that is VALID of 3 rates)",
    )
    assert rates.from_curve(curve, [Probe(qps, False, None, None) for qps in (5.0, 10.0)]).target_qps == 5.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"server_target_qps": "5,x"},
        {"server_target_qps": "5,0"},
        {"server_target_qps": "5,10", "scenario": "offline"},
        {"server_target_qps": "5,10", "mode": "accuracy"},
        {"server_target_qps": (5, float("nan"))},
    ],
)
def test_wrong_rates_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--server-target-qps"):
        plan(**wrong)


def test_no_label_covers_another() -> None:
    axes = pyplot().subplots(figsize=(4, 3))[1]
    points = [(0.5 + n / 1000, 0.5, f"load {n}") for n in range(12)]
    axes.plot([0, 1], [0, 1], ".")
    written = labels.label_points(axes, [*points, (0.1, 0.9, "far off")])
    renderer = axes.figure.canvas.get_renderer()
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    assert 1 <= len(written) < len(points) and written[-1] == "far off" and len(boxes) == len(written)
    assert not [1 for n, box in enumerate(boxes) for other in boxes[:n] if box.overlaps(other)]
    pyplot().close("all")


def test_a_valid_load_is_labelled_before_one_that_fell() -> None:
    def at(user: float, speed: float, valid: bool = True) -> curves.Point:
        return user, speed, Probe(10.0, valid, None, None)

    best, good, invalid = at(50, 60), at(20, 100), at(21, 201, valid=False)
    assert sorted([invalid, good, best], key=curves.worth) == [best, good, invalid]


def test_each_point_has_its_cost_and_energy_and_the_cheapest_is_named() -> None:
    levels = [(1, 200, 5.0, 0.5, ""), (16, 2000, 8.0, 0.09, ""), (64, 2500, 20.0, 0.1, ""), (256, 3000, 90, 0.08, "x")]
    probes = [
        Probe(
            None, True, 50, tpot, 30, tpot, float(speed), concurrency=load, tpot_p90=tpot, joules_per_token=j, why=why
        )
        for load, speed, tpot, j, why in levels
    ]
    test = Performance(
        scenario="concurrency",
        valid=True,
        duration_s=9,
        samples=9,
        tokens_per_sec=3000,
        samples_per_sec=9,
        concurrency=256,
        cost=Cost(price_per_hour=3.6),
    )
    axes = curves.draw_load_curves(probes, test, 1).axes[2]
    said = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"cheapest: 0.4 per million tokens", "least energy: 0.09 J per token"} <= said
    assert "16, 0.5/M, 0.09 J" in {text.get_text() for text in axes.texts}
