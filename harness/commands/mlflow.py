"""Send finished runs, evaluations and sweeps to MLflow: `python -m harness mlflow RUN`.

They go to MLFLOW_TRACKING_URI, or to results/mlflow.db if that is not set. Each MLflow run has a tag that is made from
its folder, so that sending a folder twice updates the run.
"""

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
from harness.runs import find, run_folder
from harness.runs.status import RunStatus

EXPERIMENT_NAME = "llama31-mlperf"  # the experiment's name, unless MLFLOW_EXPERIMENT_NAME says otherwise
IDENTITY_TAG = "llama31_mlperf_folder"
LONGEST_PARAMETER = 6000  # characters of a parameter, MLflow's limit
UPLOADED_FILES = names_in("*.json *.md *.html *.csv plots/* Accuracy/* Performance/* Compliance/**/*")  # with a run
LEFT_OUT_FILES = names_in("mlperf_log_trace.json mlperf_log_trace.json.gz")  # these have a line for each token


class TrackingError(NotAcceptedError):
    """The tracking server did not accept a run; the run itself is unharmed."""


class TrackedRun(NamedTuple):
    """One MLflow run: its values, and the folder of its files."""

    folder: Path | None  # None: no files are uploaded
    started: str
    params: Mapping[str, object] = {}
    numbers: Mapping[str, float | None] = {}
    tags: Mapping[str, object] = {}
    children: tuple["TrackedRun", ...] = ()  # the runs of a sweep
    name: str = ""  # distinguishes the runs of one folder
    status: RunStatus | None = None  # None: it counts as failed


def send(folder: Path, results_dir: Path) -> str:
    """Log a folder to MLflow, and return a message that says where it was logged.

    Raises UsageError if the folder has nothing to log or MLflow is not installed, and TrackingError if the server does
    not accept it.
    """
    tracked_run = tracked_run_of(folder)
    # MLflow's own defaults would wait minutes for a server that does not answer. The user's values stay.
    environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    try:
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError
    except ImportError:
        raise UsageError(f"{NOT_INSTALLED}.") from None
    try:
        # A folder that is sent again has the same identity, so its MLflow run is updated.
        identity = f"{tracked_run.started} {tracked_run.name}"
        return Store(results_dir).log(tracked_run, identity)
    except (MlflowException, SQLAlchemyError, OSError, ImportError) as error:
        # An ImportError means that the driver of a store is missing.
        raise TrackingError(f"the tracking server did not take it: {first_line(error)}") from None


