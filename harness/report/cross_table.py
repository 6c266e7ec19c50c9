"""One metric of finished runs across two axes, such as the kinds of GPU and the batch, and its ratios."""

from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import fmean
from typing import NamedTuple

from harness.core.errors import UsageError
from harness.core.formatting import number
from harness.core.tables import Table
from harness.report.charts import Bar, Bars, StackedPart
from harness.report.matrix import DOUBT_MARK, Cell, Matrix
from harness.results.metrics import METRIC_BY_NAME, Metric, unknown_metric
from harness.results.outcome import Figure

AXES_COUNT = 2  # rows and columns
RowAndColumn = tuple[str, str]  # row and column


class CrossTable(NamedTuple):
    """A metric by row and column. Ratios are to the first row.

    A figure is the mean over the runs of its row and column, with the doubts of all of them. Where nothing was measured
    there is no figure.
    """

    metric: Metric
    row_axis: str
    column_axis: str
    rows: Sequence[str]
    columns: Sequence[str]
    figures: Mapping[RowAndColumn, Figure]

    @classmethod
    def of(cls, matrix: Matrix, axes: Sequence[str], metric_name: str) -> "CrossTable":
        """Return the table of a metric over two axes of the matrix, without empty rows and columns.

        Raises UsageError if there are not two axes, if the metric is not known, or if no run has it.
        """
        if len(axes) != AXES_COUNT:
            raise UsageError(f"--of takes a --matrix of two axes, as in gpu,batch; got {','.join(axes)}.")
        row_axis, column_axis = axes
        metric = metric_called(metric_name)
        cells_by_place: dict[RowAndColumn, list[Cell]] = {}  # the cells in which the metric was measured
        for cell in matrix.cells:
            if cell.figures[metric.name].value is not None:
                row_and_column = cell.places[row_axis], cell.places[column_axis]
                cells_by_place.setdefault(row_and_column, []).append(cell)
        if not cells_by_place:
            raise UsageError(f"--of {metric_name}: no run has it.")
        rows = list(dict.fromkeys(row for row, _column in cells_by_place))
        reference_rows = rows_of_reference(matrix, row_axis)
        # The sort is stable: the reference's rows move to the top, and the others stay in order.
        rows.sort(key=lambda row: row not in reference_rows)
        columns_in_order = dict.fromkeys(cell.places[column_axis] for cell in matrix.cells)
        columns_with_figure = {column for _row, column in cells_by_place}
        columns = [column for column in columns_in_order if column in columns_with_figure]
        figures = {place: mean_figure(cells, metric) for place, cells in cells_by_place.items()}
        return cls(metric, row_axis, column_axis, rows, columns, figures)

    def table(self) -> Table:
        """Return the metric by row and column. Below, each row except the first has its ratios to the first row."""
        lines = []
        for row in self.rows:
            lines.append([row, *map(self.metric.show, self.figures_of(row))])
        for row in self.rows[1:]:
            lines.append([f"{row} to {self.rows[0]}", *map(ratio_text, self.ratios_of(row))])
        return Table([f"{self.metric.label} by {self.column_axis}", *self.columns], lines)

    def figures_of(self, row: str) -> list[Figure]:
        """Return a row's figure in each column. A figure has no value if nothing was measured there."""
        return [self.figures.get((row, column), Figure(None)) for column in self.columns]

    def ratios_of(self, row: str) -> list[Figure]:
        """Return a row's figures over those of the first row, with the doubts of both.

        A ratio has no value if one of its figures has none, or if that of the first row is 0.
        """
        ratios = []
        for first, figure in zip(self.figures_of(self.rows[0]), self.figures_of(row), strict=True):
            if first.value and figure.value is not None:
                ratios.append(Figure(figure.value / first.value, (*first.doubts, *figure.doubts)))
            else:
                ratios.append(Figure(None))
        return ratios

    def csv_table(self) -> tuple[list[str], list[list[object]]]:
        """Return the column names and the rows of a CSV file: the figures first, then the ratios to the first row.

        The cell of a p99 of few requests and of a ratio of doubtful figures is empty.
        """
        lines: list[list[object]] = []
        for row in self.rows:
            lines.append([row, self.metric.name, *(figure.counted for figure in self.figures_of(row))])
        for row in self.rows[1:]:
            sure_ratios = [None if ratio.doubts else ratio.value for ratio in self.ratios_of(row)]
            lines.append([row, f"ratio to {self.rows[0]}", *sure_ratios])
        return [self.row_axis, "figure", *self.columns], lines

    def picture(self) -> Bars:
        """Return a panel with a bar for each figure, column by column. A bar is hollow if its figure is doubtful."""
        bars = []
        for column in self.columns:
            for row in self.rows:
                figure = self.figures.get((row, column))
                if figure is not None and figure.value is not None:
                    part = StackedPart(0.0, figure.value, is_hollow=bool(figure.doubts))
                    bars.append(Bar(f"{column}, {row}", self.metric.show(figure), [part]))
        title = f"{self.metric.label} by {self.column_axis} and {self.row_axis}"
        return Bars(title, self.metric.label, bars)


def rows_of_reference(matrix: Matrix, row_axis: str) -> set[str]:
    """Return the rows of the reference runs, which have the label `matrix.reference`. Empty without a reference."""
    if not matrix.reference:
        return set()
    cells = [cell for cell in matrix.cells if cell.places["label"] == matrix.reference]
    return {cell.places[row_axis] for cell in cells}


def metric_called(name: str) -> Metric:
    """Return the metric of a name. Raises UsageError if there is no such metric."""
    if name not in METRIC_BY_NAME:
        raise UsageError(f"--of {name}: {unknown_metric(name, list(METRIC_BY_NAME))}")
    return METRIC_BY_NAME[name]


def mean_figure(cells: Sequence[Cell], metric: Metric) -> Figure:
    """Return the mean of a metric over the runs of one row and column, with the doubts of all of them."""
    figures = [cell.figures[metric.name] for cell in cells]
    doubts = dict.fromkeys(chain.from_iterable(figure.doubts for figure in figures))
    return Figure(fmean(figure.value for figure in figures if figure.value is not None), tuple(doubts))


def ratio_text(ratio: Figure) -> str:
    """Return a ratio as text, such as 1.25×; a dash without a value. DOUBT_MARK follows if a figure is doubtful."""
    if ratio.value is None:
        return "–"
    mark = DOUBT_MARK if ratio.doubts else ""
    return f"{number(ratio.value, 3)}×{mark}"
