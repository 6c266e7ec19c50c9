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

SHARE_COLORS = ("grey", "red", "amber", "purple", "blue")  # the colors of SHARES, in their order
LEAST_VISIBLE_PERCENT = 0.5  # percent of a bar; a smaller part cannot be seen
PERCENT_SCALE = Scale(0.0, 105.0)


def machine_panels(
    recording: Recording, ran_out: Sequence[Statement], times: Sequence[GpuTime], steady: Point | None = None
) -> list[Panel]:
    """Return the panels of what engine and machine did during the result's test; empty if nothing was recorded.

    `ran_out` are statements on what limited the speed, the strongest limit first. `times` are the shares of GPU time.
    `steady` is the steady part's begin and end in seconds.
    """
    across = Scale.around(recording.seconds, margin=0.0)
    shaded, axis = list[Point](), "seconds"
    if steady:
        begin, end = steady
        # The recording, and so the axis, may end before the steady part does.
        shaded = [(across.low, begin), (end, max(across.high, end))]
        axis = "seconds; shaded: ramp and drain, before and after the steady part"
    panels = list[Panel]()
    if times:
        panels.append(gpu_time_bars(times))
    panels += load_strip(recording)
    panels += recorded_panels(recording, across, shaded)
    if not panels:
        return []
    # The panels over time share one axis, so only the last one has the text of it.
    if isinstance(panels[-1], LinePanel):
        panels[-1] = panels[-1]._replace(x=axis)
    title_of_all = "Nothing ran out"
    if ran_out:
        title_of_all = f"Bottleneck: {ran_out[0].what}"
    panels[0] = panels[0]._replace(title=title_of_all)  # The panels are one picture, whose title is that of the first.
    return panels


# The rows of the strip that shows the load of the GPUs: a quantity, and the value of it that counts as full load. None:
# the largest value of the test.
STRIP_ROWS = {
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
    """Return a panel of how much of the GPUs was in use, second by second. No panel if none of it was recorded.

    It has a row for each quantity in STRIP_ROWS that was recorded, shaded by its share of full load.
    """
    rows = []
    for name, (quantity, full_load) in STRIP_ROWS.items():
        values = QUANTITY_BY_NAME[quantity].of(recording.columns)
        parts = shaded_parts(recording, values, full_load)
        if parts:
            rows.append(Bar(name, text="", parts=parts))
    if not rows:
        return []
    span = Scale(0.0, max(recording.seconds, default=0.0))
    axis = "seconds; power in % of its maximum in this test"
    return [Bars(title="", axis=axis, rows=rows, span=span, order=[*SHADES], is_aligned=True)]


def shaded_parts(recording: Recording, values: Sequence[Measured], full_load: Measured) -> list[StackedPart]:
    """Return a bar of the seconds of a test, each in the shade of its value's share of `full_load`.

    Without `full_load`, the largest value takes its place; if that is 0 or unknown, nothing is returned.
    """
    full = full_load or max((value for value in values if value is not None), default=0.0)
    if not full:
        return []
    shades, parts = list(SHADES), list[StackedPart]()
    begins, ends = [0.0, *recording.seconds], recording.seconds  # A value is of the time since the value before.
    for begin, end, value in zip(begins, ends, values, strict=False):  # `begins` has one time more.
        if value is None:
            continue
        index = int(len(shades) * value / full)  # Each shade stands for an equal share of the full load.
        shade = shades[min(index, len(shades) - 1)]  # The full load itself has the last shade.
        if parts and parts[-1].color == shade and parts[-1].end == begin:
            parts[-1] = parts[-1]._replace(end=end)
        else:
            parts.append(StackedPart(begin, end, shade, name=SHADES[shade]))
    return parts


def gpu_time_bars(times: Sequence[GpuTime]) -> Bars:
    """Return a bar for each test with its shares of GPU time, one part after the other.

    A share too small to be seen is left out. With a single test, the legend also gives the percentages.
    """
    rows = []
    for time in times:
        begin, parts = 0.0, list[StackedPart]()
        for (name, label), color in zip(SHARES.items(), SHARE_COLORS, strict=True):
            value = getattr(time, name) or 0.0
            text = label
            if len(times) == 1:
                text += f", {value:.1f} %"
            if value >= LEAST_VISIBLE_PERCENT:
                parts.append(StackedPart(begin, begin + value, color, name=text))
            begin += value
        rows.append(Bar(time.test, text="", parts=parts))
    return Bars(title="", axis="% of the GPU's time", rows=rows, span=Scale(0.0, 100.0))


def recorded_panels(recording: Recording, across: Scale, shaded: Sequence[Point]) -> Iterator[LinePanel]:
    """Yield a panel of lines over time for each kind of quantity that was recorded, such as power.

    Lines have gaps at times without a value. `across` is the time axis of all panels. `shaded` are the parts of
    this axis to shade.
    """
    for label in dict.fromkeys(quantity.panel for quantity in QUANTITIES if quantity.panel):
        series = []
        for (name, text), color in zip(columns_of(recording, label), cycle(SERIES_COLORS)):
            heights = [math.nan if value is None else value for value in recording.columns[name]]
            gpu = name.partition("_")[0].removeprefix("gpu")  # the number in a column's name such as gpu0_power_w
            points = [*zip(recording.seconds, heights, strict=True)]
            series.append(Series(text.replace("GPU", f"GPU {gpu}"), points, color))
        if not series:  # Nothing of this kind was recorded.
            continue
        if label.endswith("%"):
            down = PERCENT_SCALE
        else:
            points = [*chain.from_iterable(line.points for line in series)]
            down = Scale.of([height for _second, height in points])
        yield LinePanel(title="", x="", y=label, series=series, across=across, down=down, shaded=shaded)


def columns_of(recording: Recording, panel: str) -> Iterator[tuple[str, str]]:
    """Yield the columns of machine.csv that a panel shows and that have a value, each with its quantity's label."""
    recorded_names = [name for name in recording.columns if has_values(recording, name)]
    for quantity in QUANTITIES:
        if quantity.panel == panel:
            for name in filter(quantity.has_column, recorded_names):
                yield name, quantity.label


def has_values(recording: Recording, name: str) -> bool:
    return any(value is not None for value in recording.columns[name])


def stage_bars(times: Sequence[Stage]) -> Bars:
    """Return the time line of a run's stages: a bar for each, blue if the engine was busy, else grey.

    A stage ends when the next begins. The last stage has no bar, since it only marks the end of the run.
    """
    ends = [stage.start_s for stage in times[1:]]
    rows = []
    for (name, start, kind), end in zip(times, ends, strict=False):  # without the last stage
        color = "blue"
        if kind == "other":  # the engine had no work in this stage
            color = "grey"
        rows.append(Bar(name, f"{number(round(end - start))} s", [StackedPart(start, end, color)]))
    label = "seconds since the command began"
    return Bars("Blue: the engine was busy; grey: idle", label, rows, span=Scale.of([0.0, *ends]))
