"""One application, a sub-command each: `python -m harness`, or `llama31-mlperf` where it is installed."""

import harness.common.environment  # noqa: F401

# isort: split
import sys
from dataclasses import dataclass
from importlib import import_module

from harness.common.coerce import near
from harness.common.errors import BAD_INPUT, DONE
from harness.common.system import NAME, program


@dataclass(frozen=True)
class SubCommand:
    """A sub-command: the module whose `main` reads the rest of the command line."""

    module: str
    about: str


COMMANDS = {
    "run": SubCommand("harness.commands.run", "one run of the benchmark: accuracy, performance, report"),
    "report": SubCommand("harness.commands.report", "a run rendered again; runs side by side; a gate for regressions"),
    "plan": SubCommand("harness.commands.plan", "machines for a day's traffic, from the measured curve of one"),
    "crosscheck": SubCommand("harness.commands.crosscheck", "the same server under the same load by several tools"),
    "logs": SubCommand("harness.commands.logs", "what a LoadGen log says, as JSON"),
    "sweep": SubCommand("harness.commands.sweep", "a list of settings, run and compared"),
    "mmlu": SubCommand("harness.commands.mmlu", "an MMLU evaluation on the same engine"),
    "submission": SubCommand("harness.submission.__main__", "finished runs as an MLPerf submission, and its check"),
    "endpoints": SubCommand("harness.commands.endpoints", "MLPerf Endpoints: the official client, submission, check"),
    "quantize": SubCommand("harness.quantization.quantize", "an fp8 checkpoint with calibrated scales"),
    "accuracy": SubCommand("harness.evaluation.accuracy", "the scores of another program's accuracy log"),
    "workloads": SubCommand("harness.workloads.custom", "the token statistics of workloads"),
    "completion": SubCommand("harness.commands.completion", "a shell's completion of all this: bash, zsh, fish"),
    "mlflow": SubCommand("harness.tracking.send", "a finished run, evaluation or sweep to MLflow"),
}


def main() -> int | None:
    """Runs the sub-command that is named; its own flags follow. Returns the exit code."""
    words = sys.argv[1:]
    if words == ["--version"]:
        print(program())
        return DONE
    if words[:1] in ([], ["-h"], ["--help"]):
        print(usage())
        return DONE if words else BAD_INPUT
    if words[0] not in COMMANDS:
        print(f"error: no command {words[0]!r:.60}{near(words[0], list(COMMANDS))}\n\n{usage()}", file=sys.stderr)
        return BAD_INPUT
    sys.argv = [f"{NAME} {words[0]}", *words[1:]]
    code: int | None = import_module(COMMANDS[words[0]].module).main()
    return code


def usage() -> str:
    """What there is, a line each."""
    wide = max(map(len, COMMANDS))
    lines = [f"  {name:{wide}}  {command.about}" for name, command in COMMANDS.items()]
    return "\n".join([f"usage: {NAME} COMMAND [-h] ...   or --version", "", *lines])


if __name__ == "__main__":
    sys.exit(main())
