"""One run of the benchmark, from flags to report. `python run.py --help` lists the flags."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, NoReturn

from harness.config.config_command import config_command
from harness.config.run import RunConfig, label_problems
from harness.config.workload import WORKLOADS, check_workload
from harness.core.errors import DONE, ENGINE_FAILED, UsageError
from harness.core.given_values import flag_name

if TYPE_CHECKING:
    from rich.console import Console

    from harness.runner.steps import PreparedRun
    from harness.runs.run_folder import RunFolder

DESCRIPTION = "Benchmark Llama-3.1-8B with MLPerf's LoadGen: accuracy, then performance."
EXAMPLES = (
    "python run.py --model demo",
    "python run.py --scenario server --server-target-qps max",
    "python run.py --endpoint http://localhost:8000/v1 --concurrency 1,4,16,64",
    "python run.py --scenario offline,server",
    "python run.py --total-sample-count 1000 --min-duration 60",
    "python run.py --scenario singlestream --dry-run",
)


def benchmark_command(config: RunConfig) -> NoReturn:
    """Run the benchmark for each scenario in its own folder, and end the process with the exit code.

    The runs share one engine. With --dry-run, only shows what would run.
    """
    # These imports are slow, and `-h` should not wait for them.
    from harness.core import processes, progress
    from harness.runner.tracking import check_installed
    from harness.runs import ending, run_folder

    for problem in label_problems(config):
        raise UsageError(problem)
    runs = config.runs
    check_installed(config.mlflow)
    check_workload(config.workload)
    if config.dry_run:
        from harness.runner import steps

        exit_codes = [steps.dry_run(run, print) for run in runs]
        raise SystemExit(max(exit_codes))  # DONE, which is 0, only if it is the code of every run
    processes.install_signal_handlers()  # SIGTERM then ends this command as Ctrl-C does, with all its processes.
    folder = run_folder.open_run(config.results_dir, f"{runs[0].category}-{runs[0].scenario}")
    log = folder.path / "engine.log"  # The first run starts the engine, so its folder has the log of all runs.
    with progress.screen(log) as consoles:
        code = run_scenarios(config, runs, folder, consoles)
        # `exit` masks secrets that the engine wrote to its log, and ends the process, and so this block.
        ending.exit(code, log)


def run_scenarios(
    config: RunConfig, runs: Sequence[RunConfig], folder: "RunFolder", consoles: "tuple[Console, Console]"
) -> int:
    """Run the benchmark for each scenario until a run ends with another exit code than 0, and return the last code.

    `config` has the settings of the whole command. `folder` is that of the first run. `consoles` write to standard
    output and standard error.
    """
    from harness.core import processes
    from harness.runs import run_folder

    code = DONE
    handlers = processes.signal_handlers()
    arguments = sys.argv[1:]
    earlier = None  # the run before, whose engine the next run takes over
    for run in runs:
        if run is not runs[0]:  # The first run has its folder already.
            processes.set_signal_handlers(handlers)  # The run before ignored signals while it wrote its report.
            folder = run_folder.open_run(config.results_dir, f"{run.category}-{run.scenario}")
        if len(runs) > 1:  # A run records sys.argv as its command, which shall repeat this run alone.
            sys.argv[1:] = words_of_run(arguments, config, run)
        code, earlier = run_in_folder(run, folder, consoles, earlier, is_last=run is runs[-1])
        if code != DONE:
            left_out = ", ".join(following.scenario for following in runs[runs.index(run) + 1 :])
            if left_out:
                _console, errors = consoles
                errors.print(f"not run: {left_out}, because {run.scenario} ended with exit code {code}")
            return code
    return code


def run_in_folder(
    config: RunConfig,
    folder: "RunFolder",
    consoles: "tuple[Console, Console]",
    earlier: "PreparedRun | None",
    is_last: bool,
) -> "tuple[int, PreparedRun | None]":
    """Run the benchmark once in its folder. Return the exit code, and the run, whose engine later runs may use.

    After an error, the run is None. `earlier` is the run before, whose engine this run may use. `consoles` write to
    standard output and standard error.
    """
    from harness.core import progress
    from harness.engines.discovery import config_of_served_model
    from harness.runs import ending

    console, errors = consoles
    shown_on = errors if config.json else console
    try:
        with progress.Display(shown_on) as display:
            config = config_of_served_model(config, display.say)  # first of all, since the server may be missing
            display.say(config.headline)
            display.say(f"results: {folder.path}")
            from harness.runner import steps  # This import is slow, so the lines above are shown before it.

            code, run = steps.run_benchmark(config, folder, display, earlier, is_last)
        if config.json:
            is_printed = print_summary(folder, consoles)
            if code == DONE and not is_printed:
                code = ENGINE_FAILED  # the exit code of any error of the system
        return code, run
    except (Exception, KeyboardInterrupt) as error:
        code = ending.fail(error, folder, errors)
        has_tests = any(folder.path.rglob("mlperf_log_detail.txt"))
        if has_tests and not config.quick:  # An estimate (--quick) has no report of tests.
            steps.report_partial(folder, shown_on)
        return code, None


def print_summary(folder: "RunFolder", consoles: "tuple[Console, Console]") -> bool:
    """Print a run's summary.json on standard output, and tell whether it could be written.

    If the disk behind standard output is full, an error is printed on standard error.
    """
    console, errors = consoles
    console.file.write((folder.path / "summary.json").read_text())
    console.file.flush()
    if getattr(console.file, "is_full", False):
        errors.print("error: standard output: No space left on device.", markup=False)
        return False
    return True


def words_of_run(words: Sequence[str], config: RunConfig, run: RunConfig) -> list[str]:
    """Return the words of a command line that repeat only `run`, one of the runs of `words`.

    `config` has the settings of all runs. Flags that only the other runs use are left out.
    """
    settings_of_others = config.named_settings - run.named_settings
    left_out = {"--scenario", *map(flag_name, settings_of_others)}
    # A switch is a flag without a value.
    switches = {flag_name(name) for name, info in RunConfig.model_fields.items() if info.annotation is bool}
    words_left, following = list[str](), iter(words)
    for word in following:
        name, equals, _value = word.partition("=")
        if name not in left_out:
            words_left.append(word)
        elif not equals and name not in switches:
            next(following, None)  # The next word is the flag's value.
    return [*words_left, "--scenario", run.scenario]


WORKLOAD_SUMMARIES = {name: workload.summary for name, workload in WORKLOADS.items()}
command = config_command(
    RunConfig,
    benchmark_command,
    DESCRIPTION,
    EXAMPLES,
    not_accepted="gate failed or result INVALID",
    lists={"Workloads (mean lengths)": WORKLOAD_SUMMARIES},
)
