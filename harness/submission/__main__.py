"""Finished runs -> an MLPerf submission: `python -m harness.submission {system,build,check} --help`."""

import argparse
import signal
import sys
from pathlib import Path
from typing import NoReturn

from harness.common.errors import (
    DONE,
    NOT_ACCEPTED,
    Arguments,
    UsageError,
    ends_in_one_line,
    reads_and_writes,
)
from harness.common.files import write_json
from harness.common.system import System, facts
from harness.config import mlperf
from harness.config.cli import prepare
from harness.submission import checker, description, entries, refusals, tree


def main() -> NoReturn:
    prepare()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`: no exit code of 0 for what was not seen
    arguments = parser().parse_args()
    with ends_in_one_line(), reads_and_writes():
        raise SystemExit(arguments.command(arguments))


def parser() -> argparse.ArgumentParser:
    top = Arguments(prog="python -m harness.submission", description=__doc__)
    commands = top.add_subparsers(required=True, metavar="COMMAND")

    system = commands.add_parser("system", help="describe this machine, and say what only a person can fill in")
    system.add_argument("--run", type=Path, help="describe the machine of this run instead")
    system.add_argument("--out", type=Path, default=Path("system.json"), help="default: system.json")
    system.set_defaults(command=write_system)

    build = commands.add_parser("build", help="collect finished runs into a submission")
    build.add_argument("--runs", type=Path, nargs="+", required=True, metavar="RUN")
    build.add_argument("--submitter", required=True, metavar="NAME")
    build.add_argument(
        "--system", type=Path, required=True, metavar="SYSTEM.json", help="its description; the file names the system"
    )
    build.add_argument("--division", choices=("open", "closed"), required=True)
    build.add_argument("--out", type=Path, required=True, metavar="DIR")
    build.set_defaults(command=build_tree)

    check = commands.add_parser("check", help="run MLPerf's submission checker on a submission")
    check.add_argument("tree", type=Path, metavar="DIR")
    check.add_argument("--version", choices=sorted(mlperf.SEEDS), help="default: the round whose seeds the logs have")
    check.set_defaults(command=run_checker)
    return top


def write_system(arguments: argparse.Namespace) -> int:
    machine = description.machine_of(arguments.run) if arguments.run else System.model_validate(facts())
    written = description.describe(machine, here=arguments.run is None)
    if arguments.out.exists():
        raise UsageError(f"--out {arguments.out} is already there, maybe filled in by hand: choose another.")
    if not arguments.out.parent.is_dir():
        raise UsageError(f"--out {arguments.out}: there is no folder {arguments.out.parent}.")
    write_json(arguments.out, written)
    print(f"{arguments.out}; still to be filled in by a person:")
    for name in description.missing(written):
        print(f"  {name}")
    return DONE


def build_tree(arguments: argparse.Namespace) -> int:
    found = entries.collect(arguments.runs)
    if arguments.division == "closed" and (reasons := refusals.closed_division_refusals(found)):
        print("error: these runs cannot go into a closed submission:", file=sys.stderr)
        for reason in reasons:
            print(f"  {reason}", file=sys.stderr)
        return NOT_ACCEPTED
    filled = description.completed(
        description.read(arguments.system),
        arguments.submitter,
        arguments.division,
        (entry.category for entry in found),
    )
    base = tree.build(found, filled, arguments.system.stem, arguments.out)
    print(f"{base}: {', '.join(f'{entry.benchmark} {entry.scenario}' for entry in found)}, MLPerf v{found[0].round}")
    if any(entry.performance.facts.plan.engine_state.quantized_checkpoint for entry in found):
        print(f"to be filled in: {base / tree.NOTES}: how the checkpoint was quantized")
    for reason in refusals.checker_refusals(found):
        print(f"the official checker will refuse: {reason}")
    print("keep the runs: MLPerf may ask for the whole accuracy logs, of which the submission has both ends and a hash")
    return DONE


def run_checker(arguments: argparse.Namespace) -> int:
    version = arguments.version or checker.version_of(arguments.tree)
    reason, said = checker.check(arguments.tree, version)
    print(said)
    print(f"{arguments.tree}, MLPerf v{version}: {f'not accepted: {reason}' if reason else 'accepted, no error'}")
    return NOT_ACCEPTED if reason else DONE


if __name__ == "__main__":
    main()
