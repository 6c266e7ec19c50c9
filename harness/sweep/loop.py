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
from harness.sweep import bisect_report, report
from harness.sweep.bisect import BisectState
from harness.sweep.bisection import Bisection
from harness.sweep.crew import Crew, Runner
from harness.sweep.experiment import State, run_experiment
from harness.sweep.file import VERDICTS_FILE, Experiment, Sweep
from harness.sweep.lanes import Lane
from harness.sweep.servers import Servers, config_of
from harness.sweep.sweep_state import IGNORED_ON_RESUME, SweepOptions, SweepState

SHOWN_LEFT = 3  # experiments for which no time was left, of which so many are named


def run_sweep(state: SweepState, places: Sequence[Lane], display: Display, runner: Runner | None = None) -> int:
    """Run what is chosen and not finished yet. The report is written however the sweep ends. Raises BenchmarkError.

    `runner` replaces the one that starts run.py.
    """
    folder, options = state.folder, state.options
    size = f"{len(state.chosen)} configurations, {plural(options.repeat, 'round')}"
    if options.alternate:
        size += ", every second one backwards"
    display.say(f"{state.kept.sweep.name}: {size} -> {folder.path}")
    with files.lock_folder(folder.path, "this sweep, or a run it left behind,") as lock:
        try:
            runner = runner or runner_of(state, places, display, lock)
            return finish_sweep(state, run_rounds(state, Crew(state, runner, display), places), display)
        except KeyboardInterrupt:
            folder.fail("interrupted")
            display.say("interrupted")
            return INTERRUPTED
        except BenchmarkError as error:
            raise failure_of(state, error) from None
        except OSError as error:
            raise failure_of(state, BenchmarkError(f"{folder.path}: {system_reason(error)}.")) from None


def failure_of(state: SweepState, error: BenchmarkError) -> BenchmarkError:
    """Write the report of a sweep that failed, as far as the disk allows, and return its error with the remedy."""
    folder, has_records = state.folder, bool(state.kept.records)
    with contextlib.suppress(BenchmarkError, OSError):
        folder.fail("failed", str(error))
        if has_records:
            report.build_report(folder.path, state.kept)
    message = f"{str(error).removesuffix('.')}."
    if has_records:
        message += " --resume continues from here."
    error.args = (message,)  # of the same kind, since its kind decides the exit code
    return error


def run_to_exit(state: SweepState, places: Sequence[Lane]) -> NoReturn:
    """Run a sweep and end this process. What libraries print meanwhile goes to engine.log."""
    log = state.folder.path / "engine.log"
    try:
        with one_line_errors(), progress.screen(log) as (console, errors):
            with Display(errors if state.options.json else console) as display:
                code = run_sweep(state, places, display)
                results_dir = state.folder.results_dir.parent
                tracking.send_to_mlflow(state.folder.path, state.options.mlflow, results_dir, display.leave_line)
            if state.options.json:
                print_verdicts(state.folder.path, console)
    except SystemExit as end:
        code = int(end.code or DONE)
    ending.exit(code, log)


def print_verdicts(folder: Path, console: Console) -> None:
    """Print the verdicts of --fail-if as they are stored. An interrupted comparison may have none."""
    verdicts = folder / VERDICTS_FILE
    if verdicts.exists():
        console.file.write(verdicts.read_text())
        console.file.flush()


def runner_of(state: SweepState, places: Sequence[Lane], display: Display, lock: int) -> Runner:
    """Return the runner of the jobs: run.py, or kept connections if the sweep compares servers at one load."""
    configs = []
    if state.kept.sweep.is_of_servers:
        configs = [config_of(item, state.folder.path) for item in state.chosen]
    if configs and len(places) == 1 and all(map(has_one_load, configs)):
        for config in configs:  # a sweep ends here if any of them lacks something
            doctor.require(config)
        return Servers(state.folder.path, display)
    return partial(run_experiment, place=state.folder.path, timeout=state.options.timeout, lock=lock)


def has_one_load(config: RunConfig) -> bool:
    return len(config.levels) == 1 or type(config.server_target_qps) is float


