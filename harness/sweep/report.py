"""A sweep's folder -> its table, findings in words, plots and report.md. Everything from sweep.json."""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from pydantic import TypeAdapter

from harness.config.mlperf import SCORES
from harness.core import files
from harness.core.document import Code, Document, Line, Picture, Section, to_markdown
from harness.core.formatting import cell, joined, listed, number, plural
from harness.core.markdown import Finished, code, escape
from harness.core.tables import Table, TableColumn
from harness.report import answer_comparison, page, regression, subject
from harness.results.benchmark_run import facts_of
from harness.results.metrics import Metric, metrics_of
from harness.runs import own_files
from harness.runs.run_folder import TEST_FOLDERS, ended_early
from harness.sweep import bisect_report, findings
from harness.sweep.experiment import ExperimentRecord, State
from harness.sweep.experiment_result import (
    ESTIMATE_METRIC,
    SCORE_METRIC,
    SPEED_METRIC,
    WORDS,
    ExperimentResult,
    Results,
    experiment_rows,
)
from harness.sweep.file import BASELINE
from harness.sweep.findings import ACCURACY_WORDS, SweepReport
from harness.sweep.pictures import draw

STATE = TypeAdapter(State)
# Aspects in which the machines of one sweep may differ.
IGNORED_BETWEEN_MACHINES = ("work", "settings", "busyness", "validity", "rate")
VERDICTS = {None: "–", True: "VALID", False: "INVALID"}


def read(folder: Path) -> State:
    """The state a sweep's folder holds. Raises UsageError."""
    return files.read(folder / "sweep.json", State)


def write(folder: Path, state: State) -> None:
    """Keeps a sweep's state in its folder."""
    files.write_json(folder / "sweep.json", STATE.dump_python(state, by_alias=True))


def document(
    report: SweepReport, folder: Path, sections: Sequence[Section] = (), more: Sequence[Line] = ()
) -> Document:
    """Return what a sweep found, or a bisection."""
    if report.state.bisection:
        return bisect_report.document(report, folder, sections, more)
    return findings.document(report, sections, more)


def read_results(folder: Path, state: State) -> SweepReport:
    """Return what came of each experiment so far."""
    rows = experiment_rows(state)
    return SweepReport(state, rows, experiment_rows(state, final=True), pairs_of(folder, state, rows))


def build(folder: Path, state: State | None = None) -> SweepReport:
    """Writes plots/ and report.md into a sweep's folder, of the state that it holds."""
    report = read_results(folder, state or read(folder))
    state = report.state
    own_files.replace_links(folder)
    pictures = draw(report, folder / own_files.PLOTS)
    ended = ended_early(folder, reported=True)
    shared, own = deviations(folder, state.records)
    more = [Line("did not finish", ended or "", "bad"), Line(subject.NOT_COMPARABLE, "; ".join(shared), "careful")]
    page_of = document(report, folder, [*sections(report, own, pictures)], more)
    files.write_text(folder / "report.md", to_markdown(page_of))
    files.write_text(folder / "report.html", page.page(page_of))
    return report


def pairs_of(folder: Path, state: State, rows: Results) -> dict[str, answer_comparison.AnswerPair]:
    """The answers of experiments beside the baseline's, where the gate is inconclusive, a condition is of answers, or
    servers were asked for the same and gave them. Raises UsageError for a damaged file.
    """
    tests = {  # for each the first of its runs that kept its samples
        each.name: path
        for each in rows
        for record in reversed(each.records)
        if record.run
        and ((path := folder / record.run / TEST_FOLDERS["accuracy"]) / answer_comparison.SAMPLES_FILE).exists()
    }
    base = tests.pop(BASELINE, None)
    conditions = [regression.parse_condition(text) for text in state.fail_if]
    is_judged = state.sweep.is_of_servers or any(condition.is_of_answers for condition in conditions)
    wanted = {each.name for each in rows if is_judged or each.accuracy == "INCONCLUSIVE"}
    return {
        name: pair
        for name, test in tests.items()
        if base and name in wanted and (pair := answer_comparison.answers(base, test, same_splitter=True))
    }


def sections(report: SweepReport, own: dict[str, list[str]], pictures: dict[str, Picture]) -> Iterator[Section]:
    """All experiments, their runs with their `own` deviations, and the command."""
    state, system = report.state, report.state.system
    if pictures:
        yield Section("In pictures", "", [*pictures.values()], is_open=True)
    yield Section("About", "how it was measured", [*about(report)])
    tables = {"All experiments": (report.rows, report.scores), "At full length": (report.finals, {})}
    for title, (found, judged) in tables.items():
        if found:
            yield Section(title, plural(len(found), "experiment"), [table(found, judged), SAFETY])
    rows = []
    for record in state.records:
        reasons = own.get(record.run or "")
        unlike = f" (not comparable: {'; '.join(reasons)})" if reasons else ""
        link = Finished(f"[{record.run.rpartition('/')[2]}]({record.run}/report.md)") if record.run else "–"
        round_name = "full length" if record.final else record.number
        outcome = f"{joined(': ', record.status, record.reason)}{unlike}"
        rows.append([record.experiment + record.where, round_name, outcome, f"{record.seconds:.0f}", link])
    runs = Table(["experiment", "round", "outcome", "seconds", "folder"], rows)
    statuses = [record.status for record in state.records]
    yield Section("Runs", f"{plural(len(statuses), 'run')}, {statuses.count('complete')} complete", [runs])
    gpus = ", ".join(system.gpus) or "no GPU"
    machine = f"{gpus}; {system.cpu}, {system.cores} cores; {listed(system.packages)}"
    data = Finished(f"{escape(machine)}. Started {state.started}; all data: [sweep.json](sweep.json).")
    yield Section("Reproduce", "one command", [Code(state.command), data])


