"""One run of the benchmark, from flags to report. `python run.py --help` lists the flags."""

from typing import NoReturn

from harness.config.config_command import config_command
from harness.config.run import RunConfig
from harness.config.workload import WORKLOADS
from harness.core.errors import ENGINE_FAILED

DESCRIPTION = "Benchmark Llama-3.1-8B with MLPerf's LoadGen: accuracy, then performance."
EXAMPLES = (
    "python run.py --model demo",
    "python run.py --scenario server --server-target-qps max",
    "python run.py --endpoint http://localhost:8000/v1 --concurrency 1,4,16,64",
    "python run.py --quantization fp8 --total-sample-count 1000 --min-duration 60",
    "python run.py --scenario singlestream --dry-run",
)


def benchmark_run(config: RunConfig) -> NoReturn:
    """Run the benchmark in its own folder, and end the process with the exit code.

    With --dry-run, only show what would run. With --json, summary.json goes to standard output, and all else to
    standard error. If a run fails after a test, a report of its finished tests is written.
    """
    # These imports are slow, and `-h` should not wait for them.
    from harness.core import processes, progress
    from harness.engines.discovery import config_of_served_model
    from harness.runner.tracking import check_installed
    from harness.runs import ending, run_folder

    check_installed(config.mlflow)
    if config.dry_run:
        from harness.runner import steps

        raise SystemExit(steps.dry_run(config, print))
    processes.install_signal_handlers()
    run = run_folder.open_run(config.results_dir, f"{config.category}-{config.scenario}")
    log = run.path / "engine.log"
    with progress.screen(log) as (console, errors):
        try:
            with progress.Display(errors if config.json else console) as display:
                config = config_of_served_model(config, display.say)  # first, since the server may be missing
                display.say(config.headline)
                display.say(f"results: {run.path}")
                from harness.runner import steps

                code = steps.run_benchmark(config, run, display)
            if config.json:
                console.file.write((run.path / "summary.json").read_text())
                console.file.flush()
                if getattr(console.file, "is_full", False):  # all other output is in the run folder, too
                    errors.print("error: standard output: No space left on device.", markup=False)
                    code = code or ENGINE_FAILED
        except (Exception, KeyboardInterrupt) as error:
            code = ending.fail(error, run, errors)
            if not config.quick and any(run.path.rglob("mlperf_log_detail.txt")):
                steps.report_partial(run, errors if config.json else console)
        ending.exit(code, log)


WORKLOAD_SUMMARIES = {name: workload.summary for name, workload in WORKLOADS.items()}
command = config_command(
    RunConfig, benchmark_run, DESCRIPTION, EXAMPLES, lists={"Workloads, by mean lengths": WORKLOAD_SUMMARIES}
)
