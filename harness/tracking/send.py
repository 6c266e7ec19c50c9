"""Finished runs, evaluations and sweeps -> MLflow. As a command: send a folder (again).

`python -m harness mlflow RUN_DIR` sends to MLFLOW_TRACKING_URI, or to results/mlflow.db where that is not set.
What was sent is noted in the folder's mlflow.json, so that sending twice updates instead of doubling.
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from harness.common import files
from harness.common.errors import NOT_ACCEPTED, BenchmarkError, UsageError, first_line, why
from harness.common.files import write_json
from harness.common.schema import gpu_names
from harness.common.secrets import hide_text
from harness.common.system import System
from harness.mmlu.summary import MMLUFacts, Overall
from harness.results import metrics
from harness.results.summary import Summary
from harness.runs import folder as results

NAME = "llama31-mlperf"  # of the experiment, unless MLFLOW_EXPERIMENT_NAME says otherwise
LEDGER = "mlflow.json"
MAX_ATTEMPTS, WAIT_S = 3, 2.0
LONGEST_PARAMETER = 6000  # characters of a parameter, MLflow's limit
LEFT_OUT = {"mlperf_log_trace.json", LEDGER}  # the trace has a line for each token of each sample


class TrackingError(BenchmarkError):
    """The tracking server did not take it; the run itself is unharmed."""

    exit_code = NOT_ACCEPTED


@dataclass(frozen=True)
class TrackedRun:
    """One MLflow run: what is logged, and where its files lie. `key` tells it from others of the same folder."""

    key: str
    name: str
    started: str | None
    ended: str | None = None
    params: dict[str, str] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    finished: bool = True
    children: tuple["TrackedRun", ...] = ()


def send(folder: Path, results_dir: Path) -> str:
    """Logs a folder, with retries; returns where to. Raises UsageError, TrackingError."""
    found = entry(folder)
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    try:
        write_json(folder / LEDGER, ledger_of(folder / LEDGER))
    except OSError as error:
        raise UsageError(f"{folder}: cannot note there what is sent: {why(error)}.") from None
    try:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise UsageError("MLflow is not installed: pip install --no-deps -r requirements-mlflow.txt") from None
    for turn in range(MAX_ATTEMPTS):
        try:
            return Store(results_dir).log(found, folder / LEDGER)
        except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:  # ImportError: of a store's driver
            reason = first_line(error)
            time.sleep(WAIT_S * 2**turn if turn + 1 < MAX_ATTEMPTS else 0)
    raise TrackingError(hide_text(f"the tracking server did not take it: {reason}"))


class Store:
    """An MLflow store: the one MLFLOW_TRACKING_URI names, or a file in the results."""

    def __init__(self, results_dir: Path) -> None:
        from mlflow import MlflowClient

        uri = os.environ.get("MLFLOW_TRACKING_URI")
        local = results_dir.resolve()
        self.place = hide_text(uri) if uri else str(local / "mlflow.db")
        self.client = MlflowClient(tracking_uri=uri or f"sqlite:///{local / 'mlflow.db'}")
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", NAME)
        experiment = self.client.get_experiment_by_name(name)
        files = None if uri else (local / "mlflow").as_uri()
        self.experiment = (
            experiment.experiment_id if experiment else self.client.create_experiment(name, artifact_location=files)
        )

    def log(self, item: TrackedRun, ledger: Path, parent: str | None = None) -> str:
        """Logs an entry and its children; run ids are noted before anything else is sent."""
        from mlflow.entities import Metric, Param, RunTag

        tags = item.tags | ({"mlflow.parentRunId": parent} if parent else {})
        at = milliseconds(item.started)
        run = self.run(item, ledger, at)
        self.client.log_batch(
            run,
            params=[Param(key, value[:LONGEST_PARAMETER]) for key, value in item.params.items()],
            tags=[RunTag(key, value) for key, value in tags.items()],
            metrics=[Metric(key, value, at, 0) for key, value in item.metrics.items()],
        )
        if item.folder:
            for path in kept_files(item.folder):
                below = path.parent.relative_to(item.folder).as_posix()
                self.client.log_artifact(run, str(path), None if below == "." else below)
        for child in item.children:
            self.log(child, ledger, run)
        end = milliseconds(item.ended) if item.ended else at
        self.client.set_terminated(run, "FINISHED" if item.finished else "FAILED", end)
        return f"logged {item.name} to {self.place}"

    def run(self, item: TrackedRun, ledger: Path, at: int) -> str:
        """The id of the entry's run: the one of an earlier try, if this store has it, or a new one."""
        from mlflow.exceptions import MlflowException

        stores = ledger_of(ledger)
        runs = stores.get(self.place, {})
        if item.key in runs:
            try:
                return str(self.client.get_run(runs[item.key]).info.run_id)
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        new = self.client.create_run(self.experiment, start_time=at, run_name=item.name).info.run_id
        write_json(ledger, stores | {self.place: runs | {item.key: new}})
        return str(new)


def ledger_of(path: Path) -> dict[str, dict[str, str]]:
    """What was sent so far: by store, the run id of each entry. Raises UsageError."""
    return files.read(path, dict[str, dict[str, str]]) if path.exists() else {}


