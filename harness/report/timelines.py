"""The pictures with a clock: the stages of a run, and what the engine and the machine did during a test."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, product
from math import isnan, nan
from textwrap import wrap
from typing import Any

from harness.core import markdown, screen, statements
from harness.loadgen.recorder import Recording
from harness.report.style import BLUE, GREEN, GREY, ORANGE, PURPLE, RED, from_the_top, legend_beside, pyplot, thousands
from harness.results.telemetry import BY_NAME, QUANTITIES, SHARES, GpuTime
from harness.runs.folder import Test

PANELS: tuple[tuple[str, tuple[str, ...], float | None], ...] = (  # label, quantities, top of the axis
    ("requests", ("requests_running", "requests_waiting"), None),
    ("KV cache, %", ("kv_cache_percent", "prefix_hit_percent"), 105),
    ("ITL, ms", ("inter_token_ms",), None),
    ("generated\ntokens/s", ("generation_tokens_per_sec",), None),
    ("prompt\ntokens/s", ("prompt_tokens_per_sec",), None),
    ("load, %", ("gpu_load_percent", "cpu_percent"), 105),
    ("memory, GiB", ("gpu_memory_gib", "memory_gib"), None),
    ("power, W", ("gpu_power_w",), None),
    ("clock, MHz", ("gpu_clock_mhz",), None),
    ("temperature, \N{DEGREE SIGN}C", ("gpu_temperature_c",), None),
)
SMOOTHED_QUANTITIES = (
    "requests_running",
    "requests_waiting",
    "inter_token_ms",
    "generation_tokens_per_sec",
    "prompt_tokens_per_sec",
)
WINDOW, LEAST_WINDOW = 60, 5  # a running mean is over the test's lines / WINDOW, and no fewer than these
AXIS_MARGIN = 0.04  # of an axis, below its zero and above its highest line: one that is flat is not cut
LONGEST_TITLE = 90  # characters of a title

COLORS = (BLUE, ORANGE, GREEN, RED, GREY)
Drawn = tuple[str, list[str], float | None]  # label, columns, top of the axis


def machine(
    recording: Recording,
    ran_out: Sequence[statements.Statement] = (),
    times: Sequence[GpuTime] = (),
    steady: tuple[float, float] | None = None,
) -> Any:
    """What engine and machine did, a panel for each kind of quantity that was recorded, below a bar for each test of
    the run: where its GPUs' time went. `ran_out`: what bound the test, first; it is the title. `steady`: begin and end
    of the steady part in seconds; what lies before and after is shaded."""
    figure, panels = draw_panels(recording, list(panels_of(recording.columns)))
    if steady:
        ends = panels[0].get_xlim()
        for axes, ramp in product(panels, ((ends[0], steady[0]), (steady[1], max(ends[1], steady[1])))):
            axes.axvspan(*ramp, color=GREY, alpha=0.15, linewidth=0)
        panels[0].set_xlim(*ends)
        panels[-1].set_xlabel("seconds; shaded: ramps, which the steady part leaves out")
    said = ran_out[0].what if ran_out else "nothing ran out"
    title = "\n".join(wrap(f"Bound by: {said}" if ran_out else markdown.sentence(said), LONGEST_TITLE))
    (bars(figure, times) if times else panels[0]).set_title(title, fontsize=11)
    return figure


def bars(figure: Any, times: Sequence[GpuTime]) -> Any:
    """Axes above the panels of a figure, with a bar for each test: where its GPUs' time went."""
    high = figure.get_figheight()
    axes = figure.add_axes((0.125, 0.88 + 0.7 / high, 0.775, 0.28 * len(times) / high))
    names, starts = [time.test for time in times], [0.0] * len(times)
    for (share, (label, _)), color in zip(SHARES.items(), (GREY, RED, ORANGE, PURPLE, BLUE), strict=True):
        widths = [getattr(time, share) or 0.0 for time in times]
        if max(widths) >= 0.5:  # as wide as can be seen
            axes.barh(names, widths, left=starts, color=color, height=0.7, label=label)
        starts = [start + width for start, width in zip(starts, widths, strict=True)]
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set(xlim=(0, 100))
    axes.set_xlabel("% of the GPU's time", fontsize=8)
    legend_beside(axes)
    return axes