class Store:
    """The MLflow store that MLFLOW_TRACKING_URI names, or else a file in the results folder.

    The experiment in it is made if it does not exist.
    """

    def __init__(self, results_dir: Path) -> None:
        """Connect to the store that MLFLOW_TRACKING_URI names or, without it, open mlflow.db in the results folder.

        The experiment is made if the store does not have it.
        """
        from mlflow import MlflowClient

        uri = environ.get("MLFLOW_TRACKING_URI")
        artifacts = None  # The store then decides where uploaded files are.
        if uri:
            self.place = hide_text(uri)  # The place is only for messages.
        else:
            local = results_dir.resolve()
            run_folder.check_writable(local)
            self.place = str(local / "mlflow.db")
            uri = f"sqlite:///{self.place}"
            artifacts = (local / "mlflow").as_uri()  # the folder of the uploaded files, beside mlflow.db
        self.client = MlflowClient(tracking_uri=uri)
        name = environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT_NAME)
        experiment = self.client.get_experiment_by_name(name)
        if experiment:
            self.experiment_id = experiment.experiment_id
        else:
            self.experiment_id = self.client.create_experiment(name, artifact_location=artifacts)

    def log(self, tracked_run: TrackedRun, identity: str) -> str:
        """Log a run with its values, files and children, and return a message that says where it was logged.

        `identity` distinguishes the run from all others: a run with the same identity is updated.
        """
        started_ms = milliseconds(tracked_run.started)
        run_id = self.find_or_create_run(tracked_run, identity, started_ms)
        self.log_values(run_id, tracked_run, started_ms)
        if tracked_run.folder:
            self.upload_files(run_id, tracked_run.folder)
        for child in tracked_run.children:
            tags = {**child.tags, "mlflow.parentRunId": run_id}
            self.log(child._replace(tags=tags), f"{identity} {child.name}")
        # If no status tells the end of a run, the run is taken to have ended when it began, and to have failed.
        end_ms, state = started_ms, "FAILED"
        end = tracked_run.status
        if end and end.time:
            end_ms = milliseconds(end.time)
        if end and end.status == "complete":
            state = "FINISHED"
        self.client.set_terminated(run_id, state, end_ms)
        return f"logged {tracked_run.name} to {self.place}"

    def log_values(self, run_id: str, tracked_run: TrackedRun, time_ms: int) -> None:
        """Log the parameters, tags and known numbers of a run. `time_ms` is the time of the numbers.

        Parameters are cut to MLflow's limit; unknown numbers are left out.
        """
        from mlflow.entities import Metric, Param, RunTag

        params = [Param(key, setting_text(value)[:LONGEST_PARAMETER]) for key, value in tracked_run.params.items()]
        tags = [RunTag(key, str(value)) for key, value in tracked_run.tags.items()]
        figures = []
        for key, value in tracked_run.numbers.items():
            if value is not None:
                figures.append(Metric(key, float(value), timestamp=time_ms, step=0))
        self.client.log_batch(run_id, params=params, tags=tags, metrics=figures)

    def upload_files(self, run_id: str, folder: Path) -> None:
        """Upload the files of a folder that fit UPLOADED_FILES, each into the same subfolder of the MLflow run.

        LEFT_OUT_FILES are not uploaded. Nor are links, which may lead to files outside the folder.
        """
        for pattern in UPLOADED_FILES:
            for path in sorted(folder.glob(pattern)):
                if path.is_symlink() or not path.is_file() or path.name in LEFT_OUT_FILES:
                    continue
                subfolder: str | None = path.parent.relative_to(folder).as_posix()
                if subfolder == ".":
                    subfolder = None  # MLflow's name for the top folder of a run
                self.client.log_artifact(run_id, str(path), subfolder)

    def find_or_create_run(self, tracked_run: TrackedRun, identity: str, started_ms: int) -> str:
        """Return the id of the MLflow run with this identity, which is created if this store does not have it."""
        tag = hashlib.sha256(identity.encode()).hexdigest()  # A hash has no quote that would end the filter's text.
        earlier_runs = self.client.search_runs([self.experiment_id], f"tags.{IDENTITY_TAG} = '{tag}'", max_results=1)
        if earlier_runs:
            return str(earlier_runs[0].info.run_id)
        tags = {IDENTITY_TAG: tag}
        new_run = self.client.create_run(
            self.experiment_id, start_time=started_ms, run_name=tracked_run.name, tags=tags
        )
        return str(new_run.info.run_id)


UNFINISHED_SWEEPS = {  # the message if the folder's lock is held, if it is not, and if that is not known
    True: "this sweep is still running",
    False: "this sweep was killed: end it with --resume first",
    None: "it is not known whether this sweep still runs, for the mount has no locks: end it with --resume first",
}


def tracked_run_of(folder: Path) -> TrackedRun:
    """Return a folder of run.py, mmlu.py or sweep.py as an MLflow run.

    A sweep must be over, but may have failed or been interrupted. A run or an evaluation must be complete. Otherwise,
    and for any other folder, UsageError is raised.
    """
    run_status = run_folder.status_of(folder)
    status = run_status.status if run_status else "not a run folder"
    is_sweep = (folder / "sweep.json").exists()
    if is_sweep and status == "running":
        # The status of a killed sweep is "running", too. Only a sweep that really runs holds the folder's lock.
        is_alive = is_locked(folder)  # None if unknown
        raise UsageError(f"{folder}: {UNFINISHED_SWEEPS[is_alive]}.")
    if not is_sweep and status != "complete":
        raise UsageError(f"{folder} is {status}; only complete runs are logged.")
    if is_sweep:
        tracked_run = tracked_sweep(folder)
    elif (folder / "overall.json").exists():
        tracked_run = tracked_evaluation(folder)
    else:
        tracked_run = tracked_benchmark(folder)
    # `folder` may be the link `latest`, whose name says nothing of the run.
    return tracked_run._replace(name=folder.resolve().name, status=run_status)


def tracked_benchmark(folder: Path) -> TrackedRun:
    """Return a run of run.py as an MLflow run: its settings, metrics, verdicts and machine.

    MLflow takes numbers alone as metrics, so a verdict is both a tag and a number, 1 or 0.
    """
    facts = benchmark_run.facts_of(folder)
    summary = read(folder / "summary.json", Summary)
    meta, test, score = summary.meta, summary.result, summary.accuracy
    numbers = latency_numbers(summary) | metrics.values(summary, "mlflow")
    numbers |= {"valid": None, "gate": None}  # the verdicts of the two tests; None for a test that was not run
    tags = {
        "kind": "benchmark",
        "comparable": meta.comparable,
        "accuracy": summary.gate or "not run",  # the verdict of the accuracy gate
        "result": "not run",
        "flaws": "",
    }
    if test:
        numbers["valid"] = test.valid
        tags["result"] = test.verdict.word
        tags["flaws"] = "; ".join((*summary.background_load, *test.flaws))
    if score:
        numbers["gate"] = score.passed
    params = facts.settings | engine_params(facts.engine_args)
    return TrackedRun(folder, meta.started, params, numbers, tags | machine_tags(summary.system, summary.gpu_models))


