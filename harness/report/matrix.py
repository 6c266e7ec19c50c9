"""Finished runs in one table by what tells them apart, such as the kind of GPU and the workload, or the batch."""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.formatting import gpu_names, joined_text, number
from harness.core.tables import Table
from harness.report import subject
from harness.report.charts import Bar, Bars, StackedPart
from harness.results.metrics import COST, METRIC_BY_NAME, METRICS, Metric, MetricPlace, metrics_of
from harness.results.outcome import Figure, Outcome
from harness.results.summary import Summary

BATCH = "batch"  # the axis along which the levels within a run are cells of their own
AXES: dict[str, Callable[[Summary], object]] = {
    "gpu": lambda run: run.system.cpu if run.gpu_models == [] else gpu_names(run.gpu_models),
    "driver": lambda run: run.system.driver,
    "workload": lambda run: run.meta.workload,
    "label": lambda run: run.meta.label,
    BATCH: lambda run: f"{run.meta.batch_size} at once" if run.meta.batch_size else "its own test",
}
HARDWARE_AXES = ("gpu", "driver")  # the cheapest cell is chosen among cells that differ only on these axes
ROW_NAMES = ("gpu", "model", "scenario", "label")  # names of a row, beside its axes
SPEED_NAME = "tokens_per_sec"
DOUBT_MARK = "*"  # behind a ratio of doubtful figures


class Cell(NamedTuple):
    """A run, or a level of it, as a row of the matrix."""

    places: dict[str, str]  # its place on each axis, and its other names (ROW_NAMES)
    all_but_hardware: tuple[str, ...]  # model, scenario, workload and places; the same for cells that may be compared
    figures: dict[str, Figure]  # every metric, by name
    flaw: str  # why its figures do not count, in words; empty if they do
    batch_size: float | None  # requests at once: its level's, or the batch size that the run was given


