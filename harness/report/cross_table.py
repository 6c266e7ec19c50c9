"""One metric of finished runs across two axes, such as the kinds of GPU and the batch, and its ratios."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.formatting import number
from harness.core.given_values import spelling_hint
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
            if cell.figures[metric.name].value is not None:
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
            lines.append([row, *map(self.metric.show, self.figures_of(row))])
        for row in self.rows[1:]:
            lines.append([f"{row} to {self.rows[0]}", *map(ratio_text, self.ratios_of(row))])
        return Table([f"{self.metric.label} by {self.column_axis}", *self.columns], lines)

    def figures_of(self, row: str) -> list[Figure]:
        """Return a row's figure in each column; without a value if nothing was measured there."""
        return [self.figures.get((row, column), Figure(None)) for column in self.columns]

    def ratios_of(self, row: str) -> list[Figure]:
        """Return a row's figures over those of the first row, with the doubts of both."""
        ratios = []
        for first, figure in zip(self.figures_of(self.rows[0]), self.figures_of(row), strict=True):
            if first.value and figure.value is not None:
                ratios.append(Figure(figure.value / first.value, (*first.doubts, *figure.doubts)))
            else:
                ratios.append(Figure(None))
        return ratios

    def numbers(self) -> tuple[list[str], list[list[object]]]:
        """Return the columns and rows of a CSV file, the ratios among them; what may not be believed is left out."""
        lines: list[list[object]] = []
        for row in self.rows:
            lines.append([row, self.metric.name, *(figure.counted for figure in self.figures_of(row))])
        for row in self.rows[1:]:
            sure_ratios = [None if ratio.doubts else ratio.value for ratio in self.ratios_of(row)]
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
        raise UsageError(f"--of {name}: no such metric{spelling_hint(name, list(METRIC_BY_NAME))}")
    return METRIC_BY_NAME[name]


def mean_figure(cells: Sequence[Cell], metric: Metric) -> Figure:
    """Return the mean of a metric over the runs of one cell, with all their doubts."""
    figures = [cell.figures[metric.name] for cell in cells]
    doubts = dict.fromkeys(doubt for figure in figures for doubt in figure.doubts)
    return Figure(fmean(figure.value for figure in figures if figure.value is not None), tuple(doubts))


def ratio_text(ratio: Figure) -> str:
    """Return a ratio as text, such as 1.25×. It is marked if one of its figures is doubtful."""
    if ratio.value is None:
        return "–"
    mark = UNSURE if ratio.doubts else ""
    return f"{number(ratio.value, 3)}×{mark}"
