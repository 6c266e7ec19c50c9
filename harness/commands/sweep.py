"""A tuning sweep, each experiment one run.py. `python sweep.py --help` lists the flags."""

from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Literal

from harness.config.setting_types import LONGEST_SETTING_S
from harness.core.command import argument, make_command, option, take_several
from harness.core.errors import DONE, UsageError
from harness.core.message_text import say
from harness.core.shipped_files import shipped_names
from harness.runner import tracking
from harness.runs import run_folder
from harness.sweep import choice, file, gathering, lanes, sweep_state

FILE_HELP = f"The sweep: your file, or one of {', '.join(shipped_names('sweeps'))}."


def sweep(
    path: Path | None = argument(None, FILE_HELP, "[FILE]"),
    only: list[str] = option((), "Run just this experiment (repeatable).", "EXP"),
    first: str | None = option(None, "Run this experiment and those after it.", "EXP", flag="--from"),
    list_names: bool = option(False, "Print the experiments, one per line, for cluster tasks.", flag="--list"),
    gather: Path | None = option(None, "Make one report from tasks run with --results-dir DIR/EXP --only EXP.", "DIR"),
    resume: bool = option(False, "Continue the last sweep of this file."),
    dry_run: bool = option(False, "Show what would run, and run nothing."),
    repeat: int = option(1, "Run everything N times, round by round.", "N", min=1, max=1000),
    alternate: bool = option(False, "Run every second round in reverse order, so that a steady drift cancels out."),
    within: float | None = option(
        None,
        "Stop early, with fewer than --repeat rounds, once every change's interval is narrower than PERCENT.",
        "PERCENT",
        min=0.1,
        max=100,
    ),
    timeout: float = option(7200.0, "Maximum time of one experiment.", "SECONDS", min=1, max=LONGEST_SETTING_S),
    gpus: Literal["together", "side-by-side"] = option(
        "together",
        "together: an experiment may use all GPUs; side-by-side: one experiment on each visible GPU at the same time, "
        "with an equal share of the CPU's cores.",
        "together|side-by-side",
    ),
    time_limit: float | None = option(
        None, "Stop after so many minutes; --resume continues later.", "MINUTES", min=0.1, max=LONGEST_SETTING_S / 60
    ),
    finalists: int = option(
        0, "Run the N fastest again with all samples and MLPerf's full duration.", "N", min=0, max=1000
    ),
    bisect: list[str] = option(
        (),
        "Find which difference between GOOD and BAD (runs, labels or config files) makes BAD meet --fail-if: see "
        "docs/bisect.md.",
        "GOOD BAD",
    ),
    fail_if: list[str] = option(
        (),
        "With --bisect: condition that BAD meets and GOOD does not (repeatable), as in report.py: "
        "'output_tokens_per_s<-3%'.",
        "CONDITION",
    ),
    python: list[str] = option(
        (),
        "With --bisect: Python of BAD's environment; given twice, of GOOD's and of BAD's; with GOOD alone, once for "
        "each version, the oldest first.",
        "PATH",
    ),
    results_dir: Path = option(Path("results"), "Sweeps are written to PATH/sweeps/.", "PATH"),
    mlflow: bool = option(False, "Log to MLflow: MLFLOW_TRACKING_URI, or a file in the results."),
) -> int:
    """Run a list of experiments, each in its own process, and compare their speed and accuracy."""
    limit_s = 60 * (time_limit or inf)  # Without --time-limit, a sweep may take any time.
    if bisect:
        refused_flags = {
            "FILE": path,
            "--only": only,
            "--from": first,
            "--list": list_names,
            "--gather": gather,
            "--within": within,
            "--finalists": finalists,
            "--alternate": alternate,
            "--gpus": gpus != "together",
        }
        refuse_with_bisect(refused_flags)
        tracking.check_installed(mlflow)
        # `alternate`: GOOD and BAD run in the order A B B A, so that a drift of the machine falls on both.
        options = sweep_state.SweepOptions(
            repeat=repeat,
            timeout=timeout,
            limit=limit_s,
            alternate=True,
            mlflow=mlflow,
        )
        return run_bisection(bisect, python, fail_if, options, results_dir, resume, dry_run)
    if fail_if:
        raise UsageError("--fail-if needs --bisect GOOD BAD.")
    if python:
        raise UsageError("--python needs --bisect GOOD BAD.")
    if path is None:
        raise UsageError("give a FILE, or --bisect GOOD BAD; -h lists the flags.")
    whole_sweep = file.load_sweep(path)
    chosen = choice.chosen_experiments(whole_sweep, only, first)
    if list_names:  # Each task of a cluster runs the baseline as well, so it is no task of its own.
        say("\n".join(experiment.name for experiment in chosen if experiment.name != file.BASELINE))
        return DONE
    if gather:
        say(gathering.gather(whole_sweep, gather).path / "report.html")
        return DONE
    tracking.check_installed(mlflow)
    options = sweep_state.SweepOptions(
        repeat=repeat,
        timeout=timeout,
        limit=limit_s,
        finalists=finalists,
        again=only,  # Experiments that are named are tried again if they failed.
        alternate=alternate,
        mlflow=mlflow,
    )
    narrow_enough = within or 0.0  # No interval is narrower than 0 %, so without --within all rounds are run.
    is_side_by_side = gpus == "side-by-side"
    return run_experiments(whole_sweep, chosen, options, narrow_enough, is_side_by_side, results_dir, resume, dry_run)


