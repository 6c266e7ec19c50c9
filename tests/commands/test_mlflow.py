"""MLflow, the real one: a local SQLite store and a server on the loopback; what was logged is read back."""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow import MlflowClient
from rich.console import Console

from harness.__main__ import main
from harness.commands import mlflow
from harness.config.run import RunConfig
from harness.core import files
from harness.core.files import read, write_json
from harness.core.locations import ROOT
from harness.core.progress import Display
from harness.results import metrics
from harness.results.summary import Summary
from harness.runner import steps
from harness.runner.tracking import send_to_mlflow
from harness.runs import run_folder as results_folder
from harness.sweep.experiment import ExperimentRecord, from_summary
from harness.sweep.file import BASELINE, Experiment, Sweep
from harness.sweep.report import State
from tests.conftest import Finished, launch, patience
from tests.support import example_runs


@pytest.fixture
def folder(offline: Finished, tmp_path: Path) -> Path:
    """A copy of a finished run's folder."""
    return Path(shutil.copytree(offline.folder, tmp_path / "results" / offline.folder.name))


def words(folder: Path, results_dir: Path) -> list[str]:
    return ["mlflow", str(folder), "--results-dir", str(results_dir)]


Send = Callable[[Path, Path], tuple[int, str]]


@pytest.fixture
def send(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Send:
    """`python -m harness mlflow` in this process, which has imported MLflow: exit code, what it says of errors."""

    def sent(folder: Path, results_dir: Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", words(folder, results_dir))
        try:
            code: Any = main("mlflow")
        except SystemExit as ended:
            code = ended.code
        return code, capsys.readouterr().err

    return sent


def logged(client: MlflowClient) -> list[Any]:
    experiment = client.get_experiment_by_name(mlflow.EXPERIMENT_NAME)
    assert experiment is not None
    return list(client.search_runs([experiment.experiment_id]))


def check(client: MlflowClient, run: Any, summary: Any) -> None:
    """Every kind of thing that must be there, with the numbers of the summary."""
    test, score = summary["run"]["performance"], summary["run"]["accuracy"]
    assert run.data.metrics["tokens_per_sec"] == test["tokens_per_sec"]
    assert run.data.metrics["latency_p99_ms"] == test["latency_ms"]["p99"]
    assert run.data.metrics["rouge1"] == score["scores"]["rouge1"]
    assert run.data.metrics["valid"] == 1
    assert run.data.metrics["gate"] == 1
    assert run.data.params["max_num_seqs"] == "null"
    assert run.data.params["engine.max_num_seqs"] == "64"
    assert run.data.tags["git_revision"] == (summary["system"]["git_revision"] or "unknown")
    assert run.data.tags["gpu"] == "none"
    assert run.data.tags["version.mlcommons-loadgen"] == "6.0.17"
    names = {item.path for item in client.list_artifacts(run.info.run_id)}
    assert {"summary.json", "report.md", "report.html", "config.json", "plots", "Accuracy", "Performance"} <= names
    logs = {item.path for item in client.list_artifacts(run.info.run_id, "Performance")}
    assert "Performance/mlperf_log_detail.txt" in logs
    assert not [name for name in logs if "trace" in name]


def test_a_local_store_and_sending_twice(offline: Finished, folder: Path, send: Send) -> None:
    results = folder.parent
    for _ in range(2):
        code, said = send(folder, results)
        assert code == 0, said
    client = MlflowClient(tracking_uri=f"sqlite:///{results / 'mlflow.db'}")
    (run,) = logged(client)
    assert run.info.status == "FINISHED"
    assert run.info.end_time > run.info.start_time
    check(client, run, offline.summary)


def test_a_metric_has_one_name_in_mlflow_and_in_the_csv(tmp_path: Path) -> None:
    folder = tmp_path / "results" / "r"
    summary = example_runs.rendered(folder, scenario="server", server_target_qps=10.0)
    numbers = mlflow.tracked_run_of(folder).numbers
    shared = {name: value for name, value in metrics.values(summary, "compare").items() if name in numbers}
    assert {name: numbers[name] for name in shared} == shared
    assert {"latency_p50_ms", "ttft_p50_ms", "tpot_p99_ms"} <= {*shared}
    assert summary.result is not None and summary.result.details.whole.ttft_ms is not None
    assert numbers["ttft_p95_ms"] == summary.result.details.whole.ttft_ms.p95
    assert [name for name in numbers if "/" in name] == []


def test_a_link_in_a_folder_that_was_sent_is_not_sent_on(tmp_path: Path, send: Send) -> None:
    folder = tmp_path / "results" / "r"
    example_runs.rendered(folder, scenario="server", server_target_qps=10.0)
    (tmp_path / "key").write_text("a key")
    (folder / "plots" / "key.png").symlink_to(tmp_path / "key")
    code, said = send(folder, folder.parent)
    assert code == 0, said
    client = MlflowClient(tracking_uri=f"sqlite:///{folder.parent / 'mlflow.db'}")
    (run,) = logged(client)
    names = {item.path for item in client.list_artifacts(run.info.run_id, "plots")}
    assert "plots/overview.png" in names and "plots/key.png" not in names


@pytest.mark.engine
def test_an_mmlu_evaluation(tmp_path: Path) -> None:
    code, output, _ = launch("mmlu.py", tmp_path, "--total-limit", "8", "--mlflow")
    assert code == 0, output
    assert "MLflow: logged" in output
    client = MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}")
    (run,) = logged(client)
    (folder,) = (tmp_path / "mmlu").glob("2*")
    overall = json.loads((folder / "overall.json").read_text())
    assert run.data.tags["kind"] == "mmlu"
    assert run.data.metrics["overall_accuracy"] == overall["overall_accuracy"]
    assert run.data.metrics["n"] == 8
    assert run.data.params["total_sample_count"] == "8"
    assert "report.md" in {item.path for item in client.list_artifacts(run.info.run_id)}


def test_a_sweep_is_a_parent_with_children(folder: Path, tmp_path: Path, send: Send) -> None:
    runs = tmp_path / "sweeps" / "s"
    shutil.copytree(folder, runs / BASELINE / folder.name)
    shutil.copytree(folder, runs / "a" / folder.name)
    summary = json.loads((folder / "summary.json").read_text())
    items = tuple(Experiment(name, "", "isolation", {}, {}, {}) for name in (BASELINE, "a", "b", "c"))
    measured = read(folder / "summary.json", Summary)
    records = (
        *(
            ExperimentRecord(n, 0, "complete", run=f"{n}/{folder.name}", outcome=from_summary(measured))
            for n in (BASELINE, "a")
        ),
        ExperimentRecord("b", 0, "failed", "no memory"),
        ExperimentRecord("c", 0, "skipped", "no such flag"),
    )
    state = State("python sweep.py", summary["meta"]["started"], summary["system"], Sweep("s", "", items), records)
    write_json(runs / "sweep.json", asdict(state))
    write_json(runs / "status.json", {"status": "running"})
    assert "not known whether this sweep still runs" in send(runs, tmp_path)[1]
    with files.lock_folder(runs, "this sweep"):
        assert "still running" in send(runs, tmp_path)[1]
    assert "was killed" in send(runs, tmp_path)[1]
    write_json(runs / "status.json", {"status": "complete"})
    for _ in range(2):
        code, said = send(runs, tmp_path)
        assert code == 0, said
    found = {run.info.run_name: run for run in logged(MlflowClient(tracking_uri=f"sqlite:///{tmp_path / 'mlflow.db'}"))}
    assert set(found) == {"s", "baseline#1", "a#1", "b#1"}
    parent = found.pop("s")
    assert parent.data.tags["kind"] == "sweep"
    assert parent.data.metrics["change_percent.a.tokens_per_sec"] == pytest.approx(0.0)
    assert {run.data.tags["mlflow.parentRunId"] for run in found.values()} == {parent.info.run_id}
    assert found["a#1"].data.metrics["tokens_per_sec"] == summary["run"]["performance"]["tokens_per_sec"]
    assert (found["b#1"].info.status, found["b#1"].data.tags["reason"]) == ("FAILED", "no memory")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{tmp_path / 'server.db'}"]
    command += ["--artifacts-destination", str(tmp_path / "artifacts")]
    with (tmp_path / "server.log").open("w") as log:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True)
    until = time.monotonic() + 90
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            break
        except OSError:
            assert time.monotonic() < until, (tmp_path / "server.log").read_text()
            time.sleep(0.3)
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, 9)


