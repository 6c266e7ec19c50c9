"""Pictures as data: panels of bars, or of lines and points. matplotlib draws them for report.md, a page by itself.

Panels stand below each other. Across, an HTML page places everything in percent and down in pixels, so that words keep
their size at every width.
"""

import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from io import BytesIO
from itertools import chain, zip_longest
from math import ceil, dist, floor, isfinite, isnan, log10
from operator import attrgetter
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.core.document import Document, Picture
from harness.core.files import write_bytes
from harness.core.formatting import joined_text, number
from harness.core.message_text import printable_text

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure, FigureBase

PALETTE = {  # the colours of the page in light mode, by the names that page.css has for them
    "blue": "#0b5cad",
    "amber": "#875400",
    "grey": "#545d68",
    "red": "#b3261e",
    "green": "#176f33",
    "purple": "#7a3f96",
}
LIMIT_LINE: dict[str, Any] = {"color": PALETTE["red"], "linestyle": "--", "linewidth": 1}
HEADROOM_FACTOR = 1.06  # the end of an axis, as a multiple of its largest value
MOST_TICKS = 6  # ticks of an axis
LEAST_TICK_GAP_PERCENT = 10.0  # percent of the axis between two ticks: room for a number on a phone
LEAST_IN_THOUSANDS = 1e5  # numbers beside an axis are written in thousands from here on
MOST_POINTS = 300  # points of a line on a page
FIGURE_WIDTH_IN = 8.0
ROW_HEIGHT_IN, LINES_HEIGHT_IN = 0.3, 1.9  # inches of a row of bars, and of a panel of lines
PANEL_MARGIN_IN = 0.9  # inches for the title and the axis of a panel of bars
EDGE_SHARE = 0.04  # share of an axis that is shown below its low end, so that a line that lies there is not cut
HOLLOW_NOTE = "hollow: not conclusive"  # the legend of bars and marks, in every picture
# Fonts with characters that matplotlib's own lacks, such as those of Korean. Those that are installed are used.
FALLBACK_FONTS = ("Noto Sans CJK KR", "Noto Sans CJK JP", "NanumGothic", "Malgun Gothic", "Apple SD Gothic Neo")
LEGEND_FONT_POINTS = 8
LEGEND_SPACING = 0.5  # between two entries, in units of the font size
RING_SIZE_POINTS = 15.0  # the size of a ring around a mark
TITLE_CHARACTERS, CAPTION_CHARACTERS = 80, 150  # characters of a line of a title, and of the text under a picture
Point = tuple[float, float]
Tick = tuple[float, str]  # a place in percent or pixels, and the text there


def round_steps(low: float, high: float) -> list[float]:
    """Return evenly spaced round numbers between `low` and `high`, for the ticks of an axis.

    The step is 1, 2, 5 or 10 times a power of ten: the smallest that makes no more than about MOST_TICKS numbers.
    """
    least_step = (high - low) / MOST_TICKS
    step = power = 10.0 ** floor(log10(least_step))
    for factor in (2, 5, 10):
        if step < least_step:  # The step before makes too many numbers.
            step = factor * power
    return [step * n for n in range(ceil(low / step), floor(high / step) + 1)]


