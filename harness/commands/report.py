"""Renders a run again from its logs, or a sweep; or puts runs side by side. `--help` lists the flags.

`python report.py RUN_DIR` (or a sweep's folder) needs nothing but the folder: config.json, LoadGen's logs, rouge.json.
"""

import sys
from collections.abc import Iterator
from pathlib import Path
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
    json: bool = option(False, "With --fail-if: print the verdicts as JSON alone on standard output."),
) -> int:
    words = Words(
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
    for problem in problems(words):
        raise UsageError(problem)
    if words.baseline:
        return gate(words)
    if words.check:
        return check_run(find.find_run(words.run, results_dir, "one is checked at a time."))
    if words.matrix:
        print_matrix(words, words.matrix.replace("-", "_").split(","))
    elif words.run:
        render(words)
    else:
        compare_runs(folders_of(words), csv, plot, page)
    return DONE


class Words(NamedTuple):
    """The operands and flags of the command, as they were typed."""

    run: list[str]
    compare: list[str]
    matrix: str | None
    of: str | None
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


def problems(words: Words) -> Iterator[str]:
    """Yield a sentence for each combination of flags that has no meaning."""
    subjects = [bool(words.run), bool(words.compare), words.last is not None]
    if sum(subjects) != 1:
        yield "give one RUN_DIR, or --compare RUN RUN ..., or --last N; -h lists the flags."
    if words.baseline and not (words.run and words.fail_if):
        yield "--baseline needs a RUN before it, and --fail-if after it."
    if (words.fail_if or words.may_differ or words.json) and not words.baseline:
        yield "--fail-if, --may-differ and --json need --baseline."
    if words.check and (words.baseline or words.matrix or not words.run):
        yield "--check takes one RUN."
    has_picture_of_comparison = words.plot and not words.matrix
    if words.run and (words.page or has_picture_of_comparison):
        yield "--page needs --compare or --last, --plot one of them or --matrix."
    if words.csv and (words.baseline or words.check):
        yield "--csv needs RUN alone, --matrix, --compare or --last."
    if (words.reference or words.of) and not words.matrix:
        yield "--reference and --of need --matrix."
    if words.matrix and not words.run:
        yield "--matrix needs RUNs: report.py --matrix gpu,workload RUN RUN ..."
    if words.plot and words.plot.suffix != ".png":
        yield f"--plot {words.plot}: the name must end with .png."


command = make_command(report, ABOUT, examples=EXAMPLES, rewrite=take_several("--compare", "--baseline"))


def read_runs(words: list[str], results_dir: Path) -> list[comparison.ComparedRun]:
    """Return the finished runs that the words name, each once although there are copies of it. Raises UsageError."""
    folders = find.folders(words, results_dir)
    runs, copies = comparison.without_copies([comparison.read_run(folder.resolve()) for folder in folders])
    for reason in copies:
        warn(f"left out: {reason}")
    return runs


def folders_of(words: Words) -> list[Path]:
    """Return the folders of the runs to compare. Raises UsageError."""
    if words.compare:
        return find.folders(words.compare, words.results_dir)
    return comparison.last_runs(words.results_dir, words.last or 0)


def render(words: Words) -> None:
    """Writes the report of one run or sweep again, and a run's numbers to a CSV file if one is asked for."""
    folder = find.find_run(words.run, words.results_dir, "one is rendered at a time, --compare takes several.")
    if words.csv and not (folder / "config.json").exists():
        raise UsageError(f"--csv writes a run's numbers; {folder} is not a run.")
    if (folder / "sweep.json").exists():
        sweep_report.build_report(folder)
    else:
        rendering.build_report(folder)
    say(folder / "report.html")
    if words.csv:
        compare_page.write_csv(words.csv, [comparison.read_run(folder)])


def print_matrix(words: Words, axes: list[str]) -> None:
    """Prints the runs in one table, or a metric of theirs across the axes; writes it to files on demand."""
    runs = read_runs(words.run, words.results_dir)
    matrix = Matrix.of([run.summary for run in runs], axes, words.reference)
    table = CrossTable.of(matrix, axes, words.of) if words.of else matrix
    say(table.table())
    if words.csv:
        csv_files.write_table(words.csv, *table.numbers())
    if words.plot:
        compare_picture.write_picture(words.plot, [table.picture()], runs)
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


def gate(words: Words) -> int:
    """Prints whether the runs are worse than the baseline; returns the exit code."""
    before = read_runs(words.baseline, words.results_dir)
    after = read_runs(words.run, words.results_dir)
    conditions = [regression.parse_condition(text) for text in words.fail_if]
    on_both_sides = {run.folder for run in before} & {run.folder for run in after}
    if on_both_sides:
        raise UsageError(f"--baseline {min(on_both_sides)}: a run cannot be its own baseline.")
    allowed = settings_that_may_differ(words.may_differ, [*before, *after])
    sides = regression.Sides(before, after, allowed)
    judgements = regression.judge(sides, conditions)
    if words.json:
        say(regression.to_json(judgements))
    else:
        show(regression.document(sides, judgements))
    return regression.exit_code(judgements)


def settings_that_may_differ(texts: list[str], runs: list[comparison.ComparedRun]) -> list[str]:
    """Return the settings that --may-differ names. Raises UsageError for one that the runs do not have."""
    settings = sorted({name for run in runs for name in run.flags})
    allowed = []
    for text in texts:
        for word in text.split(","):
            name = word.strip().removeprefix("--").replace("-", "_")
            if name not in settings:
                hint = given_values.spelling_hint(name, settings)
                raise UsageError(f"--may-differ {name}: not a setting of these runs{hint}")
            allowed.append(name)
    return allowed
