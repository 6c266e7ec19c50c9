"""The command: MMLU on the same engine, from flags to report. `python mmlu.py --help` lists the flags."""

from typing import NoReturn

from harness.cli import run_command
from harness.mmlu.config import MMLUConfig


def main(config: MMLUConfig) -> NoReturn:
    """Runs the evaluation in a folder of its own; ends the process with the exit code."""
    from harness import processes, progress, results, secrets
    from harness.mmlu import evaluation

    processes.install_signal_handlers()
    before = evaluation.earlier(config)
    run = results.open_run(config.runs, label="")
    log = run.path / "engine.log"
    with progress.screen(log) as (console, errors):
        try:
            with progress.Display(console) as display:
                code = evaluation.evaluate(config, run, before, display)
        except (Exception, KeyboardInterrupt) as error:
            code = processes.fail(error, run, errors)
        processes.exit(code, log, secrets.values(config.engine_args))


if __name__ == "__main__":
    run_command(
        MMLUConfig, main, "Evaluate a model on MMLU with vLLM: 57 subjects, answers by the likelihood of A to D."
    )
