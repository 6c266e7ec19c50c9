"""The report of a sweep, made from its sweep.json: table, findings in words, plots, report.md and report.html."""

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from operator import attrgetter
from pathlib import Path

from pydantic import TypeAdapter

from harness.config.mlperf import SCORES
from harness.core import files
from harness.core.document import Code, Document, Line, Picture, Section, to_markdown
from harness.core.formatting import cell, joined_text, name_value_text, number, plural
from harness.core.markdown import MarkdownText, code_text, escape_text
from harness.core.tables import Table, TableColumn
from harness.report import answer_comparison, page, regression, subject
from harness.results.benchmark_run import facts_of
from harness.results.change import FEWEST_PAIRS
from harness.results.metrics import Metric, metrics_of
from harness.runs import own_files
from harness.runs.run_folder import TEST_FOLDERS, ended_early
from harness.sweep import bisect_report, change_table, findings
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord, State
from harness.sweep.experiment_result import (
    ESTIMATE_METRIC,
    GATE_WORDS,
    SCORE_METRIC,
    SPEED_METRIC,
    ExperimentResult,
    Results,
    experiment_rows,
    result_named,
)
from harness.sweep.file import BASELINE
from harness.sweep.findings import SCORE_WORDS, SweepReport
from harness.sweep.pictures import draw_pictures

STATE_ADAPTER = TypeAdapter(State)
# Aspects in which the machines of one sweep may differ.
IGNORED_BETWEEN_MACHINES = ("work", "settings", "busyness", "validity", "rate")
VALIDITY_WORDS = {None: "–", True: "VALID", False: "INVALID"}


def read_state(folder: Path) -> State:
    """Read the state in a sweep's folder. Raises UsageError if sweep.json is missing or damaged."""
    return files.read(folder / "sweep.json", State)


def write_state(folder: Path, state: State) -> None:
    """Write a sweep's state into its folder."""
    files.write_json(folder / "sweep.json", STATE_ADAPTER.dump_python(state, by_alias=True))


def document(
    report: SweepReport, folder: Path, sections: Sequence[Section] = (), further_lines: Sequence[Line] = ()
) -> Document:
    """Return the findings of a sweep or of a bisection as a document.

    `sections` come after the document's own sections, `further_lines` after its own lines.
    """
    if report.state.bisection:
        return bisect_report.document(report, folder, sections, further_lines)
    return findings.document(report, sections, further_lines)


def read_results(folder: Path, state: State) -> SweepReport:
    """Return the results of each experiment so far, and its answers beside the baseline's. `folder` is the sweep's.

    Results of runs at full length are kept apart as finalists.
    """
    rows = experiment_rows(state)
    finalists = experiment_rows(state, final=True)
    compared_answers = answers_beside_baseline(folder, state, rows)
    return SweepReport(state, rows, finalists=finalists, compared_answers=compared_answers)


def build_report(folder: Path, state: State | None = None) -> SweepReport:
    """Write plots/, report.md, report.html and changes.csv into a sweep's folder, and return the results.

    Without `state`, the state is read from the folder. Raises UsageError if it cannot be read.
    """
    report = read_results(folder, state or read_state(folder))
    state = report.state
    own_files.replace_links(folder)  # Links in a folder that was sent would lead the report to files elsewhere.
    pictures = draw_pictures(report, folder / own_files.PLOTS)
    early_end = ended_early(folder, is_writing_report=True)
    shared_deviations, deviations_by_run = deviations(folder, state.records)
    further_lines = [
        Line("did not finish", early_end or "", "bad"),
        Line(subject.NOT_COMPARABLE, "; ".join(shared_deviations), "careful"),
    ]
    sections = [*report_sections(report, deviations_by_run, pictures)]
    # Commands name the sweep's folder alone, since a report that is passed on shows no paths of this machine.
    report_document = document(report, Path(folder.name), sections, further_lines)
    files.write_text(folder / "report.md", to_markdown(report_document))
    files.write_text(folder / "report.html", page.page(report_document))
    change_table.write_changes(folder, report)
    return report


