"""The command: a tuning sweep, each experiment one run.py. `python sweep.py --help` lists the flags."""

import contextlib
import fcntl
import glob
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness import results, sweep_file
from harness.cli import in_utf8
from harness.errors import DONE, ENGINE_FAILED, INTERRUPTED, BenchmarkError, UsageError
from harness.facts import SCHEMA
from harness.sweep_file import BASELINE, Experiment, Sweep

if TYPE_CHECKING:
    from harness.experiment import Record
    from harness.progress import Display

ABOUT = "Run a list of experiments, each in a process of its own, and put speed and accuracy side by side."


@dataclass(frozen=True)
class Choice:
    """Which experiments of a sweep to run, and how."""

    only: tuple[str, ...] = ()
    start: str | None = None
    repeat: int = 1
    timeout: float = 7200.0


def command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep: sweeps/*.yaml, or your own.")],
    only: Annotated[list[str], typer.Option(metavar="EXP", help="Run just this experiment (repeatable).")] = [],  # noqa: B006
    start: Annotated[str | None, typer.Option("--from", metavar="EXP", help="Run this one and those after it.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last sweep of this file where it stopped.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    repeat: Annotated[int, typer.Option(min=1, help="Run everything N times, round by round.")] = 1,
    timeout: Annotated[float, typer.Option(min=1, help="Most seconds one experiment may take.")] = 7200.0,
    results_dir: Annotated[Path, typer.Option(help="Sweeps go to its folder sweeps/.")] = Path("results"),
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Log to MLflow: MLFLOW_TRACKING_URI, or a file in the results.")
    ] = False,
) -> None:
    try:
        choice = Choice(tuple(only), start, repeat, timeout)
        code = main(file, choice, resume=resume, dry_run=dry_run, results_dir=results_dir, mlflow=mlflow)
    except BenchmarkError as error:
        print("\n".join(f"error: {line}" for line in str(error).splitlines()), file=sys.stderr)
        code = error.exit_code
    raise SystemExit(code)


def main(file: Path, choice: Choice, *, resume: bool, dry_run: bool, results_dir: Path, mlflow: bool) -> int:
    from harness import processes
    from harness.progress import Display, lasting_console

    sweep = sweep_file.load(file)
    chosen = pick(sweep, choice)
    reasons = unsupported(sweep)
    if dry_run:
        show(sweep, chosen, reasons)
        return DONE
    processes.install_signal_handlers()
    place, records = reopened(sweep, results_dir) if resume else opened(sweep, results_dir)
    with Display(lasting_console(sys.stdout.fileno())) as display:
        display.say(f"{sweep.name}: {len(chosen)} configurations, {choice.repeat} round(s) -> {place.path}")
        with locked(place.path) as lock:
            try:
                return run(chosen, reasons, choice, place, records, lock, display, mlflow)
            except KeyboardInterrupt:
                place.give_up("interrupted")
                display.say("interrupted")
                return INTERRUPTED
            except (BenchmarkError, OSError) as error:
                reason = f"{place.path}: {error.strerror}." if isinstance(error, OSError) else str(error)
                with contextlib.suppress(OSError):
                    place.give_up("failed", reason)
                raise BenchmarkError(f"{reason} --resume goes on from here.") from None


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[int]:
    """Holds the sweep's lock, and yields its file descriptor. Raises UsageError where somebody has it."""
    with (folder / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UsageError(f"{folder}: this sweep, or a run it left behind, is still going on.") from None
        yield file.fileno()


def pick(sweep: Sweep, choice: Choice) -> list[Experiment]:
    """The experiments asked for, in the file's order; the baseline always, since all is held against it."""
    names = [item.name for item in sweep.experiments]
    if choice.only and choice.start:
        raise UsageError("--only and --from exclude each other: give one of them.")
    for flag, name in [("--only", name) for name in choice.only] + [("--from", choice.start)]:
        if name is not None and name not in names:
            raise UsageError(f"{flag} {name}: no such experiment; there are {', '.join(names)}.")
    first = names.index(choice.start) if choice.start else 0
    wanted = choice.only or names[first:]
    return [item for item in sweep.experiments if item.name in wanted or item.name == BASELINE]


def unsupported(sweep: Sweep) -> dict[str, str]:
    """Why experiments cannot run on the vLLM that is installed: name -> reason. Raises UsageError for the baseline."""
    from harness.engines import vllm

    reasons = {item.name: why for item in sweep.experiments if (why := vllm.unknown(item.engine, item.env))}
    if BASELINE in reasons:
        raise UsageError(f"the baseline cannot run: {reasons[BASELINE]}.")
    return reasons


def show(sweep: Sweep, chosen: list[Experiment], reasons: dict[str, str]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=escape(f"{sweep.name}: {sweep.about}" if sweep.about else sweep.name), title_style="bold")
    for column in ("experiment", "kind", "changes", "description"):
        table.add_column(column, overflow="fold")
    for item in chosen:
        changes = "\n".join(item.changes) or "(see the file)"
        if item.name in reasons:
            changes += f"\nskipped: {reasons[item.name]}"
        table.add_row(item.name, item.kind, escape(changes), escape(item.about))
    Console(highlight=False).print(table)


def opened(sweep: Sweep, results_dir: Path) -> tuple[results.RunFolder, list["Record"]]:
    from harness import processes, system

    place = results.open_run(results_dir / "sweeps", sweep.name)
    facts = {"command": processes.command_line(), "started": results.now(), "system": system.facts()}
    kept = {"schema_version": SCHEMA} | facts | {"sweep": asdict(sweep), "records": []}
    results.write_json(place.path / "sweep.json", kept)
    return place, []


def reopened(sweep: Sweep, results_dir: Path) -> tuple[results.RunFolder, list["Record"]]:
    """The last sweep of this file with what it has finished. Raises UsageError where there is none like it."""
    from harness import sweep_report, system

    folders = sorted((results_dir / "sweeps").glob(f"2*-{glob.escape(sweep.name)}*/sweep.json"))
    mine = [path for path in folders if sweep_report.read(path.parent).sweep.name == sweep.name]
    if not mine:
        raise UsageError(f"nothing to resume: no sweep {sweep.name!r} in {results_dir / 'sweeps'}.")
    before = sweep_report.read(mine[-1].parent)
    if before.sweep != sweep:
        raise UsageError(f"{mine[-1].parent} was made from another state of the file; run without --resume.")
    now = system.facts()
    same = ("gpus", "cpu", "cores", "python", "packages", "variables")
    if changed := [key for key in same if now[key] != getattr(before.system, key)]:
        raise UsageError(f"{mine[-1].parent} was made with other {' and '.join(changed)}; run without --resume.")
    return results.RunFolder(results_dir / "sweeps", mine[-1].parent.name), list(before.records)


