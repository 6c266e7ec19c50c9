"""The pictures of a sweep: speed against the baseline, speed against accuracy, the steps of a stack."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from statistics import mean
from typing import Any

from harness.config import mlperf
from harness.reporting.style import BLUE, GREY, ORANGE, RED, pyplot
from harness.sweep.file import Sweep

TAILS = {"latency": "latency", "ttft": "TTFT", "tpot": "TPOT"}
LOG_AXIS_RATIO = 8  # times the smallest number, from which the axis is logarithmic
MOST_LABELLED = 10  # points that can all have their names beside them


@dataclass(frozen=True)
class SweepPoint:
    """An experiment of a sweep over one number; `tails` are p99s in milliseconds, by kind of latency."""

    x: float
    speeds: Sequence[float]  # output tokens/s, a round each
    usable: bool
    alone: bool  # no other program used the machine meanwhile
    tails: dict[str, float | None]


@dataclass(frozen=True)
class Knob:
    """The setting that alone differs between the experiments, and its value in each that has one."""

    name: str
    values: dict[str, float]  # by experiment


def knob(sweep: Sweep) -> Knob | None:
    """The knob of a sweep with two numbers or more of one setting; else None."""
    baseline, *changes = sweep.experiments
    changed = [
        {key for key in {*baseline.settings, *item.settings} if item.settings.get(key) != baseline.settings.get(key)}
        for item in changes
    ]
    if not changed or any(keys != changed[0] or len(keys) != 1 for keys in changed):
        return None
    if any(item.env != baseline.env for item in changes):
        return None
    (name,) = changed[0]
    values = {item.name: item.settings.get(name) for item in sweep.experiments}
    numbers = {
        item: float(value)
        for item, value in values.items()
        if isinstance(value, int | float) and type(value) is not bool
    }
    every = all(item.name in numbers for item in changes)
    return Knob(name, numbers) if every and len(numbers) > 1 else None


def tails(numbers: Mapping[str, float | None]) -> dict[str, float | None]:
    """The p99s among an experiment's numbers, by kind of latency."""
    return {kind: numbers.get(f"{kind}_p99_ms") for kind in TAILS}


def mark(axes: Any, line: Callable[..., Any], references: Mapping[str, float], share: float = 1.0) -> None:
    """Draws speeds known from elsewhere with `line`, on an axis in units of `share` output tokens/s; named above it."""
    for (name, speed), dashes in zip(references.items(), cycle(("--", ":", "-."))):
        line(speed / share, color=ORANGE, linestyle=dashes, label=f"{name}: {speed:,.0f}")
    if references:
        axes.legend(fontsize=8, frameon=False, loc="lower right", bbox_to_anchor=(1, 1))


def by_number(knob: str, points: Sequence[SweepPoint], references: Mapping[str, float]) -> Any:
    """Speed, and the tail of each latency, by the number that a sweep turned."""
    points = sorted((point for point in points if point.speeds), key=lambda point: point.x)
    kinds = [kind for kind in TAILS if sum(point.tails.get(kind) is not None for point in points) > 1]
    figure, panels = pyplot().subplots(1, 1 + bool(kinds), figsize=(6 + 5 * bool(kinds), 3.8), squeeze=False)
    axes = panels[0, 0]
    axes.plot([p.x for p in points], [mean(p.speeds) for p in points], color=GREY, linewidth=1, zorder=1)
    for point in points:
        axes.plot([point.x, point.x], [min(point.speeds), max(point.speeds)], color="black", linewidth=1.5)
        color = BLUE if point.usable else RED
        axes.plot(point.x, mean(point.speeds), "o", color=color, markerfacecolor=color if point.alone else "white")
    notes = (
        ("; red: not usable", any(not p.usable for p in points)),
        ("; hollow: machine busy", not all(p.alone for p in points)),
    )
    axes.set(ylabel="output tokens/s" + "".join(note for note, true in notes if true), ylim=(0, None))
    mark(axes, axes.axhline, references)
    for kind, color in zip(kinds, (BLUE, ORANGE, GREY), strict=False):
        tail = [(point.x, value) for point in points if (value := point.tails[kind]) is not None]
        panels[0, 1].plot([x for x, _ in tail], [y for _, y in tail], "o-", color=color, label=TAILS[kind])
    if kinds:
        panels[0, 1].set(ylabel="p99, ms", yscale="log")
        panels[0, 1].legend(fontsize=8, framealpha=0.9)
    for axes in panels[0]:
        axes.set_xlabel(knob)
        if points and points[-1].x >= LOG_AXIS_RATIO * points[0].x > 0:
            axes.set_xscale("log", base=2)
            axes.set_xticks([point.x for point in points], [f"{point.x:g}" for point in points])
    figure.tight_layout()
    return figure


