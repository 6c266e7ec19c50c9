"""The pictures of a sweep: speed against the baseline or over the number that was turned, speed against accuracy."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Any

from harness.common.coerce import as_flag
from harness.config import mlperf
from harness.reporting.style import BLUE, GREY, ORANGE, RED, pyplot, save
from harness.sweep.file import BASELINE, Sweep
from harness.sweep.findings import Report
from harness.sweep.rows import SCORE, ExperimentResult, fixed_rate

TAILS = {"latency": "latency", "ttft": "TTFT", "tpot": "TPOT"}
LOG_AXIS_RATIO = 8  # times the smallest number, from which the axis is logarithmic
MOST_LABELLED = 10  # points that can all have their names beside them


def draw(report: Report, folder: Path) -> dict[str, str]:
    """Draws what there is data for; name -> path relative to the sweep's folder."""
    drawn = {}
    turned, bars = knob(report.state.sweep), [result for result in report.rows if result.ratio]
    if turned and any(result.speed for result in report.rows):
        drawn["speedups"] = by_number(*turned, report.rows)
    elif len(bars) > 1:
        drawn["speedups"] = speedups(bars)
    free = [result for result in report.rows if not fixed_rate(result.experiment)]
    points = [result for result in free if result.speed and result.score is not None]
    if len(points) > 1:
        drawn["pareto"] = trade_off(points)
    return save(drawn, folder)


def knob(sweep: Sweep) -> tuple[str, dict[str, float]] | None:
    """The one setting that differs between the experiments, and its number in each that has one; None where more or
    something else differs."""
    _, *items = sweep.experiments
    names = {change.partition("=")[0] for item in items for change in item.changes}
    if len(names) != 1 or any(len(item.changes) != 1 for item in items):
        return None
    (name,) = names
    values = {item.name: item.settings.get(name) for item in sweep.experiments}
    numbers = {
        item: float(value)
        for item, value in values.items()
        if isinstance(value, int | float) and type(value) is not bool
    }
    return (name, numbers) if len(numbers) > 1 and all(item.name in numbers for item in items) else None


def by_number(name: str, values: Mapping[str, float], rows: Sequence[ExperimentResult]) -> Any:
    """Speed, and the tail of each latency, by the number that a sweep turned."""
    points = [(values[result.name], result) for result in rows if result.name in values and result.speeds]
    points.sort(key=lambda point: point[0])
    tails = {kind: [(x, result.numbers.get(f"{kind}_p99_ms")) for x, result in points] for kind in TAILS}
    shown = {kind: [each for each in tail if each[1] is not None] for kind, tail in tails.items()}
    kinds = [kind for kind in TAILS if len(shown[kind]) > 1]
    figure, panels = pyplot().subplots(1, 1 + bool(kinds), figsize=(6 + 5 * bool(kinds), 3.8), squeeze=False)
    axes = panels[0, 0]
    axes.plot([x for x, _ in points], [result.speed for _, result in points], color=GREY, linewidth=1, zorder=1)
    for x, result in points:
        speeds = result.speeds.values()
        axes.plot([x, x], [min(speeds), max(speeds)], color="black", linewidth=1.5)
        color = BLUE if result.usable else RED
        axes.plot(x, mean(speeds), "o", color=color, markerfacecolor="white" if result.background_load else color)
    notes = ["; red: not usable"] * any(not result.usable for _, result in points)
    notes += ["; hollow: machine busy"] * any(result.background_load for _, result in points)
    axes.set(ylabel="".join(["output tokens/s", *notes]), ylim=(0, None))
    for kind, color in zip(kinds, (BLUE, ORANGE, GREY), strict=False):
        panels[0, 1].plot(*zip(*shown[kind], strict=True), "o-", color=color, label=TAILS[kind])
    if kinds:
        panels[0, 1].set(ylabel="p99, ms", yscale="log")
        panels[0, 1].legend(fontsize=8, framealpha=0.9)
    for axes in panels[0]:
        axes.set_xlabel(as_flag(name))
        if points and points[-1][0] >= LOG_AXIS_RATIO * points[0][0] > 0:
            axes.set_xscale("log", base=2)
            axes.set_xticks([x for x, _ in points], [f"{x:g}" for x, _ in points])
    figure.tight_layout()
    return figure


def speedups(rows: Sequence[ExperimentResult]) -> Any:
    """Speed of each experiment relative to the baseline's, in output tokens/s; what tells nothing is hollow."""
    figure, axes = pyplot().subplots(figsize=(8, 0.38 * len(rows) + 1.2))
    for place, result in enumerate(rows):
        ratio, edge = result.ratio, BLUE if result.usable else RED
        assert ratio
        axes.barh(place, ratio.mean, color=BLUE if result.tells else "none", edgecolor=edge, height=0.65)
        if not result.usable:
            axes.barh(place, ratio.mean, color="none", edgecolor=RED, hatch="///", height=0.65, linewidth=0)
        if ratio.high > ratio.low:
            axes.plot([ratio.low, ratio.high], [place, place], color="black", linewidth=1.5)
        shift = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(f"{ratio.mean:.2f}", (ratio.high, place), va="center", fontsize=9, **shift)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [result.name for result in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * max(result.ratio.high for result in rows if result.ratio))
    notes = ["hatched: not usable"] * any(not result.usable for result in rows)
    notes += ["hollow: nothing can be said"] * any(result.usable and not result.tells for result in rows)
    axes.set_xlabel("; ".join(["output tokens/s, baseline = 1", *notes]))
    axes.set_title("Speed against the baseline", loc="left")
    axes.grid(axis="y", visible=False)
    return figure


def trade_off(rows: Sequence[ExperimentResult]) -> Any:
    """Accuracy against speed. What other programs slowed down is on no front."""
    figure, axes = pyplot().subplots(figsize=(8, 4.6))
    points = {result.name: (result.speed or 0.0, result.score or 0.0) for result in rows}
    front = pareto([points[result.name] for result in rows if result.usable and not result.background_load])
    heights = (7, -13, 19, -25)  # neighbours are labelled at different heights
    for place, result in enumerate(sorted(rows, key=lambda result: result.speed or 0.0)):
        point, color = points[result.name], BLUE if result.usable else RED
        filling = "white" if result.background_load else color
        axes.plot(*point, "o" if result.usable else "x", color=color, markerfacecolor=filling, markersize=7, zorder=3)
        if len(rows) <= MOST_LABELLED or not result.usable or result.name == BASELINE or point in front:
            label = (0, heights[place % len(heights)])
            axes.annotate(result.name, point, label, textcoords="offset points", fontsize=8, ha="center")
    if front:
        ring = {"markersize": 12, "markerfacecolor": "none"}
        axes.plot(*zip(*front, strict=True), "o-", color=ORANGE, label="Pareto front", zorder=2, **ring)
        axes.legend(loc="best", framealpha=0.9)
    axes.margins(0.15)
    notes = [" (crosses: not usable)"] * any(not result.usable for result in rows)
    notes += [" (hollow: machine busy)"] * any(result.background_load for result in rows)
    title = "".join(["Speed against accuracy", *notes])
    axes.set(xlabel="output tokens/s", ylabel=mlperf.SCORES[SCORE], title=title)
    return figure


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, by the first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]
