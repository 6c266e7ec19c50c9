"""The typed results: what is read back, refused and declared once."""

import json
import sys
from pathlib import Path
from typing import get_args

import jsonschema
import pytest

from harness.__main__ import main
from harness.commands import mlflow
from harness.config import mlperf
from harness.config.run import RunConfig
from harness.core import files
from harness.core.errors import UsageError
from harness.core.formatting import gpu_names
from harness.core.schema import OLDEST_REPORT_SCHEMA, SCHEMA
from harness.loadgen.machine_use import Usage
from harness.loadgen.requests import REQUEST_COLUMNS
from harness.report import compare
from harness.report import report as rendering
from harness.results import benchmark_run, metrics
from harness.results.accuracy import Accuracy, ScoresFile
from harness.results.metrics import Metric, MetricPlace
from harness.results.records import RunFacts
from harness.results.summary import Summary
from harness.results.summary_schema import SCHEMA_FILE, schema
from harness.results.telemetry import QUANTITIES
from harness.runs import history, run_folder
from harness.runs.status import RunStatus
from harness.sweep import report as sweep_report
from tests.conftest import called, tells
from tests.support import example_runs

SCORE = {"score": 38.0, "reference": 38.7792, "low": 38.391408, "high": None, "interval": None, "verdict": "FAIL"}
ACCURACY = {
    **{"verdict": "FAIL", "note": "", "samples": 100, "full_set": True, "high_accuracy": False},
    **{"generated_tokens": 12000, "characters": 60000, "at_token_limit": 3, "splitter": "built-in", "approximate": []},
    "checks": [SCORE | {"name": name} for name in (*mlperf.ROUGE, "gen_len")],
}


def test_the_schema_is_that_of_the_models() -> None:
    assert SCHEMA_FILE.read_text() == schema(), "stale: python -m docs.generate.summary_schema writes it"


def test_the_keys_that_people_read(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "run", scenario="server", server_target_qps=8.5)
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    jsonschema.validate(summary, json.loads(SCHEMA_FILE.read_text()))
    assert summary["schema_version"] == SCHEMA
    assert {"category": "datacenter", "scenario": "server", "model": "demo"}.items() <= summary["meta"].items()
    known = {"gpu_count": 0, "torch_version": "2.13.0", "vllm_version": "0.32.0"}
    assert known.items() <= summary["system"].items()
    test = summary["run"]["performance"]
    assert {"scenario": "server", "total_new_tokens": 8192, "tokens_per_sec": 1024.0}.items() <= test.items()
    assert (test["duration_s"], test["total_input_tokens"]) == (8.0, 32000)
    assert (test["input_tokens_per_sec"], test["total_tokens_per_sec"]) == (4000.0, 5024.0)
    assert summary["logs"]["detail_txt"] == "Performance/mlperf_log_detail.txt"
    assert [summary["logs"][name] for name in ("summary_txt", "accuracy_json", "rouge_json")] == [None] * 3
    assert summary["plots"]["tokens_per_sec"] is None and summary["plots"]["latency_cdf"] is None
    assert set(summary["run"]) == {"accuracy", "performance"} and summary["run"]["accuracy"] is None


def test_the_keys_of_the_scores() -> None:
    kept = ScoresFile(**ACCURACY, schema_version=SCHEMA, log="sha").flat()
    assert {"rouge1": 38.0, "gate_multiplier": 0.99, "run_gen_len": 60000, "run_gen_num": 100}.items() <= kept.items()
    assert kept["threshold_rougeLsum"] == 38.391408
    assert kept["baseline"]["rouge1"] == 38.7792
    assert ScoresFile(**kept).scores == kept["scores"]
    assert (kept["total_samples"], kept["passed"]) == (100, False)
    verdicts = {"PASS": True, "FAIL": False, "INCONCLUSIVE": None, "NOT JUDGED": None}
    for verdict, passed in verdicts.items():
        assert Accuracy(**ACCURACY | {"verdict": verdict}).passed is passed