def answers_beside_baseline(folder: Path, state: State, rows: Results) -> dict[str, answer_comparison.AnswerPair]:
    """Return the answers of experiments compared with the baseline's, by name, as far as a comparison is needed.

    Empty if the baseline's answers were not kept. An experiment with other samples is left out. Raises UsageError for a
    damaged file.
    """
    tests = accuracy_tests(folder, rows)
    base = tests.pop(BASELINE, None)
    if base is None:
        return {}
    conditions = [regression.parse_condition(text) for text in state.fail_if]
    are_all_compared = state.sweep.is_of_servers or any(condition.is_of_answers for condition in conditions)
    inconclusive = {result.name for result in rows if result.accuracy == "INCONCLUSIVE"}
    compared_answers = {}
    for name, test in tests.items():
        if are_all_compared or name in inconclusive:
            # One program scored all answers, so it split all of them into sentences in the same way.
            answers = answer_comparison.compare_answers(base, test, same_splitter=True)
            if answers:
                compared_answers[name] = answers
    return compared_answers


def accuracy_tests(folder: Path, rows: Results) -> dict[str, Path]:
    """Return the folder of each experiment's accuracy test, by the experiment's name.

    It is the test of the experiment's first run that has the file of its samples. An experiment without one is left
    out.
    """
    tests: dict[str, Path] = {}
    for result in rows:
        for record in result.records:
            if not record.run or result.name in tests:  # no run folder, or an earlier run has the samples
                continue
            test = folder / record.run / TEST_FOLDERS["accuracy"]
            if (test / answer_comparison.SAMPLES_FILE).exists():
                tests[result.name] = test
    return tests


def report_sections(
    report: SweepReport, deviations_by_run: dict[str, list[str]], pictures: dict[str, Picture]
) -> Iterator[Section]:
    """Yield the sections: pictures, method, all experiments, those at full length, all runs, and the command.

    `deviations_by_run` has, by a run's folder, its deviations from MLPerf's rules, without those that all runs share.
    """
    state, system = report.state, report.state.system
    if pictures:
        yield Section("In pictures", "", [*pictures.values()], is_open=True)
    yield Section("About", "how it was measured", [*about_lines(report)])
    if report.rows:
        table = experiment_table(report.rows, report.score_judgements, report.same_answers)
        outcome = plural(len(report.rows), "experiment")
        if not state.bisection:
            outcome = findings.experiments_text(len(report.rows), state.sweep.is_of_servers)
        yield Section("All experiments", outcome, [table, safety_note(report)])
    if report.finalists:
        # Answers are only compared in the rounds of the sweep, so there are no judgements on those at full length.
        table = experiment_table(report.finalists, judgements={})
        yield Section("At full length", plural(len(report.finalists), "experiment"), [table, SAFETY_NOTE])
    rows = [run_row(record, deviations_by_run.get(record.run or "", [])) for record in state.records]
    runs = Table(["experiment", "round", "outcome", "seconds", "folder"], rows)
    status_counts = Counter(record.status for record in state.records)
    yield Section("Runs", ", ".join(f"{count} {status}" for status, count in status_counts.items()), [runs])
    gpus = ", ".join(system.gpus) or "no GPU"
    machine = f"{gpus}; {system.cpu}, {plural(system.cores, 'core')}; {name_value_text(system.packages)}"
    data = MarkdownText(f"{escape_text(machine)}. Started {state.started}; all data: [sweep.json](sweep.json).")
    yield Section("Reproduce", "one command", [Code(state.command), data])


def run_row(record: ExperimentRecord, reasons: Sequence[str]) -> list[object]:
    """Return a row of the table of runs: experiment, round, outcome, seconds, and a link to the run's report.

    `reasons` are those why this run, unlike the others, is not comparable with MLPerf's results. A run without a folder
    has no link.
    """
    round_name = "full length" if record.final else record.number
    outcome = record.failure_text
    if reasons:
        outcome += f" (not comparable with MLPerf: {'; '.join(reasons)})"
    link = "–"
    if record.run:
        link = MarkdownText(f"[{record.run.rpartition('/')[2]}]({record.run}/report.md)")
    return [record.experiment + record.where, round_name, outcome, f"{record.seconds:.0f}", link]


