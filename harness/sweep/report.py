"""A sweep's folder -> its table, findings in words, plots and report.md. Everything from sweep.json."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.config.mlperf import SCORES
from harness.core import files
from harness.core.markdown import Column, Finished, Table, cell, code, escape, number, render
from harness.core.screen import Line
from harness.report.answer import NOT_COMPARABLE
from harness.report.page import of_screen
from harness.report.regression import Judgement
from harness.report.style import BLUE, GREY, ORANGE, RED, pyplot, save
from harness.results.change import Change
from harness.results.metrics import Metric, metrics_of
from harness.runs.folder import ended_early, facts_of
from harness.sweep.experiment import ExperimentRecord
from harness.sweep.file import BASELINE
from harness.sweep.rows import (
    KEPT,
    SCORE,
    SPEED,
    WORDS,
    ExperimentResult,
    Report,
    State,
    experiment_rows,
    has_fixed_rate,
    last_screen,
    pairs_of,
)

# The pictures of a sweep: speed against the baseline, speed against accuracy.
NONE = Change(1.0, 1.0, 1.0)  # of the baseline
MOST_LABELLED = 10  # points that can all have their names beside them


def draw(report: Report, folder: Path) -> dict[str, str]:
    """Draws the plots that have data; name -> path relative to the sweep's folder."""
    drawn = {}
    bars = [result for result in report.rows if result.gain or result is report.baseline]
    if len(bars) > 1:
        drawn["speedups"] = speedups(bars)
    free = [result for result in report.rows if not has_fixed_rate(result.experiment)]
    points = [result for result in free if result.speed and result.score is not None]
    if len(points) > 1:
        drawn["pareto"] = trade_off(points)
    return save(drawn, folder)


def speedups(rows: Sequence[ExperimentResult]) -> Any:
    """Speed of each experiment relative to the baseline's; what tells nothing is hollow."""
    figure, axes = pyplot().subplots(figsize=(8, 0.38 * len(rows) + 1.2))
    hollow = {each.name for each in rows if not each.is_counted or each.effect == "unclear"}
    for place, result in enumerate(rows):
        ratio, edge = result.gain or NONE, BLUE if result.is_usable else RED
        axes.barh(place, ratio.mean, color="none" if result.name in hollow else BLUE, edgecolor=edge, height=0.65)
        if not result.is_usable:
            axes.barh(place, ratio.mean, color="none", edgecolor=RED, hatch="///", height=0.65, linewidth=0)
        if ratio.high > ratio.low:
            axes.plot([ratio.low, ratio.high], [place, place], color="black", linewidth=1.5)
        shift = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(f"{ratio.mean:.2f}", (ratio.high, place), va="center", fontsize=9, **shift)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [result.name for result in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * max(result.gain.high for result in rows if result.gain))
    notes = ["hatched: not usable"] * any(not result.is_usable for result in rows)
    notes += ["hollow: not conclusive"] * any(result.is_usable and result.name in hollow for result in rows)
    axes.set_xlabel("; ".join(["speed, baseline = 1", *notes]))
    axes.set_title("Speed against the baseline", loc="left")
    axes.grid(axis="y", visible=False)
    return figure


def trade_off(rows: Sequence[ExperimentResult]) -> Any:
    """Accuracy against speed. What other programs slowed down is on no front."""
    figure, axes = pyplot().subplots(figsize=(8, 4.6))
    points = {result.name: (result.speed or 0.0, result.score or 0.0) for result in rows}
    front = pareto([points[result.name] for result in rows if result.is_usable and not result.background_load])
    heights = (7, -13, 19, -25)  # neighbours are labelled at different heights
    for place, result in enumerate(sorted(rows, key=lambda result: result.speed or 0.0)):
        point, color = points[result.name], BLUE if result.is_usable else RED
        filling = "white" if result.background_load else color
        axes.plot(
            *point, "o" if result.is_usable else "x", color=color, markerfacecolor=filling, markersize=7, zorder=3
        )
        if len(rows) <= MOST_LABELLED or not result.is_usable or result.name == BASELINE or point in front:
            label = (0, heights[place % len(heights)])
            axes.annotate(result.name, point, label, textcoords="offset points", fontsize=8, ha="center")
    if front:
        ring = {"markersize": 12, "markerfacecolor": "none"}
        axes.plot(*zip(*front, strict=True), "o-", color=ORANGE, label="Pareto front", zorder=2, **ring)
        axes.legend(loc="best", framealpha=0.9)
    axes.margins(0.15)
    notes = [" (crosses: not usable)"] * any(not result.is_usable for result in rows)
    notes += [" (hollow: machine busy)"] * any(result.background_load for result in rows)
    title = "".join(["Speed against accuracy", *notes])
    axes.set(xlabel="output tokens/s", ylabel=SCORES[SCORE], title=title)
    return figure


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, by the first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


PICTURES = {"speedups": "Speed of each experiment", "pareto": "Speed against accuracy"}
VERDICTS = {None: "–", True: "VALID", False: "INVALID"}


