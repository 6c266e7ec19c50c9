"""The commands that a person types: run, report, sweep, MMLU, logs as JSON, MLflow. May import all of these."""

COMMANDS = {  # the module of each, whose `command` it is, has its name
    "doctor": "Check what a run needs",
    "run": "Run the benchmark: accuracy, performance, report",
    "report": "Rebuild a run's report, compare runs, fail on regressions",
    "compare": "Compare servers or finished runs",
    "runs": "List runs, the fastest first, or delete some",
    "logs": "Print a LoadGen log as JSON",
    "sweep": "Run and compare a list of settings",
    "mmlu": "Evaluate MMLU",
    "submission": "Build and check an MLPerf submission",
    "accuracy": "Score another program's accuracy log",
    "mlflow": "Log a run to MLflow",
}
