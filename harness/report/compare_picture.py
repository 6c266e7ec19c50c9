"""Runs side by side as a picture."""

import re
from collections.abc import Sequence
from pathlib import Path

from harness.report import charts, load_pictures, matrix, subject
from harness.report.charts import Bar, Bars, Panel, StackedPart
from harness.report.compare import Runs
from harness.report.load_view import LoadPicture
from harness.results.metrics import Metric, metrics_of
from harness.results.outcome import Doubt, Figure

LONGEST_RUN_NAME = 40  # characters of a run's name
TIME = re.compile(r"^\d+-\d+-(?=.)")  # the time that a run's id begins with


def write(path: Path, drawn: Sequence[Panel], runs: Runs) -> None:
    """Writes a picture of runs as a PNG file."""
    charts.write(charts.figure(drawn), path, subject.footer(*(run.summary for run in runs)))


def panels(runs: Runs) -> list[Panel]:
    """Bars for each quantity that two of the runs have, and their curves where two have tested several loads."""
    figures = {metric: [metric.figure(run.summary) for run in runs] for metric in metrics_of("panel")}
    drawn_metrics = {
        metric: panel_list
        for metric, panel_list in figures.items()
        if sum(figures_of_metric.value is not None for figures_of_metric in panel_list) > 1
    }
    panel_list: list[Panel] = [
        bars(runs, metric, figures_of_metric) for metric, figures_of_metric in drawn_metrics.items()
    ]
    swept = {
        name: loads
        for name, run in zip(names(runs), runs, strict=True)
        if run.summary.run.search and (loads := LoadPicture.of(run.summary, run.facts.plan.limits))
    }
    if len(swept) > 1:
        panel_list += load_pictures.curves(swept)
    return panel_list


def bars(runs: Runs, metric: Metric, figures: Sequence[Figure]) -> Bars:
    """A bar for each run, the first on top: red where it is INVALID or over its limits, hollow where the machine was
    busy.
    """
    rows, note = [], ""
    for name, run, figure in zip(names(runs), runs, figures, strict=True):
        is_bad = run.summary.result is not None and run.summary.result.verdict.tone == "bad"
        part = StackedPart(0.0, figure.value or 0.0, "red" if is_bad else "blue", Doubt.BUSY in figure.doubts)
        rows.append(Bar(name, metric.show(figure), [part] if figure.value else []))
        note = "red: INVALID, or over the limits" if is_bad else note
    return Bars(metric.label, note, rows)


def names(runs: Runs) -> list[str]:
    """Each run's label, or what its folder is called without the time, after its machine where they have several;
    numbered where that is not enough.
    """
    run_names = [run.summary.meta.label or TIME.sub("", run.folder.name) for run in runs]
    cut = [name[:LONGEST_RUN_NAME] for name in with_machines(runs, run_names)]
    return [f"{name} ({cut[: n + 1].count(name)})" if cut.count(name) > 1 else name for n, name in enumerate(cut)]


def with_machines(runs: Runs, names: Sequence[str]) -> list[str]:
    """Names of runs, after their machine where they have several: what tells them apart stands first."""
    machines = [str(matrix.AXES["gpu"](run.summary)).replace("NVIDIA ", "") for run in runs]
    if len(set(machines)) < 2:
        return [*names]
    return [f"{machine}: {name}" for machine, name in zip(machines, names, strict=True)]
