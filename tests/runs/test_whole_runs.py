"""Whole runs of the demo: real LoadGen, real vLLM on the CPU, the results folder, the report."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import read_requests
from tests.conftest import ASCII, ROOT, SECRET, Finished

pytestmark = pytest.mark.engine

DEMO = json.loads((ROOT / "demo" / "reference.json").read_text())


MOST_FILES = 31  # of a run's folder, compliance tests aside


def check(done: Finished, scenario: str, modes: tuple[str, ...] = ("accuracy", "performance")) -> None:
    """What holds for every finished run."""
    assert done.code == 0, done.output
    summary = done.summary
    jsonschema.validate(summary, json.loads((ROOT / "templates" / "summary.schema.json").read_text()))
    assert done.status["status"] == "complete"
    assert (done.results / "latest").resolve() == max(done.results.glob("2*")).resolve()
    told = {name for name, part in summary["run"].items() if part is not None}
    assert sorted(told - {"compliance", "profile"}) == sorted(modes)
    assert summary["meta"]["scenario"] == scenario
    assert not summary["meta"]["comparable"]
    assert "not comparable with MLPerf" in (done.folder / "report.md").read_text().split("## Measured with")[0]
    for mode in modes:
        facts = loadgen_log.read(done.folder / mode.capitalize())
        assert facts.errors == []
        assert facts.seeds == {
            "qsl": 2085463073848966840,
            "sample_index": 2747215439041700203,
            "schedule": 16159082839903944936,
        }
    assert "Traceback" not in (done.folder / "engine.log").read_text()
    for plot in filter(None, summary["plots"].values()):
        assert (done.folder / plot).read_bytes().startswith(b"\x89PNG")
    if "accuracy" in modes:
        assert summary["run"]["accuracy"]["verdict"] == "PASS"
        category = summary["meta"]["category"]
        assert summary["run"]["accuracy"]["scores"]["rouge1"] == pytest.approx(DEMO[category]["rouge1"], rel=0.01)


def test_offline(offline: Finished) -> None:
    check(offline, "offline")
    test = offline.summary["run"]["performance"]
    assert test["valid"], test["invalid_reasons"]
    assert test["ttft_ms"] is None
    drawn = {"scores", "tokens_per_sec", "latency_cdf", "machine", "timeline"}
    assert set(offline.summary["plots"]) == drawn
    assert offline.summary["plots"]["latency_cdf"] is None
    assert set(test["waits_ms"]) == {"queue", "prefill"} and min(test["waits_ms"].values()) > 0
    # LoadGen's rate and the tokens that were handed to it must tell the same story.
    assert test["total_new_tokens"] / test["duration_s"] == pytest.approx(test["tokens_per_sec"], rel=1e-3)
    assert any("offline_expected_qps = " in note for note in offline.summary["meta"]["notes"])


def test_a_run_keeps_no_empty_file_and_few_others(offline: Finished, server: Finished) -> None:
    for done in (offline, server):
        files = [path.relative_to(done.folder) for path in done.folder.rglob("*") if path.is_file()]
        assert [path for path in files if (done.folder / path).stat().st_size <= len("[\n]\n")] == []
        assert len([path for path in files if path.parts[0] != "Compliance"]) <= MOST_FILES


def test_server_takes_its_rate_from_the_offline_run(offline: Finished, server: Finished) -> None:
    check(server, "server")
    before, test = (done.summary["run"]["performance"] for done in (offline, server))
    per_request = before["total_new_tokens"] / before["samples"]
    assert test["target_qps"] == pytest.approx(0.8 * before["tokens_per_sec"] / per_request, rel=1e-3)
    assert any(offline.folder.name in note for note in server.summary["meta"]["notes"])
    assert test["ttft_ms"]["p99"] > test["ttft_ms"]["p50"] > 0
    assert test["tpot_ms"]["p99"] > 0
    assert test["limits_ms"] == {"ttft": 2000, "tpot": 100}
    assert server.summary["plots"]["latency_cdf"] and server.summary["plots"]["tokens_per_sec"] is None


def test_server_percentiles_are_those_of_its_requests(server: Finished) -> None:
    folder = server.folder / "Performance"
    facts, requests = loadgen_log.read(folder), read_requests(folder)
    assert facts.samples == len(requests) and {request.clock for request in requests} == {"loadgen"}
    assert facts.ttft_ms is not None and facts.tpot_ms is not None
    assert sum(each.ttft_ms or 0 for each in requests) / len(requests) == pytest.approx(facts.ttft_ms.mean, rel=1e-4)
    tpot = [each.tpot_ms for each in requests if each.tpot_ms is not None]
    assert sum(tpot) / len(tpot) == pytest.approx(facts.tpot_ms.mean, rel=1e-3)


def test_singlestream(singlestream: Finished) -> None:
    check(singlestream, "singlestream")
    test = singlestream.summary["run"]["performance"]
    assert test["valid"], test["invalid_reasons"]
    assert test["latency_ms"]["p50"] > test["ttft_ms"]["p50"] > 0
    config = RunConfig(model="demo", category="edge", scenario="singlestream")
    resolved = resolve(config, [], 0)
    latency = json.loads((singlestream.folder / "config.json").read_text())["plan"]["expected_latency_ms"]
    expected = replace(resolved, expected_latency_ms=latency).planned_samples
    assert expected == loadgen_log.read(singlestream.folder / "Performance").effective["min_query_count"]


def test_rendering_again_changes_nothing(offline: Finished) -> None:
    report, summary = (offline.folder / name for name in ("report.md", "summary.json"))
    before = report.read_text(), summary.read_text()
    report.unlink()
    summary.unlink()
    subprocess.run([sys.executable, "report.py", offline.folder], cwd=ROOT, check=True, env=os.environ | ASCII)
    assert (report.read_text(), summary.read_text()) == before


def with_other_plan(**values: Any) -> Callable[[Path, Path], object]:
    def edit(run: Path, _: Path) -> None:
        facts = json.loads((run / "config.json").read_text())
        facts["plan"] |= values
        (run / "config.json").write_text(json.dumps(facts))

    return edit


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda run, other: shutil.copytree(other / "Performance", run / "Performance", dirs_exist_ok=True), "Offline"),
        (lambda run, other: (run / "Accuracy" / "rouge.json").write_text("[1]"), "rouge.json: not an object"),
        (with_other_plan(seeds={"qsl": 1, "sample_index": 1, "schedule": 1}), "another run: its seeds"),
        (with_other_plan(min_duration_s=600), "another run: its minimum duration"),
    ],
)
def test_a_report_takes_only_the_runs_own_logs(
    offline: Finished, server: Finished, tmp_path: Path, spoil: Callable[[Path, Path], object], message: str
) -> None:
    run = Path(shutil.copytree(server.folder, tmp_path / "run"))
    before = [(run / name).read_text() for name in ("report.md", "summary.json")]
    spoil(run, offline.folder)
    done = subprocess.run([sys.executable, "report.py", run], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert message in done.stderr
    assert [(run / name).read_text() for name in ("report.md", "summary.json")] == before


def test_compare_two_runs(offline: Finished, singlestream: Finished, server: Finished) -> None:
    first, last = (str(path) for path in sorted(offline.results.glob("2*"))[:2])
    page = subprocess.run(
        [sys.executable, "report.py", "--compare", first, last], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    assert "256 samples in both" in page
    assert "rougeL" in page
    other = [sys.executable, "report.py", "--compare", first, str(singlestream.folder)]
    unpaired = subprocess.run(other, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "not compared: different samples" in unpaired
    assert "| accuracy | PASS | PASS |" in unpaired and "## Scores" not in unpaired


def test_the_token_is_written_nowhere(offline: Finished, server: Finished) -> None:
    for path in offline.results.rglob("*"):
        if path.is_file():
            assert SECRET.encode() not in path.read_bytes(), path


def test_index_and_history(offline: Finished, server: Finished) -> None:
    lines = (offline.results / "history.jsonl").read_text().splitlines()
    assert [json.loads(line)["scenario"] for line in lines] == ["offline", "server"]
    index = (offline.results / "index.md").read_text()
    assert index.index("datacenter server") < index.index("datacenter offline")
