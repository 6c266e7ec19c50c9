"""A finished folder to MLflow, again if need be: `python -m harness mlflow RUN_DIR`."""

import hashlib
from collections.abc import Mapping
from datetime import datetime
from os import environ
from pathlib import Path
from typing import NamedTuple

from harness.core.command import argument, make_command, option
from harness.core.errors import NotAcceptedError, UsageError
from harness.core.files import is_locked, read
from harness.core.formatting import gpu_names
from harness.core.message_text import first_line, say
from harness.core.reading import setting_text
from harness.core.secrets import hide_text
from harness.core.system import System
from harness.core.word_list import names_in
from harness.loadgen.log import LATENCY_KINDS
from harness.mmlu.records import MMLUFacts, Overall
from harness.results import benchmark_run, metrics
from harness.results.summary import Summary
from harness.runner.tracking import NOT_INSTALLED
from harness.runs import run_folder
from harness.runs.status import RunStatus

# Finished runs, evaluations and sweeps -> MLflow. As a command: send a folder (again).
#
# `python -m harness mlflow RUN_DIR` sends to MLFLOW_TRACKING_URI, or to results/mlflow.db where that is not set.
# Each run there has a tag that is its folder's own, so that sending twice updates instead of doubling.
EXPERIMENT_NAME = "llama31-mlperf"  # the experiment's name, unless MLFLOW_EXPERIMENT_NAME says otherwise
IDENTITY = "llama31_mlperf_folder"  # the tag
LONGEST_PARAMETER = 6000  # characters of a parameter, MLflow's limit
UPLOADED_FILES = names_in("*.json *.md *.html *.csv plots/* Accuracy/* Performance/* Compliance/**/*")  # with a run
LEFT_OUT_FILES = names_in("mlperf_log_trace.json mlperf_log_trace.json.gz")  # these have a line for each token


class TrackingError(NotAcceptedError):
    """The tracking server did not take it; the run itself is unharmed."""


class TrackedRun(NamedTuple):
    """One MLflow run: what is logged, and where its files lie. The name tells it from others of the same folder."""

    folder: Path | None
    started: str
    params: Mapping[str, object] = {}
    numbers: Mapping[str, float | None] = {}
    tags: Mapping[str, object] = {}
    children: tuple["TrackedRun", ...] = ()
    name: str = ""
    status: RunStatus | None = None


def send(folder: Path, results_dir: Path) -> str:
    """Logs a folder; returns where to. Raises UsageError, TrackingError."""
    tracked = entry(folder)
    environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    try:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise UsageError(f"{NOT_INSTALLED}.") from None
    try:
        return Store(results_dir).log(tracked, f"{tracked.started} {tracked.name}")
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:  # ImportError: of a store's driver
        raise TrackingError(f"the tracking server did not take it: {first_line(error)}") from None


class Store:
    """An MLflow store: the one MLFLOW_TRACKING_URI names, or a file in the results."""

    def __init__(self, results_dir: Path) -> None:
        from mlflow import MlflowClient

        uri = environ.get("MLFLOW_TRACKING_URI")
        local = results_dir.resolve()
        if not uri:
            run_folder.check_writable(local)
        self.place = hide_text(uri) if uri else str(local / "mlflow.db")
        self.client = MlflowClient(tracking_uri=uri or f"sqlite:///{local / 'mlflow.db'}")
        name = environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT_NAME)
        experiment = self.client.get_experiment_by_name(name)
        files = None if uri else (local / "mlflow").as_uri()
        self.experiment = (
            experiment.experiment_id if experiment else self.client.create_experiment(name, artifact_location=files)
        )

    def log(self, item: TrackedRun, identity: str) -> str:
        from mlflow.entities import Metric, Param, RunTag

        at = milliseconds(item.started)
        run = self.run(item, identity, at)
        self.client.log_batch(
            run,
            params=[Param(key, setting_text(value)[:LONGEST_PARAMETER]) for key, value in item.params.items()],
            tags=[RunTag(key, str(value)) for key, value in item.tags.items()],
            metrics=[Metric(key, float(value), at, 0) for key, value in item.numbers.items() if value is not None],
        )
        if item.folder:
            for path in (path for pattern in UPLOADED_FILES for path in sorted(item.folder.glob(pattern))):
                if path.is_symlink() or not path.is_file() or path.name in LEFT_OUT_FILES:
                    continue
                below = path.parent.relative_to(item.folder).as_posix()
                self.client.log_artifact(run, str(path), None if below == "." else below)
        for child in item.children:
            self.log(child._replace(tags={**child.tags, "mlflow.parentRunId": run}), f"{identity} {child.name}")
        status = item.status
        end = milliseconds(status.time) if status and status.time else at
        self.client.set_terminated(run, "FINISHED" if status and status.status == "complete" else "FAILED", end)
        return f"logged {item.name} to {self.place}"

    def run(self, item: TrackedRun, identity: str, at: int) -> str:
        """The id of the entry's run: the one of an earlier try, if this store has it, or a new one."""
        tag = hashlib.sha256(identity.encode()).hexdigest()
        if earlier_runs := self.client.search_runs([self.experiment], f"tags.{IDENTITY} = '{tag}'", max_results=1):
            return str(earlier_runs[0].info.run_id)
        created = self.client.create_run(self.experiment, start_time=at, run_name=item.name, tags={IDENTITY: tag})
        return str(created.info.run_id)


