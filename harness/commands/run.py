"""One run of the benchmark, from flags to report. `python run.py --help` lists the flags."""

from dataclasses import replace
from typing import NoReturn

from harness.common.coerce import did_you_mean
from harness.common.errors import ENGINE_FAILED, UsageError
from harness.config.cli import config_command
from harness.config.models import DEFAULT_MODEL, MODELS
from harness.config.run import RunConfig

DESCRIPTION = "Benchmark Llama-3.1-8B with MLPerf's LoadGen: accuracy, then performance."
EXAMPLES = (
    "python run.py --model demo",
    "python run.py --scenario server --server-target-qps max",
    "python run.py --endpoint http://localhost:8000/v1 --concurrency 1,4,16,64",
    "python run.py --quantization fp8 --total-sample-count 1000 --min-duration 60",
    "python run.py --scenario singlestream --dry-run",
)


def benchmark_run(config: RunConfig) -> NoReturn:
    """Runs the benchmark in its own folder; ends the process with the exit code."""
    from harness.common import processes, secrets
    from harness.runs import ending
    from harness.runs import folder as results
    from harness.terminal import progress

    if config.dry_run:
        from harness.benchmark import steps

        raise SystemExit(steps.dry_run(with_served_model(config), print))
    processes.install_signal_handlers()
    run = results.open_run(config.results_dir, f"{config.category}-{config.scenario}")
    log = run.path / "engine.log"
    with progress.screen(log) as (console, errors):
        try:
            with progress.Display(errors if config.json else console) as display:
                config = with_served_model(config)  # a server that is not there is found first
                display.say(config.headline)
                display.say(f"results: {run.path}")
                from harness.benchmark import steps
                from harness.tracking import launch

                code = steps.run_benchmark(config, run, display)
                launch.after(run.path, config.mlflow, config.results_dir, display.done)
            if config.json:
                console.file.write((run.path / "summary.json").read_text())
                console.file.flush()
            if getattr(console.file, "is_full", False):  # what the run said is lost; its results are not
                errors.print("error: standard output: No space left on device.", markup=False)
                code = code or ENGINE_FAILED
        except (Exception, KeyboardInterrupt) as error:
            code = ending.fail(error, run, errors)
        ending.exit(code, log, secrets.values(config.engine_args))


def with_served_model(config: RunConfig) -> RunConfig:
    """The configuration with the model that the endpoints serve, where --model names none. Raises UsageError.

    Where the server goes by an alias, the default has to do: its tokenizer is what counts.
    """
    if not config.endpoint:
        return config
    from harness.config import checkpoint
    from harness.engines import discovery

    names = discovery.list_models(config)
    if {config.model, config.model_path} & set(names):
        return config
    if len(names) > 1:
        suggestion = did_you_mean(config.model, names)
        raise UsageError(f"--model {config.model}: the server has {', '.join(names)}{suggestion}.")
    if config.model != DEFAULT_MODEL or not names:
        return config
    is_name = "/" in names[0] or names[0] in MODELS
    served = replace(config, model=names[0]) if is_name else config
    try:
        checkpoint.load_tokenizer(served)
    except UsageError:
        raise UsageError(
            f"the server serves {names[0]}, and its tokenizer is not here: name a folder or a hub name that has it "
            "with --model."
        ) from None
    return served


command = config_command(RunConfig, benchmark_run, DESCRIPTION, EXAMPLES)