def test_a_server(offline: Finished, folder: Path, server: str, send: Send, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server)
    code, said = send(folder, folder.parent)
    assert code == 0, said
    client = MlflowClient(tracking_uri=server)
    (run,) = logged(client)
    check(client, run, offline.summary)


def test_a_server_that_is_away(
    folder: Path, send: Send, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://someone:hush@127.0.0.1:9")
    begin = time.monotonic()
    send_to_mlflow(folder, False, folder.parent, print)
    assert time.monotonic() - begin < patience(60)
    said = capsys.readouterr().out
    assert "not sent" in said
    assert f"python -m harness mlflow {folder}" in said
    assert "hush" not in said
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    assert send(folder, folder.parent)[0] == 0  # and later, to a store that is there


def test_an_estimate_is_no_result_to_send(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[object] = []
    run = SimpleNamespace(folder=results_folder.open_run(tmp_path, "quick"))
    session = SimpleNamespace(engine=SimpleNamespace(name="echo", close=lambda: None))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    monkeypatch.setattr(steps, "send_to_mlflow", lambda *given: sent.append(given))
    monkeypatch.setattr(steps, "prepare_run", lambda *_: (run, session, None))
    monkeypatch.setattr(steps.doctor, "require", lambda _: None)
    monkeypatch.setattr(steps, "report_estimate", lambda _: 0)
    config = RunConfig(quick=True, model="demo", backend="echo")
    assert steps.run_benchmark(config, run.folder, Display(Console(quiet=True))).exit_code == 0
    assert sent == []


def test_without_mlflow_it_says_how_to_get_it(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "mlflow.py").write_text("raise ImportError\n")
    command = [sys.executable, "-m", "harness", *words(folder, folder.parent)]
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 2
    assert "requirements/mlflow.txt" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_folder_is_refused(tmp_path: Path, send: Send) -> None:
    code, said = send(tmp_path, tmp_path)
    assert code == 2
    assert "only complete runs" in said