class Matrix(NamedTuple):
    """Runs, or levels of runs, by their place on one or more axes."""

    title: str
    heads: Sequence[str]  # the axes and the other names that tell the cells apart
    cells: list[Cell]  # in order of their places
    metrics: list[Metric]  # those that at least one cell has
    reference: str = ""  # the label of the runs that ratios are to; empty: no ratios

    @classmethod
    def of(cls, summaries: Sequence[Summary], axes: Sequence[str], reference: str = "") -> "Matrix":
        """Return a matrix with a cell for each run, or for each level of a run if an axis is the batch.

        Raises UsageError for an axis that cannot be used, or an unknown reference.
        """
        if len(set(axes)) < len(axes):
            raise UsageError(f"--matrix {','.join(axes)}: an axis is named twice.")
        labels = [summary.meta.label for summary in summaries]
        if reference and reference not in labels:
            raise UsageError(
                f"--reference {reference}: the runs' labels are {', '.join(filter(None, labels)) or 'empty'}."
            )

        def order(cell: Cell) -> list[tuple[str, float]]:
            """Return a key that sorts cells by their places on the axes, by the last axis first."""
            return [sort_key(cell.places[axis]) for axis in reversed(axes)]

        cells = list[Cell]()
        for summary in summaries:
            cells += cells_of(summary, axes)
        cells.sort(key=order)
        names = [name for name in ROW_NAMES if name not in axes and is_worth_showing(cells, name)]
        metrics_of_table = metrics_of(place_of(axes))  # as metrics.csv has them
        metrics = [metric for metric in metrics_of_table if is_measured(cells, metric)]
        return cls(" and ".join(axes), [*axes, *names], cells, metrics, reference)

    def table(self) -> Table:
        """Return the table of cells. A row that has a reference is followed by its ratios to the reference.

        Among several cells that differ only in hardware, the cheapest one without a flaw is marked.
        """
        priced_cells = [cell for cell in self.cells if cell.figures[COST].value and not cell.flaw]
        group_sizes = Counter(cell.all_but_hardware for cell in self.cells)
        cheapest: dict[tuple[str, ...], Cell] = {}
        for cell in sorted(priced_cells, key=cost_of, reverse=True):
            cheapest[cell.all_but_hardware] = cell  # Later cells are cheaper, so the cheapest one stays.
        rows = []
        for cell in self.cells:
            remark = cell.flaw
            has_rivals = group_sizes[cell.all_but_hardware] > 1
            if not remark and has_rivals and cheapest.get(cell.all_but_hardware) is cell:
                remark = "cheapest within the limits"
            figures = [metric.show(cell.figures[metric.name]) for metric in self.metrics]
            rows.append([*self.named(cell), *figures, remark])
            for other in self.cells:
                if self.has_reference(cell, other):
                    rows.append(self.ratios(cell, other))
        labels = [metric.label for metric in self.metrics]
        return Table([*self.heads, *labels, ""], rows)

    def has_reference(self, cell: Cell, candidate: Cell) -> bool:
        """Tell whether the ratios of `cell` are to the cell `candidate`.

        They are if the candidate has the label of the reference (--reference), and differs from it only in hardware.
        """
        if not self.reference or candidate is cell:
            return False
        has_label = candidate.places["label"] == self.reference
        return has_label and candidate.all_but_hardware == cell.all_but_hardware

    def named(self, cell: Cell) -> list[str]:
        """Return the places and names of a cell, one for each column of `heads`; a dash for an empty one."""
        return [cell.places[head] or "–" for head in self.heads]

    def ratios(self, cell: Cell, reference: Cell) -> list[str]:
        """Return a row with the ratios of a cell's metrics to those of its reference, and the flaws of both.

        Ratios of doubtful figures are marked. A metric without a value in one of the cells has a dash.
        """
        texts = [""] * (len(self.heads) - 1)  # the row is named in the last column of names
        texts.append(f"to {self.reference}")
        for metric in self.metrics:
            figure, reference_figure = cell.figures[metric.name], reference.figures[metric.name]
            if figure.value is None or not reference_figure.value:
                texts.append("–")
                continue
            is_unsure = cell.flaw or reference.flaw or figure.doubts or reference_figure.doubts
            text = f"{number(figure.value / reference_figure.value, 3)}×"
            if is_unsure:
                text += DOUBT_MARK
            texts.append(text)
        flaws = joined_text("; ", *dict.fromkeys((cell.flaw, reference.flaw)))
        if flaws:
            flaws = f"{DOUBT_MARK} {flaws}"
        return [*texts, flaws]

    def csv_table(self) -> tuple[list[str], list[list[object]]]:
        """Return the column names and the rows of a CSV file, without ratios.

        If an axis is the batch, there is also a column with its size as a number.
        """
        names = [metric.name for metric in self.metrics]
        has_batches = BATCH in self.heads
        heads = [*self.heads, *names, "flaw"]
        if has_batches:
            heads = [*self.heads, "batch_size", *names, "flaw"]
        rows: list[list[object]] = []
        for cell in self.cells:
            row: list[object] = [*self.named(cell)]
            if has_batches:
                row.append(cell.batch_size)
            # A figure that does not count, such as a p99 of few requests, is None here, and an empty field in the file.
            row += [cell.figures[name].counted for name in names]
            rows.append([*row, cell.flaw])
        return heads, rows

    def picture(self) -> Bars:
        """Return a panel with a bar of speed for each cell that has one.

        A bar is hollow if its speed does not count.
        """
        speed = METRIC_BY_NAME[SPEED_NAME]
        rows = []
        for cell in self.cells:
            figure = cell.figures[SPEED_NAME]
            if figure.value is not None:
                # `places` has the cell's value on each axis of the matrix, by the name of the axis (`heads`).
                title = joined_text(", ", *map(cell.places.get, self.heads))
                part = StackedPart(0.0, figure.value, is_hollow=bool(cell.flaw))
                rows.append(Bar(title, speed.show(figure), [part]))
        return Bars(f"{speed.label} by {self.title}", speed.label, rows)


def is_worth_showing(cells: Sequence[Cell], name: str) -> bool:
    """Tell whether a column is worth showing: at least one cell has a value there. `name` is one of ROW_NAMES.

    The scenario is worth showing only if there are several.
    """
    values = {cell.places[name] for cell in cells}
    if name == "scenario":
        return len(values) > 1
    return any(values)


def is_measured(cells: Sequence[Cell], metric: Metric) -> bool:
    """Tell whether at least one cell has the metric."""
    return any(cell.figures[metric.name].value is not None for cell in cells)