class Scale(NamedTuple):
    """An axis from one value to another."""

    low: float
    high: float
    is_log: bool = False

    @classmethod
    def of(cls, values: Sequence[float]) -> "Scale":
        """Return a scale that holds zero and all finite values, with HEADROOM_FACTOR of room above the largest.

        It begins at zero, or at the lowest value if that is negative, and ends at 1 if no value is above zero.
        """
        known = [0.0, *filter(isfinite, values)]
        return cls(min(known), max(known) * HEADROOM_FACTOR or 1.0)

    @classmethod
    def around(cls, values: Sequence[float], margin: float = 0.1, is_log: bool = False) -> "Scale":
        """Return a scale from the smallest to the largest value. The margin on both sides is a share of the range.

        A logarithmic scale takes the logarithms of the values. Without values, the range is 0 to 1.
        """
        known = list(filter(isfinite, values))
        if is_log:  # Only positive values have a logarithm.
            known = [log10(value) for value in known if value > 0]
        low, high = min(known, default=0.0), max(known, default=1.0)
        room = margin * (high - low)
        if low == high:
            room = 0.5  # so that the scale has a length
        if is_log:
            return cls(10 ** (low - room), 10 ** (high + room), is_log=True)
        return cls(low - room, high + room)

    def place(self, value: float) -> float:
        """Return the place of a value in percent of the axis. A value beyond an end is placed at that end."""
        low, high = self.low, self.high
        if self.is_log:
            value = max(value, low)  # so that a value of 0, which has no logarithm, is at the low end
            low, high, value = log10(low), log10(high), log10(value)
        share = (value - low) / (high - low)
        return round(100 * min(max(share, 0.0), 1.0), 2)

    def wide(self, begin: float, end: float) -> float:
        """Return the distance from one value to another, in percent of the axis."""
        return round(self.place(end) - self.place(begin), 2)

    def top(self, value: float, height: int) -> float:
        """Return how many pixels below the top of an upright axis a value lies. `height` is the axis in pixels."""
        return round(height * (1 - self.place(value) / 100), 1)

    def ticks(self, values: Sequence[float] = ()) -> list[Tick]:
        """Return the ticks of the axis, at `values` or at round values: each with its place in percent and its text.

        A tick too close to the tick before is left out.
        """
        tick_values = values
        if not values and self.is_log:
            tick_values = self.round_values()
        if not tick_values:
            tick_values = round_steps(self.low, self.high)
        ticks: list[Tick] = []
        for value in tick_values:
            place, text = self.place(value), number(value)
            if value >= LEAST_IN_THOUSANDS:
                text = f"{number(value / 1000)}k"
            if not ticks or place - ticks[-1][0] >= LEAST_TICK_GAP_PERCENT:
                ticks.append((place, text))
        return ticks

    def round_values(self) -> list[float]:
        """Return 1, 2 and 5 times each power of ten within a logarithmic scale."""
        values = []
        for power in range(floor(log10(self.low)), ceil(log10(self.high)) + 1):
            for factor in (1, 2, 5):
                value = factor * 10.0**power
                if self.low <= value <= self.high:
                    values.append(value)
        return values

    def upright_ticks(self, height: int) -> list[Tick]:
        """Return the ticks of an upright axis: each with its pixels from the top, and its text.

        `height` is the axis in pixels.
        """
        ticks = []
        for percent_from_bottom, text in self.ticks():
            ticks.append((round(height * (1 - percent_from_bottom / 100), 1), text))
        return ticks


class StackedPart(NamedTuple):
    """A piece of a bar, from one value to another."""

    begin: float
    end: float
    color: str = "blue"
    is_hollow: bool = False
    name: str = ""  # its text in the legend; without one it is not there


class Bar(NamedTuple):
    """A row of a panel: a bar of stacked parts with its name and its text. It may have more than the bar."""

    name: str
    text: str
    parts: Sequence[StackedPart] = ()
    interval: Sequence[float] = ()  # low and high end, drawn as a line
    marks: Sequence[float] = ()  # thresholds, drawn in red
    dot: StackedPart | None = None  # a value, drawn as a dot at the part's end

    @property
    def values(self) -> list[float]:
        """All values that the row shows, from which the scale of the axis is made."""
        parts = list(self.parts)
        if self.dot:
            parts.append(self.dot)
        values = [*self.interval, *self.marks]
        for part in parts:
            values += [part.begin, part.end]
        return values


