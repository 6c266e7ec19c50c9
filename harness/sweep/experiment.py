"""One experiment of a sweep: a separate `run.py` process, and what it left behind."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Annotated, Any, Literal, NamedTuple

from harness.core import errors, files, formatting, locations, nvml, processes, schema, system
from harness.rates.quick import FILE, Estimate
from harness.report import subject
from harness.results import change, metrics
from harness.results.summary import Summary
from harness.runs.run_folder import RunFolder, status_of
from harness.runs.status import RunStatus, ending_text
from harness.sweep.bisection import Bisection
from harness.sweep.file import BASELINE, Experiment, Sweep
from harness.sweep.lanes import Lane

ExperimentStatus = Literal["complete", "failed", "timeout", "interrupted", "skipped"]
ENDED_STATUSES: tuple[ExperimentStatus, ...] = ("complete", "failed", "timeout", "skipped")
CONFIG_FILE, SCREEN_FILE = "config.yaml", "screen.txt"
MLFLOW_URI = "MLFLOW_TRACKING_URI"  # the sweep itself sends its runs to MLflow
MEMORY_WAIT_S = 60.0  # the longest wait until a run's GPU memory is free again
MEMORY_SLACK = 2**30  # bytes that may stay in use
RunKey = tuple[str, int, bool, str]  # the identity of a run: experiment, round, whether at full length, place
SCREEN_END_BYTES = 2000  # bytes at the end of a screen file in which its last lines are looked for
TIMED_LINE = re.compile(r"\d\d:\d\d:\d\d (.+)")  # a line of a run's screen that begins with the time of day


@dataclass(frozen=True)
class ExperimentOutcome:
    """The results of a run: the metrics of a sweep's table by name, None where not measured, and the two verdicts."""

    values: dict[str, float | None] = field(default_factory=dict)
    valid: bool | None = None  # LoadGen's verdict; None without a test
    verdict: str | None = None  # the accuracy gate's; None without an accuracy test
    # The load of other programs during the test.
    background_load: Annotated[tuple[str, ...], schema.stored_field("others", "background_load")] = ()
    ran_out: tuple[schema.StoredStatement, ...] = ()  # the limits of its speed, the first first
    others_cpu_share: float | None = None  # the share of the engine's cores that other programs took; None if not known
    flaws: tuple[str, ...] = ()  # the reasons why its figures may not be compared
    about: tuple[str, ...] = ()  # scenario, model, machine, engine

    @property
    def output_tokens(self) -> float:
        """About how many output tokens the performance test made; 0 if that is not known."""
        return (self.values.get("tokens_per_sec") or 0.0) * (self.values.get("duration_s") or 0.0)

    @property
    def is_sound(self) -> bool:
        """Tell whether the figures may be compared: no other programs ran, and they have no flaw such as INVALID."""
        return not (self.background_load or self.flaws)


@dataclass(frozen=True)
class ExperimentRecord:
    """One experiment run once."""

    experiment: str
    round: int  # counted from 0
    status: ExperimentStatus
    reason: str = ""  # why it did not finish, in one line
    seconds: float = 0.0
    run: str | None = None  # its run folder, relative to the sweep's
    outcome: ExperimentOutcome = ExperimentOutcome()
    gpu: str = ""  # the GPU that it ran on, if others ran side by side with it
    final: bool = False  # whether it ran at full length, after all rounds
    node: str = ""  # the node of a cluster, by its scheduler's name for it

    @property
    def failure_text(self) -> str:
        """The status of a run that did not finish, with its reason."""
        return ending_text(self.status, self.reason)

    @property
    def place(self) -> str:
        """The node and GPU of the run. An experiment is compared with the baseline that ran in the same place."""
        return formatting.joined_text(" ", self.node, self.gpu and f"GPU {self.gpu}")

    @property
    def where(self) -> str:
        """The node and GPU of the run as a suffix to a name, such as " on GPU 1"; empty if there is only one place."""
        if not self.place:
            return ""
        return f" on {self.place}"

    @property
    def number(self) -> int:
        """The round, counted from 1."""
        return self.round + 1

    @property
    def key(self) -> RunKey:
        """The identity of the run: experiment, round, whether at full length, and place (the node and the GPU).

        The baseline runs once in each place, so its place counts. Any other experiment runs in one place only, so its
        place is left empty.
        """
        if self.experiment != BASELINE:
            return self.experiment, self.round, self.final, ""
        return self.experiment, self.round, self.final, self.place


