"""Curves over loads: each point as its row, its label and its cost."""

from dataclasses import asdict, replace
from pathlib import Path

from harness.config import mlperf
from harness.report import plots
from harness.report import report as rendering
from harness.report.loads import LoadPicture
from harness.report.style import pyplot
from harness.results.summary import Performance
from harness.runs.folder import RunFolder
from harness.runs.records import Cost, Probe
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
    assert (
        "A replica answers 7.875 requests/s within the limits (the full test at 8.5 queries/s); "
        "a peak of P requests/s takes ceil(P / 7.088) replicas.\n"
    ) in page


def test_a_batch_is_no_rate_that_replicas_are_counted_by(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", category="edge", scenario="multistream", samples_per_query="2,8")
    batch = Probe(None, True, 20.0, 2.0, samples_per_sec=120.0, samples_per_query=2, latency_p99=20.0)
    made.note(RunFolder(tmp_path, "run"), probes=[asdict(batch)])
    rendering.build(folder)
    assert "## Tests at each load" in (folder / "report.md").read_text()
    assert "replicas" not in (folder / "report.md").read_text()
    assert 'id="peak"' not in (folder / "report.html").read_text()


def test_each_load_has_its_unit() -> None:
    rate = Probe(4.0, True, None, None)
    batch, level = replace(rate, qps=None, samples_per_query=4), replace(rate, qps=None, concurrency=4)
    assert [probe.unit for probe in (rate, batch, level)] == ["queries/s", "samples per query", "in flight"]


def curve(*probes: Probe, price: float | None = None) -> plots.Curve:
    picture = LoadPicture.of(probes, None, mlperf.Limits(2000, 100))
    assert picture is not None
    return plots.Curve("a run", picture, 1, price)


def at(user: float, speed: float, valid: bool = True, load: float = 10.0) -> Probe:
    return Probe(load, valid, 9.0, 9.0, tpot_p50=1000 / user, tokens_per_sec=speed)


def test_points_that_are_close_share_a_label() -> None:
    axes = pyplot().subplots(figsize=(4, 3))[1]
    axes.set(xlim=(0, 110), ylim=(0, 120))
    plots.label_loads(axes, curve(*(at(rate, 100.0, load=rate) for rate in (50.0, 51.0, 99.0))))
    assert [text.get_text() for text in axes.texts] == ["99/s", "51/s"]
    pyplot().close("all")


def test_a_valid_load_is_labelled_before_one_that_fell() -> None:
    axes = pyplot().subplots(figsize=(4, 3))[1]
    axes.set(xlim=(0, 110), ylim=(0, 1200))
    best, good, invalid = at(50, 60, load=5.0), at(20, 100, load=6.0), at(21, 101, valid=False, load=7.0)
    plots.label_loads(axes, curve(invalid, good, best))
    assert [text.get_text() for text in axes.texts] == ["5/s", "6/s"]
    pyplot().close("all")


def test_several_runs_have_a_mark_each_and_one_run_a_mark_an_outcome() -> None:
    one = curve(at(50, 60, load=5.0), at(20, 100, valid=False, load=6.0))
    panels = pyplot().subplots(1, 3)[1]
    plots.draw(panels, [one], "GPU")
    assert {text.get_text() for text in panels[0].get_legend().get_texts()} == {"VALID", "INVALID", "limit 2,000 ms"}
    panels = pyplot().subplots(1, 3)[1]
    plots.draw(panels, [one, replace(one, name="another")], "GPU")
    assert {text.get_text() for text in panels[2].get_legend().get_texts()} == {"a run", "another"}
    marks = {line.get_marker() for line in panels[2].lines}
    assert marks == {"o", "s"}
    pyplot().close("all")


def test_each_point_has_its_cost_and_energy_and_the_cheapest_is_named(tmp_path: Path) -> None:
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
    folder = made.run(tmp_path / "run", concurrency="1,16,64,256")
    summary = rendering.build(folder)
    run = summary.run.model_copy(update={"search": probes, "performance": test})
    axes = plots.draw_curves(summary.model_copy(update={"run": run})).axes[2]
    said = {text.get_text() for text in axes.get_legend().get_texts()}
    assert {"cheapest: 0.4 per million tokens", "least energy: 0.09 J per token"} <= said
    assert "16" in {text.get_text() for text in axes.texts}