class Bars(NamedTuple):
    """Rows of bars over one axis."""

    title: str
    axis: str  # the text at the axis
    rows: Sequence[Bar]
    lines: Sequence[float] = ()  # values that all rows are compared with, drawn across all of them
    span: Scale | None = None  # the scale of the axis; None: from zero to above the largest value
    order: Sequence[str] = ()  # the colors of the legend in their order; none: all, as they occur
    is_aligned: bool = False  # whether each row is below the row before, even if there is room beside that row

    @property
    def x(self) -> str:
        """The text at the axis, which explains hollow bars if there are any."""
        parts = chain.from_iterable(row.parts for row in self.rows)
        if any(part.is_hollow for part in parts):
            return joined_text("; ", self.axis, HOLLOW_NOTE)
        return self.axis

    @property
    def scale(self) -> Scale:
        """The scale of the axis: the given one, else one from zero to above the largest value of rows and lines."""
        if self.span:
            return self.span
        values = chain.from_iterable(row.values for row in self.rows)
        return Scale.of([*values, *self.lines])

    @property
    def legend(self) -> dict[str, str]:
        """The color of each text in the legend, in the order of the legend.

        If `order` has colors, the legend has only these colors, in that order. Else it has all colors, as they occur in
        the rows.
        """
        colors_by_name = {}
        for part in chain.from_iterable(row.parts for row in self.rows):
            if part.name:
                colors_by_name[part.name] = part.color
        shown_colors = self.order or dict.fromkeys(colors_by_name.values())
        legend = dict[str, str]()
        for color in shown_colors:
            for name, color_of_name in colors_by_name.items():  # Several names may have this color.
                if color_of_name == color:
                    legend[name] = color
        return legend

    @property
    def inches(self) -> float:
        return PANEL_MARGIN_IN + ROW_HEIGHT_IN * len(self.rows)

    def draw(self, axes: "Axes") -> None:
        """Draw the rows and the lines across all of them into a figure's axes, and name the entries of the legend.

        The legend itself is drawn with the whole panel.
        """
        for place, row in enumerate(self.rows):
            draw_row(axes, place, row)
        for value in self.lines:
            axes.axvline(value, color=PALETTE["grey"], linewidth=1)
        for name, color in self.legend.items():
            axes.barh(0, 0, color=PALETTE[color], label=name)  # A bar without length names an entry of the legend.
        names = [row.name for row in self.rows]
        axes.set_yticks(range(len(names)), names, fontsize=9)
        scale = self.scale
        # The axis runs downwards, so the first row (0) is on top. It ends 0.6 of a row beyond the first and last one.
        axes.set(ylim=(len(self.rows) - 0.4, -0.6), xlim=(scale.low, scale.high))
        axes.grid(axis="y", visible=False)


def draw_row(axes: "Axes", place: int, row: Bar) -> None:
    """Draw the bar of a row, with its interval, its thresholds, its dot and its text as far as it has them.

    `place` is the row's place on the upright axis: 0 is the row on top.
    """
    for part in row.parts:
        color = fill = PALETTE[part.color]
        if part.is_hollow:
            fill = "none"
        axes.barh(place, part.end - part.begin, left=part.begin, color=fill, edgecolor=color, height=0.65)
    if row.interval:
        # A wider white line below makes the line visible on a dark bar, too.
        axes.plot(row.interval, [place] * 2, color="white", linewidth=3.5)
        axes.plot(row.interval, [place] * 2, color="#222", linewidth=1.5)
    for threshold in row.marks:
        axes.plot([threshold] * 2, [place - 0.35, place + 0.35], color=PALETTE["red"], linewidth=2)
    # The text begins 5 points to the right of the largest value or, so as not to cover the interval, 8 points to the
    # right of the dot and above it.
    text_begin, text_shift = max(row.values, default=0.0), (5, 0)
    if row.dot:
        axes.plot(row.dot.end, place, "o", color=PALETTE[row.dot.color], markersize=8, zorder=3)
        text_begin, text_shift = row.dot.end, (8, 8)
    axes.annotate(row.text, (text_begin, place), text_shift, textcoords="offset points", va="center", fontsize=9)


class TextShift(NamedTuple):
    """The place of a text beside its point: the shift of the text's middle in pixels, to the right and upwards."""

    right: int
    up: int

    @property
    def svg_y(self) -> int:
        """The place of the text's base line in an SVG, whose y axis runs downwards, in pixels from the point."""
        half_text = 4
        return half_text - self.up


TEXT_ABOVE = TextShift(0, 15)
# The places of a text, the best first.
TEXT_SHIFTS = (
    TEXT_ABOVE,
    TextShift(0, -15),
    TextShift(16, 0),
    TextShift(-16, 0),
    TextShift(12, 12),
    TextShift(-12, 12),
)