UNFINISHED_SWEEPS = {  # the message by whether somebody holds the folder's lock, None where that is not known
    True: "this sweep is still running",
    False: "this sweep was killed: end it with --resume first",
    None: "it is not known whether this sweep still runs, for the mount has no locks: end it with --resume first",
}


def entry(folder: Path) -> TrackedRun:
    """A folder of run.py, mmlu.py or sweep.py as an entry. Raises UsageError for any other, or one not finished."""
    run_status = run_folder.status_of(folder)
    status = run_status.status if run_status else "not a run folder"
    is_sweep = (folder / "sweep.json").exists()
    if is_sweep and status == "running":
        raise UsageError(f"{folder}: {UNFINISHED_SWEEPS[is_locked(folder)]}.")
    if not is_sweep and status != "complete":
        raise UsageError(f"{folder} is {status}; only complete runs are logged.")
    kind = sweep if is_sweep else mmlu if (folder / "overall.json").exists() else benchmark
    return kind(folder)._replace(name=folder.resolve().name, status=run_status)


def benchmark(folder: Path) -> TrackedRun:
    facts, summary = benchmark_run.facts_of(folder), read(folder / "summary.json", Summary)
    meta, test, score = summary.meta, summary.result, summary.accuracy
    numbers: dict[str, float | None] = {}
    for kind in LATENCY_KINDS:
        if times := getattr(test and test.details.counted, f"{kind}_ms", None):
            numbers |= {f"{kind}_{point}_ms": value for point, value in vars(times).items()}
    numbers |= metrics.values(summary, "mlflow")
    numbers |= {"valid": test.valid if test else None, "gate": score.passed if score else None}
    tags = {
        "kind": "benchmark",
        "comparable": meta.comparable,
        "accuracy": summary.gate or "not run",
        "result": test.verdict.word if test else "not run",
        "flaws": "; ".join((*summary.background_load, *test.flaws)) if test else "",
    }
    params = facts.settings | {f"engine.{name}": value for name, value in facts.engine_args.items()}
    return TrackedRun(folder, meta.started, params, numbers, tags | machine(summary.system, summary.gpu_models))


def mmlu(folder: Path) -> TrackedRun:
    facts, summary = read(folder / "config.json", MMLUFacts), read(folder / "overall.json", Overall)
    numbers = {key: value for key, value in summary if isinstance(value, int | float) and key != "schema_version"}
    params = facts.config | {f"engine.{name}": value for name, value in facts.engine_args.items()}
    tags = {"kind": "mmlu"} | machine(facts.system, facts.system.gpus)
    return TrackedRun(folder, facts.started, params, numbers, tags)


def sweep(folder: Path) -> TrackedRun:
    """A sweep: one entry for the whole, a child for every experiment that was run."""
    from harness.sweep import report as sweep_report

    state = sweep_report.read_state(folder)
    children = []
    for record in state.records:
        name = f"{record.experiment}#{record.number}"
        tags = {"experiment": record.experiment, "status": record.status, "reason": record.reason}
        if record.status != "skipped":
            run = record.status == "complete" and record.run
            child = entry(folder / run) if run else TrackedRun(None, state.started)
            children.append(child._replace(name=name, tags={**child.tags, **tags}))
    params = {"sweep": state.sweep.name, "experiments": len(state.sweep.experiments)}
    tags = {"kind": "sweep"} | machine(state.system, state.system.gpus)
    return TrackedRun(folder, state.started, params, {}, tags, tuple(children))


def machine(system: System, gpus: list[str] | None) -> dict[str, str]:
    """Return where it ran, as tags; no `gpus` are known behind an endpoint."""
    versions = {f"version.{name}": version for name, version in system.packages.items()}
    return {"git_revision": system.git_revision or "unknown", "gpu": gpu_names(gpus), "cpu": system.cpu, **versions}


def milliseconds(started: str) -> int:
    """Milliseconds since 1970. Raises UsageError for text that is not a time."""
    try:
        at = datetime.fromisoformat(started)
    except ValueError:
        raise UsageError(f"its files say it started at {started!r}, which is not a time.") from None
    return round(at.timestamp() * 1000)


def mlflow(
    folder: Path = argument(..., "The folder of a run, an evaluation or a sweep.", "RUN_DIR"),
    results_dir: Path = option(Path("results"), "Folder of mlflow.db, where no server is set.", "PATH"),
) -> None:
    """Log a finished run, MMLU evaluation or sweep to MLflow: MLFLOW_TRACKING_URI, or a file in the results."""
    say(send(folder, results_dir))


command = make_command(mlflow, prints=False)