def cost_of(cell: Cell) -> float:
    """Return the cost of tokens in a cell, for sorting: infinity if it is not known or 0, so
    that it is never the cheapest.
    """
    return cell.figures[COST].value or math.inf


def sort_key(text: str) -> tuple[str, float]:
    """Return the key by which the places on an axis are sorted.

    A number with a unit, such as "8 in flight", is sorted by its unit, then by the number. Any other text, also a
    version such as "1.2.3", is sorted as text.
    """
    leading_number = re.match(r"\d+(?:\.\d+)?", text)
    if leading_number is None or text[leading_number.end() :].startswith("."):
        return text, 0.0
    return text[leading_number.end() :], float(leading_number[0])


def place_of(axes: Sequence[str]) -> MetricPlace:
    """Return the name that metrics.csv has for the table: it lists there which metrics the table shows."""
    if BATCH in axes:
        return "batch matrix"
    return "matrix"


def cells_of(summary: Summary, axes: Sequence[str]) -> Iterator[Cell]:
    """Yield the cell of the run or, if the run has levels and an axis is the batch, a cell for each level.

    A level is a tested number of requests in flight, or a batch size. Raises UsageError if the run lacks an axis.
    """
    if BATCH not in axes or not summary.levels:
        figures = {metric.name: metric.figure(summary) for metric in METRICS}
        yield cell_of(summary, axes, figures, flaw_of(summary, summary.result))
        return
    for level in summary.levels:
        figures = {metric.name: metric.figure(level) for metric in METRICS}
        if summary.price:  # A level has no recorded cost: it follows from the level's speed.
            figures[COST] = Figure(level.cost(summary.price))
        yield cell_of(summary, axes, figures, flaw_of(summary, level), level)


def cell_of(
    summary: Summary, axes: Sequence[str], figures: dict[str, Figure], flaw: str, level: Outcome | None = None
) -> Cell:
    """Return the cell of a run or, with `level`, of one of its levels. Raises UsageError if the run lacks an axis.

    `figures` has every metric by name. `flaw` is why they do not count, empty if they do.
    """
    meta, model = summary.meta, subject.model_text(summary)
    # Beside its places on the axes, a cell has these names, which are shown if they tell the cells apart.
    names = {"gpu": str(AXES["gpu"](summary)), "model": model, "scenario": meta.scenario, "label": meta.label or ""}
    places = places_of(summary, axes, level)
    places_except_hardware = [places[axis] for axis in axes if axis not in HARDWARE_AXES]
    # Cells with the same values here differ only in hardware, so they may be compared.
    all_but_hardware = (model, meta.scenario, str(meta.workload), *places_except_hardware)
    batch_size = level.load if level else meta.batch_size
    return Cell(names | places, all_but_hardware, figures, flaw, batch_size)


def flaw_of(summary: Summary, test: Outcome | None) -> str:
    """Return why a test's figures do not count, in words; empty if they do.

    Reasons are a failed accuracy gate, other programs on the machine, and flaws of the figures. `test` is None if the
    run has no speed.
    """
    if test is None:
        return "no speed was measured"
    flaws = list(test.background_load)
    if summary.gate == "FAIL":
        flaws.insert(0, "the accuracy gate failed")
    if test.flaws:
        flaws.append(test.why or test.flaws[0])  # The reasons in words say more than the name of the first flaw.
    return joined_text("; ", *flaws)


def places_of(summary: Summary, axes: Sequence[str], level: Outcome | None = None) -> dict[str, str]:
    """Return the place of a run or, with `level`, of one of its levels on each axis, as text.

    Raises UsageError for an axis that is neither in AXES nor the name of a setting.
    """
    settings = dict(summary.meta) | summary.meta.work | summary.meta.setup
    places = {}
    for axis in axes:
        if axis in AXES:
            value = AXES[axis](summary)
        elif axis in settings:
            value = settings[axis]
        else:
            raise UsageError(f"--matrix {axis}: not one of {', '.join(AXES)}, nor a setting such as max_num_seqs.")
        if value in (None, ""):
            value = "no label" if axis == "label" else "unknown"
        places[axis] = str(value)
    if level:  # Only the batch differs between the levels of a run.
        places[BATCH] = f"{level.load:g} {level.unit}"
    return places
