"""Run a sweep from its first experiment to its report, or resume an earlier one."""

import contextlib
import glob
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from rich.console import Console

from harness.config.comparability import Comparable, differences
from harness.config.run import RunConfig
from harness.core import files, last_screen, processes, progress, system
from harness.core.errors import DONE, BenchmarkError, UsageError, one_line_errors
from harness.core.formatting import first_of, plural
from harness.core.interrupts import INTERRUPTED
from harness.core.message_text import system_reason
from harness.core.progress import Display
from harness.report import regression
from harness.results.change import FEWEST_PAIRS
from harness.runner import doctor, tracking
from harness.runs import ending
from harness.runs.history import point_latest
from harness.runs.run_folder import RunFolder, now, open_run
from harness.sweep import bisect_report, findings, report
from harness.sweep.bisect import BisectState
from harness.sweep.bisection import Bisection
from harness.sweep.crew import Crew, Runner
from harness.sweep.experiment import ExperimentRecord, State, run_experiment
from harness.sweep.file import VERDICTS_FILE, Experiment, Sweep
from harness.sweep.lanes import Lane
from harness.sweep.servers import Servers, config_of
from harness.sweep.sweep_state import IGNORED_ON_RESUME, SweepOptions, SweepState

MOST_LEFT_NAMED = 3  # experiments that a note names, of those for which no time was left


def run_sweep(state: SweepState, lanes: Sequence[Lane], display: Display, runner: Runner | None = None) -> int:
    """Run the chosen experiments that are not finished yet, write the report, and return the exit code.

    `runner` replaces the one that starts run.py. Raises BenchmarkError if the sweep fails.
    """
    folder, options = state.folder, state.options
    size = f"{chosen_text(state)}, {plural(options.repeat, 'round')}"
    if options.alternate:
        size += ", every second one in reverse order"
    display.say(f"{state.kept.sweep.name}: {size} -> {folder.path}")
    with files.lock_folder(folder.path, "this sweep, or a run it left behind,") as lock:
        try:
            # Each run.py inherits the lock, so the folder stays locked while a run that outlived its sweep goes on.
            runner = runner or runner_of(state, lanes, display, lock)
            is_interrupted = run_until_interrupted(state, Crew(state, runner, display), lanes)
            return finish_sweep(state, is_interrupted, display)
        except KeyboardInterrupt:
            folder.fail("interrupted")
            display.say("interrupted")
            return INTERRUPTED
        except BenchmarkError as error:
            raise failure_of(state, error) from None
        except OSError as error:
            raise failure_of(state, BenchmarkError(f"{folder.path}: {system_reason(error)}.")) from None


def chosen_text(state: SweepState) -> str:
    """Return in words how many experiments are to be run, and how many of them will be skipped."""
    if state.kept.bisection:
        return plural(len(state.chosen), "configuration")
    text = findings.experiments_text(len(state.chosen), state.kept.sweep.is_of_servers)
    skipped_count = sum(item.name in state.skipped for item in state.chosen)
    if skipped_count:
        text += f" ({skipped_count} of them will be skipped)"
    return text


def run_until_interrupted(state: SweepState, crew: Crew, lanes: Sequence[Lane]) -> bool:
    """Run the rounds of a sweep, and return whether they were interrupted.

    Raises KeyboardInterrupt if no run was recorded before.
    """
    try:
        return run_rounds(state, crew, lanes)
    except KeyboardInterrupt:  # It came between two runs, for example while GPU memory was waited for.
        if not state.kept.records:
            raise
        return True


def failure_of(state: SweepState, error: BenchmarkError) -> BenchmarkError:
    """Write the status and the report of a sweep that failed, as far as the disk allows, and return its error.

    If experiments were recorded, the error's message ends with how to resume the sweep.
    """
    folder = state.folder
    has_records = bool(state.kept.records)
    with contextlib.suppress(BenchmarkError, OSError):
        folder.fail("failed", str(error))
        if has_records:
            report.build_report(folder.path, state.kept)
    message = f"{str(error).rstrip('.')}."
    if has_records:
        message += " --resume continues from here."
    error.args = (message,)  # The error itself is returned: its type decides the exit code.
    return error