def run(
    chosen: list[Experiment],
    reasons: dict[str, str],
    choice: Choice,
    place: results.RunFolder,
    records: list["Record"],
    lock: int,
    display: "Display",
    mlflow: bool,
) -> int:
    """Runs round after round what is not finished yet; the report is written however it ends."""
    from harness import experiment, sweep_report, system, tracking

    def watch(said: str) -> None:
        display.tick(note=said)

    place.set_status("running")
    interrupted = False
    for turn in range(choice.repeat):
        for item in chosen:
            before = next((r for r in records if (r.experiment, r.round) == (item.name, turn)), None)
            again = item.name in choice.only and before and before.status != "complete"
            if interrupted or (before and before.status in experiment.ENDED and not again):
                continue
            records[:] = [record for record in records if record is not before]
            display.stage(item.name + (f" ({turn + 1} of {choice.repeat})" if choice.repeat > 1 else ""))
            if why := reasons.get(item.name):
                records.append(experiment.Record(item.name, turn, "skipped", why))
            else:
                results.check_space(place.path)
                taken = system.gpu_memory_used()
                records.append(experiment.run(item, turn, place.path, choice.timeout, lock, watch))
                keep(place, records)  # an interruption while memory is waited for must not cost it
                records[-1] = experiment.settled(records[-1], taken)
            keep(place, records)
            display.done(f"{item.name}: {sweep_report.line(records[-1])}")
            interrupted = records[-1].status == "interrupted"
    display.stage("writing the report")
    report = sweep_report.build(place.path)
    place.set_status("interrupted" if interrupted else "complete")
    if not interrupted:
        results.point_latest(place)
    tracking.after(place.path, mlflow, place.results_dir.parent, display.done)
    display.say("")
    for sentence in sweep_report.findings(report):
        display.say(sentence)
    display.say(f"report: {place.path / 'report.md'}")
    if interrupted:
        return INTERRUPTED
    base = report.row(BASELINE)
    return DONE if base and base.complete else ENGINE_FAILED


def keep(place: results.RunFolder, records: list["Record"]) -> None:
    path = place.path / "sweep.json"
    results.write_json(path, results.read_json(path) | {"records": [asdict(record) for record in records]})


if __name__ == "__main__":
    in_utf8()
    app = typer.Typer(add_completion=False)
    app.command(help=ABOUT)(command)
    app()
