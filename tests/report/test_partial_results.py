"""What a report says of a run, or of a test, that did not finish."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import files
from harness.core.errors import UsageError
from harness.core.schema import SCHEMA
from harness.loadgen.log_entries import LogError
from harness.report import answer, run_summary
from harness.report import report as rendering
from harness.report.load_view import LoadPicture
from harness.results.accuracy import ScoresFile
from harness.results.summary import Run
from harness.runs import run_lock
from harness.runs.run_folder import RunFolder, open_run
from tests.conftest import called
from tests.results.test_summary import ACCURACY
from tests.support import example_runs

EARLY = "did not finish"


@pytest.mark.parametrize(
    ("status", "reason", "said"),
    [
        ("interrupted", "interrupted", "interrupted; 8.5 "),
        ("failed", "vLLM ended", "failed: vLLM ended; 8.5 "),
        ("running", "", ".*killed.*"),
    ],
)
@pytest.mark.parametrize("log", ["none", "cut short"])
def test_a_run_that_ends_after_two_of_three_rates(
    tmp_path: Path, status: Any, reason: str, said: str, log: str
) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    logs = folder / "Performance" / "mlperf_log_detail.txt"
    if log == "none":
        shutil.rmtree(folder / "Performance")
    else:
        logs.write_text("".join(line for line in logs.read_text().splitlines(True) if "result_" not in line))
    run = RunFolder(tmp_path, "run")
    probes = [example_runs.probe(qps, True, 10 * qps, qps, 5 * qps, qps / 2, 128 * qps, qps) for qps in (4.0, 8.5)]
    example_runs.note(run, probes=probes)
    run.set_status(status, reason)
    run_lock.forget_locks()  # as where another process, which is gone, began it
    summary, page = rendering.build_report(folder), (folder / "report.md").read_text()
    assert re.match(rf"# No result; {said}", page)
    assert "| 8.5 | VALID | 1,088 | 8.5 | 42.5 | 85 | 4.25 | 8.5 |" in page
    assert "![Latency by load" in page and (folder / "plots" / "search.png").exists()
    assert EARLY in "\n".join(map(str, summary.meta.deviations))


@pytest.mark.parametrize("log", ["none", "cut short", "whole"])
def test_a_valid_test_counts_though_the_next_one_was_interrupted(tmp_path: Path, log: str) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="max")
    logs = folder / "Performance"
    shutil.copytree(logs, folder / "Attempts" / "1")
    if log == "none":
        shutil.rmtree(logs)
    elif log == "cut short":
        detail = logs / "mlperf_log_detail.txt"
        detail.write_text("".join(line for line in detail.read_text().splitlines(True) if "result_" not in line))
    run = RunFolder(tmp_path, "run")
    example_runs.note(run, attempts=[example_runs.probe(7.5, True, 10, 20, 5, 7, 1088, 8.5, folder="Attempts/1")])
    run.set_status("interrupted", "interrupted")
    summary, page = rendering.build_report(folder), (folder / "report.md").read_text()
    test = summary.run.performance
    assert test and test.valid and test.folder == ("Performance" if log == "whole" else "Attempts/1")
    assert re.search(r"\| ended early \| interrupted \|\n\| VALID \|", page)
    assert EARLY in "\n".join(map(str, summary.meta.deviations))


@pytest.mark.parametrize(("failed_qps", "kept_qps"), [(51.23, 40), (60, 52.33), (30, None)])
def test_a_probe_above_a_failed_test_kept_no_limits(tmp_path: Path, failed_qps: float, kept_qps: float | None) -> None:
    """On an H200 a probe at 52.33 queries/s kept its limits for a minute, and a full test at 51.23 failed."""
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="max")
    shutil.rmtree(folder / "Performance")
    run = RunFolder(tmp_path, "run")
    probes = [example_runs.probe(qps, True, 10, qps, 5, 9) for qps in (40.0, 52.33)]
    failed = example_runs.probe(failed_qps, False, 3000, 51, 5, 110)
    example_runs.note(run, probes=probes, attempts=[failed])
    run.set_status("interrupted", "interrupted")
    run_lock.forget_locks()
    summary = rendering.build_report(folder)
    kept = "" if kept_qps is None else f"; {kept_qps:g} queries/s kept its limits until then"
    assert answer.title(summary) == f"No result; interrupted{kept}"
    picture = LoadPicture.of(summary, summary.scenario.limits)
    assert picture is not None
    assert (picture.best and picture.best.test.load) == kept_qps
    overruled = [point.test.load for point in picture.loads if point.overruled]
    assert overruled == [qps for qps in (40.0, 52.33) if qps > failed_qps]


def test_a_test_that_was_cut_short_is_no_result(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps="4,8.5,16")
    logs = folder / "Performance" / "mlperf_log_detail.txt"
    logs.write_text("".join(line for line in logs.read_text().splitlines(True) if "result_" not in line))
    with pytest.raises(LogError, match=EARLY):
        rendering.build_report(folder)
    RunFolder(tmp_path, "run").set_status("interrupted")
    with pytest.raises(UsageError, match=r"run: no test "):
        rendering.build_report(folder)


@pytest.mark.parametrize("cut", [True, False])
def test_a_run_interrupted_in_its_performance_test_has_an_accuracy_to_show(cut: bool, tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", mode="both")
    (folder / "Accuracy").mkdir()
    kept = ScoresFile(**ACCURACY, schema_version=SCHEMA, log="sha")
    files.write_json(folder / "Accuracy" / "rouge.json", kept.flat())
    log = folder / "Performance" / "mlperf_log_detail.txt"
    if cut:
        log.write_text(log.read_text()[:500])
    else:
        log.unlink()
    RunFolder(folder.parent, folder.name).set_status("interrupted", "interrupted")
    done = called("report", "report.py", str(folder))
    assert done.returncode == 0, done.stderr
    page = (folder / "report.md").read_text()
    assert f"| accuracy {kept.verdict} |" in page and "interrupted" in page
    assert "| VALID |" not in page


def test_a_failed_gate_begins_with_its_scores_and_where_the_worst_answers_are(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", mode="both")
    shutil.rmtree(folder / "Performance")
    (folder / "Accuracy").mkdir()
    checks = [check | {"score": 28.613, "verdict": "FAIL"} for check in ACCURACY["checks"][:1]]
    kept = ScoresFile(**ACCURACY | {"checks": checks}, schema_version=SCHEMA, log="sha")
    files.write_json(folder / "Accuracy" / "rouge.json", kept.flat())
    rendering.build_report(folder)
    first = (folder / "report.html").read_text().partition("<section")[0]
    assert f"{checks[0]['name']} 28.61 (minimum 38.39)" in first and "Accuracy/worst.md" in first
    assert first.count("<li ") <= 3


@pytest.mark.parametrize("asked", ["none", "test06"])
def test_a_compliance_test_that_was_cut_off_has_no_verdict(asked: str, tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", compliance=asked)
    RunFolder(folder.parent, folder.name).set_status("failed", "the engine ended")
    assert called("report", "report.py", str(folder)).returncode == 0
    page = (folder / "report.md").read_text()
    assert ("**TEST06: no verdict**" in page) == (asked == "test06")


COUNTS = dict.fromkeys(("samples", "generated_tokens", "characters", "at_token_limit"), 1)
PASSED = COUNTS | {"verdict": "PASS", "approximate": [], "full_set": True, "high_accuracy": False}
PASSED |= {"splitter": "built-in", "checks": []}
RATES = dict.fromkeys(("duration_s", "samples", "tokens_per_sec", "samples_per_sec"), 1)
TESTED = RATES | {"scenario": "offline", "valid": True, "errors": []}
AUDIT = {"test": "any", "passed": True, "checks": {}, "facts": {}}


def test_a_run_without_a_finished_test_has_no_report(tmp_path: Path) -> None:
    run = open_run(tmp_path, "datacenter-offline")
    example_runs.record(run, resolve(RunConfig(model="demo"), [], 0), command="c", started="s", system={})
    run.set_status("failed", "too few samples")
    with pytest.raises(UsageError, match=r"no test .*\(too few samples\)"):
        rendering.build_report(run.path)
    assert not (run.path / "report.md").exists()


@pytest.mark.parametrize(
    ("mode", "run", "why"),
    [
        ("both", {"accuracy": PASSED, "performance": TESTED}, []),
        ("accuracy", {"accuracy": PASSED}, []),
        ("both", {"accuracy": PASSED}, ["performance was not measured"]),
        ("performance", {"performance": TESTED}, ["accuracy was not checked"]),
        ("accuracy", {"accuracy": PASSED | {"verdict": "FAIL"}}, ["the accuracy gate failed"]),
        ("accuracy", {"accuracy": PASSED | {"approximate": ["rougeLsum"]}}, ["approximate rougeLsum"]),
        ("both", {"performance": TESTED | {"valid": False}}, ["accuracy was not checked", "INVALID by LoadGen"]),
        ("both", {"accuracy": PASSED, "performance": TESTED | {"errors": ["!"]}}, ["LoadGen logged errors"]),
        ("accuracy", {"compliance": {"test06": AUDIT | {"passed": False}}}, ["TEST06 failed"]),
    ],
)
def test_what_came_out_counts_as_much_as_the_settings(mode: str, run: dict[str, Any], why: list[str]) -> None:
    assert [str(each) for each in run_summary.result_deviations(Run(**run), mode)] == why