def kept_files(folder: Path) -> Iterator[Path]:
    """What is kept with a run: reports, plots, settings, LoadGen's logs."""
    for pattern in ("*.json", "*.md", "*.csv", "plots/*", "Accuracy/*", "Performance/*", "Compliance/**/*"):
        yield from (path for path in sorted(folder.glob(pattern)) if path.is_file() and path.name not in LEFT_OUT)


def entry(folder: Path) -> TrackedRun:
    """A folder of run.py, mmlu.py or sweep.py as an entry. Raises UsageError for any other, or one not finished."""
    run_status = results.status_of(folder)
    status = run_status.status if run_status else "no run folder"
    if (folder / "sweep.json").exists():
        if status == "running":
            raise UsageError(f"{folder}: this sweep is still running, or was killed: end it with --resume first.")
        return sweep(folder)
    if status != "complete":
        raise UsageError(f"{folder}: this is {status}; only complete ones are logged.")
    return mmlu(folder) if (folder / "overall.json").exists() else benchmark(folder)


def benchmark(folder: Path) -> TrackedRun:
    facts, summary = results.facts_of(folder), files.read(folder / "summary.json", Summary)
    meta, test, score = summary.meta, summary.run.performance, summary.run.accuracy
    numbers: dict[str, float | None] = metrics.values(summary, "mlflow")
    numbers |= {
        "valid": test.valid if test else None,
        "gate": score.passed if score else None,
    }
    for name in ("latency_ms", "ttft_ms", "tpot_ms"):
        found = getattr(test, name, None)
        numbers |= {f"{name}/{point}": value for point, value in asdict(found).items()} if found else {}
    tags = {
        "kind": "benchmark",
        "category": meta.category,
        "scenario": meta.scenario,
        "mlperf_version": meta.mlperf_version,
        "comparable": meta.comparable,
        "accuracy": score.verdict if score else "not run",
        "loadgen": ("VALID" if test.valid else "INVALID") if test else "not run",
    }
    params = flat(facts.settings) | flat(facts.engine_args, "engine.")
    return make_tracked_run(folder, meta.started, params, numbers, tags | machine(summary.system, summary.gpu_models))


def mmlu(folder: Path) -> TrackedRun:
    facts, summary = files.read(folder / "config.json", MMLUFacts), files.read(folder / "overall.json", Overall)
    numbers = {key: value for key, value in summary if isinstance(value, int | float) and key != "schema_version"}
    params = flat(facts.config) | flat(facts.engine_args, "engine.")
    return make_tracked_run(
        folder, facts.started, params, numbers, {"kind": "mmlu"} | machine(facts.system, facts.system.gpus)
    )


def sweep(folder: Path) -> TrackedRun:
    """A sweep: one entry for the whole, a child for every experiment that was run."""
    from harness.sweep import report as sweep_report
    from harness.sweep.rows import rows

    state = sweep_report.read(folder)
    children = []
    for record in state.records:
        key = f"{record.experiment}#{record.round + 1}"
        tags = {"experiment": record.experiment, "status": record.status, "reason": record.reason}
        if record.status == "complete" and record.run:
            child = entry(folder / record.run)
            child = replace(child, key=key, name=key, tags=child.tags | tags)
        else:
            child = TrackedRun(key, key, state.started, tags=tags, finished=False)
        if record.status != "skipped":
            children.append(child)
    params = {"sweep": state.sweep.name, "experiments": str(len(state.sweep.experiments))}
    speedups = {result.name: result.ratio.mean for result in rows(state) if result.ratio and result.usable}
    numbers = {"best_speedup": max(speedups.values())} if speedups else {}
    tags = {"kind": "sweep", "best": max(speedups, key=lambda name: speedups[name], default="")}
    whole = make_tracked_run(folder, state.started, params, numbers, tags | machine(state.system, state.system.gpus))
    return replace(whole, children=tuple(children))


def make_tracked_run(
    folder: Path,
    started: str,
    params: dict[str, str],
    numbers: Mapping[str, float | None],
    tags: Mapping[str, object],
) -> TrackedRun:
    kept = {key: float(value) for key, value in numbers.items() if value is not None}
    words = {key: str(value) for key, value in tags.items()}
    run_status = results.status_of(folder)
    finished, ended = (
        run_status is not None and run_status.status == "complete",
        run_status.time if run_status else None,
    )
    return TrackedRun("run", folder.resolve().name, started, ended, params, kept, words, folder, finished)


def machine(system: System, gpus: list[str] | None) -> dict[str, str]:
    """Where it ran, as tags; no `gpus` are known behind an endpoint."""
    versions = {f"version.{name}": version for name, version in system.packages.items()}
    return {"git_revision": system.git_revision or "unknown", "gpu": gpu_names(gpus), "cpu": system.cpu, **versions}


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Settings as MLflow's parameters: one text each."""
    return {
        prefix + key: value if isinstance(value, str) else json.dumps(value, default=str)
        for key, value in settings.items()
    }


def milliseconds(started: str | None) -> int:
    """Milliseconds since 1970; of now for None. Raises UsageError for text that is no time."""
    try:
        at = datetime.fromisoformat(started) if started else datetime.now()
    except ValueError:
        raise UsageError(f"its files say it started at {started!r}, which is no time.") from None
    return round(at.timestamp() * 1000)