# The error of an interval at each look, if a sweep ends at the first interval that is narrow enough. By
# benchmarks.rounds the last interval then covers 0.955 or more, whatever the scatter, with looks after 4, 6, 8, ...
# rounds.
LOOK_ERROR = 0.02


@dataclass(frozen=True)
class State:
    """sweep.json: the experiments, and their results so far."""

    command: str
    started: str
    system: system.System
    sweep: Sweep
    records: tuple[ExperimentRecord, ...]
    note: str = ""  # a caution on the sweep as a whole, such as what its time limit left out
    capped: Experiment | None = None  # the best estimate, with as many requests running as TPOT allows
    within: float = 0.0  # percent: the sweep ends when every interval is narrower; 0: it ends after its rounds
    fail_if: tuple[str, ...] = ()  # conditions that make an experiment a regression
    bisection: Bisection | None = None  # given for a bisection, whose steps are added to the sweep one by one
    schema_version: int = schema.SCHEMA

    @property
    def error_rate(self) -> float:
        """The chance, allowed at each look at the results, that any experiment is wrongly called faster or slower."""
        may_end_early = bool(self.within)  # A look after each round decides whether the sweep ends.
        is_bisection = self.bisection is not None  # A look after each step decides what comes next.
        if may_end_early or is_bisection:
            # Each look is another chance to be wrong, so a single look is allowed less.
            return LOOK_ERROR
        return change.ERROR_RATE

    @property
    def asked(self) -> tuple[Sweep, Bisection | None]:
        """The sweep and its bisection as the user asked for them, without the steps that were added.

        A sweep may have no bisection.
        """
        original = tuple(item for item in self.sweep.experiments if item.kind != "step")
        bisection = self.bisection.asked if self.bisection else None
        return replace(self.sweep, experiments=original), bisection


class Job(NamedTuple):
    """One experiment of one round."""

    item: Experiment
    round: int  # counted from 0
    final: bool = False  # whether it runs at full length

    def record(self, lane: Lane, status: ExperimentStatus, reason: str = "", **result: Any) -> ExperimentRecord:
        """Return the record of this job on a lane. `result` has further fields of the record."""
        return ExperimentRecord(
            self.item.name, self.round, status, reason, gpu=lane.gpu, final=self.final, node=lane.node, **result
        )

    def key(self, lane: Lane) -> RunKey:
        """Return the identity of the job's run on a lane, by which its record is found."""
        return self.record(lane, "skipped").key  # The status is no part of the key.

    def label(self, rounds: int) -> str:
        """Return the job's name for the screen, with its round or that it is at full length.

        `rounds` is the planned number of rounds. If that is 1, the name has no round.
        """
        if self.final:
            return f"{self.item.name} at full length"
        is_added_round = self.round >= max(rounds, 1)
        if is_added_round:  # A bisection adds rounds to the planned ones, so there is no "of" a number.
            return f"{self.item.name} (round {self.round + 1})"
        if rounds > 1:
            return f"{self.item.name} ({self.round + 1} of {rounds})"
        return self.item.name


Watch = Callable[[str], bool | None]  # gets the stage that a run printed last, and tells whether to end the run


