"""Renders a run again from its logs, or a sweep; or puts runs side by side. `--help` lists the flags.

`python report.py RUN_DIR` (or a sweep's folder) needs nothing but the folder: config.json, LoadGen's logs, rouge.json.
"""

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from harness.common.errors import DONE, UsageError
from harness.reporting import compare, compare_page, compare_plot, regression
from harness.reporting import report as rendering
from harness.runs import names
from harness.sweep import report as sweep_report
from harness.terminal.command import each, make_command

ABOUT = """Render a run again from its logs, or a sweep; or put runs side by side. A RUN is a path, or in --results-dir
a run's id, latest, or a label, which names all runs that have it. With --baseline: exit code 0 if no condition holds,
1 if one does, 2 if the runs must not be judged."""
EXAMPLES = (
    "python report.py latest",
    "python report.py --compare before after --plot both.png",
    "python report.py after --baseline before --fail-if 'output_tokens_per_s<-3%'",
)


@dataclass(frozen=True)
class ReportRequest:
    """What is to be shown, and where runs are looked for."""

    run: list[str]
    compare: list[str]
    last: int | None
    results_dir: Path
    plot: Path | None
    csv: Path | None
    baseline: list[str]
    fail_if: list[str]
    may_differ: list[str]

    def check(self) -> None:
        """Raises UsageError where the flags do not go together."""
        if sum(bool(choice) or choice == 0 for choice in (self.run, self.compare, self.last)) != 1:
            raise UsageError("name one RUN_DIR, or --compare RUN RUN ..., or --last N; -h lists what it takes.")
        if self.baseline and not (self.run and self.fail_if):
            raise UsageError("--baseline takes a RUN before it, and --fail-if after it.")
        if (self.fail_if or self.may_differ) and not self.baseline:
            raise UsageError("--fail-if and --may-differ go with --baseline.")
        if (self.csv or self.plot) and self.run:
            raise UsageError("--csv and --plot go with --compare or --last.")
        if self.plot and self.plot.suffix != ".png":
            raise UsageError(f"--plot {self.plot}: a name that ends with .png.")


def report(
    run: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RUN ...]", help="A run's or a sweep's folder; several with --baseline."),
    ] = None,
    compare: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RUN RUN ...",
            help="Runs side by side: settings that differ, speed, latency, accuracy; of two with accuracy also their "
            "answers.",
        ),
    ] = None,
    last: Annotated[int | None, typer.Option(metavar="N", help="As --compare, of the last N finished runs.")] = None,
    results_dir: Annotated[Path, typer.Option(metavar="PATH", help="Where runs are looked for.")] = Path("results"),
    plot: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw the comparison.")] = None,
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write the comparison's table to a CSV file.")
    ] = None,
    baseline: Annotated[
        list[str] | None, typer.Option(metavar="RUN ...", help="What RUN must not be worse than; see --fail-if.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="What is a regression (repeatable): 'output_tokens_per_s<-3%', 'ttft_p99_ms>+10%', "
            "'ttft_p99_ms>2000', 'answers changed', 'answers changed>1%'; metrics as summary.json and --csv name them.",
        ),
    ] = None,
    may_differ: Annotated[
        list[str] | None, typer.Option(metavar="SETTING", help="A setting that differs on purpose (repeatable).")
    ] = None,
) -> int:
    wanted = ReportRequest(
        run or [], compare or [], last, results_dir, plot, csv, baseline or [], fail_if or [], may_differ or []
    )
    wanted.check()
    if wanted.baseline:
        return judged(wanted)
    print(rendered(one(wanted.run, results_dir)) if wanted.run else compared(wanted))
    return DONE


command = make_command(report, ABOUT, examples=EXAMPLES, rewrite=each("--compare", "--baseline"), prints=True)


def one(words: list[str], results_dir: Path) -> Path:
    """The one folder that the words name."""
    found = names.folders(words, results_dir)
    if len(found) > 1:
        raise UsageError(f"{' '.join(words)}: {len(found)} runs; one is rendered at a time, --compare takes several.")
    return found[0]


def rendered(folder: Path) -> Path:
    """Renders a run or a sweep; returns the path of the report."""
    (sweep_report.build if (folder / "sweep.json").exists() else rendering.build)(folder)
    return folder / "report.md"


def compared(wanted: ReportRequest) -> str:
    """The comparison's page; writes its table where a CSV file is asked for."""
    found = (
        names.folders(wanted.compare, wanted.results_dir)
        if wanted.compare
        else compare.last(wanted.results_dir, wanted.last or 0)
    )
    runs, left_out = compare.load(found)
    for reason in left_out:
        print(f"left out: {reason}", file=sys.stderr)
    if wanted.csv:
        compare_page.write_csv(wanted.csv, runs)
    if wanted.plot:
        compare_plot.write(wanted.plot, runs)
    width = {"width": shutil.get_terminal_size().columns} if sys.stdout.isatty() else {}
    return compare_page.page(runs, **width)


def judged(wanted: ReportRequest) -> int:
    """Prints whether the runs are worse than the baseline; returns the exit code."""
    conditions = [regression.condition(text) for text in wanted.fail_if]
    before, after = (
        [compare.read(folder.resolve()) for folder in names.folders(words, wanted.results_dir)]
        for words in (wanted.baseline, wanted.run)
    )
    sides = regression.Sides(before, after, [name.removeprefix("--").replace("-", "_") for name in wanted.may_differ])
    judgements = regression.judge(sides, conditions)
    print(regression.page(sides, judgements))
    return regression.exit_code(judgements)