def run_rounds(state: SweepState, crew: Crew, places: Sequence[Lane]) -> bool:
    """Run all rounds, then the experiments that follow from them. Returns whether the sweep was interrupted."""
    state.folder.set_status("running")
    state.keep(note="")
    while not (interrupted := crew.work(places)) and state.extend():
        if state.announcement:
            crew.display.say(state.announcement)
    if state.out_of_time:
        limit = f"the time limit of {state.options.limit / 60:g} min"
        note = f"{limit} left no time for {first_of(state.left(), SHOWN_LEFT)}: --resume continues"
        needed = state.minutes_for_pairs()
        if needed:
            note += f"; {FEWEST_PAIRS} tests of each server, which show their own scatter, take about {needed} min"
        state.keep(note=note)
    return interrupted


def finish_sweep(state: SweepState, interrupted: bool, display: Display) -> int:
    processes.ignore_signals()  # all has run: what ends a command is not to cost the sweep
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
    base = results.baseline
    if not base or not base.complete:
        reason = "it was not run"
        if base:
            reason = base.records[0].reason
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
    again: bool,
    within: float,
    fail_if: tuple[str, ...] = (),
    bisection: Bisection | None = None,
) -> SweepState:
    """Return the state of a new sweep, or of the last one of its name if it is resumed. Raises UsageError."""
    if again:
        folder, state = resume_sweep(sweep, results_dir, bisection)
    else:
        folder = open_run(results_dir / "sweeps", sweep.name)
        state = State(processes.command_line(), now(), system.detect(), sweep, (), bisection=bisection)
    kind = SweepState
    if bisection:
        kind = BisectState
    return kind(folder, replace(state, within=within, fail_if=fail_if), chosen, options, skipped)


def with_earlier_length(sweep: Sweep, results_dir: Path) -> Sweep:
    """Return a comparison of servers with the test length of the last one of its name, so that this can go on.

    Without an earlier one, the comparison is returned as it is.
    """
    earlier = [state for _, state in sweeps_named(sweep.name, results_dir)]
    if not earlier:
        return sweep
    seconds = earlier[-1].sweep.experiments[0].settings.get("min_duration")
    experiments = []
    for item in sweep.experiments:
        settings = {name: value for name, value in item.settings.items() if name != "min_duration"}
        if seconds is not None:
            settings["min_duration"] = seconds
        experiments.append(replace(item, settings=settings))
    return replace(sweep, experiments=tuple(experiments))


def sweeps_named(name: str, results_dir: Path) -> list[tuple[Path, State]]:
    """Return the folders of the sweeps of a name with their states, the latest last."""
    paths = sorted((results_dir / "sweeps").glob(f"2*-{glob.escape(name)}*/sweep.json"))
    states = [(path.parent, report.read_state(path.parent)) for path in paths]
    return [(path, state) for path, state in states if state.sweep.name == name]


def resume_sweep(sweep: Sweep, results_dir: Path, bisection: Bisection | None = None) -> tuple[RunFolder, State]:
    """Return the last sweep of this file with its finished records. Raises UsageError if there is none like it."""
    same_name = sweeps_named(sweep.name, results_dir)
    if not same_name:
        raise UsageError(f"nothing to resume: no sweep {sweep.name!r} in {results_dir / 'sweeps'}.")
    path, before = same_name[-1]
    if before.asked != (sweep, bisection):
        origin = "with other settings or differences" if bisection else "from a different version of the file"
        raise UsageError(f"{path} was made {origin}; run without --resume.")
    unlike = differences(
        Comparable.of_machine(before.system), Comparable.of_machine(system.detect()), IGNORED_ON_RESUME
    )
    if unlike:
        names = " and ".join(difference.name for difference in unlike)
        raise UsageError(f"{path} was made with different {names}; run without --resume.")
    if sweep.is_of_servers:  # All experiments of a round run in one server session, so a partial round is repeated.
        ended = Counter(record.round for record in before.records if record.status == "complete")
        whole = tuple(record for record in before.records if ended[record.round] == len(sweep.experiments))
        before = replace(before, records=whole)
    return RunFolder(results_dir / "sweeps", path.name), before
