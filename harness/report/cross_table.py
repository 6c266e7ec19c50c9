"""One metric of finished runs across two axes, such as the kinds of GPU and the batch, and its ratios."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.formatting import number
from harness.core.given_values import did_you_mean
from harness.core.tables import Table
from harness.report.charts import Bar, Bars, StackedPart
from harness.report.matrix import UNSURE, Cell, Matrix
from harness.results.metrics import METRIC_BY_NAME, Metric
from harness.results.outcome import Figure

AXES_COUNT = 2  # rows and columns
RowAndColumn = tuple[str, str]  # row and column


class CrossTable(NamedTuple):
    """A metric by row and column. The first row is the one that the ratios are to.

    `figures`: the mean of the runs at a place with the doubts of them all; a place where nothing was measured has none.
    """

    metric: Metric
    row_axis: str
    column_axis: str
    rows: Sequence[str]
    columns: Sequence[str]
    figures: Mapping[RowAndColumn, Figure]

    @classmethod
    def of(cls, matrix: Matrix, axes: Sequence[str], metric_name: str) -> "CrossTable":
        """Return the table of a metric. Raises UsageError for other than two axes, and a metric that no run has."""
        if len(axes) != AXES_COUNT:
            raise UsageError(f"--of takes a --matrix of two axes, as in gpu,batch; got {','.join(axes)}.")
        row_axis, column_axis = axes
        metric = metric_called(metric_name)
        cells_by_place: dict[RowAndColumn, list[Cell]] = {}
        for cell in matrix.cells:
            if figure_of(cell, metric).value is not None:
                place = cell.places[row_axis], cell.places[column_axis]
                cells_by_place.setdefault(place, []).append(cell)
        if not cells_by_place:
            raise UsageError(f"--of {metric_name}: no run has it.")
        rows = list(dict.fromkeys(row for row, _ in cells_by_place))
        reference_rows = [cell.places[row_axis] for cell in matrix.cells if cell.places["label"] == matrix.reference]
        if matrix.reference:
            rows.sort(key=lambda row: row not in reference_rows)
        columns = dict.fromkeys(cell.places[column_axis] for cell in matrix.cells)
        measured = {column for _, column in cells_by_place}
        figures = {place: mean_figure(cells, metric) for place, cells in cells_by_place.items()}
        return cls(metric, row_axis, column_axis, rows, [name for name in columns if name in measured], figures)

    def table(self) -> Table:
        """Return the metric by row and column, and below it each other row's ratio to the first."""
        lines = []
        for row in self.rows:
            figures = [self.figures.get((row, column), Figure(None)) for column in self.columns]
            lines.append([row, *(self.metric.show(figure) for figure in figures)])
        for row in self.rows[1:]:
            ratios = [self.ratio(row, column) for column in self.columns]
            lines.append([f"{row} to {self.rows[0]}", *(ratio_text(ratio) for ratio in ratios)])
        return Table([f"{self.metric.label} by {self.column_axis}", *self.columns], lines)

    def ratio(self, row: str, column: str) -> Figure:
        """Return a row's figure over the first row's in the same column, with the doubts of both."""
        first, other = self.figures.get((self.rows[0], column)), self.figures.get((row, column))
        if first is None or other is None or not first.value or other.value is None:
            return Figure(None)
        return Figure(other.value / first.value, (*first.doubts, *other.doubts))

    def numbers(self) -> tuple[list[str], list[list[object]]]:
        """Return the columns and rows of a CSV file, the ratios among them; what may not be believed is left out."""
        lines: list[list[object]] = []
        for row in self.rows:
            figures = [self.figures.get((row, column), Figure(None)) for column in self.columns]
            lines.append([row, self.metric.name, *(figure.counted for figure in figures)])
        for row in self.rows[1:]:
            ratios = [self.ratio(row, column) for column in self.columns]
            sure_ratios = [None if ratio.doubts else ratio.value for ratio in ratios]
            lines.append([row, f"ratio to {self.rows[0]}", *sure_ratios])
        return [self.row_axis, "figure", *self.columns], lines

    def picture(self) -> Bars:
        """Return a bar for each cell, column by column."""
        bars = []
        for column in self.columns:
            for row in self.rows:
                figure = self.figures.get((row, column))
                if figure is not None and figure.value is not None:
                    part = StackedPart(0.0, figure.value, is_hollow=bool(figure.doubts))
                    bars.append(Bar(f"{column}, {row}", self.metric.show(figure), [part]))
        title = f"{self.metric.label} by {self.column_axis} and {self.row_axis}"
        return Bars(title, self.metric.label, bars)


def metric_called(name: str) -> Metric:
    """Return the metric of a name. Raises UsageError."""
    if name not in METRIC_BY_NAME:
        raise UsageError(f"--of {name}: no such metric{did_you_mean(name, list(METRIC_BY_NAME))}")
    return METRIC_BY_NAME[name]


def figure_of(cell: Cell, metric: Metric) -> Figure:
    return cell.figures.get(metric.name, Figure(None))


def mean_figure(cells: Sequence[Cell], metric: Metric) -> Figure:
    """Return the mean of a metric over the runs of one cell, with all their doubts."""
    figures = [figure_of(cell, metric) for cell in cells]
    doubts = dict.fromkeys(doubt for figure in figures for doubt in figure.doubts)
    return Figure(fmean(figure.value for figure in figures if figure.value is not None), tuple(doubts))


def ratio_text(ratio: Figure) -> str:
    """Return a ratio as text, such as 1.25×. It is marked if one of its figures is doubtful."""
    if ratio.value is None:
        return "–"
    mark = UNSURE if ratio.doubts else ""
    return f"{number(ratio.value, 3)}×{mark}"
