"""Finished runs in one table by what tells them apart, such as the kind of GPU and the workload, or the batch."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.formatting import gpu_names, joined, number
from harness.core.tables import Table
from harness.report import subject
from harness.report.charts import Bar, Bars, StackedPart
from harness.results.metrics import COST, METRIC_BY_NAME, METRICS, Metric, MetricPlace, metrics_of
from harness.results.outcome import Figure, Outcome
from harness.results.summary import Summary

BATCH = "batch"  # an axis of the levels within a run
AXES: dict[str, Callable[[Summary], object]] = {
    "gpu": lambda run: run.system.cpu if run.gpu_models == [] else gpu_names(run.gpu_models),
    "driver": lambda run: run.system.driver,
    "workload": lambda run: run.meta.workload,
    "label": lambda run: run.meta.label,
    BATCH: lambda run: f"{run.meta.batch_size} at once" if run.meta.batch_size else "its own test",
}
HARDWARE = ("gpu", "driver")  # axes that the cheapest is chosen over
ROW_NAMES = ("gpu", "model", "scenario", "label")  # names of a row, beside its axes
SPEED_NAME = "tokens_per_sec"
UNSURE = "*"  # behind a ratio of figures that may not be believed


class Cell(NamedTuple):
    """A run, or a level of it: where it stands on each axis and what else it is called, among which `rivals` the
    cheapest is looked for, those of its work and its place beside the hardware, its metrics, and why it does not
    count.
    """

    places: dict[str, str]
    rivals: tuple[str, ...]
    figures: dict[str, Figure]
    flaw: str


class Matrix(NamedTuple):
    """The cells in order, the heads of their places, the metrics that one of them has, and the label that others'
    ratios are to.
    """

    title: str
    heads: Sequence[str]
    cells: list[Cell]
    metrics: list[Metric]
    reference: str = ""

    @classmethod
    def of(cls, summaries: Sequence[Summary], axes: Sequence[str], reference: str = "") -> "Matrix":
        """A cell for each run, or for each level where one axis is the batch. Raises UsageError for an axis that a run
        does not have, and a reference that no run is labelled with.
        """
        if len(set(axes)) < len(axes):
            raise UsageError(f"--matrix {','.join(axes)}: an axis is named twice.")
        if reference and reference not in (labels := [summary.meta.label for summary in summaries]):
            raise UsageError(
                f"--reference {reference}: the runs' labels are {', '.join(filter(None, labels)) or 'empty'}."
            )
        cells = sorted(
            (cell for summary in summaries for cell in cells_of(summary, axes)),
            key=lambda cell: [sort_key(cell.places[axis]) for axis in reversed(axes)],
        )
        called = {name: {cell.places[name] for cell in cells} for name in ROW_NAMES if name not in axes}
        names = [name for name, some in called.items() if any(some) and (name != "scenario" or len(some) > 1)]
        shown_metrics = [
            metric
            for metric in metrics_of(place_of(axes))
            if any(cell.figures[metric.name].value is not None for cell in cells)
        ]
        return cls(" and ".join(axes), [*axes, *names], cells, shown_metrics, reference)

    def table(self) -> Table:
        """For each place beside the hardware the cheapest within the limits is marked; below each row that has a
        reference there, its ratio to that.
        """
        counted = [cell for cell in self.cells if cell.figures[COST].value and not cell.flaw]
        dearest = sorted(counted, key=lambda cell: -(cell.figures[COST].value or math.inf))
        cheapest = {cell.rivals: cell for cell in dearest}
        rows = []
        for cell in self.cells:
            remark = cell.flaw or "cheapest within the limits" * (cheapest.get(cell.rivals) is cell)
            rows.append(
                [*self.named(cell), *(metric.show(cell.figures[metric.name]) for metric in self.metrics), remark]
            )
            for rival in self.cells:
                is_like = rival.places["label"] == self.reference and rival.rivals == cell.rivals
                rows += [self.ratios(cell, rival)] if self.reference and is_like and rival is not cell else []
        return Table([*self.heads, *(metric.label for metric in self.metrics), ""], rows)

    def named(self, cell: Cell) -> list[str]:
        return [cell.places[head] or "–" for head in self.heads]

    def ratios(self, cell: Cell, other: Cell) -> list[str]:
        """A row of ratios to another cell, those of doubtful figures marked."""
        ratio_cells = []
        for metric in self.metrics:
            mine, theirs = cell.figures[metric.name], other.figures[metric.name]
            is_unsure = bool(cell.flaw or other.flaw or mine.doubts or theirs.doubts)
            is_known = mine.value is not None and theirs.value
            ratio_cells.append(f"{number(mine.value / theirs.value, 3)}×{UNSURE * is_unsure}" if is_known else "–")  # type: ignore[operator]
        why = joined("; ", *dict.fromkeys((cell.flaw, other.flaw)))
        return [*[""] * (len(self.heads) - 1), f"to {self.reference}", *ratio_cells, f"* {why}" if why else ""]

    def numbers(self) -> tuple[list[str], list[list[object]]]:
        """The columns and rows of a CSV file, without ratios."""
        rows: list[list[object]] = [
            [*self.named(cell), *(cell.figures[metric.name].counted for metric in self.metrics), cell.flaw]
            for cell in self.cells
        ]
        return [*self.heads, *(metric.name for metric in self.metrics), "flaw"], rows

    def picture(self) -> Bars:
        """The speed of each cell; hollow where it does not count."""
        speed, rows = METRIC_BY_NAME[SPEED_NAME], []
        for cell in self.cells:
            if (figure := cell.figures[SPEED_NAME]).value is not None:
                title = ", ".join(filter(None, map(cell.places.get, self.heads)))
                rows.append(Bar(title, speed.show(figure), [StackedPart(0.0, figure.value, is_hollow=bool(cell.flaw))]))
        return Bars(f"{speed.label} by {self.title}", speed.label, rows)


def sort_key(text: str) -> tuple[str, float]:
    """Return what begins with a number by its unit, then by the number."""
    leading_number = re.match(r"[\d.]+", text)
    return (text[leading_number.end() :], float(leading_number[0])) if leading_number else (text, 0.0)


def place_of(axes: Sequence[str]) -> MetricPlace:
    return "batch matrix" if BATCH in axes else "matrix"


def cells_of(summary: Summary, axes: Sequence[str]) -> Iterator[Cell]:
    """The run, or each of its levels where an axis is the batch."""
    levels = summary.levels if BATCH in axes else []
    meta, model = summary.meta, subject.model_text(summary)
    names = {"gpu": str(AXES["gpu"](summary)), "model": model, "scenario": meta.scenario, "label": meta.label or ""}
    gate = "the accuracy gate failed" * (summary.gate == "FAIL")
    tests: list[Outcome | None] = [*levels] or [summary.result]
    for test in tests:
        source, flaw = test if test and levels else summary, "no speed was measured"
        figures = {metric.name: metric.figure(source) for metric in METRICS}
        if test:
            flaw = joined("; ", gate, *test.background_load, *(test.flaws and [test.why or test.flaws[0]]))
        if test and levels and summary.price:
            figures[COST] = Figure(test.cost(summary.price))
        at = places(summary, axes, test if levels else None)
        beside = (at[axis] for axis in axes if axis not in HARDWARE)
        yield Cell(names | at, (model, meta.scenario, str(meta.workload), *beside), figures, flaw)


def places(summary: Summary, axes: Sequence[str], outcome: Outcome | None = None) -> dict[str, str]:
    """Return where a run stands on each axis: a column of AXES, or a setting. Raises UsageError for any other."""
    settings = dict(summary.meta) | summary.meta.work | summary.meta.setup
    if unknown := [axis for axis in axes if axis not in (*AXES, *settings)]:
        raise UsageError(f"--matrix {unknown[0]}: not one of {', '.join(AXES)}, nor a setting such as max_num_seqs.")
    place = {axis: AXES[axis](summary) if axis in AXES else settings[axis] for axis in axes}
    place |= {BATCH: f"{outcome.load:g} {outcome.unit}"} if outcome else {}
    return {axis: "unknown" if value in (None, "") else str(value) for axis, value in place.items()}
