"""Pictures with a clock: what the engine and the machine did during a test, and the stages of a run."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle

from harness.core.formatting import number
from harness.core.progress import Stage
from harness.core.statements import Statement
from harness.loadgen.test_run import Recording
from harness.report.charts import Bar, Bars, LinePanel, Panel, Point, Scale, Series, StackedPart
from harness.report.load_pictures import SERIES_COLORS
from harness.results.gpu_time import GpuTime
from harness.results.gpu_time_shares import SHARES
from harness.results.telemetry import QUANTITIES, QUANTITY_BY_NAME

# The pictures with a clock: what the engine and the machine did during a test, and the stages of a run.
SHARE_COLORS = ("grey", "red", "amber", "purple", "blue")  # colours of telemetry's SHARES
SEEN = 0.5  # percent of a bar that can be seen
PERCENT = Scale(0.0, 105.0)


def machine(
    recording: Recording, ran_out: Sequence[Statement], times: Sequence[GpuTime], steady: Point | None = None
) -> list[Panel]:
    """Return what engine and machine did, a panel for each kind of quantity that was recorded, below a bar for each
    test of the run: where its GPUs' time went. The title is what bound the test, first of `ran_out`. `steady`: begin
    and end of the steady part in seconds; what lies before and after is shaded.
    """
    seconds = recording.seconds
    across = Scale.around(seconds, 0.0)
    shaded = [(across.low, steady[0]), (steady[1], max(across.high, steady[1]))] if steady else []
    panels = [*[gpu_times(times)] * bool(times), *load_strip(recording)]
    panels += recorded(recording, across, shaded)
    if not panels:
        return []
    title = f"Bound by: {ran_out[0].what}" if ran_out else "Nothing ran out"
    note = "; shaded: ramps, which the steady part leaves out" if steady else ""
    panels[-1] = panels[-1]._replace(x=f"seconds{note}") if isinstance(panels[-1], LinePanel) else panels[-1]
    return [panels[0]._replace(title=title), *panels[1:]]


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
    """Return what of the GPUs was in use, second by second: cells of one shade beside each other are one."""
    rows = []
    for name, (quantity, whole) in CELLS.items():
        values = QUANTITY_BY_NAME[quantity].of(recording.columns)
        most = whole or max((value for value in values if value is not None), default=0.0)
        parts = list[StackedPart]()
        for begin, end, value in zip([0.0, *recording.seconds], recording.seconds, values, strict=False):
            shade = None if value is None or not most else [*SHADES][min(4, int(5 * value / most))]
            if shade and parts and parts[-1].color == shade and parts[-1].end == begin:
                parts[-1] = parts[-1]._replace(end=end)
            elif shade:
                parts.append(StackedPart(begin, end, shade, name=SHADES[shade]))
        rows += [Bar(name, "", parts)] if parts else []
    span = Scale(0.0, max(recording.seconds, default=0.0))
    bars = Bars("", "seconds; power in % of the most of this test", rows, span=span, order=[*SHADES], is_aligned=True)
    return [bars] * bool(rows)


def gpu_times(times: Sequence[GpuTime]) -> Bars:
    """A bar for each test: where its GPUs' time went, without what cannot be seen; of a single one with the
    percentages.
    """
    rows = []
    for time in times:
        begin, parts = 0.0, list[StackedPart]()
        for (name, label), color in zip(SHARES.items(), SHARE_COLORS, strict=True):
            value = getattr(time, name) or 0.0
            if value >= SEEN:
                said = f"{label}, {value:.1f} %" if len(times) == 1 else label
                parts.append(StackedPart(begin, begin + value, color, name=said))
            begin += value
        rows.append(Bar(time.test, "", parts))
    return Bars("", "% of the GPU's time", rows, span=Scale(0.0, 100.0))


def recorded(recording: Recording, across: Scale, shaded: Sequence[Point]) -> Iterator[LinePanel]:
    """A panel for each kind of quantity that something was recorded for, with gaps where nothing was."""
    there = [name for name, values in recording.columns.items() if any(value is not None for value in values)]
    for label in dict.fromkeys(quantity.panel for quantity in QUANTITIES if quantity.panel):
        shown_quantities = [quantity for quantity in QUANTITIES if quantity.panel == label]
        found = [(name, quantity.label) for quantity in shown_quantities for name in there if quantity.is_mine(name)]
        series = []
        for (name, text), color in zip(found, cycle(SERIES_COLORS)):
            heights = (math.nan if value is None else value for value in recording.columns[name])
            gpu = name.partition("_")[0].removeprefix("gpu")
            points = [*zip(recording.seconds, heights, strict=True)]
            series.append(Series(text.replace("GPU", f"GPU {gpu}"), points, color))
        if series:
            whole = Scale.of([height for quantity in series for _, height in quantity.points])
            down = PERCENT if label.endswith("%") else whole
            yield LinePanel("", "", label, series, across, down, shaded=shaded)


def stages(times: Sequence[Stage]) -> Bars:
    """The time line of a run: its stages with their starts; the last ends it."""
    ends = [stage.start_s for stage in times[1:]]
    rows = [
        Bar(name, f"{number(round(end - start))} s", [StackedPart(start, end, "grey" if kind == "other" else "blue")])
        for (name, start, kind), end in zip(times, ends, strict=False)
    ]
    label = "seconds since the command began"
    return Bars("Blue: the engine was busy; grey: idle", label, rows, span=Scale.of([0.0, *ends]))
