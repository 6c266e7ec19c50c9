"""A sweep from its first experiment to its report; what is finished is kept at once, so that it can be resumed."""

import contextlib
import glob
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter

from harness.common import files, processes, system
from harness.common.errors import DONE, INTERRUPTED, BenchmarkError, UsageError, why
from harness.common.schema import SCHEMA
from harness.config.comparability import Comparable, differences
from harness.runs import folder as results
from harness.sweep import combine, report
from harness.sweep.choice import Choice
from harness.sweep.crew import Crew
from harness.sweep.experiment import ExperimentRecord
from harness.sweep.file import BASELINE, Experiment, Sweep
from harness.sweep.lanes import lanes
from harness.sweep.rows import rows
from harness.sweep.schedule import Schedule
from harness.terminal.progress import Display

RECORDS = TypeAdapter(list[ExperimentRecord])
# Of the machine, for a sweep to be resumed; its file is compared whole.
IGNORED = ("work", "settings", "driver", "busyness", "validity", "rate")


@dataclass
class SweepRun:
    """A sweep that is being run: its folder, and the records of what has ended."""

    folder: results.RunFolder
    records: list[ExperimentRecord] = field(default_factory=list)

    def put(self, record: ExperimentRecord) -> None:
        """Keeps a record in place of an earlier one of the same run."""
        self.records = [*(earlier for earlier in self.records if earlier.key != record.key), record]
        self.keep("records", RECORDS.dump_python(self.records, by_alias=True))

    def say(self, sentence: str) -> None:
        """Keeps what the report shall say of the sweep as a whole."""
        self.keep("note", sentence)

    def keep(self, key: str, value: object) -> None:
        path = self.folder.path / "sweep.json"
        files.write_json(path, files.read_json(path) | {key: value})


def run_experiments(
    sweep: Sweep, chosen: list[Experiment], choice: Choice, sweep_run: SweepRun, display: Display
) -> int:
    """Runs what is chosen and not finished yet; the report is written however it ends. Raises BenchmarkError."""
    display.say(f"{sweep.name}: {len(chosen)} configurations, {choice.repeat} round(s) -> {sweep_run.folder.path}")
    with files.locked(sweep_run.folder.path, "this sweep, or a run it left behind,") as lock:
        try:
            interrupted = rounds(chosen, choice, sweep_run, lock, display)
            return finish(sweep_run, interrupted, display)
        except KeyboardInterrupt:
            sweep_run.folder.fail("interrupted")
            display.say("interrupted")
            return INTERRUPTED
        except (BenchmarkError, OSError) as error:
            reason = f"{sweep_run.folder.path}: {why(error)}." if isinstance(error, OSError) else str(error)
            with contextlib.suppress(OSError):
                sweep_run.folder.fail("failed", reason)
            raise BenchmarkError(f"{reason} --resume goes on from here.") from None


def rounds(chosen: list[Experiment], choice: Choice, sweep_run: SweepRun, lock: int, display: Display) -> bool:
    """Round after round of the experiments, then the finalists; whether they were interrupted."""
    places = lanes(choice.side_by_side)
    sweep_run.folder.set_status("running")
    sweep_run.say("")
    plan = Schedule(chosen, choice, lambda: sweep_run.records)
    crew = Crew(plan, choice, sweep_run.folder.path, sweep_run.put, lock, display)
    interrupted = crew.work(places)
    if not interrupted and choice.combine and (item := made_of_all(sweep_run)):
        plan.chosen = chosen = [*chosen, item]
        interrupted = crew.work(places)
    if not interrupted and choice.finalists:
        names = report.finalists(report.read(sweep_run.folder.path), choice.finalists)
        interrupted = crew.work(places, [item for item in chosen if item.name in names])
    if plan.out_of_time:
        rest = ", ".join(plan.left()) or "finalists"
        sweep_run.say(f"the time limit of {(choice.time_limit or 0) / 60:g} min left no time for {rest}")
    return interrupted


def made_of_all(sweep_run: SweepRun) -> Experiment | None:
    """The changes that helped together, kept with the sweep; the one that is kept already, if any."""
    state = report.read(sweep_run.folder.path)
    made = state.combined or combine.best(rows(state))
    if made and state.combined is None:
        sweep_run.keep("combined", asdict(made))
    return made


def finish(sweep_run: SweepRun, interrupted: bool, display: Display) -> int:
    """The report, in a file and on the screen; the exit code."""
    display.stage("writing the report")
    folder = sweep_run.folder
    if interrupted:
        folder.set_status("interrupted")
    made = report.build(folder.path)
    folder.set_status("interrupted" if interrupted else "complete")
    if not interrupted:
        results.point_latest(folder)
    display.say("")
    for sentence in report.findings(made):
        display.say(sentence)
    display.say(f"report: {folder.path / 'report.md'}")
    if interrupted:
        return INTERRUPTED
    base = made.result(BASELINE)
    if base and base.complete:
        return DONE
    why = next((record.reason for record in sweep_run.records if record.experiment == BASELINE), "")
    raise BenchmarkError(f"the baseline did not complete: {why or 'it was not run'}")


def new(sweep: Sweep, results_dir: Path) -> SweepRun:
    """A new sweep, with its folder."""
    folder = results.open_run(results_dir / "sweeps", sweep.name)
    facts = {"command": processes.command_line(), "started": results.now(), "system": system.facts()}
    kept = {"schema_version": SCHEMA} | facts | {"sweep": asdict(sweep), "records": []}
    files.write_json(folder.path / "sweep.json", kept)
    return SweepRun(folder)


def resume(sweep: Sweep, results_dir: Path) -> SweepRun:
    """The last sweep of this file with what it has finished. Raises UsageError where there is none like it."""
    folders = sorted((results_dir / "sweeps").glob(f"2*-{glob.escape(sweep.name)}*/sweep.json"))
    mine = [path.parent for path in folders if report.read(path.parent).sweep.name == sweep.name]
    if not mine:
        raise UsageError(f"nothing to resume: no sweep {sweep.name!r} in {results_dir / 'sweeps'}.")
    before = report.read(mine[-1])
    if before.sweep != sweep:
        raise UsageError(f"{mine[-1]} was made from another state of the file; run without --resume.")
    found = differences(Comparable.on(before.system), Comparable.on(system.detect()), IGNORED)
    if changed := " and ".join(each.name for each in found):
        raise UsageError(f"{mine[-1]} was made with other {changed}; run without --resume.")
    return SweepRun(results.RunFolder(results_dir / "sweeps", mine[-1].name), list(before.records))