class Series(NamedTuple):
    """Points with a line through them, or a mark at each. A point with the value NaN is a gap in the line."""

    name: str  # its text in the legend; empty: it is not in the legend
    points: Sequence[Point]
    color: str = "blue"
    mark: str = ""  # as matplotlib names it: "o", "s", "^", "D", "v", "X", "*"; empty: no mark
    line: str = "-"  # or "--"; empty: no line
    is_hollow: bool = False
    size: float = 6.0  # the size of a mark, in points
    texts: Sequence[str] = ()  # a text beside each point
    text_shift: TextShift = TEXT_ABOVE

    @property
    def marked(self) -> list[tuple[Point, str]]:
        """Each point with its text, which is empty if the series has none."""
        return [*zip_longest(self.points, self.texts, fillvalue="")]  # type: ignore[list-item]

    @property
    def pieces(self) -> list[list[Point]]:
        """The pieces of the line between its gaps. Of a long line, only about MOST_POINTS points are taken, evenly.

        A gap is a point whose height is NaN.
        """
        point_step = max(1, len(self.points) // MOST_POINTS)
        last_point = self.points[-1:]  # so that the line ends where the data end
        pieces: list[list[Point]] = [[]]
        for across, height in [*self.points[::point_step], *last_point]:
            if isnan(height):  # The point is a gap, after which a new piece begins.
                pieces.append([])
            else:
                pieces[-1].append((across, height))
        return [piece for piece in pieces if piece]


class LinePanel(NamedTuple):
    """Series over two axes."""

    title: str
    x: str  # the text at the axis across
    y: str  # the text at the upright axis
    series: Sequence[Series]
    across: Scale
    down: Scale  # the upright axis
    limits: Mapping[float, str] = {}  # the names of red lines across, by their height
    upright_limits: Mapping[float, str] = {}  # the names of red upright lines, by their value across
    shaded: Sequence[Point] = ()  # the begin and end of each shaded part across, such as a ramp
    tick_values: Sequence[float] = ()  # values across that have a tick each; empty: ticks at round values
    names_of_points: Sequence[str] = ()  # of points whose texts are numbers: the first is that of point 1
    inches: float = LINES_HEIGHT_IN

    @property
    def legend(self) -> dict[str, str]:
        """The color of each text in the legend: that of each named series, and red for limits."""
        colors = {series.name: series.color for series in self.series if series.name}
        limit_names = [*self.limits.values(), *self.upright_limits.values()]
        return colors | dict.fromkeys(limit_names, "red")

    def draw(self, axes: "Axes") -> None:
        """Draw the series, the limits and the shaded parts into a figure's axes, and set both scales."""
        for series in self.series:
            draw_series(axes, series)
        for height, text in self.limits.items():
            axes.axhline(height, label=text, **LIMIT_LINE)
        for value, text in self.upright_limits.items():
            axes.axvline(value, label=text, **LIMIT_LINE)
        for begin, end in self.shaded:
            axes.axvspan(begin, end, color=PALETTE["grey"], alpha=0.15, linewidth=0)
        if self.across.is_log:
            axes.set_xscale("log")
            set_round_ticks(axes.xaxis)
        if self.down.is_log:
            axes.set_yscale("log")
            set_round_ticks(axes.yaxis)
        axes.yaxis.set_major_formatter(tick_text)
        if self.tick_values:
            axes.set_xticks(self.tick_values)
        for order, name in enumerate(self.names_of_points, 1):
            # Points have numbers, and the legend has the name of each number: a line of text without a mark.
            axes.plot([], [], linestyle="none", label=f"{order}  {name}")
        low, high, is_log = self.down
        if not is_log:
            # Show some room below the low end, so that a line that lies there is not cut.
            low -= EDGE_SHARE * (high - low)
        axes.set(xlim=(self.across.low, self.across.high), ylim=(low, high), ylabel=self.y)


def draw_series(axes: "Axes", series: Series) -> None:
    """Draw the points of a series with its line, its marks and its texts, as far as it has them."""
    color = PALETTE[series.color]
    axes.plot(
        *zip(*series.points, strict=True),
        color=color,
        label=series.name or None,
        linestyle=series.line or "none",
        linewidth=1.4,
        marker=series.mark or None,
        markersize=series.size,
        markerfacecolor="none" if series.is_hollow else color,
    )
    if series.texts:
        for point, text in series.marked:
            axes.annotate(
                text,
                point,
                series.text_shift,  # where the middle of the text is
                textcoords="offset points",
                ha="center",
                va="center",
                fontsize=8,
            )


NARROW_PLOT = (300, 120)  # width and height in pixels of a plot on a phone
TEXT_ROOM = 13  # pixels between the middles of two short texts that can both be read


def text_shifts(points: Sequence[Point], across: Scale, down: Scale) -> list[TextShift]:
    """Return where to write a short text beside each point, so that as few texts as possible overlap.

    Each text is at least TEXT_ROOM away from all texts before it, if there is room, on a plot as small as on a phone.
    """
    width, height = NARROW_PLOT
    taken_middles = list[Point]()
    shifts = []
    for x, y in points:
        left = across.place(x) / 100 * width
        top = down.top(y, height)
        for shift in (*TEXT_SHIFTS, TEXT_ABOVE):  # The last one is taken if no place has enough room.
            middle = (left + shift.right, top - shift.up)
            if all(dist(middle, other) >= TEXT_ROOM for other in taken_middles):
                break
        taken_middles.append(middle)
        shifts.append(shift)
    return shifts


def set_round_ticks(axis: "Axis") -> None:
    """Put the ticks of a logarithmic axis at 1, 2 and 5 times powers of ten."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(ticker.NullLocator())


def tick_text(value: float, _place: float) -> str:
    return number(value, 6)


Panel = Bars | LinePanel


@cache
def pyplot() -> Any:
    """Return matplotlib's pyplot in the style of all pictures. It draws into files and opens no windows."""
    import matplotlib.font_manager
    import matplotlib.pyplot

    matplotlib.use("Agg")
    # A label may have characters of any script. Where no font has one, an empty box stands in its place; matplotlib's
    # warning for each such character would tell the user nothing more.
    warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
    installed_fonts = matplotlib.font_manager.get_font_names()
    fonts = ["DejaVu Sans", *(font for font in FALLBACK_FONTS if font in installed_fonts)]
    matplotlib.rcParams.update(
        {
            "font.family": fonts,
            "font.size": 10,
            "text.parse_math": False,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.axisbelow": True,
            "axes.grid": True,
            "grid.alpha": 0.25,
        }
    )
    return matplotlib.pyplot


def draw_figure(panels: Sequence[Panel]) -> "Figure":
    """Return a figure with the panels below each other, as high as all of them together."""
    heights = [panel.inches for panel in panels]
    grid: dict[str, Any] = {"gridspec_kw": {"height_ratios": heights}, "squeeze": False, "layout": "constrained"}
    figure: Figure
    # 0.3 inches are room above the first panel and below the last one.
    figure, axes = pyplot().subplots(len(panels), 1, figsize=(FIGURE_WIDTH_IN, 0.3 + sum(heights)), **grid)
    for panel, axis in zip(panels, axes[:, 0], strict=True):
        draw_panel(panel, axis)
    return figure


def draw_panel(panel: Panel, axis: "Axes") -> None:
    """Draw a panel with its title and the text of its axis. If anything in it has a name, a legend is at the right."""
    panel.draw(axis)
    axis.set_xlabel("\n".join(wrap(panel.x, TITLE_CHARACTERS)))
    axis.xaxis.set_major_formatter(tick_text)
    axis.set_title("\n".join(wrap(panel.title, TITLE_CHARACTERS)), fontsize=11, loc="left")
    entries, _names = axis.get_legend_handles_labels()
    if entries:
        axis.legend(
            loc="center left",
            bbox_to_anchor=(1, 0.5),
            fontsize=LEGEND_FONT_POINTS,
            labelspacing=legend_spacing(entries),
            frameon=False,
        )


def legend_spacing(entries: Sequence["Artist"]) -> float:
    """Return the space between two entries of a legend, in units of its font size.

    It is LEGEND_SPACING, or more if an entry has a mark that would otherwise overlap that of the next entry.
    """
    from matplotlib.lines import Line2D

    mark_sizes = [entry.get_markersize() for entry in entries if isinstance(entry, Line2D)]
    largest = max(mark_sizes, default=0.0) / LEGEND_FONT_POINTS
    return max(LEGEND_SPACING, largest - 1 + LEGEND_SPACING / 2)


TONE_COLORS = {"good": "green", "careful": "amber", "bad": "red", "unknown": "grey"}
TEXT_ROW_HEIGHT_IN = 0.25
OVERVIEW_TITLE_CHARACTERS, OVERVIEW_TEXT_CHARACTERS = 52, 92  # characters of a line of the title, and of other text


def write_png(figure: "Figure", path: Path, caption: str = "") -> None:
    """Write a figure as a PNG file, whole or not at all, and close the figure.

    `caption` is the text under it, if any.
    """
    if caption:
        lines = "\n".join(wrap(caption, CAPTION_CHARACTERS))
        figure.supxlabel(lines, fontsize=7, color=PALETTE["grey"], x=0.01, ha="left")
    content = BytesIO()
    figure.savefig(content, dpi=110)
    pyplot().close(figure)
    write_bytes(path, content.getvalue())


def draw_overview(document: Document, panel: Panel | None, path: Path) -> Picture:
    """Draw a document's answer to the PNG file `path`: its text, and below it a panel if there is one.

    The text is the title, the subject, and each line in the color of its tone.
    """
    rows = wrapped_rows(document.title, OVERVIEW_TITLE_CHARACTERS, size=16, color="black", weight="bold")
    rows += wrapped_rows(document.subject, OVERVIEW_TEXT_CHARACTERS, size=9, color=PALETTE["grey"])
    for line in filter(attrgetter("text"), document.lines):
        color = "black"
        if line.tone:
            color = PALETTE[TONE_COLORS[line.tone]]
        rows += wrapped_rows(f"{line.label}: {line.text}", OVERVIEW_TEXT_CHARACTERS, size=10, color=color)
    text_inches = TEXT_ROW_HEIGHT_IN * (len(rows) + 1)
    panel_inches = panel.inches if panel else 0.0
    figure = pyplot().figure(figsize=(FIGURE_WIDTH_IN, text_inches + panel_inches), layout="constrained")
    text_area = figure
    if panel:
        text_area, panel_area = figure.subfigures(2, 1, height_ratios=[text_inches, panel_inches])
        draw_panel(panel, panel_area.subplots())
    draw_text(text_area, rows)
    path.parent.mkdir(exist_ok=True)
    write_png(figure, path)
    return Picture(path.stem, "Summary", f"{path.parent.name}/{path.name}", [])


def draw_text(area: "FigureBase", rows: Sequence["TextRow"]) -> None:
    """Draw rows of text below each other, evenly over the height of `area`, a part of a figure."""
    row_spaces = len(rows) + 1
    for place, row in enumerate(rows, start=1):
        area.text(
            0.02, 1 - place / row_spaces, row.text, fontsize=row.size, color=row.color, weight=row.weight, va="center"
        )


class TextRow(NamedTuple):
    """A row of text in a picture, as matplotlib draws it."""

    text: str
    size: int
    color: str
    weight: str


def wrapped_rows(text: str, width: int, size: int, color: str, weight: str = "normal") -> list[TextRow]:
    """Return a text as rows of at most `width` characters, all with the same size, color and weight."""
    return [TextRow(row, size, color, weight) for row in wrap(printable_text(text), width)]


def save_pictures(
    drawn: Mapping[str, tuple[str, Sequence[Panel]]], folder: Path, caption: str = ""
) -> dict[str, Picture]:
    """Write pictures as PNG files into a folder, with `caption` under each, and return them by name.

    `drawn` has the title and the panels of each picture, by name. The folder is made if it is missing.
    """
    folder.mkdir(exist_ok=True)
    pictures = {}
    for name, (title, panels) in drawn.items():
        path = folder / f"{name}.png"
        write_png(draw_figure(panels), path, caption)
        pictures[name] = Picture(name, title, f"{folder.name}/{path.name}", panels)
    return pictures
