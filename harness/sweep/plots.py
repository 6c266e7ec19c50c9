"""The pictures of a sweep: speed against the baseline, speed against accuracy."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from harness.config import mlperf
from harness.reporting.style import BLUE, GREY, ORANGE, RED, pyplot, save
from harness.sweep.file import BASELINE
from harness.sweep.findings import Report
from harness.sweep.rows import SCORE, ExperimentResult, has_fixed_rate

MOST_LABELLED = 10  # points that can all have their names beside them


def draw(report: Report, folder: Path) -> dict[str, str]:
    """Draws the plots that have data; name -> path relative to the sweep's folder."""
    drawn = {}
    bars = [result for result in report.rows if result.ratio]
    if len(bars) > 1:
        drawn["speedups"] = speedups(bars)
    free = [result for result in report.rows if not has_fixed_rate(result.experiment)]
    points = [result for result in free if result.speed and result.score is not None]
    if len(points) > 1:
        drawn["pareto"] = trade_off(points)
    return save(drawn, folder)


def speedups(rows: Sequence[ExperimentResult]) -> Any:
    """Speed of each experiment relative to the baseline's, in output tokens/s; what tells nothing is hollow."""
    figure, axes = pyplot().subplots(figsize=(8, 0.38 * len(rows) + 1.2))
    for place, result in enumerate(rows):
        ratio, edge = result.ratio, BLUE if result.is_usable else RED
        assert ratio
        axes.barh(place, ratio.mean, color=BLUE if result.is_telling else "none", edgecolor=edge, height=0.65)
        if not result.is_usable:
            axes.barh(place, ratio.mean, color="none", edgecolor=RED, hatch="///", height=0.65, linewidth=0)
        if ratio.high > ratio.low:
            axes.plot([ratio.low, ratio.high], [place, place], color="black", linewidth=1.5)
        shift = {"xytext": (4, 0), "textcoords": "offset points"}
        axes.annotate(f"{ratio.mean:.2f}", (ratio.high, place), va="center", fontsize=9, **shift)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [result.name for result in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * max(result.ratio.high for result in rows if result.ratio))
    notes = ["hatched: not usable"] * any(not result.is_usable for result in rows)
    notes += ["hollow: not conclusive"] * any(result.is_usable and not result.is_telling for result in rows)
    axes.set_xlabel("; ".join(["output tokens/s, baseline = 1", *notes]))
    axes.set_title("Speed against the baseline", loc="left")
    axes.grid(axis="y", visible=False)
    return figure


def trade_off(rows: Sequence[ExperimentResult]) -> Any:
    """Accuracy against speed. What other programs slowed down is on no front."""
    figure, axes = pyplot().subplots(figsize=(8, 4.6))
    points = {result.name: (result.speed or 0.0, result.score or 0.0) for result in rows}
    front = pareto([points[result.name] for result in rows if result.is_usable and not result.background_load])
    heights = (7, -13, 19, -25)  # neighbours are labelled at different heights
    for place, result in enumerate(sorted(rows, key=lambda result: result.speed or 0.0)):
        point, color = points[result.name], BLUE if result.is_usable else RED
        filling = "white" if result.background_load else color
        axes.plot(
            *point, "o" if result.is_usable else "x", color=color, markerfacecolor=filling, markersize=7, zorder=3
        )
        if len(rows) <= MOST_LABELLED or not result.is_usable or result.name == BASELINE or point in front:
            label = (0, heights[place % len(heights)])
            axes.annotate(result.name, point, label, textcoords="offset points", fontsize=8, ha="center")
    if front:
        ring = {"markersize": 12, "markerfacecolor": "none"}
        axes.plot(*zip(*front, strict=True), "o-", color=ORANGE, label="Pareto front", zorder=2, **ring)
        axes.legend(loc="best", framealpha=0.9)
    axes.margins(0.15)
    notes = [" (crosses: not usable)"] * any(not result.is_usable for result in rows)
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