def panels_of(columns: Mapping[str, Sequence[float | None]]) -> Iterator[Drawn]:
    """The panels that something was recorded for, with its columns."""
    recorded = [name for name, values in columns.items() if any(value is not None for value in values)]
    for label, names, top in PANELS:
        if found := [name for item in names for name in recorded if BY_NAME[item].is_mine(name)]:
            yield label, found, top


def draw_panels(recording: Recording, drawn: Sequence[Drawn]) -> Any:
    """A panel under the other, over the seconds of a test; what jumps from line to line as a running mean."""
    seconds, columns = recording.seconds, recording.columns
    rows, window = max(1, len(drawn)), max(LEAST_WINDOW, len(seconds) // WINDOW)
    figure, panels = pyplot().subplots(rows, 1, figsize=(8, 1.7 * rows + 0.3), sharex=True, squeeze=False)
    for axes, (title, names, top) in zip(panels[:, 0], drawn, strict=False):
        highest = 0.0
        for name, color in zip(names, cycle(COLORS)):
            values = with_gaps(columns[name])
            highest = max([highest, *(value for value in values if not isnan(value))])
            label = next(item.label for item in QUANTITIES if item.is_mine(name))
            label = label.replace("GPU", f"GPU {name.partition('_')[0].removeprefix('gpu')}")  # by its number
            if name in SMOOTHED_QUANTITIES and len(values) > 2 * window:
                axes.plot(seconds, values, color=color, alpha=0.25, linewidth=0.7)
                values, label = running(values, window), f"{label}\n(mean of {window} s)"
            axes.plot(seconds, values, color=color, label=label)
        most = top or (1 + 2 * AXIS_MARGIN) * highest or 1.0
        axes.set(ylabel=title, ylim=(-AXIS_MARGIN * most, most))
        legend_beside(axes)
        thousands(axes.yaxis)
    figure.align_ylabels()
    panels[-1, 0].set_xlabel("seconds")
    thousands(panels[-1, 0].xaxis)
    return figure, panels[:, 0]


def running(values: Sequence[float], window: int) -> list[float]:
    """The mean of each value and those around it, `window` in all, fewer at the ends; gaps count for nothing."""
    half = window // 2
    parts = (values[max(0, at - half) : at + half + 1] for at in range(len(values)))
    measured = ([value for value in part if not isnan(value)] for part in parts)
    return [sum(part) / len(part) if part else nan for part in measured]


def with_gaps(values: Sequence[float | None]) -> list[float]:
    """Values with a gap in the line where there is none."""
    return [nan if value is None else value for value in values]


def stages(recordings: Mapping[Test, Recording], times: Sequence[screen.Stage]) -> Any:
    """The time line of a run: its stages with their starts; the machine's load, where a test recorded it.

    The last stage ends the picture.
    """
    last = {stage.kind: stage.start_s for stage in times}  # of a test that was run again, the recording is the last's
    loads = [(last[test], recording) for test, recording in recordings.items() if test in last and recording]
    more = bool(loads)
    size = (8, 0.3 * len(times) + 1.2 + 1.8 * more)
    figure, panels = pyplot().subplots(1 + more, 1, figsize=size, sharex=True, squeeze=False)
    axes = panels[0, 0]
    ends = [stage.start_s for stage in times[1:]]
    for place, ((_, start, kind), end) in enumerate(zip(times, ends, strict=False)):
        axes.barh(place, end - start, left=start, color=GREY if kind == "other" else BLUE, height=0.6)
        axes.annotate(f" {end - start:,.0f} s", (end, place), va="center", fontsize=8)
    axes.set_yticks(range(len(ends)), [stage.name for stage in times[:-1]])
    from_the_top(axes)
    axes.set(title="Where the time went: engine busy (blue), idle (grey)", xlim=(0, 1.07 * ends[-1] or 1))
    for start, recording in loads:
        columns = recording.columns
        cards = [name for name in columns if BY_NAME["gpu_load_percent"].is_mine(name)]
        for name in cards or ["cpu_percent"] if columns else []:
            at = [start + second for second in recording.seconds]
            panels[1, 0].plot(at, with_gaps(columns.get(name, [None] * len(at))), color=BLUE, linewidth=1)
        panels[1, 0].set(ylabel="GPU load, %" if cards else "CPU load, %", ylim=(-3, 105))
    thousands(panels[-1, 0].xaxis)
    panels[-1, 0].set_xlabel("seconds since the command began")
    return figure