def test_a_scenario_without_a_rate_reports_none(tmp_path: Path) -> None:
    summary = example_runs.rendered(tmp_path / "run", category="edge", scenario="singlestream")
    assert summary.run.performance is not None and summary.run.performance.details.target_qps is None
    assert "# 20 ms for an answer (p90" in (tmp_path / "run" / "report.md").read_text()


MEASURED = {
    "samples": 640,
    "peak_memory_gib": 1.5,
    "slo_attainment": 99.0,
    "goodput": 9.0,
    "joules_per_output_token": 0.1,
}  # with what machines have
MEASURED |= {"mfu_percent": 60.0, "mbu_percent": 30.0}
MEASURED |= {"usage": {item.name: Usage(mean=1.0, max=2.0) for item in QUANTITIES}}


def test_every_metric_leads_to_a_number(tmp_path: Path) -> None:
    asked = {"model": "other", "scenario": "server", "server_target_qps": 8.5, "price_per_hour": 3.6}
    summary = example_runs.rendered(tmp_path / "run", **asked)
    test = summary.run.performance
    assert test is not None
    full = summary.run.model_copy(
        update={
            "accuracy": Accuracy(**ACCURACY),
            "performance": example_runs.with_performance(
                test, **MEASURED, client_delay_ms=test.details.whole.ttft_ms, failed_requests=1
            ),
        }
    )
    summary = summary.model_copy(update={"run": full})
    of_runs = [metric for metric in metrics.METRICS if metric.steps[0] != metrics.ESTIMATE]
    lacking = {metric.name for metric in of_runs if metric.of(summary) is None}
    capped = {"concurrency", "steady_tokens_per_sec", "tokens_per_sec_per_user", "trend", "decode_tokens_per_sec"}
    assert lacking == {"expected_samples_per_sec", *capped}  # of Offline, and of a fixed concurrency
    steady = {"seconds": 5, "share_percent": 60, "tokens_per_sec": 9, "trend": 1, "tokens_per_sec_per_user": 7}
    whole = test.details.whole
    steady |= {"ttft_ms": whole.ttft_ms, "tpot_ms": whole.tpot_ms}
    more = example_runs.with_performance(test, scenario="concurrency", concurrency=4, steady=steady)
    summary = summary.model_copy(update={"run": full.model_copy(update={"performance": more})})
    assert all(metrics.METRIC_BY_NAME[name].of(summary) for name in capped)
    assert len({metric.name for metric in metrics.METRICS}) == len(metrics.METRICS)


SHOWN = ("report", "index", "sweep", "compare", "mlflow")


def test_each_metric_is_shown_where_something_shows_it() -> None:
    for metric in metrics.METRICS:
        assert metric.better in ("higher", "lower", None) and {*metric.places} <= {*get_args(MetricPlace)}, metric
    assert {place for metric in metrics.METRICS for place in metric.places} == {*get_args(MetricPlace)}


