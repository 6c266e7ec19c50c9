"""A sweep's folder -> its table, findings in words, plots and report.md. Everything from sweep.json."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.common import files
from harness.common.files import write_text
from harness.common.markdown import Column, Finished, Table, cell, code, escape, number, render
from harness.config import mlperf
from harness.pages.page import of_screen
from harness.reporting.answer import NOT_COMPARABLE
from harness.results import metrics
from harness.results.metrics import Metric
from harness.runs import folder as results
from harness.sweep import plots
from harness.sweep.experiment import ExperimentRecord
from harness.sweep.file import BASELINE
from harness.sweep.findings import Report, last_screen, spread
from harness.sweep.rows import SCORE, SPEED, WORDS, ExperimentResult, Paired, State, pair_scores, rows
from harness.terminal.last_screen import Line

PICTURES = {"speedups": "Speed of each experiment", "pareto": "Speed against accuracy"}
VERDICTS = {None: "–", True: "VALID", False: "INVALID"}


def read(folder: Path) -> State:
    """The state a sweep's folder holds. Raises UsageError."""
    return files.read(folder / "sweep.json", State)


def build(folder: Path, state: State | None = None) -> Report:
    """Writes plots/ and report.md into a sweep's folder, of the state that it holds."""
    state = state or read(folder)
    found = tuple(rows(state))
    report = Report(state, found, tuple(rows(state, final=True)), pair_scores(folder, found))
    pictures = plots.draw(report, folder / "plots")
    screen = last_screen(report)
    ended, unlike = results.ended_early(folder, reported=True), deviations(folder, state.records)
    values = dict(
        sweep=state.sweep,
        state=state,
        tables={"All experiments": table(report.rows, report.paired)}
        | ({"At full length": table(report.finals, {})} if report.finals else {}),
        screen=screen,
        rounds=max((record.round + 1 for record in state.records), default=0),
        plots=pictures,
        ended=ended,
        **unlike,
    )
    write_text(folder / "report.md", f"{render('sweep.md.j2', sent=False, **values)}\n")
    more = [Line("did not finish", ended or "", "bad")]
    more += [Line(NOT_COMPARABLE, "; ".join(unlike["shared"]), "careful")]
    shown = {title: pictures[name] for name, title in PICTURES.items() if name in pictures}
    page = of_screen(
        replace(screen, lines=[*screen.lines, *more]), folder, render("sweep.md.j2", sent=True, **values), shown
    )
    write_text(folder / "report.html", page)
    return report


def table(found: Sequence[ExperimentResult], judged: Mapping[str, Paired]) -> Table:
    base = next((result for result in found if result.name == BASELINE), None)
    measured = [
        m for m in metrics.metrics_of("sweep") if any(result.numbers.get(m.name) is not None for result in found)
    ]
    pairs = {name: f"({each.text})" for name, each in judged.items()}
    columns: dict[str, Column] = {
        "experiment": lambda result: result.name,
        **({"group": lambda result: result.experiment.group or "–"} if any(r.experiment.group for r in found) else {}),
        "description": experiment_text,
        "change": change_text,
        **{m.label: partial(value, metric=m, base=base) for m in measured},
        "LoadGen": lambda result: VERDICTS[result.is_valid] if result.complete else result.trouble,
        "accuracy": lambda result: " ".join(filter(None, (result.accuracy, pairs.get(result.name)))),
        "bound by": lambda result: result.bound or "–",
    }
    return Table.of(found, columns)


def change_text(result: ExperimentResult) -> str:
    """Its change; struck out where its speed does not count."""
    found = "–" if result.name == BASELINE else spread(result)
    return found if result.is_usable or not result.ratio else f"~~{found}~~"


def experiment_text(result: ExperimentResult) -> str:
    about, changes = result.experiment.about, " ".join(result.experiment.changes)
    parts = [escape(cell(about)) if about else "", f"(`{code(cell(changes))}`)" if changes else ""]
    return Finished(" ".join(filter(None, parts)))


def value(result: ExperimentResult, metric: Metric, base: ExperimentResult | None) -> str:
    """A metric in the table: speeds that do not count are struck out, scores have their distance from the baseline."""
    found = result.numbers.get(metric.name)
    if found is None:
        return "–"
    if metric.name == SPEED and not result.is_usable:
        return f"~~{number(found)}~~ not usable"
    start = base.numbers.get(metric.name) if base else None
    if metric.name in mlperf.SCORES and start is not None and result.name != BASELINE:
        return f"{number(found)} ({found - start:+.2f})"
    return number(found)


HEAD = ("tokens/s", "TTFT p99", "TPOT p99", mlperf.SCORES[SCORE], "seconds", "experiment")


def cells(label: str, record: ExperimentRecord) -> list[str]:
    """One experiment's outcome as a row under HEAD, latencies in ms."""
    run = record.outcome
    if record.status != "complete":
        said = f"{record.status}: {record.reason}"
    else:
        said = ", ".join([*([WORDS[run.verdict]] if run.verdict else []), *(["INVALID"] if run.valid is False else [])])
    measured = (run.values.get(name) for name in (SPEED, "ttft_p99_ms", "tpot_p99_ms", SCORE))
    figures = (*measured, round(record.seconds) or None)
    return [*map(number, figures), f"{label}: {said}" if said else label]


def deviations(folder: Path, records: Sequence[ExperimentRecord]) -> dict[str, Any]:
    """Why the numbers are not MLPerf's: `shared` by all runs, and each run's `own`."""
    runs = [record.run for record in records if record.run and record.status == "complete"]
    paths = {run: folder / run / "config.json" for run in runs}
    found = {run: results.facts_of(path.parent).deviations if path.exists() else [] for run, path in paths.items()}
    every = dict.fromkeys(reason for reasons in found.values() for reason in reasons)
    shared = [reason for reason in every if all(reason in reasons for reasons in found.values())]
    own = {run: [reason for reason in reasons if reason not in shared] for run, reasons in found.items()}
    return {"shared": shared, "own": own}
