"""A tuning sweep, each experiment one run.py. `python sweep.py --help` lists the flags."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from harness.common.errors import DONE
from harness.config.flags import MAXIMA
from harness.runs import folder as results
from harness.sweep import choice, file
from harness.sweep.lanes import lanes
from harness.terminal.command import make_command


def sweep(
    path: Annotated[Path, typer.Argument(metavar="FILE", help="The sweep: sweeps/*.yaml, or your own.")],
    only: Annotated[
        list[str] | None, typer.Option(metavar="EXP", help="Run just this experiment (repeatable).")
    ] = None,
    first: Annotated[str | None, typer.Option("--from", metavar="EXP", help="Run this one and those after it.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last sweep of this file where it stopped.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would run, and run nothing.")] = False,
    repeat: Annotated[
        int, typer.Option(min=1, max=1000, metavar="N", help="Run everything N times, round by round.")
    ] = 1,
    timeout: Annotated[
        float,
        typer.Option(
            min=1, max=MAXIMA["min_duration"], metavar="SECONDS", help="Most seconds one experiment may take."
        ),
    ] = 7200.0,
    gpus: Annotated[
        Literal["together", "side-by-side"],
        typer.Option(
            metavar="together|side-by-side",
            help="side-by-side: an experiment on each visible GPU at the same time, the CPU's cores divided.",
        ),
    ] = "together",
    time_limit: Annotated[
        float | None,
        typer.Option(
            min=0.1,
            max=MAXIMA["min_duration"] / 60,
            metavar="MINUTES",
            help="Begin, and run, nothing beyond it; --resume goes on later.",
        ),
    ] = None,
    finalists: Annotated[
        int, typer.Option(min=0, max=1000, metavar="N", help="Run the N fastest once more at full length.")
    ] = 0,
    combine: Annotated[
        bool, typer.Option("--combine", help="Run, after all others, the changes that helped together.")
    ] = False,
    results_dir: Annotated[Path, typer.Option(metavar="PATH", help="Sweeps go to its folder sweeps/.")] = Path(
        "results"
    ),
    mlflow: Annotated[
        bool, typer.Option("--mlflow", help="Log to MLflow: MLFLOW_TRACKING_URI, or a file in the results.")
    ] = False,
) -> int:
    """Run a list of experiments, each in a process of its own, and put speed and accuracy side by side."""
    whole = file.load(path)
    chosen, reasons = choice.pick(whole, only or (), first), choice.skipped(whole, only or ())
    places = lanes(gpus == "side-by-side")  # too few GPUs are found before anything is made
    if dry_run:
        results.check_writable(results_dir)
        choice.show(whole, chosen, reasons)
        return DONE
    from harness.common import processes
    from harness.sweep import loop
    from harness.sweep.state import SweepOptions, SweepState
    from harness.terminal import progress
    from harness.tracking import launch

    processes.install_signal_handlers()
    limit = None if time_limit is None else 60 * time_limit
    options = SweepOptions(repeat, timeout, limit, finalists, combine, tuple(only or ()))
    begun = loop.resume if resume else loop.new
    state = SweepState(*begun(whole, results_dir), chosen, options, reasons)
    with progress.Display(progress.lasting_console(sys.stdout.fileno())) as display:
        code = loop.run(state, places, display)
        if (state.folder.path / "report.md").exists():
            launch.after(state.folder.path, mlflow, results_dir, display.done)
        return code


command = make_command(sweep)
