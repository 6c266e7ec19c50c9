"""Curves over loads: each point as its row, its label and its cost."""

from dataclasses import asdict
from pathlib import Path

from harness.reporting import load_curves as curves
from harness.reporting import report as rendering
from harness.reporting.style import pyplot
from harness.results.summary import Performance
from harness.runs.folder import RunFolder
from harness.runs.probe import Probe
from harness.runs.records import Cost
from tests import made


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


def test_points_that_are_close_share_a_label() -> None:
    axes = pyplot().subplots(figsize=(4, 3))[1]
    probes = [Probe(rate, True, None, None, tpot_p50=1000 / rate, tokens_per_sec=100.0) for rate in (50.0, 51.0, 99.0)]
    axes.set(xlim=(0, 110), ylim=(0, 120))
    curves.label_loads(axes, probes, 1)
    assert [text.get_text() for text in axes.texts] == ["99/s", "51/s"]
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
    assert "16" in {text.get_text() for text in axes.texts}
