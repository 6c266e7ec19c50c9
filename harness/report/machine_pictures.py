"""Pictures with a clock: what the engine and the machine did during a test, and the stages of a run."""

import math
from collections.abc import Iterator, Sequence
from itertools import chain, cycle

from harness.core.formatting import Measured, number
from harness.core.progress import Stage
from harness.core.statements import Statement
from harness.loadgen.test_run import Recording
from harness.report.charts import Bar, Bars, LinePanel, Panel, Point, Scale, Series, StackedPart
from harness.report.load_pictures import SERIES_COLORS
from harness.results.gpu_time import GpuTime
from harness.results.gpu_time_shares import SHARES
from harness.results.telemetry import QUANTITIES, QUANTITY_BY_NAME

SHARE_COLORS = ("grey", "red", "amber", "purple", "blue")  # colours of telemetry's SHARES
SEEN = 0.5  # percent of a bar that can be seen
PERCENT = Scale(0.0, 105.0)


def machine_panels(
    recording: Recording, ran_out: Sequence[Statement], times: Sequence[GpuTime], steady: Point | None = None
) -> list[Panel]:
    """Return the panels of what engine and machine did: the shares of GPU time in each test, then the recorded
    quantities.

    The title is the first of `ran_out`, which limited the speed. `steady` is the begin and end of the steady part in
    seconds; the time before and after is shaded.
    """
    across = Scale.around(recording.seconds, 0.0)
    shaded, axis = list[Point](), "seconds"
    if steady:
        begin, end = steady
        shaded = [(across.low, begin), (end, max(across.high, end))]
        axis = "seconds; shaded: ramps, which the steady part leaves out"
    panels = list[Panel]()
    if times:
        panels.append(gpu_times(times))
    panels += load_strip(recording)
    panels += recorded_panels(recording, across, shaded)
    if not panels:
        return []
    if isinstance(panels[-1], LinePanel):
        panels[-1] = panels[-1]._replace(x=axis)
    title = "Nothing ran out"
    if ran_out:
        title = f"Bound by: {ran_out[0].what}"
    panels[0] = panels[0]._replace(title=title)
    return panels


# The load of the GPUs as a strip of cells, a second each: a quantity, and what of it is all, None for the most of it.
CELLS = {
    "SM": ("gpu_load_percent", 100.0),
    "memory": ("gpu_memory_load_percent", 100.0),
    "power": ("gpu_power_w", None),
}
SHADES = {
    "grey": "under 20 %",
    "blue": "20 to 40 %",
    "green": "40 to 60 %",
    "amber": "60 to 80 %",
    "red": "80 % or more",
}


def load_strip(recording: Recording) -> list[Panel]:
    """Return a panel of how much of the GPUs was in use, second by second.

    Neighboring cells of one shade are joined.
    """
    rows = []
    for name, (quantity, whole) in CELLS.items():
        values = QUANTITY_BY_NAME[quantity].of(recording.columns)
        parts = shaded_parts(recording, values, whole)
        if parts:
            rows.append(Bar(name, "", parts))
    if not rows:
        return []
    span = Scale(0.0, max(recording.seconds, default=0.0))
    axis = "seconds; power in % of the most of this test"
    return [Bars("", axis, rows, span=span, order=[*SHADES], is_aligned=True)]


def shaded_parts(recording: Recording, values: Sequence[Measured], whole: Measured) -> list[StackedPart]:
    """Return the seconds of a quantity by their shade; `whole`: the value of the darkest, else the most of the test."""
    most = whole or max((value for value in values if value is not None), default=0.0)
    if not most:
        return []
    parts = list[StackedPart]()
    for begin, end, value in zip([0.0, *recording.seconds], recording.seconds, values, strict=False):
        if value is None:
            continue
        shade = [*SHADES][min(4, int(5 * value / most))]
        if parts and parts[-1].color == shade and parts[-1].end == begin:
            parts[-1] = parts[-1]._replace(end=end)
        else:
            parts.append(StackedPart(begin, end, shade, name=SHADES[shade]))
    return parts


def gpu_times(times: Sequence[GpuTime]) -> Bars:
    """Return a bar for each test with its shares of GPU time.

    Tiny shares are left out; a single bar has percentages.
    """
    rows = []
    for time in times:
        begin, parts = 0.0, list[StackedPart]()
        for (name, label), color in zip(SHARES.items(), SHARE_COLORS, strict=True):
            value = getattr(time, name) or 0.0
            text = label
            if len(times) == 1:
                text += f", {value:.1f} %"
            if value >= SEEN:
                parts.append(StackedPart(begin, begin + value, color, name=text))
            begin += value
        rows.append(Bar(time.test, "", parts))
    return Bars("", "% of the GPU's time", rows, span=Scale(0.0, 100.0))


def recorded_panels(recording: Recording, across: Scale, shaded: Sequence[Point]) -> Iterator[LinePanel]:
    """Yield a panel for each kind of quantity that was recorded. Lines have gaps at times without a value."""
    for label in dict.fromkeys(quantity.panel for quantity in QUANTITIES if quantity.panel):
        series = []
        for (name, text), color in zip(columns_of(recording, label), cycle(SERIES_COLORS)):
            heights = [math.nan if value is None else value for value in recording.columns[name]]
            gpu = name.partition("_")[0].removeprefix("gpu")
            points = [*zip(recording.seconds, heights, strict=True)]
            series.append(Series(text.replace("GPU", f"GPU {gpu}"), points, color))
        if not series:
            continue
        if label.endswith("%"):
            down = PERCENT
        else:
            points = [*chain.from_iterable(line.points for line in series)]
            down = Scale.of([height for _, height in points])
        yield LinePanel("", "", label, series, across, down, shaded=shaded)


def columns_of(recording: Recording, panel: str) -> Iterator[tuple[str, str]]:
    """Yield the columns of a panel that have a value, each with the label of its quantity."""
    recorded_names = [name for name in recording.columns if has_values(recording, name)]
    for quantity in QUANTITIES:
        if quantity.panel == panel:
            for name in filter(quantity.has_column, recorded_names):
                yield name, quantity.label


def has_values(recording: Recording, name: str) -> bool:
    return any(value is not None for value in recording.columns[name])


def stage_bars(times: Sequence[Stage]) -> Bars:
    """Return the time line of a run's stages. The last stage only marks the end."""
    ends = [stage.start_s for stage in times[1:]]
    rows = []
    for (name, start, kind), end in zip(times, ends, strict=False):
        color = "blue"
        if kind == "other":
            color = "grey"
        rows.append(Bar(name, f"{number(round(end - start))} s", [StackedPart(start, end, color)]))
    label = "seconds since the command began"
    return Bars("Blue: the engine was busy; grey: idle", label, rows, span=Scale.of([0.0, *ends]))
