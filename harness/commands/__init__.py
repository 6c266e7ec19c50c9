"""What a person types: a run, a report, a sweep, an MMLU evaluation, a log as JSON. May import all of these."""

COMMANDS = {  # the module of each, whose `command` it is, has its name
    "doctor": "what a run needs, and what of it is not there",
    "run": "one run of the benchmark: accuracy, performance, report",
    "report": "a run rendered again; runs side by side; a gate for regressions",
    "compare": "servers under the same requests, or finished runs",
    "plan": "machines for a day's traffic, from the measured curve of one",
    "logs": "what a LoadGen log says, as JSON",
    "sweep": "a list of settings, run and compared",
    "mmlu": "an MMLU evaluation on the same engine",
    "submission": "finished runs as an MLPerf submission, and its check",
    "endpoints": "MLPerf Endpoints: the official client, submission, check",
    "quantize": "an fp8 checkpoint with calibrated scales",
    "accuracy": "the scores of another program's accuracy log",
    "workloads": "the token statistics of workloads",
    "mlflow": "a finished run, evaluation or sweep to MLflow",
}