def run_to_exit(state: SweepState, lanes: Sequence[Lane]) -> NoReturn:
    """Run a sweep, send it to MLflow if asked, and end this process with the sweep's exit code.

    What libraries print goes to engine.log. With --json, the verdicts are printed, and all other text goes to standard
    error.
    """
    log = state.folder.path / "engine.log"
    try:
        with one_line_errors(), progress.screen(log) as (console, errors):
            with Display(errors if state.options.json else console) as display:
                code = run_sweep(state, lanes, display)
                results_dir = state.folder.results_dir.parent
                tracking.send_to_mlflow(state.folder.path, state.options.mlflow, results_dir, display.leave_line)
            if state.options.json:
                print_verdicts(state.folder.path, console)
    except SystemExit as end:  # The sweep failed, and its error is printed already.
        code = int(end.code or DONE)
    ending.exit(code, log)


def print_verdicts(folder: Path, console: Console) -> None:
    """Print the stored verdicts of --fail-if, which are JSON; nothing if there are none, as after an interruption."""
    verdicts = folder / VERDICTS_FILE
    if verdicts.exists():
        console.file.write(verdicts.read_text())
        console.file.flush()


def runner_of(state: SweepState, lanes: Sequence[Lane], display: Display, lock: int) -> Runner:
    """Return the runner of the jobs: a function that starts run.py for each job, or tests the servers in this process.

    `lock` is the file descriptor of the sweep's lock, which each run.py inherits. Raises BenchmarkError if a server
    cannot be tested.
    """
    configs = []
    if state.kept.sweep.is_of_servers:
        configs = [config_of(item, state.folder.path) for item in state.chosen]
    is_at_one_load = bool(configs) and all(map(has_one_load, configs))
    if is_at_one_load and len(lanes) == 1:  # This process can run one job at a time, so there must be a single lane.
        for config in configs:
            doctor.require(config)
        # Connections to the servers stay open for all rounds.
        return Servers(state.folder.path, display)
    return partial(run_experiment, place=state.folder.path, timeout=state.options.timeout, lock=lock)


def has_one_load(config: RunConfig) -> bool:
    """Tell whether a server is tested at one load only: a single level of concurrency, or a given rate."""
    return len(config.levels) == 1 or type(config.server_target_qps) is float


def run_rounds(state: SweepState, crew: Crew, lanes: Sequence[Lane]) -> bool:
    """Run all rounds, then the experiments that follow from their results. Return whether the sweep was interrupted.

    If the time limit left something out, a note in the state says so.
    """
    state.folder.set_status("running")
    state.keep(note="")  # A resumed sweep has the note of how it ended before.
    is_interrupted = crew.work(lanes)
    while not is_interrupted and state.extend():
        if state.announcement:
            crew.display.say(state.announcement)
        is_interrupted = crew.work(lanes)
    if state.out_of_time:
        limit = f"the time limit of {state.options.limit / 60:g} min"
        note = f"{limit} left no time for {first_of(state.left(), MOST_LEFT_NAMED)}: --resume continues"
        needed_min = state.minutes_for_pairs()  # None if this is no comparison of servers, or if it has enough tests
        if needed_min:
            note += f"; {FEWEST_PAIRS} tests of each server, which show their own scatter, take about {needed_min} min"
        state.keep(note=note)
    return is_interrupted


def records_of_whole_rounds(records: Sequence[ExperimentRecord], experiments: int) -> tuple[ExperimentRecord, ...]:
    """Return the records of the rounds in which this number of experiments, which is all of them, completed."""
    complete_runs = Counter(record.round for record in records if record.status == "complete")
    return tuple(record for record in records if complete_runs[record.round] == experiments)


def finish_sweep(state: SweepState, interrupted: bool, display: Display) -> int:
    """Write the report of a sweep, show it, and return the exit code.

    The verdicts of --fail-if are also written to a file. Raises BenchmarkError if the baseline did not complete.
    """
    processes.ignore_signals()  # All tests are done. A signal must not prevent the report now.
    display.stage("writing the report")
    folder = state.folder
    if interrupted:
        folder.set_status("interrupted")
        state.keep(note=state.kept.note or "interrupted: --resume continues")
    results = report.build_report(folder.path, state.kept)
    if not interrupted:
        folder.set_status("complete")
        point_latest(folder)
    last_screen.show(display.console, report.document(results, folder.path), folder.path / "report.html")
    if interrupted:
        return INTERRUPTED
    baseline = results.baseline
    if not baseline or not baseline.complete:
        reason = "it was not run"
        if baseline:
            reason = baseline.records[0].reason
        raise BenchmarkError(f"the baseline did not complete: {reason}.")
    if state.kept.bisection:
        return bisect_report.exit_code(results)
    if results.judgements:
        files.write_text(folder.path / VERDICTS_FILE, f"{regression.to_json(results.judgements)}\n")
        return regression.exit_code(results.judgements)
    return DONE


