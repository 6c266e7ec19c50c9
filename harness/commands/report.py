"""Renders a run again from its logs, or a sweep; or puts runs side by side. `--help` lists the flags.

`python report.py RUN_DIR` (or a sweep's folder) needs nothing but the folder: config.json, LoadGen's logs, rouge.json.
"""

import sys
from pathlib import Path

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

ABOUT = """Render a run or sweep again from its logs, or compare runs. A RUN is a path, or in --results-dir a run's id,
latest, or a label, which names all runs that have it. With --baseline: exit code 0 if no condition holds, 1 if one
does, 2 if the runs must not be judged."""
EXAMPLES = (
    "python report.py latest",
    "python report.py --compare before after --plot both.png",
    "python report.py after --baseline before --fail-if 'output_tokens_per_s<-3%'",
)


def report(
    run: list[str] = argument((), "A run's or a sweep's folder; several with --baseline.", "[RUN ...]"),
    compare: list[str] = option(
        (),
        "Compare runs: settings that differ, speed, latency, accuracy, and the answers of two runs that have them.",
        "RUN RUN ...",
    ),
    matrix: str | None = option(
        None, "Print the RUNs as one table, as in gpu,workload or gpu,batch: speed, waiting, KV cache, cost.", "AXES"
    ),
    of: str | None = option(
        None, "With --matrix of two axes: this metric alone, one axis across, with ratios; as in ttft_p50_ms.", "METRIC"
    ),
    reference: str = option("", "With --matrix: the label of the runs that the others' ratios are to.", "LABEL"),
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
) -> int:
    refusals = {
        "give one RUN_DIR, or --compare RUN RUN ..., or --last N; -h lists the flags.": (
            sum(bool(choice) or choice == 0 for choice in (run, compare, last)) != 1
        ),
        "--baseline needs a RUN before it, and --fail-if after it.": baseline and not (run and fail_if),
        "--fail-if and --may-differ need --baseline.": (fail_if or may_differ) and not baseline,
        "--check takes one RUN.": check and (baseline or matrix or not run),
        "--page needs --compare or --last, --plot one of them or --matrix.": (page or (plot and not matrix)) and run,
        "--csv needs RUN alone, --matrix, --compare or --last.": csv and (baseline or check),
        "--reference and --of need --matrix.": (reference or of) and not matrix,
        "--matrix needs RUNs: report.py --matrix gpu,workload RUN RUN ...": matrix and not run,
        f"--plot {plot}: the name must end with .png.": plot and plot.suffix != ".png",
    }
    for message, is_so in refusals.items():
        if is_so:
            raise UsageError(message)
    if baseline:
        return gate(read_runs(baseline, results_dir), read_runs(run, results_dir), fail_if, may_differ)
    if check:
        return check_run(find.find_run(run, results_dir, "one is checked at a time."))
    if matrix:
        print_matrix(read_runs(run, results_dir), matrix.replace("-", "_").split(","), reference, of, csv, plot)
        return DONE
    if run:
        folder = find.find_run(run, results_dir, "one is rendered at a time, --compare takes several.")
        if csv and not (folder / "config.json").exists():
            raise UsageError(f"--csv writes a run's numbers; {folder} is not a run.")
        (sweep_report if (folder / "sweep.json").exists() else rendering).build_report(folder)
        say(folder / "report.html")
        if csv:
            compare_page.write_csv(csv, [comparison.read_run(folder)])
    else:
        folders = find.folders(compare, results_dir) if compare else comparison.last_runs(results_dir, last or 0)
        compare_runs(folders, csv, plot, page)
    return DONE


command = make_command(report, ABOUT, examples=EXAMPLES, rewrite=take_several("--compare", "--baseline"))


def read_runs(words: list[str], results_dir: Path) -> list[comparison.ComparedRun]:
    """Return the finished runs that the words name, each once although there are copies of it. Raises UsageError."""
    folders = find.folders(words, results_dir)
    runs, copies = comparison.without_copies([comparison.read_run(folder.resolve()) for folder in folders])
    for reason in copies:
        warn(f"left out: {reason}")
    return runs


def print_matrix(
    runs: list[comparison.ComparedRun],
    axes: list[str],
    reference: str,
    metric_name: str | None,
    csv: Path | None,
    plot: Path | None,
) -> None:
    """Prints the runs in one table, or a metric of theirs across the axes; writes it where files are asked for."""
    matrix = Matrix.of([run.summary for run in runs], axes, reference)
    table = CrossTable.of(matrix, axes, metric_name) if metric_name else matrix
    say(table.table())
    if csv:
        csv_files.write_table(csv, *table.numbers())
    if plot:
        compare_picture.write_picture(plot, [table.picture()], runs)
    say(f"\nThese runs differ in: {compare_page.difference(runs)}.")


def check_run(folder: Path) -> int:
    """Prints `consistent`, or each difference between a run's files; returns the exit code."""
    result = consistency.check_run(folder)
    say("\n".join(result.differences) or "consistent")
    if result.missing:
        warn(f"not there: {', '.join(result.missing)}: `report.py {folder}` makes them of the logs")
    if result.unmade:
        warn(f"not rendered again: {result.unmade}")
    return NOT_ACCEPTED if result.differences else DONE


def compare_runs(folders: list[Path], csv: Path | None, plot: Path | None, page: Path | None) -> None:
    """Prints the comparison; writes its table, its picture and its page where files are asked for."""
    runs, left_out = comparison.load_runs(folders)
    for reason in left_out:
        warn(f"left out: {reason}")
    if len(runs) < 2:
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
    """Prints a document: in colours on a terminal, else as Markdown."""
    if sys.stdout.isatty():
        last_screen.show(progress.failsafe_console(sys.stdout.fileno()), document)
    else:
        say(to_markdown(document))


def gate(before: comparison.Runs, after: comparison.Runs, fail_if: list[str], may_differ: list[str]) -> int:
    """Prints whether the runs are worse than the baseline; returns the exit code."""
    conditions = [regression.parse_condition(text) for text in fail_if]
    if both := {run.folder for run in before} & {run.folder for run in after}:
        raise UsageError(f"--baseline {min(both)}: a run cannot be its own baseline.")
    allowed = [name.strip().removeprefix("--").replace("-", "_") for words in may_differ for name in words.split(",")]
    settings = sorted({name for run in (*before, *after) for name in run.flags})
    for name in allowed:
        if name not in settings:
            raise UsageError(
                f"--may-differ {name}: not a setting of these runs{given_values.spelling_hint(name, settings)}"
            )
    sides = regression.Sides(before, after, allowed)
    judgements = regression.judge(sides, conditions)
    show(regression.document(sides, judgements))
    return regression.exit_code(judgements)