def run_experiments(
    whole_sweep: file.Sweep,
    chosen: list[file.Experiment],
    options: sweep_state.SweepOptions,
    within: float,
    is_side_by_side: bool,
    results_dir: Path,
    resume: bool,
    dry_run: bool,
) -> int:
    """Run the chosen experiments of a sweep, and end the process with the exit code.

    With `dry_run`, only shows what would run. No more rounds are run once every interval is narrower than `within`
    percent. `is_side_by_side` runs an experiment on each GPU at the same time.
    """
    from harness.core import processes
    from harness.sweep import loop  # This import is slow, and the other uses of the command should not wait for it.

    reasons = choice.find_unsupported(whole_sweep)  # why an experiment is skipped, by its name
    # A lane is a place where one experiment runs at a time: a GPU, or the whole machine. The choice may fail, so it
    # comes before any folder is made.
    gpu_lanes = lanes.choose_lanes(is_side_by_side)
    if dry_run:
        run_folder.check_writable(results_dir)
        choice.show_plan(whole_sweep, chosen, reasons)
        return DONE
    processes.install_signal_handlers()  # SIGTERM then ends this command as Ctrl-C does, with all its processes.
    state = loop.begin_sweep(
        whole_sweep, results_dir, chosen, options, skipped=reasons, is_resumed=resume, within=within
    )
    loop.run_to_exit(state, gpu_lanes)  # ends the process


def refuse_with_bisect(flags: Mapping[str, object]) -> None:
    """Raise UsageError for the first of these flags that was given, by its name."""
    for name, value in flags.items():
        if value:
            raise UsageError(f"--bisect chooses the experiments and their rounds itself: remove {name}.")


def run_bisection(
    sides: list[str],
    pythons: list[str],
    fail_if: list[str],
    options: sweep_state.SweepOptions,
    results_dir: Path,
    resume: bool,
    dry_run: bool,
) -> int:
    """Find the difference between GOOD and BAD that makes BAD meet a condition of --fail-if, and end the process.

    `sides` are the words for GOOD and BAD, `pythons` the interpreters of their environments. With `dry_run`, only shows
    what would run. Raises UsageError if the two cannot be bisected.
    """
    if not fail_if:
        raise UsageError("--bisect needs --fail-if CONDITION, which tells BAD from GOOD: 'output_tokens_per_s<-3%'.")
    from harness.core import processes
    from harness.report import regression
    from harness.sweep import bisect, loop

    conditions = [regression.parse_condition(text) for text in fail_if]
    sweep, bisection = bisect.bisection_plan(sides, pythons, conditions, options.repeat, results_dir)
    experiments, reasons = [*sweep.experiments], choice.find_unsupported(sweep)
    say(bisect.announcement(bisection))
    if dry_run:
        run_folder.check_writable(results_dir)
        choice.show_plan(sweep, experiments, reasons)
        return DONE
    processes.install_signal_handlers()  # SIGTERM then ends this command as Ctrl-C does, with all its processes.
    state = loop.begin_sweep(
        sweep,
        results_dir,
        experiments,
        options._replace(repeat=bisection.first_rounds),
        skipped=reasons,
        is_resumed=resume,
        within=0.0,  # No width of an interval ends a bisection.
        fail_if=tuple(fail_if),
        bisection=bisection,
    )
    whole_machine = lanes.Lane()  # The runs of a bisection come one at a time, with the machine for themselves.
    loop.run_to_exit(state, [whole_machine])  # ends the process


command = make_command(
    sweep,
    is_read_only=False,
    rewrite=take_several("--bisect"),
    not_accepted="--bisect did not find the cause",
)