SAFETY = (
    "SAFE: the accuracy gate passes; UNSAFE: it fails, so the speed does not count; INCONCLUSIVE: too few samples to "
    'decide; against the baseline on the same samples an experiment "holds" if it loses at most 1 % of the score, by '
    "the whole 95 % interval."
)


def about(report: SweepReport) -> Iterator[str]:
    """Yield what the sweep is of, and what its changes rest on."""
    rounds = max((record.number for record in report.state.records), default=0)
    yield from filter(None, [report.state.sweep.about])
    scatter = " `--repeat 3` shows the scatter." * (rounds < 3)
    yield Finished(
        f"{plural(rounds, 'round')}; a change is the mean over the rounds, each against the baseline of the same round "
        f"and GPU.{scatter}"
    )


def table(found: Results, judged: dict[str, regression.Judgement]) -> Table:
    base = next((result for result in found if result.name == BASELINE), None)
    measured = [m for m in metrics_of("sweep") if any(m.name in result.numbers for result in found)]
    pairs = {
        name: f"({SCORES[SCORE_METRIC]} {one.change}: {ACCURACY_WORDS[one.verdict]})" for name, one in judged.items()
    }
    columns: dict[str, TableColumn[ExperimentResult]] = {
        "experiment": lambda result: result.name,
        **({"group": lambda result: result.experiment.group or "–"} if any(r.experiment.group for r in found) else {}),
        "description": experiment_text,
        "change": change_text,
        **{m.label: partial(value, metric=m, base=base) for m in measured},
        "LoadGen": lambda result: (
            VERDICTS[result.is_valid] if result.complete else result.failure and result.failure.failed
        ),
        "accuracy": lambda result: joined(" ", result.accuracy, pairs.get(result.name)),
        "bound by": lambda result: result.bound or "–",
    }
    return Table.of(found, columns)


def change_text(result: ExperimentResult) -> str:
    """Its change; struck out where its speed does not count."""
    if not result.gain:
        return "–"
    return result.gain.signed if result.is_usable else f"~~{result.gain.signed}~~"


def experiment_text(result: ExperimentResult) -> str:
    about, changes = result.experiment.about, " ".join(result.experiment.changes)
    return Finished(joined(" ", about and escape(cell(about)), changes and f"(`{code(cell(changes))}`)"))


def value(result: ExperimentResult, metric: Metric, base: ExperimentResult | None) -> str:
    """A metric in the table: speeds that do not count are struck out, scores have their distance from the baseline."""
    found = result.numbers.get(metric.name)
    if found is None:
        return "–"
    if metric is SPEED_METRIC and not result.is_usable:
        return f"~~{number(found)}~~ not usable"
    start = base.numbers.get(metric.name) if base else None
    if metric.name in SCORES and start is not None and result.name != BASELINE:
        return f"{number(found)} ({found - start:+.2f})"
    return number(found)


ROW_HEAD = (*(metric.short for metric in metrics_of("sweep row")), "seconds", "experiment")


def cells(label: str, record: ExperimentRecord) -> list[str]:
    """One experiment's outcome as a row under HEAD, latencies in ms."""
    run = record.outcome
    about = f"about {number(found)} queries/s" if (found := run.values.get(ESTIMATE_METRIC.name)) else ""
    verdicts = (run.verdict and WORDS[run.verdict], "INVALID" * (run.valid is False), about)
    said = joined(", ", *verdicts) if record.status == "complete" else record.failed
    measured = (run.values.get(metric.name) for metric in metrics_of("sweep row"))
    figures = (*measured, round(record.seconds) or None)
    return [*map(number, figures), f"{label}: {said}" if said else label]


def deviations(folder: Path, records: Sequence[ExperimentRecord]) -> tuple[list[str], dict[str, list[str]]]:
    """Return why the numbers are not MLPerf's: what all runs share, and each run's own."""
    found = {
        run: [*map(str, facts_of(folder / run).deviations)] if (folder / run / "config.json").exists() else []
        for record in records
        if (run := record.run) and record.status == "complete"
    }
    shared = subject.common_parts(found.values()) if found else []
    own = {run: [reason for reason in reasons if reason not in shared] for run, reasons in found.items()}
    return shared, own
