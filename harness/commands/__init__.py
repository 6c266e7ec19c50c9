"""What a person types: a run, a report, a sweep, an MMLU evaluation, a log as JSON. May import all of these."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SubCommand:
    """A sub-command: the module whose `command` it is."""

    module: str
    about: str


COMMANDS = {
    "run": SubCommand("harness.commands.run", "one run of the benchmark: accuracy, performance, report"),
    "report": SubCommand("harness.commands.report", "a run rendered again; runs side by side; a gate for regressions"),
    "plan": SubCommand("harness.commands.plan", "machines for a day's traffic, from the measured curve of one"),
    "logs": SubCommand("harness.commands.logs", "what a LoadGen log says, as JSON"),
    "sweep": SubCommand("harness.commands.sweep", "a list of settings, run and compared"),
    "mmlu": SubCommand("harness.commands.mmlu", "an MMLU evaluation on the same engine"),
    "submission": SubCommand("harness.commands.submission", "finished runs as an MLPerf submission, and its check"),
    "endpoints": SubCommand("harness.commands.endpoints", "MLPerf Endpoints: the official client, submission, check"),
    "quantize": SubCommand("harness.commands.quantize", "an fp8 checkpoint with calibrated scales"),
    "accuracy": SubCommand("harness.commands.accuracy", "the scores of another program's accuracy log"),
    "workloads": SubCommand("harness.commands.workloads", "the token statistics of workloads"),
    "mlflow": SubCommand("harness.commands.mlflow", "a finished run, evaluation or sweep to MLflow"),
}
