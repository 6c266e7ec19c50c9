"""Runs side by side as a picture."""

import re
from collections.abc import Sequence
from pathlib import Path

from harness.report import charts, load_pictures, matrix, subject
from harness.report.charts import Bar, Bars, Panel, StackedPart
from harness.report.compare import Runs, lettered
from harness.report.load_view import LoadPicture
from harness.results.metrics import Metric, metrics_of
from harness.results.outcome import Doubt, Figure

LONGEST_RUN_NAME = 40  # characters of a run's name
TIME_PREFIX = re.compile(r"^\d+-\d+-(?=.)")  # the time with which the name of a run's folder begins


def write_picture(path: Path, drawn: Sequence[Panel], runs: Runs) -> None:
    """Write the panels as a PNG file. The text under them says what the runs have in common."""
    summaries = [run.summary for run in runs]
    charts.write_png(charts.draw_figure(drawn), path, subject.footer(*summaries))


def panels(runs: Runs) -> list[Panel]:
    """Return bars for each metric that at least two runs have, and curves if at least two runs tested loads."""
    panel_list: list[Panel] = []
    for metric in metrics_of("panel"):
        figures = [metric.figure(run.summary) for run in runs]
        known_figures = [figure for figure in figures if figure.value is not None]
        if len(known_figures) > 1:
            panel_list.append(metric_bars(runs, metric, figures))
    curves = {}
    for name, run in zip(names_of_runs(runs), runs, strict=True):
        if not run.summary.run.search:  # Only a search or a curve tested several loads.
            continue
        load_picture = LoadPicture.of(run.summary, run.facts.plan.limits)
        if load_picture:
            curves[name] = load_picture
    if len(curves) > 1:
        panel_list += load_pictures.load_curves(curves)
    return panel_list


def metric_bars(runs: Runs, metric: Metric, figures: Sequence[Figure]) -> Bars:
    """Return a panel with a row for each run, the first run on top. Its bar is the metric's value, if there is one.

    A hollow bar means a busy machine.
    """
    rows = []
    axis_note = ""
    for name, run, figure in zip(names_of_runs(runs), runs, figures, strict=True):
        color = "blue"
        if run.summary.result and run.summary.result.verdict.tone == "bad":
            color, axis_note = "red", "red: INVALID, or over the limits"
        parts = []
        if figure.value:
            parts.append(StackedPart(0.0, figure.value, color, is_hollow=Doubt.BUSY in figure.doubts))
        rows.append(Bar(name, metric.show(figure), parts))
    return Bars(metric.label, axis_note, rows)


def names_of_runs(runs: Runs) -> list[str]:
    """Return a short, distinct name for each run: its letter, and its label or else its folder's name without the time.

    If the runs are of several machines, the machine comes before the label. Long names are cut.
    """
    labels = [run.summary.meta.label or TIME_PREFIX.sub("", run.folder.name) for run in runs]
    names = with_machines(runs, labels)
    return [f"{letter}: {name[:LONGEST_RUN_NAME]}" for name, (letter, _run) in zip(names, lettered(runs), strict=True)]


def with_machines(runs: Runs, names: Sequence[str]) -> list[str]:
    """Return the names, each after the GPU or CPU of its run if the runs are of several kinds of machine."""
    machines = [str(matrix.AXES["gpu"](run.summary)).replace("NVIDIA ", "") for run in runs]
    if len(set(machines)) < 2:
        return [*names]
    return [f"{machine}: {name}" for machine, name in zip(machines, names, strict=True)]