def run_experiment(job: Job, lane: Lane, watch: Watch, place: Path, timeout: float, lock: int) -> ExperimentRecord:
    """Run a job by run.py in a folder below `place`, for at most `timeout` seconds, and return its record.

    `watch` gets the stage printed last and tells whether to end the run. run.py inherits the file descriptor `lock`, so
    a sweep stays locked as long as one of its runs lives.
    """
    # Runs at full length, and runs on the GPUs of different lanes, have folders of their own.
    length = "full" if job.final else ""
    folder = place / formatting.joined_text("@", job.item.name, length, lane.gpu)
    folder.mkdir(exist_ok=True)
    paths_before, begin = set(folder.iterdir()), time.monotonic()
    files.write_json(folder / CONFIG_FILE, job.item.settings)  # run.py reads YAML, and JSON is YAML.
    with (folder / SCREEN_FILE).open("w") as screen:
        try:
            process = start_run(job, lane, folder, screen, lock)
        except (OSError, ValueError) as error:  # such as an environment variable with a null byte
            return job.record(lane, "failed", f"run.py could not be started: {error}")
    ended_as = watch_run(process, folder / SCREEN_FILE, begin + timeout, watch)
    seconds = round(time.monotonic() - begin, 1)
    run = new_run(folder, paths_before)
    run_status = status_of(run) if run else None
    run_path = str(run.relative_to(place)) if run else None
    # `ended_as` is None if the run ended by itself: its own status and exit code then decide.
    status = ended_as or final_status(run_status, process.returncode)
    reason = failure_reason(status, run_status, process.returncode, timeout, last_line(folder / SCREEN_FILE))
    if run and run_status and run_status.status == "running":  # run.py died before it could write how it ended.
        RunFolder(folder, run.name).set_status("failed", reason)
    return job.record(lane, status, reason, seconds=seconds, run=run_path, outcome=outcome_of(run))


def start_run(job: Job, lane: Lane, folder: Path, screen: IO[str], lock: int) -> "subprocess.Popen[bytes]":
    """Start run.py in the folder of an experiment and return its process; what it prints goes to `screen`.

    Raises OSError or ValueError if run.py cannot be started.
    """
    script = str(locations.ROOT / "run.py")
    config = str(folder / CONFIG_FILE)
    environment = dict(os.environ)
    environment.pop(MLFLOW_URI, None)  # The sweep itself sends the runs to MLflow.
    environment |= job.item.env | lane.env
    return subprocess.Popen(
        [job.item.python or sys.executable, script, "--config", config, "--results-dir", str(folder)],
        env=environment,
        stdin=subprocess.DEVNULL,  # so that no run of a sweep waits for input
        stdout=screen,
        stderr=screen,
        start_new_session=True,  # Ctrl-C reaches only the sweep, which then ends all processes of the session's group.
        pass_fds=(lock,),  # While run.py holds the sweep's lock as well, no other command can resume the sweep.
    )


def final_status(run_status: RunStatus | None, code: int) -> Literal["complete", "failed"]:
    """Return the status of an experiment that ended by itself. `code` is the exit code of run.py.

    The experiment is complete if its run says so and the exit code is that of a result, which may be one that was not
    accepted.
    """
    if run_status and run_status.status == "complete" and code in (errors.DONE, errors.NOT_ACCEPTED):
        return "complete"
    return "failed"


def new_run(folder: Path, paths_before: Collection[Path]) -> Path | None:
    """Return the run folder that run.py made: the latest that was not there before. None if it made none.

    Links are left out, as they point to a run that is a folder of its own.
    """
    runs = []
    for path in folder.iterdir():
        is_new = path not in paths_before and not path.is_symlink()
        if is_new and (path / "status.json").exists():
            runs.append(path)
    return max(runs, default=None)  # A run's name begins with its time.


def watch_run(
    process: "subprocess.Popen[bytes]", screen: Path, until: float, watch: Watch
) -> Literal["timeout", "interrupted"] | None:
    """Wait until run.py ends by itself and return None, or end it at the time `until` and return "timeout".

    `watch` gets the last stage of the screen file twice a second, and returns True to end run.py. `until` is on the
    monotonic clock.
    """
    try:
        while process.poll() is None and time.monotonic() < until:
            if watch(last_stage(screen)):
                return "interrupted"
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)  # until the next look at the screen, or less if run.py ends meanwhile
        return "timeout" if process.poll() is None else None
    except KeyboardInterrupt:
        processes.ignore_signals()  # A second Ctrl-C must not prevent the end of the run's processes below.
        return "interrupted"
    finally:
        # However run.py ended, processes that it started, such as the engine's, may be left and would keep the GPU.
        processes.end_group(process)