def read(folder: Path) -> State:
    """The state a sweep's folder holds. Raises UsageError."""
    return files.read(folder / "sweep.json", State)


def build(folder: Path, state: State | None = None) -> Report:
    """Writes plots/ and report.md into a sweep's folder, of the state that it holds."""
    state = state or read(folder)
    found = tuple(experiment_rows(state))
    report = Report(state, found, tuple(experiment_rows(state, final=True)), pairs_of(folder, state, found))
    pictures = draw(report, folder / "plots")
    screen = last_screen(report)
    ended, unlike = ended_early(folder, reported=True), deviations(folder, state.records)
    values = dict(
        sweep=state.sweep,
        state=state,
        tables={"All experiments": table(report.rows, report.scores)}
        | ({"At full length": table(report.finals, {})} if report.finals else {}),
        screen=screen,
        rounds=max((record.round + 1 for record in state.records), default=0),
        plots=pictures,
        ended=ended,
        **unlike,
    )
    files.write_text(folder / "report.md", f"{render('sweep.md.j2', sent=False, **values)}\n")
    more = [Line("did not finish", ended or "", "bad")]
    more += [Line(NOT_COMPARABLE, "; ".join(unlike["shared"]), "careful")]
    shown = {title: pictures[name] for name, title in PICTURES.items() if name in pictures}
    page = of_screen(
        replace(screen, lines=[*screen.lines, *more]), folder, render("sweep.md.j2", sent=True, **values), shown
    )
    files.write_text(folder / "report.html", page)
    return report


def table(found: Sequence[ExperimentResult], judged: Mapping[str, Judgement]) -> Table:
    base = next((result for result in found if result.name == BASELINE), None)
    measured = [m for m in metrics_of("sweep") if any(result.numbers.get(m.name) is not None for result in found)]
    pairs = {name: f"({SCORES[SCORE]} {one.change}: {KEPT[one.verdict]})" for name, one in judged.items()}
    columns: dict[str, Column] = {
        "experiment": lambda result: result.name,
        **({"group": lambda result: result.experiment.group or "–"} if any(r.experiment.group for r in found) else {}),
        "description": experiment_text,
        "change": change_text,
        **{m.label: partial(value, metric=m, base=base) for m in measured},
        "LoadGen": lambda result: (
            VERDICTS[result.is_valid] if result.complete else result.failure and result.failure.failed
        ),
        "accuracy": lambda result: " ".join(filter(None, (result.accuracy, pairs.get(result.name)))),
        "bound by": lambda result: result.bound or "–",
    }
    return Table.of(found, columns)


def change_text(result: ExperimentResult) -> str:
    """Its change; struck out where its speed does not count."""
    found = result.gain.signed if result.gain else "–"
    return found if result.is_usable or not result.gain else f"~~{found}~~"


def experiment_text(result: ExperimentResult) -> str:
    about, changes = result.experiment.about, " ".join(result.experiment.changes)
    parts = [escape(cell(about)) if about else "", f"(`{code(cell(changes))}`)" if changes else ""]
    return Finished(" ".join(filter(None, parts)))


def value(result: ExperimentResult, metric: Metric, base: ExperimentResult | None) -> str:
    """A metric in the table: speeds that do not count are struck out, scores have their distance from the baseline."""
    found = result.numbers.get(metric.name)
    if found is None:
        return "–"
    if metric is SPEED and not result.is_usable:
        return f"~~{number(found)}~~ not usable"
    start = base.numbers.get(metric.name) if base else None
    if metric.name in SCORES and start is not None and result.name != BASELINE:
        return f"{number(found)} ({found - start:+.2f})"
    return number(found)


HEAD = (*(metric.short for metric in metrics_of("sweep row")), "seconds", "experiment")


def cells(label: str, record: ExperimentRecord) -> list[str]:
    """One experiment's outcome as a row under HEAD, latencies in ms."""
    run = record.outcome
    if record.status != "complete":
        said = record.failed
    else:
        said = ", ".join([*([WORDS[run.verdict]] if run.verdict else []), *(["INVALID"] if run.valid is False else [])])
    measured = (run.values.get(metric.name) for metric in metrics_of("sweep row"))
    figures = (*measured, round(record.seconds) or None)
    return [*map(number, figures), f"{label}: {said}" if said else label]


def deviations(folder: Path, records: Sequence[ExperimentRecord]) -> dict[str, Any]:
    """Why the numbers are not MLPerf's: `shared` by all runs, and each run's `own`."""
    runs = [record.run for record in records if record.run and record.status == "complete"]
    paths = {run: folder / run / "config.json" for run in runs}
    found = {run: [*map(str, facts_of(path.parent).deviations)] if path.exists() else [] for run, path in paths.items()}
    every = dict.fromkeys(reason for reasons in found.values() for reason in reasons)
    shared = [reason for reason in every if all(reason in reasons for reasons in found.values())]
    own = {run: [reason for reason in reasons if reason not in shared] for run, reasons in found.items()}
    return {"shared": shared, "own": own}