def begin_sweep(  # noqa: PLR0913
    sweep: Sweep,
    results_dir: Path,
    chosen: list[Experiment],
    options: SweepOptions,
    skipped: dict[str, str],
    is_resumed: bool,
    within: float,
    fail_if: tuple[str, ...] = (),
    bisection: Bisection | None = None,
) -> SweepState:
    """Return the state of a new sweep or, if `is_resumed`, of the last sweep of its name.

    `chosen` are the experiments to run, the baseline first. `skipped` says why an experiment cannot run, by its name.
    Raises UsageError if there is nothing to resume.
    """
    if is_resumed:
        folder, state = resume_sweep(sweep, results_dir, bisection)
    else:
        folder = open_run(results_dir / "sweeps", sweep.name)
        state = State(
            command=processes.command_line(),
            started=now(),
            system=system.detect(),
            sweep=sweep,
            records=(),
            bisection=bisection,
        )
    state_type = BisectState if bisection else SweepState
    return state_type(folder, replace(state, within=within, fail_if=fail_if), chosen, options, skipped)


def with_earlier_length(sweep: Sweep, results_dir: Path) -> Sweep:
    """Return a comparison of servers with the test length that the last comparison of its name had, if there is one.

    A comparison can be resumed only with the same settings, and the length of its tests is one of them.
    """
    earlier_states = [state for _folder, state in sweeps_named(sweep.name, results_dir)]
    if not earlier_states:
        return sweep
    min_duration_s = earlier_states[-1].sweep.experiments[0].settings.get("min_duration")
    experiments = []
    for item in sweep.experiments:
        settings = {name: value for name, value in item.settings.items() if name != "min_duration"}
        if min_duration_s is not None:
            settings["min_duration"] = min_duration_s
        experiments.append(replace(item, settings=settings))
    return replace(sweep, experiments=tuple(experiments))


def sweeps_named(name: str, results_dir: Path) -> list[tuple[Path, State]]:
    """Return the folder and the state of each sweep of this name, the latest last; empty if there is none."""
    # A sweep's folder begins with the year.
    paths = sorted((results_dir / "sweeps").glob(f"2*-{glob.escape(name)}*/sweep.json"))
    states = [(path.parent, report.read_state(path.parent)) for path in paths]
    # The pattern of the paths also fits longer names, so the names are compared.
    return [(path, state) for path, state in states if state.sweep.name == name]


def resume_sweep(sweep: Sweep, results_dir: Path, bisection: Bisection | None = None) -> tuple[RunFolder, State]:
    """Return the folder of the last sweep of this name, and its state with its finished records.

    Raises UsageError without such a sweep, or if it was made with another file, another bisection or on another
    machine.
    """
    same_name = sweeps_named(sweep.name, results_dir)
    if not same_name:
        raise UsageError(f"nothing to resume: no sweep {sweep.name!r} in {results_dir / 'sweeps'}.")
    path, before = same_name[-1]
    if before.asked != (sweep, bisection):
        origin = "with other settings or differences" if bisection else "from a different version of the file"
        raise UsageError(f"{path} was made {origin}; run without --resume.")
    machine_before, machine_now = Comparable.of_machine(before.system), Comparable.of_machine(system.detect())
    machine_differences = differences(machine_before, machine_now, IGNORED_ON_RESUME)
    if machine_differences:
        names = " and ".join(difference.name for difference in machine_differences)
        raise UsageError(f"{path} was made with different {names}; run without --resume.")
    if sweep.is_of_servers:  # All experiments of a round run in one server session, so a partial round is repeated.
        before = replace(before, records=records_of_whole_rounds(before.records, len(sweep.experiments)))
    return RunFolder(results_dir / "sweeps", path.name), before