def failure_reason(
    status: ExperimentStatus, run_status: RunStatus | None, code: int, timeout: float, last_words: str
) -> str:
    """Return in one line why an experiment did not finish; empty if it did.

    `code` is the exit code of run.py, negative if a signal ended it, and `last_words` is the last line that it printed.
    """
    if status == "complete":
        return ""
    if status == "timeout":
        return f"ended after {timeout:g} s (--timeout)"
    if status == "interrupted":
        return "interrupted"
    if code < 0:
        return f"run.py was ended by {signal.Signals(-code).name}: {last_words}"
    if run_status and run_status.reason:  # run.py wrote into its status why it failed.
        return run_status.reason
    # run.py failed before it had a status with a reason. Then it usually printed the reason last.
    return last_words or f"run.py ended with exit code {code}"


def wait_for_gpu_memory(record: ExperimentRecord, before: int, lane: Lane) -> ExperimentRecord:
    """Wait until the GPU memory in use is back to about `before` bytes, so that the next run
    has it, and return the record.

    If the memory is still in use after MEMORY_WAIT_S, the returned record says so.
    """
    until = time.monotonic() + MEMORY_WAIT_S
    while nvml.gpu_memory_used(lane.number) > before + MEMORY_SLACK:
        if time.monotonic() > until:
            note = f"GPU memory was still taken {MEMORY_WAIT_S:g} s after its end"
            return replace(record, reason=formatting.joined_text("; ", record.reason, note))
        time.sleep(0.5)
    return record


def last_lines(path: Path) -> list[str]:
    """Return the last lines of text in a file; empty if there is no text."""
    with path.open("rb") as file:
        # The file may be long, so only its end is read.
        file.seek(max(0, path.stat().st_size - SCREEN_END_BYTES))
        return file.read().decode(errors="replace").rstrip().splitlines()


def last_line(path: Path) -> str:
    """Return the last line of text in a file, without the "error: " with which an error begins.

    Empty if there is no text.
    """
    lines = last_lines(path)
    if not lines:
        return ""
    return lines[-1].strip().removeprefix("error: ")


def last_stage(path: Path) -> str:
    """Return the last line of a run's screen that begins with the time of day, without this time.

    It has the stage of the run and how far that has come. Empty if there is no such line.
    """
    for line in reversed(last_lines(path)):
        timed_line = TIMED_LINE.fullmatch(line)
        if timed_line:
            return timed_line[1]
    return ""


def outcome_of(run: Path | None) -> ExperimentOutcome:
    """Return the outcome of a run from its summary or, without one, from its estimate.

    Empty if there is no run folder (`run` is None) or it has neither.
    """
    if run is None:
        return ExperimentOutcome()
    summary = files.read_if_any(run / "summary.json", Summary)
    if summary:
        return from_summary(summary)
    estimate = files.read_if_any(run / FILE, Estimate)
    if estimate:
        return from_estimate(estimate)
    return ExperimentOutcome()


def from_estimate(estimate: Estimate) -> ExperimentOutcome:
    """Return the outcome of a run that only estimated its rate (--quick).

    It has no test, so `valid` and `verdict` are None.
    """
    values = {}
    for metric in metrics.metrics_of("sweep"):
        # The path of an estimate's metric (`steps`) begins with "estimate". Any other metric is not there, so None.
        values[metric.name] = metrics.number_at({metrics.ESTIMATE: estimate}, metric.steps)
    return ExperimentOutcome(values, background_load=estimate.background_load, flaws=estimate.doubts)


def from_summary(summary: Summary) -> ExperimentOutcome:
    """Return the outcome of a run by its summary.

    Without a performance test, it has no verdict of LoadGen and no flaws.
    """
    outcome = ExperimentOutcome(
        metrics.values(summary, "compare"),
        verdict=summary.gate,
        background_load=tuple(summary.background_load),
        others_cpu_share=summary.others_cpu_share,
        about=tuple(subject.parts_of(summary)),
    )
    test = summary.result
    if test is None:
        return outcome
    return replace(outcome, valid=test.valid, ran_out=tuple(test.details.ran_out), flaws=tuple(test.flaws))