def speedups(
    rows: Sequence[tuple[str, float, float, float, bool, bool]], references: Mapping[str, float], baseline: float
) -> Any:
    """Speed of each experiment relative to the baseline's, in output tokens/s.

    Rows: name, ratio to the baseline, lowest, highest, usable, and whether it counts: what does not is hollow.
    """
    figure, axes = pyplot().subplots(figsize=(8, 0.38 * len(rows) + 1.2))
    for place, (_, ratio, low, high, usable, counts) in enumerate(rows):
        axes.barh(place, ratio, color=BLUE if counts else "none", edgecolor=BLUE if usable else RED, height=0.65)
        if not usable:
            axes.barh(place, ratio, color="none", edgecolor=RED, hatch="///", height=0.65, linewidth=0)
        if high > low:
            axes.plot([low, high], [place, place], color="black", linewidth=1.5)
        axes.annotate(f"{ratio:.2f}", (high, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    mark(axes, axes.axvline, references, baseline)
    most = [high for _, _, _, high, _, _ in rows] + [speed / baseline for speed in references.values()]
    axes.set_xlim(0, 1.1 * max(most))
    notes = ["hatched: not usable"] * any(not bar[4] for bar in rows)
    notes += ["hollow: nothing can be said"] * any(bar[4] and not bar[5] for bar in rows)
    axes.set_xlabel("; ".join(["output tokens/s, baseline = 1", *notes]))
    axes.set_title("Speed against the baseline", loc="left")
    axes.grid(axis="y", visible=False)
    return figure


def trade_off(points: Sequence[tuple[str, float, float, bool, bool]]) -> Any:
    """Accuracy against speed. Points: name, output tokens/s, the first of the scores, usable, and whether no other
    program used the machine: what it slowed down is on no front."""
    figure, axes = pyplot().subplots(figsize=(8, 4.6))
    front = pareto([(speed, score) for _, speed, score, usable, alone in points if usable and alone])
    heights = (7, -13, 19, -25)  # neighbours are labelled at different heights
    for place, (name, speed, score, usable, alone) in enumerate(sorted(points, key=lambda point: point[1])):
        color = BLUE if usable else RED
        shape = {"color": color, "markerfacecolor": color if alone else "white", "markersize": 7, "zorder": 3}
        axes.plot(speed, score, "o" if usable else "x", **shape)
        if len(points) <= MOST_LABELLED or not usable or name == "baseline" or (speed, score) in front:
            label = (0, heights[place % len(heights)])
            axes.annotate(name, (speed, score), label, textcoords="offset points", fontsize=8, ha="center")
    if front:
        ring = {"markersize": 12, "markerfacecolor": "none"}
        axes.plot(*zip(*front, strict=True), "o-", color=ORANGE, label="Pareto front", zorder=2, **ring)
        axes.legend(loc="best", framealpha=0.9)
    axes.margins(0.15)
    axes.set(
        xlabel="output tokens/s",
        ylabel=mlperf.SCORES[mlperf.SHORT_SCORES[0]],
        title="Speed against accuracy"
        + crosses([p[3] for p in points])
        + ("" if all(p[4] for p in points) else " (hollow: machine busy)"),
    )
    return figure


def crosses(usable: Sequence[bool]) -> str:
    return "" if all(usable) else " (crosses: not usable)"


def pareto(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other one beats in both coordinates, by the first."""
    front: list[tuple[float, float]] = []
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]


def path(steps: Sequence[tuple[str, float, bool]], references: Mapping[str, float]) -> Any:
    """Speed after each step of a stack. Steps: name, output tokens/s, usable."""
    figure, axes = pyplot().subplots(figsize=(8, 3.8))
    speeds = [speed for _, speed, _ in steps]
    axes.plot(range(len(steps)), speeds, color=BLUE, linewidth=2)
    for place, (_, speed, usable) in enumerate(steps):
        axes.plot(place, speed, "o" if usable else "x", color=BLUE if usable else RED, markersize=8)
        axes.annotate(f"{speed:,.0f}", (place, speed), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    names = [("+ " if place else "") + name for place, (name, *_) in enumerate(steps)]
    axes.set_xticks(range(len(steps)), names, rotation=20, ha="right")
    mark(axes, axes.axhline, references)
    axes.set_ylim(0, 1.15 * max([*speeds, *references.values()]))
    axes.set_ylabel("output tokens/s")
    axes.set_title("Stacked: each step keeps all before it" + crosses([s[2] for s in steps]), loc="left")
    return figure