def latency_numbers(summary: Summary) -> dict[str, float | None]:
    """Return the latencies of the requests that count, by names such as `ttft_p50_ms`; empty without a test.

    A kind of latency that was not measured is left out.
    """
    numbers: dict[str, float | None] = {}
    if not summary.result:
        return numbers
    for kind in LATENCY_KINDS:  # such as "ttft"
        latency = getattr(summary.result.details.counted, f"{kind}_ms", None)
        if latency:
            for percentile, value in vars(latency).items():  # the percentiles, such as "p50", and the mean
                numbers[f"{kind}_{percentile}_ms"] = value
    return numbers


def engine_params(engine_args: Mapping[str, object]) -> dict[str, object]:
    """Return the engine's arguments with a prefix, so that their names are not those of settings."""
    return {f"engine.{name}": value for name, value in engine_args.items()}


def tracked_evaluation(folder: Path) -> TrackedRun:
    """Return an MMLU evaluation as an MLflow run: its settings, the numbers of overall.json, and its machine."""
    facts = read(folder / "config.json", MMLUFacts)
    summary = read(folder / "overall.json", Overall)
    # The version of the file's format is a number, too, but no result.
    numbers = {key: value for key, value in summary if isinstance(value, int | float) and key != "schema_version"}
    params = facts.config | engine_params(facts.engine_args)
    tags = {"kind": "mmlu"} | machine_tags(facts.system, facts.system.gpus)
    return TrackedRun(folder, facts.started, params, numbers, tags)


def tracked_sweep(folder: Path) -> TrackedRun:
    """Return a sweep as an MLflow run, with a child for every run that was not skipped.

    Its numbers are the changes of each experiment's metrics against the baseline, in percent. A run that did not finish
    has only its tags.
    """
    from harness.sweep import change_table
    from harness.sweep import report as sweep_report

    state = sweep_report.read_state(folder)
    changes: dict[str, float | None] = {}
    for row in change_table.change_rows(sweep_report.read_results(folder, state)):
        if row.change_percent is not None:
            changes[f"change_percent.{row.experiment}.{row.metric}"] = row.change_percent
    children = []
    for record in state.records:
        if record.status == "skipped":
            continue
        child = TrackedRun(folder=None, started=state.started)  # a run that did not finish, without numbers and files
        if record.status == "complete" and record.run:
            child = tracked_run_of(folder / record.run)
        record_tags = {"experiment": record.experiment, "status": record.status, "reason": record.reason}
        name = f"{record.experiment}#{record.number}"  # An experiment may have several runs.
        children.append(child._replace(name=name, tags={**child.tags, **record_tags}))
    params = {"sweep": state.sweep.name, "experiments": len(state.sweep.experiments)}
    tags = {"kind": "sweep"} | machine_tags(state.system, state.system.gpus)
    return TrackedRun(folder, state.started, params, changes, tags, tuple(children))


def machine_tags(system: System, gpus: list[str] | None) -> dict[str, str]:
    """Return the machine of a run as tags: revision of the program, GPU, CPU and versions of packages.

    `gpus` is None if they are not known, as behind an endpoint.
    """
    tags = {"git_revision": system.git_revision or "unknown", "gpu": gpu_names(gpus), "cpu": system.cpu}
    for name, version in system.packages.items():
        tags[f"version.{name}"] = version
    return tags


def milliseconds(started: str) -> int:
    """Return a stored time in milliseconds since 1970, as MLflow takes it.

    Raises UsageError for text that is not a time.
    """
    try:
        time = datetime.fromisoformat(started)
    except ValueError:
        raise UsageError(f"its files say it started at {started!r}, which is not a time.") from None
    return round(time.timestamp() * 1000)


def mlflow(
    word: str = argument(..., "The folder of a run, an evaluation or a sweep; a run's name or label.", "RUN"),
    results_dir: Path = option(Path("results"), "Folder of the runs, and of mlflow.db where no server is set.", "PATH"),
) -> None:
    """Log a finished run, MMLU evaluation or sweep to MLflow: MLFLOW_TRACKING_URI, or a file in the results."""
    for folder in find.folders([word], results_dir):
        say(send(folder, results_dir))


command = make_command(mlflow, is_read_only=False, not_accepted="the tracking server did not accept the run")