def test_a_new_metric_is_one_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = Metric("samples_twice", "a new one", "run.performance.samples", "higher", SHOWN)
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, new))
    run = example_runs.run(tmp_path / "20260131-a")
    summary = rendering.build_report(run)
    history.finish(run_folder.RunFolder(tmp_path, run.name), rendering.history_line(summary))
    rendering.write_index(tmp_path)
    assert "| a new one | 64 |" in (run / "report.md").read_text()
    assert "a new one" in (tmp_path / "index.md").read_text()
    assert json.loads((tmp_path / "history.jsonl").read_text())["samples_twice"] == 64
    assert mlflow.tracked_run_of(run).numbers["samples_twice"] == 64
    example_runs.rendered(tmp_path / "20260131-b")
    runs, _ = compare.load_runs([run, tmp_path / "20260131-b"])
    assert "| a new one | 64 | 64 (1.000) |" in example_runs.side_by_side(runs)
    assert sweep_report.Metric is Metric and new in metrics.metrics_of("sweep")


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("config.json", "[1]", "config.json: not an object"),
        ("config.json", '{"plan": [1]}', "config.json: "),
        ("config.json", "{", "config.json: not JSON: "),
        ("config.json", "[" * 100_000, "config.json: not JSON: "),
        ("config.json", '{"a": ' + "1" * 5000 + "}", "config.json: not JSON: "),
        ("config.json", '{"plan": {"config": {}}}', "written in an older format"),
        ("config.json", '{"config": {}}', "not a run.py results folder"),
        ("Performance/requests.csv", '{"a": 1}', "requests.csv:1: columns "),
        ("Performance/requests.csv", f"{','.join(REQUEST_COLUMNS)}\n1,x\n", "requests.csv:2: not a request"),
        (
            "Performance/requests.csv",
            f"{','.join(REQUEST_COLUMNS)}\n",
            "requests.csv has 0 requests, but LoadGen's log ",
        ),
        (
            "Performance/machine.csv",
            "seconds,cpu_percent\n1.0,5\n2.0,busy\n",
            "machine.csv:3: cpu_percent: not a number",
        ),
        ("Performance/machine.csv", "seconds,cpu_percent\n1.0,inf\n", "machine.csv:2: cpu_percent: not a number"),
        ("Performance/machine.csv", "seconds,cpu_percent\n,5\n", "machine.csv: a line has no seconds"),
        ("Accuracy/rouge.json", "[1]", "rouge.json: not an object"),
        ("Accuracy/rouge.json", "{}", "rouge.json: verdict is missing"),
        ("Compliance/TEST06/result.json", "[]", "result.json: not an object"),
    ],
)
def test_a_damaged_file_is_named_and_so_is_its_fault(tmp_path: Path, name: str, text: str, message: str) -> None:
    run = example_runs.run(tmp_path / "run")
    (run / name).parent.mkdir(parents=True, exist_ok=True)
    (run / name).write_text(text)
    done = called("report", "report.py", str(run))
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1), done.stderr
    assert message in done.stderr
    assert not (run / "report.md").exists()


def test_our_own_mistakes_are_not_called_a_damaged_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = example_runs.run(tmp_path / "run")
    monkeypatch.setattr(rendering, "summary_of", lambda *_: {}["ours"])
    monkeypatch.setattr(sys, "argv", ["report.py", str(run)])
    with pytest.raises(KeyError):
        main("report")


def test_a_newer_format_is_refused_by_its_number(tmp_path: Path) -> None:
    run = example_runs.run(tmp_path / "run")
    example_runs.note(run_folder.RunFolder(tmp_path, "run"), schema_version=SCHEMA + 1)
    with pytest.raises(UsageError, match=rf"config\.json: schema_version: .* {SCHEMA + 1} "):
        benchmark_run.facts_of(run)


def test_what_is_no_run_folder_is_called_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "summary.json").write_text("{}")
    (tmp_path / "notes.txt").write_text("")
    problems = {"": "no config.json", "kept": "summary that was kept", "notes.txt": "notes.txt: a file;"}
    for name, problem in problems.items():
        with pytest.raises(UsageError, match=problem):
            benchmark_run.facts_of(tmp_path / name)


def test_a_run_that_ended_before_its_plan_says_how_it_ended(tmp_path: Path) -> None:
    folder = run_folder.open_run(tmp_path, "early")
    folder.set_status("failed", "nosuch: not a file")
    with pytest.raises(UsageError, match="no results: failed: nosuch: not a file"):
        benchmark_run.facts_of(folder.path)


def test_files_of_older_formats_are_read_and_not_rendered_again(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "run")
    example_runs.rendered(tmp_path / "other")
    for name in ("config.json", "status.json", "summary.json"):
        kept = json.loads((tmp_path / "run" / name).read_text())
        del kept["schema_version"]
        (tmp_path / "run" / name).write_text(json.dumps(kept))
    runs, _ = compare.load_runs([tmp_path / "run", tmp_path / "other"])
    assert "| output tokens/s | 1,024 | 1,024 (1.000) |" in example_runs.side_by_side(runs)
    assert files.read(tmp_path / "run" / "status.json", RunStatus).status == "complete"
    before = (tmp_path / "run" / "report.md").read_bytes()
    with pytest.raises(UsageError, match=f"run: of format 1, .* renders format {OLDEST_REPORT_SCHEMA}"):
        rendering.build_report(tmp_path / "run")
    assert (tmp_path / "run" / "report.md").read_bytes() == before


