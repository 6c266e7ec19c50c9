"""A tuning sweep, each experiment one run.py. `python sweep.py --help` lists the flags."""

import sys
from math import inf
from pathlib import Path
from typing import Annotated, Literal

from harness.config.flags import MOST_S
from harness.core.command import argument, make_command, option
from harness.core.errors import DONE
from harness.runs import folder as results
from harness.sweep import file
from harness.sweep.experiment import lanes


def sweep(
    path: Annotated[Path, argument("FILE", "The sweep: sweeps/*.yaml, or your own.")],
    only: Annotated[list[str] | None, option("EXP", "Run just this experiment (repeatable).")] = None,
    first: Annotated[str | None, option("EXP", "Run this experiment and those after it.", flag="--from")] = None,
    list_names: Annotated[
        bool, option("", "Print the experiments, one per line, for cluster tasks.", flag="--list")
    ] = False,
    gather: Annotated[
        Path | None, option("DIR", "Make one report from tasks run with --results-dir DIR/EXP --only EXP.")
    ] = None,
    resume: Annotated[bool, option("", "Continue the last sweep of this file.")] = False,
    dry_run: Annotated[bool, option("", "Show what would run, and run nothing.")] = False,
    repeat: Annotated[int, option("N", "Run everything N times, round by round.", min=1, max=1000)] = 1,
    timeout: Annotated[float, option("SECONDS", "Longest time for one experiment.", min=1, max=MOST_S)] = 7200.0,
    gpus: Annotated[
        Literal["together", "side-by-side"],
        option(
            "together|side-by-side",
            "side-by-side: an experiment on each visible GPU at the same time, the CPU's cores divided.",
        ),
    ] = "together",
    time_limit: Annotated[
        float | None,
        option("MINUTES", "Stop after so many minutes; --resume continues later.", min=0.1, max=MOST_S / 60),
    ] = None,
    finalists: Annotated[int, option("N", "Run the N fastest once more at full length.", min=0, max=1000)] = 0,
    combine: Annotated[bool, option("", "Run, after all others, the changes that helped together.")] = False,
    results_dir: Annotated[Path, option("PATH", "Sweeps are written to PATH/sweeps/.")] = Path("results"),
    mlflow: Annotated[bool, option("", "Log to MLflow: MLFLOW_TRACKING_URI, or a file in the results.")] = False,
) -> int:
    """Run a list of experiments, each in its own process, and compare their speed and accuracy."""
    whole = file.load(path)
    chosen = file.pick(whole, only or (), first)
    if list_names:
        print("\n".join(item.name for item in chosen if item.name != file.BASELINE))
        return DONE
    from harness.sweep import loop

    if gather:
        print(loop.gather(whole, gather).path / "report.html")
        return DONE
    reasons = file.reasons_to_skip(whole, only or ())
    places = lanes(gpus == "side-by-side")  # too few GPUs are found before anything is made
    if dry_run:
        results.check_writable(results_dir)
        file.show(whole, chosen, reasons)
        return DONE
    from harness.commands import mlflow as send
    from harness.core import processes, screen

    processes.install_signal_handlers()
    limit = 60 * time_limit if time_limit else inf
    options = loop.SweepOptions(repeat, timeout, limit, finalists, combine, tuple(only or ()))
    begun = loop.resume if resume else loop.new
    state = loop.SweepState(*begun(whole, results_dir), chosen, options, reasons)
    with screen.Display(screen.lasting_console(sys.stdout.fileno())) as display:
        code = loop.run(state, places, display)
        if (state.folder.path / "report.md").exists():
            send.after(state.folder.path, mlflow, results_dir, display.done)
        return code


command = make_command(sweep)
