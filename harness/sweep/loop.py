"""A sweep from its first experiment to its report, and where an earlier one is gone on with."""

import contextlib
import glob
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from harness.common import files, processes, system
from harness.common.errors import DONE, INTERRUPTED, BenchmarkError, UsageError, why
from harness.config.comparability import Comparable, differences
from harness.runs import folder as results
from harness.sweep import findings, report
from harness.sweep.crew import Crew, Runner
from harness.sweep.experiment import run_experiment
from harness.sweep.file import BASELINE, Sweep
from harness.sweep.lanes import Lane
from harness.sweep.rows import State
from harness.sweep.state import SweepState
from harness.terminal import last_screen
from harness.terminal.progress import Display

# Of the machine, for a sweep to be resumed; its file is compared whole.
IGNORED = ("work", "settings", "driver", "busyness", "validity", "rate")


def run(state: SweepState, places: Sequence[Lane], display: Display, runner: Runner | None = None) -> int:
    """Runs what is chosen and not finished yet; the report is written however it ends. Raises BenchmarkError.

    `runner`: in place of one that starts run.py.
    """
    folder, options = state.folder, state.options
    display.say(
        f"{state.kept.sweep.name}: {len(state.chosen)} configurations, {options.repeat} round(s) -> {folder.path}"
    )
    with files.lock_folder(folder.path, "this sweep, or a run it left behind,") as lock:
        try:
            runner = runner or partial(run_experiment, place=folder.path, timeout=options.timeout, lock=lock)
            return finish(state, rounds(state, Crew(state, runner, display), places), display)
        except KeyboardInterrupt:
            folder.fail("interrupted")
            display.say("interrupted")
            return INTERRUPTED
        except (BenchmarkError, OSError) as error:
            reason = f"{folder.path}: {why(error)}." if isinstance(error, OSError) else str(error)
            with contextlib.suppress(OSError):
                folder.fail("failed", reason)
            raise BenchmarkError(f"{reason} --resume continues from here.") from None


def rounds(state: SweepState, crew: Crew, places: Sequence[Lane]) -> bool:
    """Round after round of the experiments, then what follows from them; whether they were interrupted."""
    state.folder.set_status("running")
    state.keep(note="")
    interrupted = crew.work(places)
    while not interrupted and state.extend():
        interrupted = crew.work(places)
    if state.out_of_time:
        minutes = (state.options.limit or 0) / 60
        state.keep(
            note=f"the time limit of {minutes:g} min left no time for {', '.join(state.left())}: --resume continues"
        )
    return interrupted


def finish(state: SweepState, interrupted: bool, display: Display) -> int:
    display.stage("writing the report")
    folder = state.folder
    if interrupted:
        folder.set_status("interrupted")
    made = report.build(folder.path, state.kept)
    folder.set_status("interrupted" if interrupted else "complete")
    if not interrupted:
        results.point_latest(folder)
    last_screen.show(display.console, findings.last_screen(made), folder.path / "report.html")
    if interrupted:
        return INTERRUPTED
    base = made.result(BASELINE)
    if base and base.complete:
        return DONE
    raise BenchmarkError(f"the baseline did not complete: {base.records[0].reason if base else 'it was not run'}")


def new(sweep: Sweep, results_dir: Path) -> tuple[results.RunFolder, State]:
    """A new sweep's folder, and what is kept of it."""
    folder = results.open_run(results_dir / "sweeps", sweep.name)
    return folder, State(processes.command_line(), results.now(), system.detect(), sweep, ())


def resume(sweep: Sweep, results_dir: Path) -> tuple[results.RunFolder, State]:
    """The last sweep of this file with what it has finished. Raises UsageError where there is none like it."""
    folders = sorted((results_dir / "sweeps").glob(f"2*-{glob.escape(sweep.name)}*/sweep.json"))
    found = {path.parent: report.read(path.parent) for path in folders}
    mine = [(path, before) for path, before in found.items() if before.sweep.name == sweep.name]
    if not mine:
        raise UsageError(f"nothing to resume: no sweep {sweep.name!r} in {results_dir / 'sweeps'}.")
    path, before = mine[-1]
    if before.sweep != sweep:
        raise UsageError(f"{path} was made from a different version of the file; run without --resume.")
    unlike = differences(Comparable.on(before.system), Comparable.on(system.detect()), IGNORED)
    if changed := " and ".join(each.name for each in unlike):
        raise UsageError(f"{path} was made with different {changed}; run without --resume.")
    return results.RunFolder(results_dir / "sweeps", path.name), before
