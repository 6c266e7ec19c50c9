"""Curves over loads: each point as its row, its label and its cost."""

import json
import re
from pathlib import Path

import pytest

from harness.config import mlperf
from harness.core.formatting import number
from harness.report import answer, compare, compare_page, load_pictures, regression
from harness.report import report as rendering
from harness.report.load_view import LoadPicture, LoadPoint, mark_of
from harness.report.regression import Sides
from harness.results import metrics
from harness.results.change import Change
from harness.results.cost import Cost
from harness.results.outcome import Doubt, Outcome
from harness.results.summary import Summary
from harness.runs.run_folder import RunFolder
from tests.conftest import run
from tests.support import example_runs


def test_several_rates_make_a_curve(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    probes = [
        example_runs.probe(qps, qps < 10, 10 * qps, qps, 5 * qps, qps / 2, 128 * min(qps, 10), min(qps, 10))
        for qps in (4.0, 8.5, 16.0)
    ]
    example_runs.note(RunFolder(tmp_path, "run"), probes=probes)
    summary = rendering.build_report(folder)
    assert summary.run.search == probes
    page = (folder / "report.md").read_text()
    assert "| 8.5 | VALID | 1,088 | 8.5 | 42.5 | 85 | 4.25 | 8.5 |" in page
    assert "| 16 | INVALID |" in page
    assert (folder / "plots" / "search.png").exists()
    assert (
        "A replica answers 7.875 requests/s within the limits (the full test at 8.5 queries/s); "
        "with a reserve of 10 %, plan 7.088 for each. A peak of P requests/s needs ceil(P / 7.088) replicas.\n"
    ) in page
    assert "<span>probes: 2 VALID, 1 INVALID; full tests: 1 VALID</span>" in (folder / "report.html").read_text()


def test_marks_are_hollow_where_the_machine_was_busy_and_nowhere_else(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5")
    quiet, over = (example_runs.probe(qps, True, ttft, 9.0) for qps, ttft in ((4.0, 40.0), (6.0, 9000.0)))
    busy = example_runs.probe(5.0, True, 40.0, 9.0, others=["other programs used 1 of 2 CPU cores"])
    assert Doubt.BUSY in busy.doubts
    example_runs.note(RunFolder(tmp_path, "run"), probes=[quiet, busy, over])
    rendering.build_report(folder)
    marks = re.findall(r'class="mark ([\w ]+)" data-i="(\d)"', (folder / "report.html").read_text())
    assert {place for kinds, place in marks if "unsure" in kinds} == {"1"}
    assert {place for kinds, place in marks if "out" in kinds.split()} == {"2"}


def test_a_batch_is_no_rate_that_replicas_are_counted_by(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", category="edge", scenario="multistream", samples_per_query="2,8")
    batch = example_runs.probe(None, True, 20.0, 2.0, samples_per_sec=120.0, samples_per_query=2, latency_p99=20.0)
    example_runs.note(RunFolder(tmp_path, "run"), probes=[batch])
    rendering.build_report(folder)
    assert "## Tests at each load" in (folder / "report.md").read_text()
    assert "replicas" not in (folder / "report.md").read_text()
    assert 'id="peak"' not in (folder / "report.html").read_text()


def test_each_load_has_its_unit() -> None:
    rate = example_runs.probe(4.0, True, None, None)
    batch, level = (
        example_runs.changed(rate, qps=None, samples_per_query=4),
        example_runs.changed(rate, qps=None, concurrency=4),
    )
    assert [probe.unit for probe in (rate, batch, level)] == ["queries/s", "samples per query", "in flight"]


def curve(*probes: Outcome) -> LoadPicture:
    picture = LoadPicture.of(example_runs.summary(probes), mlperf.LatencyLimits(2000, 100))
    assert picture is not None
    return picture


def at(user: float, speed: float, valid: bool = True, load: float = 10.0) -> Outcome:
    return example_runs.probe(load, valid, 9.0, 9.0, tpot_p50=1000 / user, tokens_per_sec=speed)


def test_only_the_point_of_the_answer_is_labelled_with_its_load() -> None:
    good, best, invalid = at(50, 60, load=5.0), at(20, 100, load=6.0), at(21, 101, valid=False, load=7.0)
    drawn = curve(invalid, good, best)
    assert drawn.best and drawn.best.test.load == 6.0
    panel = load_pictures.load_curves({"": drawn})[-1]
    assert [text for each in panel.series for text in each.texts] == ["6/s"]
    none = load_pictures.load_curves({"": curve(invalid)})[-1]
    assert not [text for each in none.series for text in each.texts]


def test_several_runs_have_a_mark_each_and_one_run_a_mark_an_outcome() -> None:
    one = curve(at(50, 60, load=5.0), at(20, 100, valid=False, load=6.0))
    assert {*load_pictures.load_curves({"": one})[0].legend} == {"VALID", "INVALID", "limit 2,000 ms"}
    panels = load_pictures.load_curves({"a run": one, "another": one})
    assert {*panels[2].legend} == {"a run", "another"}
    assert {each.mark for each in panels[2].series} == {"o", "s"}


def test_each_point_has_its_cost_and_energy_and_the_cheapest_is_named(tmp_path: Path) -> None:
    levels = [(1, 200, 5.0, 0.5, ""), (16, 2000, 8.0, 0.09, ""), (64, 2500, 20.0, 0.1, ""), (256, 3000, 90, 0.08, "x")]
    probes = [
        example_runs.probe(
            None, True, 50, tpot, 30, tpot, float(speed), concurrency=load, tpot_p90=tpot, joules_per_token=j, why=why
        )
        for load, speed, tpot, j, why in levels
    ]
    test = example_runs.performance(
        scenario="concurrency",
        valid=True,
        duration_s=9,
        samples=9,
        tokens_per_sec=3000,
        samples_per_sec=9,
        concurrency=256,
        cost=Cost(price_per_hour=3.6),
    )
    folder = example_runs.run(tmp_path / "run", concurrency="1,16,64,256")
    summary = rendering.build_report(folder)
    run = summary.run.model_copy(update={"search": probes, "performance": test})
    found = LoadPicture.of(summary.model_copy(update={"run": run}), None)
    assert found is not None
    panel = load_pictures.load_curves({"": found})[-1]
    assert {"cheapest: 0.4 per million tokens", "least energy: 0.09 J per token"} <= {*panel.legend}
    assert [text for each in panel.series for text in each.texts] == ["64"]


LEVELS = ("--backend", "echo", "--engine-arg", "first_token_s=0.002", "--engine-arg", "token_s=0.0001")
LEVELS = (
    *LEVELS,
    "--mode",
    "performance",
    "--min-duration",
    "1",
    "--total-sample-count",
    "32",
    "--concurrency",
    "1,4,8",
)


@pytest.fixture(scope="module")
def levels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of three levels each, whose machine nobody else used."""
    place = tmp_path_factory.mktemp("levels")
    for _ in range(2):
        done = run(place, *LEVELS)
        assert done.code == 0, done.output
        config = json.loads((done.folder / "config.json").read_text())
        for probe in config["probes"]:
            probe["others"] = []
            path = done.folder / probe["folder"] / "machine.json"
            path.write_text(json.dumps(json.loads(path.read_text()) | {"others": [], "others_cpu_cores": 0.0}))
        (done.folder / "config.json").write_text(json.dumps(config))
    return place


def with_best(folder: Path, best: int, busy: str = "") -> Summary:
    """The run again, with its levels above `best` over a limit."""
    config = json.loads((folder / "config.json").read_text())
    for probe in config["probes"]:
        over = [{"name": "TTFT", "what": "TTFT p99 over its limit"}] if probe["load"] > best else []
        probe |= {"reasons": over, "others": [busy] if busy else []}
    (folder / "config.json").write_text(json.dumps(config))
    return rendering.build_report(folder)


@pytest.mark.slow
def test_title_numbers_index_comparison_and_gate_name_one_level(levels: Path) -> None:
    before, after = sorted(levels.glob("2*"))
    for best, other in ((1, 8), (4, 1), (8, 4)):
        with_best(before, other)
        summary = with_best(after, best)
        test, probe = summary.result, next(one for one in summary.run.search or [] if one.load == best)
        assert test is not None and test.load == best
        speed = metrics.METRIC_BY_NAME["tokens_per_sec"].of(summary)
        assert speed == pytest.approx(probe.tokens_per_sec, rel=1e-6)
        few = f"all of {probe.queries} requests " if Doubt.FEW in probe.doubts else ""
        said = f"{number(speed)} output tokens/s with {probe.text}, {few}within the limits"
        assert answer.title(summary) == said and f"<h1>{said}" in (after / "report.html").read_text()
        assert rendering.history_line(summary)["tokens_per_sec"] == pytest.approx(speed)
        runs, _ = compare.load_runs([before, after])
        ratio = speed / (metrics.METRIC_BY_NAME["tokens_per_sec"].of(runs[0].summary) or 0.0)
        found = compare_page.document(runs)
        change = Change.between([1.0], [ratio]).describe(metrics.METRIC_BY_NAME["tokens_per_sec"], "A")
        assert found.title.startswith(f"B is {change}: "), found.title
        judged = regression.judge(Sides([runs[0]], [runs[1]]), [regression.parse_condition("output_tokens_per_s<-3%")])
        assert [each.verdict for each in judged] == ["FAIL" if ratio < 0.97 else "PASS"]


@pytest.mark.slow
def test_a_level_on_a_busy_machine_is_judged_nowhere(levels: Path) -> None:
    folder = min(levels.glob("2*"))
    summary = with_best(folder, 8, busy="other programs used 1.0 of 2 CPU cores during the test")
    page, text = (folder / "report.html").read_text(), (folder / "report.md").read_text()
    assert answer.title(summary).endswith(" with 8 requests in flight, not judged: the machine was busy")
    assert "within the limits" not in text and "not judged" in text
    screen = answer.document(summary)
    assert screen.tone == "careful" and {row[-1] for row in screen.levels[1:]} == {"not judged"}
    assert page.count(">not judged</span>") == 3 and ">within<" not in page


def test_a_valid_probe_with_refusals_is_not_said_to_have_a_queue_that_grew() -> None:
    refused = example_runs.changed(example_runs.probe(qps=5), refused=3, full_at=2)
    point = LoadPoint(refused, "", mark_of(refused), False, False, None)
    assert point.mark == "grew" and point.standing == "VALID, but 3 refused requests"
