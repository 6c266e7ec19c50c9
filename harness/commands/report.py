"""Renders a run again from its logs, or a sweep; or puts runs side by side. `--help` lists the flags.

`python report.py RUN_DIR` (or a sweep's folder) needs nothing but the folder: config.json, LoadGen's logs, rouge.json.
"""

import harness.common.environment  # noqa: F401

# isort: split
import argparse
import shutil
import signal
import sys
from pathlib import Path
from typing import NoReturn

from harness.common.errors import (
    DONE,
    Arguments,
    UsageError,
    ends_in_one_line,
    reads_and_writes,
)
from harness.config.cli import prepare
from harness.reporting import compare, compare_page, compare_plot, regression
from harness.reporting import report as rendering
from harness.runs import names
from harness.sweep import report as sweep_report


def parser() -> argparse.ArgumentParser:
    flags = Arguments(
        description=__doc__.partition("\n")[0] if __doc__ else "",
        epilog="A RUN is a path, or in --results-dir a run's id, latest, or a label, which names all runs that have "
        "it. With --baseline: exit code 0 if no condition holds, 1 if one does, 2 if the runs must not be judged.",
    )
    flags.add_argument("run", nargs="*", metavar="RUN", help="a run's or a sweep's folder; several with --baseline")
    flags.add_argument(
        "--compare",
        nargs="+",
        metavar="RUN",
        help="runs side by side: settings that differ, speed, latency, accuracy; two with accuracy: their answers too",
    )
    flags.add_argument("--html", action="store_true", help="name the report.html that was written, not the report.md")
    flags.add_argument("--last", type=int, metavar="N", help="as --compare, of the last N finished runs")
    flags.add_argument("--results-dir", type=Path, default=Path("results"), help="where runs are looked for")
    flags.add_argument("--plot", type=Path, metavar="FILE.png", help="also draw the comparison")
    flags.add_argument("--csv", type=Path, metavar="FILE", help="also write the comparison's table to a CSV file")
    flags.add_argument("--baseline", nargs="+", metavar="RUN", help="what RUN must not be worse than; see --fail-if")
    flags.add_argument(
        "--fail-if",
        action="append",
        default=[],
        metavar="CONDITION",
        help="what is a regression (repeatable): 'output_tokens_per_s<-3%%', 'ttft_p99_ms>+10%%', 'ttft_p99_ms>2000', "
        "'answers changed', 'answers changed>1%%'; metrics as summary.json and --csv name them",
    )
    flags.add_argument(
        "--may-differ", action="append", default=[], metavar="SETTING", help="a setting that differs on purpose"
    )
    return flags


def main() -> NoReturn:
    prepare()
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # as in `... | head`: no exit code of 0 for what was not seen
    command = parser()
    args = command.parse_args()
    check(command, args)
    with ends_in_one_line(), reads_and_writes():
        raise SystemExit(carry_out(args))


def check(command: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Ends the command where its flags do not go together."""
    if sum(bool(choice) or choice == 0 for choice in (args.run, args.compare, args.last)) != 1:
        command.error("name one RUN_DIR, or --compare RUN RUN ..., or --last N")
    if args.baseline and not (args.run and args.fail_if):
        command.error("--baseline takes a RUN before it, and --fail-if after it")
    if (args.fail_if or args.may_differ) and not args.baseline:
        command.error("--fail-if and --may-differ go with --baseline")
    if (args.csv or args.plot) and args.run:
        command.error("--csv and --plot go with --compare or --last")
    if args.plot and args.plot.suffix != ".png":
        command.error(f"--plot {args.plot}: a name that ends with .png")


def carry_out(args: argparse.Namespace) -> int:
    """Prints what is asked for; returns the exit code."""
    if args.baseline:
        return judged(args)
    print(rendered(one(args.run, args.results_dir), args.html) if args.run else compared(args))
    return DONE


def one(words: list[str], results_dir: Path) -> Path:
    """The one folder that the words name."""
    found = names.folders(words, results_dir)
    if len(found) > 1:
        raise UsageError(f"{' '.join(words)}: {len(found)} runs; one is rendered at a time, --compare takes several.")
    return found[0]


def rendered(folder: Path, as_page: bool) -> Path:
    """Renders a run or a sweep; returns the path of the report, or of the same `as_page` to send around."""
    sweep = (folder / "sweep.json").exists()
    if sweep and as_page:
        raise UsageError(f"--html {folder}: a sweep has no report.html; its report.md is the page.")
    (sweep_report.build if sweep else rendering.build)(folder)
    return folder / ("report.html" if as_page else "report.md")


def compared(args: argparse.Namespace) -> str:
    """The comparison's page; writes its table where a CSV file is asked for."""
    found = names.folders(args.compare, args.results_dir) if args.compare else compare.last(args.results_dir, args.last)
    runs, left_out = compare.load(found)
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    if args.csv:
        compare_page.write_csv(args.csv, runs)
    if args.plot:
        compare_plot.write(args.plot, runs)
    width = {"width": shutil.get_terminal_size().columns} if sys.stdout.isatty() else {}
    return compare_page.page(runs, **width)


def judged(args: argparse.Namespace) -> int:
    """Prints whether the runs are worse than the baseline; returns the exit code."""
    conditions = [regression.condition(text) for text in args.fail_if]
    before, after = (
        [compare.read(folder.resolve()) for folder in names.folders(words, args.results_dir)]
        for words in (args.baseline, args.run)
    )
    sides = regression.Sides(before, after, [name.removeprefix("--").replace("-", "_") for name in args.may_differ])
    judgements = regression.judge(sides, conditions)
    print(regression.page(sides, judgements))
    return regression.exit_code(judgements)
