"""Rebuild the report of a run or a sweep, or compare runs. `--help` lists the flags.

`python report.py RUN_DIR` (or a sweep's folder) needs nothing but the folder: config.json, LoadGen's logs, rouge.json.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from harness.core import csv_files, given_values, last_screen, progress
from harness.core.command import argument, make_command, option, take_several
from harness.core.document import Document, to_markdown
from harness.core.errors import DONE, NOT_ACCEPTED, UsageError
from harness.core.message_text import say, warn
from harness.report import compare as comparison
from harness.report import compare_page, compare_picture, consistency, regression
from harness.report import report as rendering
from harness.report.cross_table import CrossTable
from harness.report.matrix import Matrix
from harness.runs import find
from harness.sweep import report as sweep_report

ABOUT = """Rebuild the report of a run or sweep from its logs, or compare runs. A RUN is a path or, for a run in
--results-dir, the name of its folder, "latest", or its label (all runs with that label)."""
NOT_ACCEPTED_TEXT = "a --fail-if condition is met, a run failed its accuracy gate, or --check found a difference"
EXAMPLES = (
    "python report.py latest",
    "python report.py --compare old new --plot both.png",
    "python report.py new --baseline old --fail-if 'output_tokens_per_s<-3%'",
)


def report(
    run: list[str] = argument((), "A RUN, or a sweep's folder; several with --baseline or --matrix.", "[RUN ...]"),
    compare: list[str] = option(
        (),
        "Compare runs: settings that differ, speed, latency, accuracy; and the answers, if two runs kept them.",
        "RUN RUN ...",
    ),
    matrix: str | None = option(
        None,
        "Print the RUNs as one table by AXES, such as gpu,workload or gpu,batch: speed, waiting requests, KV cache "
        "use, cost.",
        "AXES",
    ),
    of: str | None = option(
        None,
        "With two axes in --matrix: show only this metric, such as ttft_p50_ms, with the second axis across and ratios "
        "below.",
        "METRIC",
    ),
    reference: str = option("", "With --matrix: label of the reference runs; ratios are relative to these.", "LABEL"),
    last: int | None = option(None, "Compare the last N finished runs.", "N"),
    check: bool = option(False, "Check RUN's files against its logs; exit code 1 if they differ."),
    results_dir: Path = option(Path("results"), "Folder of the runs.", "PATH"),
    plot: Path | None = option(None, "Also draw the comparison.", "FILE.png"),
    page: Path | None = option(None, "Also write the comparison as one HTML file.", "FILE.html"),
    csv: Path | None = option(None, "Also write RUN's numbers, or the comparison's table, to a CSV file.", "FILE"),
    baseline: list[str] = option((), "Runs to judge RUN against; see --fail-if.", "RUN ..."),
    fail_if: list[str] = option(
        (),
        "Condition that counts as a regression (repeatable): 'output_tokens_per_s<-3%', 'ttft_p99_ms>+10%', "
        "'ttft_p99_ms>2000', 'answers changed', 'answers changed>1%'; names as in summary.json and --csv.",
        "CONDITION",
    ),
    may_differ: list[str] = option((), "A setting that differs on purpose (repeatable).", "SETTING"),
    json: bool = option(False, "With --fail-if: print only the verdicts, as JSON, to standard output."),
) -> int:
    """Do the one thing that the flags ask for, and return the exit code."""
    arguments = Arguments(
        run,
        compare,
        matrix,
        of,
        reference,
        last,
        check,
        results_dir,
        plot,
        page,
        csv,
        baseline,
        fail_if,
        may_differ,
        json,
    )
    for problem in problems(arguments):  # The first problem is enough to refuse the command.
        raise UsageError(problem)
    if arguments.baseline:
        return judge_against_baseline(arguments)
    if arguments.check:
        return check_run(find.find_run(arguments.run, results_dir, "one is checked at a time."))
    if arguments.matrix:
        axes = arguments.matrix.replace("-", "_").split(",")  # The user may write a setting as its flag: batch-size.
        print_matrix(arguments, axes)
    elif arguments.run:
        render(arguments)
    else:
        compare_runs(folders_of(arguments), csv, plot, page)
    return DONE


class Arguments(NamedTuple):
    """The operands and flags of the command, as the user typed them."""

    run: list[str]
    compare: list[str]
    matrix: str | None
    metric: str | None  # --of
    reference: str
    last: int | None
    check: bool
    results_dir: Path
    plot: Path | None
    page: Path | None
    csv: Path | None
    baseline: list[str]
    fail_if: list[str]
    may_differ: list[str]
    json: bool


def problems(arguments: Arguments) -> Iterator[str]:
    """Yield a sentence for each combination of flags and operands that is not allowed."""
    run, matrix, baseline, plot = arguments.run, arguments.matrix, arguments.baseline, arguments.plot
    used_ways = ways_to_name_runs(arguments)
    if len(used_ways) > 1:
        yield f"{' and '.join(used_ways)} each name the runs: give one of them."
    yield from baseline_problems(arguments)
    if arguments.check and (baseline or matrix or not run):
        yield "--check takes one RUN."
    has_picture_of_comparison = plot and not matrix  # A single run has no comparison to draw.
    if run and (arguments.page or has_picture_of_comparison):
        yield "--page needs --compare or --last, --plot one of them or --matrix."
    if arguments.csv and (baseline or arguments.check):
        yield "--csv needs RUN alone, --matrix, --compare or --last."
    if (arguments.reference or arguments.metric) and not matrix:
        yield "--reference and --of need --matrix."
    if matrix and not run:
        yield "--matrix needs RUNs: report.py --matrix gpu,workload RUN RUN ..."
    if plot and plot.suffix != ".png":
        yield f"--plot {plot}: the name must end with .png."
    if not used_ways:
        yield "give one RUN_DIR, or --compare RUN RUN ..., or --last N; -h lists the flags."


def ways_to_name_runs(arguments: Arguments) -> list[str]:
    """Return the ways in which the command names its runs, of which it takes one."""
    ways = []
    if arguments.run:
        ways.append("RUN")
    if arguments.compare:
        ways.append("--compare")
    if arguments.last is not None:
        ways.append("--last")
    return ways


def baseline_problems(arguments: Arguments) -> Iterator[str]:
    """Yield a sentence if --baseline lacks what it needs, or if a flag that needs it is given without it."""
    if arguments.baseline and not (arguments.run and arguments.fail_if):
        yield "--baseline needs a RUN before it, and --fail-if after it."
    has_flag_of_baseline = arguments.fail_if or arguments.may_differ or arguments.json
    if has_flag_of_baseline and not arguments.baseline:
        yield "--fail-if, --may-differ and --json need --baseline."


command = make_command(
    report,
    ABOUT,
    examples=EXAMPLES,
    rewrite=take_several("--compare", "--baseline"),
    not_accepted=NOT_ACCEPTED_TEXT,
    bad_input="the runs cannot be judged, or wrong usage or input",
)


def read_runs(names: list[str], results_dir: Path) -> list[comparison.ComparedRun]:
    """Return the finished runs that the words name, each once. Warns of copies that are left out.

    Raises UsageError if a word names no finished run.
    """
    runs = []
    for folder in find.folders(names, results_dir):
        runs.append(comparison.read_run(folder.resolve()))
    originals, reasons = comparison.without_copies(runs)
    warn_of_left_out(reasons)
    return originals


def warn_of_left_out(reasons: list[str]) -> None:
    """Print a warning for each reason why a path was left out."""
    for reason in reasons:
        warn(f"left out: {reason}")


def folders_of(arguments: Arguments) -> list[Path]:
    """Return the folders of the runs to compare: those named after --compare or, without it, the last ones of --last.

    Raises UsageError if there are no such runs.
    """
    if arguments.compare:
        folders = find.folders(arguments.compare, arguments.results_dir)
        if len(folders) == 1 < len(arguments.compare):
            raise UsageError(f"--compare {' '.join(arguments.compare)}: all name {folders[0]}; give two runs or more.")
        return folders
    last = arguments.last or 0  # `problems` has refused a command without --compare and --last.
    return comparison.last_runs(arguments.results_dir, last)


def render(arguments: Arguments) -> None:
    """Write the report of one run or sweep again, and print where it is.

    With --csv, also write a run's numbers to that file. Raises UsageError if there are several runs, or --csv is given
    for a sweep.
    """
    folder = find.find_run(
        arguments.run, arguments.results_dir, "one report is rebuilt at a time; --compare takes several."
    )
    if arguments.csv and not (folder / "config.json").exists():  # Only a run's folder has this file, not a sweep's.
        raise UsageError(f"--csv writes a run's numbers; {folder} is not a run.")
    if (folder / "sweep.json").exists():
        sweep_report.build_report(folder)
    else:
        rendering.build_report(folder)
    say(folder / "report.html")
    if arguments.csv:
        compare_page.write_csv(arguments.csv, [comparison.read_run(folder)])


def print_matrix(arguments: Arguments, axes: list[str]) -> None:
    """Print a table of the runs and the settings in which the runs differ, and write the files of --csv and --plot.

    `axes` are properties of a run, such as its GPU and its workload. Raises UsageError for an axis, a metric or a
    --reference that the runs do not have.
    """
    runs = read_runs(arguments.run, arguments.results_dir)
    matrix = Matrix.of([run.summary for run in runs], axes, arguments.reference)
    # With --of METRIC, the values of one axis are down, those of another across, and the metric is in the cells.
    table = CrossTable.of(matrix, axes, arguments.metric) if arguments.metric else matrix
    say(table.table())
    if arguments.csv:
        csv_files.write_table(arguments.csv, *table.csv_table())
    if arguments.plot:
        compare_picture.write_picture(arguments.plot, [table.picture()], runs)
    if len(runs) > 1:
        say(f"\nThese runs differ in: {compare_page.difference(runs)}.")


def check_run(folder: Path) -> int:
    """Print `consistent`, or each difference between a run's files and its logs, and return the exit code.

    Warns of files that are missing, and of scores that could not be computed again. Neither counts as a difference.
    """
    result = consistency.check_run(folder)
    say("\n".join(result.differences) or "consistent")
    if result.missing:
        warn(f"missing: {', '.join(result.missing)}: `report.py {quote(str(folder))}` makes them from the logs")
    if result.unmade:  # why the scores were not computed
        warn(f"not made again: {result.unmade}")
    return NOT_ACCEPTED if result.differences else DONE


def compare_runs(folders: list[Path], csv: Path | None, plot: Path | None, page: Path | None) -> None:
    """Print the comparison of runs, and write its table, picture and page to the files that are given.

    Raises UsageError if nothing can be compared, unless the folders are copies of one run and no file was asked for.
    """
    runs, reasons = comparison.load_runs(folders)
    warn_of_left_out(reasons)
    if len(runs) < 2:  # The folders are copies of one run.
        if csv or plot or page:
            raise UsageError("--csv, --plot and --page take two runs or more; these are copies of one.")
        say(f"{runs[0].folder}: one run and its copies, between which nothing can differ.")
        return
    if csv:
        compare_page.write_csv(csv, runs)
    if plot:
        compare_picture.write_picture(plot, compare_picture.panels(runs), runs)
    comparison_document = compare_page.document(runs)
    if page:
        compare_page.write_html(page, runs, comparison_document)
    show(comparison_document)


def show(document: Document) -> None:
    """Print a document: in colors on a terminal, else as Markdown."""
    if sys.stdout.isatty():
        last_screen.show(progress.failsafe_console(sys.stdout.fileno()), document)
    else:
        say(to_markdown(document))


def judge_against_baseline(arguments: Arguments) -> int:
    """Print whether the runs are worse than the baseline by the conditions of --fail-if, and return the exit code.

    With --json, only JSON is printed. Raises UsageError if a run is its own baseline or a condition is not valid.
    """
    before = read_runs(arguments.baseline, arguments.results_dir)
    after = read_runs(arguments.run, arguments.results_dir)
    conditions = [regression.parse_condition(text) for text in arguments.fail_if]
    baseline_folders = {run.identity: run.folder for run in before}
    for run in after:
        if run.identity in baseline_folders:
            raise UsageError(f"--baseline {baseline_folders[run.identity]}: a run cannot be its own baseline.")
    allowed_settings = settings_that_may_differ(arguments.may_differ, [*before, *after])
    sides = regression.Sides(before, after, allowed_settings)
    judgements = regression.judge(sides, conditions)
    if arguments.json:
        say(regression.to_json(judgements))
    else:
        show(regression.document(sides, judgements))
    return regression.exit_code(judgements)


def settings_that_may_differ(texts: list[str], runs: list[comparison.ComparedRun]) -> list[str]:
    """Return the names of the settings that --may-differ allows to differ. `texts` are the flag's values.

    A value may have several names with commas between them, as flags or as settings. Raises UsageError for a setting
    that the runs do not have.
    """
    names_of_runs = set[str]()
    for run in runs:
        names_of_runs.update(run.setting_texts)
    settings = sorted(names_of_runs)
    allowed = []
    for text in texts:
        for word in text.split(","):
            name = word.strip().removeprefix("--").replace("-", "_")  # from the form of a flag to that of a setting
            if name not in settings:
                hint = given_values.spelling_hint(name, settings)
                raise UsageError(f"--may-differ {name}: not a setting of these runs{hint}")
            allowed.append(name)
    return allowed