SAFETY_NOTE = (
    "SAFE: the accuracy gate passed. UNSAFE: it failed, so the speed does not count. INCONCLUSIVE: too few samples to "
    "decide."
)
SCORE_NOTE = (
    'Compared with the baseline on the same samples, a score "holds" if its whole 95 % interval is within a loss of '
    '1 % of the baseline\'s score, and is "lost" if the whole interval is beyond it.'
)


def safety_note(report: SweepReport) -> str:
    """Return what the words about accuracy in the table of experiments mean, as far as they are used there."""
    return f"{SAFETY_NOTE} {SCORE_NOTE}" if report.score_judgements else SAFETY_NOTE


def about_lines(report: SweepReport) -> Iterator[str]:
    """Yield what the sweep is for, if its file says so, and how many rounds its changes rest on.

    With few rounds, the text says how to measure the variation from run to run.
    """
    if report.state.sweep.about:
        yield report.state.sweep.about
    rounds = max((record.number for record in report.state.records), default=0)
    place = " on the same node and GPU" if any(record.place for record in report.state.records) else ""
    text = (
        f"{plural(rounds, 'round')}. Each change in % is the mean over the rounds; in each round, an experiment is "
        f"compared with the baseline of the same round{place}."
    )
    if rounds < FEWEST_PAIRS and not report.state.sweep.is_of_servers:
        text += f" Use `--repeat {FEWEST_PAIRS}` to measure the variation from run to run."
    yield MarkdownText(text)


def experiment_table(
    results: Results, judgements: dict[str, regression.Judgement], same_answers: Sequence[str] = ()
) -> Table:
    """Return the table of experiments: description, change, metrics, verdicts, and what limits the speed.

    `judgements` are those on an experiment's score against the baseline's, by name. `same_answers` names the
    experiments whose answers are all equal to the baseline's.
    """

    def accuracy(result: ExperimentResult) -> str:
        """Return the gate's verdict and, if the answers were compared with the baseline's, what that showed."""
        if result.name in same_answers:
            return f"{result.accuracy} (the same answers as the baseline's)"
        judgement = judgements.get(result.name)
        if judgement is None:  # The answers were not compared with the baseline's.
            return result.accuracy
        word = SCORE_WORDS[judgement.verdict]
        return f"{result.accuracy} ({SCORES[SCORE_METRIC]} {judgement.change_text}: {word})"

    base = result_named(results, BASELINE)
    columns: dict[str, TableColumn[ExperimentResult]] = {"experiment": attrgetter("name")}
    if any(result.experiment.group for result in results):
        columns["group"] = group_text
    columns |= {"description": experiment_text, "change": change_text}
    for metric in metrics_of("sweep"):
        if any(metric.name in result.numbers for result in results):
            columns[metric.label] = partial(metric_text, metric=metric, base=base)
    columns |= {"LoadGen": validity_text, "accuracy": accuracy, "bottleneck": bound_text}
    return Table.from_items(results, columns)


def group_text(result: ExperimentResult) -> str:
    return result.experiment.group or "–"


def bound_text(result: ExperimentResult) -> str:
    """Return what limits the speed of an experiment, such as "compute" or "memory"; a dash if it is not known."""
    return result.bound or "–"


def validity_text(result: ExperimentResult) -> str | None:
    """Return LoadGen's verdict; without a complete run, the status and the reason of the run
    that did not finish, if any.
    """
    if result.complete:
        return VALIDITY_WORDS[result.is_valid]
    if result.failure is None:
        return None
    return result.failure.failure_text