def test_a_run_whose_status_cannot_be_read_is_not_deleted(tmp_path: Path) -> None:
    odd = run_folder.open_run(tmp_path, "odd")
    (odd.path / "status.json").write_text("[]")
    history.finish(run_folder.open_run(tmp_path, "new"), {}, keep_all=False)
    assert odd.path.exists()


def test_a_setting_of_an_older_version_is_read_by_its_name_or_named(tmp_path: Path) -> None:
    example_runs.rendered(tmp_path / "run")
    path = tmp_path / "run" / "config.json"
    record = json.loads(path.read_text())
    del record["plan"]["config"]["round"]
    record["plan"]["config"] |= {"version": "6.1", "stagger": 3}
    path.write_text(json.dumps(record))
    facts = benchmark_run.facts_of(tmp_path / "run")
    assert facts.plan.config.round == "6.1" and "unread" not in facts.model_dump()
    assert (
        rendering.build_report(tmp_path / "run").meta.notes[-1]
        == "config.json: --stagger is no setting of this version"
    )
    assert "--stagger is no setting of this version" in (tmp_path / "run" / "report.md").read_text()


def test_the_settings_of_a_run_come_back_typed(tmp_path: Path) -> None:
    facts = benchmark_run.facts_of(example_runs.run(tmp_path / "run", max_num_seqs=8, engine_arg=("block_size=32",)))
    assert isinstance(facts, RunFacts)
    assert (facts.plan.config.max_num_seqs, facts.plan.config.engine_args) == (8, {"block_size": 32})
    assert set(RunConfig.model_fields) <= set(facts.settings)


def test_gpus_as_people_name_them() -> None:
    assert gpu_names(["NVIDIA H200"] * 8) == "8x NVIDIA H200"
    assert gpu_names(["A", "B"]) == "A, B"
    assert (gpu_names([]), gpu_names(None)) == ("none", "unknown")


def test_a_gpu_counts_where_the_engine_used_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.core.system.core_count", lambda: 8)  # the machine of the test may have one core
    system = example_runs.SYSTEM | {"gpus": ["NVIDIA H200"] * 8}
    sizes = {"tensor_parallel_size": 1, "data_parallel_size": 2}
    assert example_runs.rendered(tmp_path / "two", system=system, **sizes).gpus == 2
    away = example_runs.run(tmp_path / "away", system=system, endpoint=("http://gpu-box:8000/v1",))
    near = example_runs.run(tmp_path / "near", system=system, endpoint=("http://localhost:8000/v1",))
    for folder in (away, near):
        config = json.loads((folder / "config.json").read_text())
        config["engine_args"] = {"server": "vLLM 1.0", "serves": "demo", "exchange": "text in", "max_in_flight": 64}
        (folder / "config.json").write_text(json.dumps(config))
        files.write_json(folder / "Performance" / "machine.json", {"gpu_joules": 8192.0})
        (folder / "Performance" / "machine.csv").write_text("seconds,memory_gib,gpu0_memory_gib\n1.0,9.5,7.5\n")
    there, here = (rendering.build_report(folder) for folder in (away, near))
    assert there.gpus == here.gpus == 0
    assert there.run.performance and here.run.performance
    assert (there.run.performance.joules_per_output_token, there.run.performance.details.peak_memory_gib) == (
        None,
        None,
    )
    assert (here.run.performance.joules_per_output_token, here.run.performance.details.peak_memory_gib) == (1.0, 7.5)


def test_answers_that_are_longer_than_allowed_are_told(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", max_new_tokens=127)
    summary = rendering.build_report(folder)
    assert summary.run.performance and summary.run.performance.details.longer == 64
    assert tells((folder / "report.md").read_text(), "longer than 127 tokens", ": 64 of 64**")
    example_runs.rendered(tmp_path / "kept")
    assert "are longer than" not in (tmp_path / "kept" / "report.md").read_text()


def test_a_summary_read_back_is_the_same(tmp_path: Path) -> None:
    summary = example_runs.rendered(tmp_path / "run")
    again = files.read(tmp_path / "run" / "summary.json", Summary)
    assert again.model_dump(mode="json") == summary.model_dump(mode="json")
