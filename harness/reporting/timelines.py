"""The pictures with a clock: the stages of a run, and what the engine and the machine did during a test."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.reporting.style import BLUE, GREY
from harness.results import telemetry as usage
from harness.runs.folder import FOLDER

PANELS: tuple[tuple[str, tuple[str, ...], float | None], ...] = (  # label, quantities, top of the axis
    ("requests", ("requests_running", "requests_waiting"), None),
    ("KV cache, %", ("kv_cache_percent", "prefix_hit_percent"), 105),
    ("tokens/s", ("generation_tokens_per_sec", "prompt_tokens_per_sec"), None),
    ("load, %", ("gpu_load_percent", "cpu_percent"), 105),
    ("memory, GiB", ("gpu_memory_gib", "memory_gib"), None),
    ("power, W", ("gpu_power_w",), None),
    ("clock, MHz", ("gpu_clock_mhz",), None),
    ("temperature, \N{DEGREE SIGN}C", ("gpu_temperature_c",), None),
)


def machine(path: Path) -> Any:
    """What engine and machine did, a panel for each kind of quantity that was recorded: what ran out first?"""
    from matplotlib import pyplot

    seconds, columns = usage.recorded(path)
    known = {name for name, values in columns.items() if any(value is not None for value in values)}
    drawn = [
        (label, names, top)
        for label, quantities, top in PANELS
        if (
            names := [
                name for item in quantities for name in columns if usage.BY_NAME[item].mine(name) and name in known
            ]
        )
    ]
    rows = max(1, len(drawn))
    figure, panels = pyplot.subplots(rows, 1, figsize=(8, 1.7 * rows), sharex=True, squeeze=False)
    for axes, (label, names, top) in zip(panels[:, 0], drawn, strict=False):
        for name in names:
            axes.plot(seconds, filled(columns[name]), label=called(name))
        axes.set(ylabel=label, ylim=(0, top))
        axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)
    figure.align_ylabels()
    panels[-1, 0].set_xlabel("seconds")
    return figure


def called(column: str) -> str:
    """A column of machine.csv in words: a GPU by its number."""
    quantity = next(item for item in usage.QUANTITIES if item.mine(column))
    return quantity.label.replace("GPU", f"GPU {column.partition('_')[0].removeprefix('gpu')}")


def filled(values: Sequence[float | None]) -> list[float]:
    """Values with a gap in the line where there is none."""
    return [math.nan if value is None else value for value in values]


def stages(folder: Path, times: Sequence[tuple[str, float]]) -> Any:
    """The time line of a run: its stages with their starts; the machine's load, where a test recorded it.

    The last stage ends the picture.
    """
    from matplotlib import pyplot

    tests = {"accuracy test": FOLDER["accuracy"], "performance test": FOLDER["performance"]}
    last = dict(times)  # of a test that was run again, the recording is the last one's
    loads = [(start, folder / tests[name] / "machine.csv") for name, start in last.items() if name in tests]
    loads = [(start, path) for start, path in loads if path.exists()]
    figure, panels = pyplot.subplots(
        1 + bool(loads), 1, figsize=(8, 0.3 * len(times) + 1.2 + 1.8 * bool(loads)), sharex=True, squeeze=False
    )
    axes = panels[0, 0]
    ends = [start for _, start in times[1:]]
    for row, ((name, start), end) in enumerate(zip(times, ends, strict=False)):
        works = name.endswith("test") or name.startswith(("calibrating", "probe", "TEST", "profiling"))
        axes.barh(row, end - start, left=start, color=BLUE if works else GREY, height=0.6)
        axes.annotate(f"{end - start:.0f} s", (end, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(ends)), [name for name, _ in times[:-1]])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.07 * ends[-1])
    axes.set_title("Where the time went: the engine answers (blue), or does not (grey)")
    for start, path in loads:
        seconds, columns = usage.recorded(path)
        cards = [name for name in columns if usage.BY_NAME["gpu_load_percent"].mine(name)]
        for name in cards or ["cpu_percent"] if columns else []:
            at = [start + second for second in seconds]
            panels[1, 0].plot(at, filled(columns.get(name, [None] * len(at))), color=BLUE, linewidth=1)
        panels[1, 0].set(ylabel="GPU load, %" if cards else "CPU load, %", ylim=(0, 105))
    panels[-1, 0].set_xlabel("seconds since the command began")
    return figure