def change_text(result: ExperimentResult) -> str:
    """Return the change of speed as text.

    It is struck out if one of the two speeds does not count. A dash stands for a change that is not known.
    """
    if result.void_gain:  # the change against a baseline whose speed does not count
        return f"~~{result.void_gain.signed}~~ {result.void_reason}"
    if not result.gain:
        return "–"
    if not result.is_usable:  # the experiment's own speed does not count
        return f"~~{result.gain.signed}~~"
    return result.gain.signed


def experiment_text(result: ExperimentResult) -> str:
    """Return the description of an experiment, then its changes as code in parentheses, as Markdown.

    Either may be missing.
    """
    about, changes = result.experiment.about, " ".join(result.experiment.changes)
    texts = []
    if about:
        texts.append(escape_text(cell(about)))
    if changes:
        texts.append(f"(`{code_text(cell(changes))}`)")
    return MarkdownText(joined_text(" ", *texts))


def metric_text(result: ExperimentResult, metric: Metric, base: ExperimentResult | None) -> str:
    """Return the mean of a metric for the table; a dash if it is not known.

    A speed that does not count is struck out. A score also has its distance from the baseline's, if the baseline has
    one.
    """
    figure = result.numbers.get(metric.name)
    if figure is None:
        return "–"
    if metric is SPEED_METRIC and not result.is_usable:
        return f"~~{number(figure)}~~ does not count"
    if base and metric.name in SCORES and result.name != BASELINE:
        base_figure = base.numbers.get(metric.name)
        if base_figure is not None:
            return f"{number(figure)} ({figure - base_figure:+.2f})"
    return number(figure)


def row_title(metric: Metric) -> str:
    """Return the title of a metric's column in the rows of finished runs."""
    return "output tok/s" if metric is SPEED_METRIC else metric.short


ROW_HEAD = (*map(row_title, metrics_of("sweep row")), "seconds", "experiment")


def record_cells(label: str, record: ExperimentRecord) -> list[str]:
    """Return a finished run as a row under ROW_HEAD: metrics, seconds, and the experiment's `label` with its verdict.

    A run that did not complete has its reason in place of the verdict.
    """
    values = record.outcome.values
    figures = [values.get(metric.name) for metric in metrics_of("sweep row")]
    figures.append(round(record.seconds) or None)  # 0, of a run that did not begin, becomes a dash
    text = record.failure_text
    if record.status == "complete":
        text = verdict_text(record.outcome)
    return [*map(number, figures), joined_text(": ", label, text)]


def verdict_text(run: ExperimentOutcome) -> str:
    """Return the outcome of a run in words: the accuracy gate's verdict, INVALID if it is, and its estimated rate.

    What the run does not have is left out.
    """
    texts = []
    if run.verdict:
        texts.append(f"accuracy {GATE_WORDS[run.verdict]}")
    if run.valid is False:
        texts.append("LoadGen INVALID")
    estimate = run.values.get(ESTIMATE_METRIC.name)
    if estimate:
        texts.append(f"about {number(estimate)} queries/s")
    return ", ".join(texts)


def deviations(folder: Path, records: Sequence[ExperimentRecord]) -> tuple[list[str], dict[str, list[str]]]:
    """Return why the numbers of a sweep are not comparable with MLPerf's.

    The first list has the reasons that all complete runs share; the dictionary has the further reasons of each run, by
    its folder. Both are empty without a complete run.
    """
    reasons_by_run = dict[str, list[str]]()
    for record in records:
        if record.run and record.status == "complete":
            reasons_by_run[record.run] = deviations_of_run(folder / record.run)
    if not reasons_by_run:
        return [], {}
    shared = subject.common_parts(reasons_by_run.values())
    for run, reasons in reasons_by_run.items():
        reasons_by_run[run] = [reason for reason in reasons if reason not in shared]
    return shared, reasons_by_run


def deviations_of_run(folder: Path) -> list[str]:
    """Return a run's deviations from MLPerf's rules, in words; empty if its folder is gone."""
    if not (folder / "config.json").exists():
        return []
    return [*map(str, facts_of(folder).deviations)]
