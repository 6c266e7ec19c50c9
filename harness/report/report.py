"""Render a run folder: summary.json, plots, report.md and report.html; its line of the history, and the index.

All of it follows from the folder: config.json, LoadGen's logs and the scores.
"""

from itertools import chain
from pathlib import Path

from harness.core.document import Document, to_markdown
from harness.core.errors import UsageError
from harness.core.files import write_json, write_text
from harness.core.schema import OLDEST_REPORT_SCHEMA
from harness.loadgen.test_run import TestRun
from harness.report import answer, load_view
from harness.report.charts import draw_overview
from harness.report.pictures import draw_pictures, main_panel
from harness.report.run_page import run_page
from harness.report.run_report import RunReport
from harness.report.run_summary import summary_of
from harness.report.sections import SECTIONS
from harness.results import benchmark_run, metrics, result_test
from harness.results.history_line import History
from harness.results.records import RunFacts
from harness.results.summary import Summary
from harness.runs import history, own_files, run_folder


def build_report(folder: Path) -> Summary:
    """Write summary.json, plots/, report.md and report.html into a run folder, and return the summary.

    Raises UsageError or LogError if a file cannot be read or no test finished.
    """
    facts = benchmark_run.facts_of(folder)
    check_format(folder, facts, OLDEST_REPORT_SCHEMA, "renders")
    # The stages are recorded when all tests have ended. So a run with stages lacks at most this report, which does not
    # count as an early end.
    ended_reason = run_folder.ended_early(folder, is_writing_report=bool(facts.stages))
    chosen = result_test.choose_test(folder, facts, is_complete=ended_reason is None)
    summary = summary_of(folder, facts, chosen, ended_reason)
    if not summary.run.model_dump(exclude_none=True):  # No test has left a result.
        raise no_test_error(folder)
    own_files.replace_links(folder)  # A link may lead to a file elsewhere, which must not be written over.
    test = chosen.test if chosen else None
    report, document = draw_report(folder, facts, summary, test)
    write_json(folder / "summary.json", report.summary.model_dump(mode="json"))
    write_text(folder / "report.md", to_markdown(document))
    write_text(folder / "report.html", run_page(report, document, test))
    return report.summary


def draw_report(folder: Path, facts: RunFacts, summary: Summary, test: TestRun | None) -> tuple[RunReport, Document]:
    """Draw the pictures of a run into plots/, and return the report with them, and its document with all sections.

    The summary of the report also has the paths of the pictures. `test` is the run's own test, None if it has none.
    """
    loads = load_view.LoadPicture.of(summary, facts.plan.limits)
    pictures = draw_pictures(folder, summary, test, loads)
    paths = {name: picture.path for name, picture in pictures.items()}
    summary = summary.model_copy(update={"plots": summary.plots | paths})
    document = answer.document(summary, whole=True)
    overview = draw_overview(document, main_panel(pictures), folder / "plots" / "overview.png")
    pictures |= {"overview": overview}
    report = RunReport(summary, facts, pictures, loads)
    sections = chain.from_iterable(make_sections(report) for make_sections in SECTIONS)
    return report, document._replace(sections=list(sections))


def no_test_error(folder: Path) -> UsageError:
    """Return the error for a folder in which no test finished.

    Its message has the reason from the run's status, if any.
    """
    problem = "no test finished"
    status = run_folder.status_of(folder)
    if status and status.reason:
        problem += f" ({status.reason})"
    return UsageError(f"{folder}: {problem}; nothing to render.", path=folder)


def check_format(folder: Path, facts: RunFacts, oldest: int, verb: str) -> None:
    """Raise UsageError for a run of an older format than `oldest`.

    `verb` says in the message what this version does with newer formats, such as "renders".
    """
    if facts.schema_version < oldest:
        raise UsageError(
            f"{folder}: of format {facts.schema_version}, from an older version of this program; this version "
            f"{verb} format {oldest} and later."
        )


def history_line(summary: Summary) -> dict[str, object]:
    """Return what results/history.jsonl keeps of a run: its facts and the metrics of the index and the report.

    The run's name is left out, as it is added when the line is written.
    """
    line = History.of(summary, metrics.values(summary, "index") | metrics.values(summary, "report"))
    return line.model_dump(mode="json", exclude={"run"})


def write_index(results_dir: Path) -> None:
    """Write the index of all runs in a results folder."""
    history.write_index(results_dir, "index.md.j2", History, metrics=metrics.metrics_of("index"))
