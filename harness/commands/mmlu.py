"""MMLU on the same engine, from flags to report. `python mmlu.py --help` lists the flags."""

from typing import NoReturn

from harness.config.config_command import config_command
from harness.mmlu.mmlu_config import MMLUConfig

DESCRIPTION = "Evaluate a model on MMLU: 57 subjects, answers by the likelihood of A to D."


def evaluation_run(config: MMLUConfig) -> NoReturn:
    """Run the MMLU evaluation in a new folder, and end the process with the exit code.

    If the evaluation fails or is interrupted, the reason is printed and stored in the folder's status.
    """
    # These imports are slow, and `-h` should not wait for them.
    from harness.core import processes, progress
    from harness.engines.discovery import config_of_served_model
    from harness.mmlu import evaluation
    from harness.runner.tracking import check_installed
    from harness.runs import ending, run_folder

    check_installed(config.mlflow)
    processes.install_signal_handlers()  # SIGTERM then ends this command as Ctrl-C does, with all its processes.
    run = run_folder.open_run(config.runs, label="")
    log = run.path / "engine.log"
    with progress.screen(log) as (console, errors):
        try:
            with progress.Display(console) as display:
                # If the user named no model, the model is the one that the server has.
                served_model = config_of_served_model(config.engine_run, display.say).model
                config = config.with_settings(model=served_model)
                code = evaluation.evaluate(config, run, display)
        except (Exception, KeyboardInterrupt) as error:
            code = ending.fail(error, run, errors)
        # `exit` masks secrets that the engine wrote to its log, and ends the process, and so this block.
        ending.exit(code, log)


command = config_command(MMLUConfig, evaluation_run, DESCRIPTION)
