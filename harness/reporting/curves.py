"""How latency grows with load, and what the load costs who is served: a point a test, of one run or of several."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, repeat
from typing import Any, Self

from harness.common.markdown import number
from harness.config.patterns import Poisson
from harness.pages.loads import Load, LoadPicture
from harness.reporting.style import (
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TITLES,
    legend_below,
    logarithmic,
    pyplot,
    thousands,
)
from harness.results.summary import Summary

HEADROOM = 1.35  # times the largest value: room above it on a logarithmic axis, and below the smallest
AXIS_MARGIN = 0.06  # of an axis of rates, beside the first and the last
CLOSE = 0.06  # of the axes: a point as near to a labelled one has no label
NARROW = 1.25  # ratio of two loads on a logarithmic axis that both have their number, at least
SHAPES = {"held": "o", "grew": "D", "bad": "X", "own": "*"}  # of one run's tests
STYLES = (*zip((BLUE, ORANGE, GREEN, RED, GREY), "os^Dv", strict=True),)  # of several runs, distinct in grey, too


@dataclass(frozen=True)
class Curve:
    """The tests of a run by load. `share`: the GPUs that its output is divided by."""

    name: str
    picture: LoadPicture
    share: int
    price: float | None

    @classmethod
    def of(cls, summary: Summary, name: str = "") -> Self | None:
        """None of a run without a load to vary."""
        test = summary.run.performance
        picture = LoadPicture.of(summary.run.search or [], test, test.limits_ms if test else None)
        price = test.cost.price_per_hour if test and test.cost else None
        return cls(name, picture, max(1, summary.gpus), price) if picture else None

    def has_kept(self, one: Load) -> bool:
        """Whether a test may be an answer, and kept the limits."""
        is_over = one.probe.concurrency and one.probe.why  # by the limits of its run, also where these are not known
        return one.stands and not is_over and not one.over(self.picture.limits)

    @property
    def points(self) -> list[tuple[float, float, Load]]:
        """Output tokens/s of one user, and of all on one of the GPUs, by the first: 1,000 / TPOT p50, at fixed
        concurrency / TPOT p90, as MLPerf Endpoints has it."""
        found = []
        for one in self.picture.loads:
            each = one.at("tpot", "p50" if one.probe.concurrency is None else "p90")
            if each and one.probe.tokens_per_sec:
                found.append((1000 / each, one.probe.tokens_per_sec / self.share, one))
        return sorted(found, key=lambda point: point[:2])


def draw_curves(summary: Summary) -> Any:
    figure, panels = pyplot().subplots(1, 3, figsize=(14, 4.6))
    draw(panels, [curve] if (curve := Curve.of(summary)) else [], "GPU" if summary.gpus else "machine")
    figure.tight_layout()
    return figure


def draw(panels: Sequence[Any], curves: Sequence[Curve], whose: str) -> None:
    """Latency by load on two axes, throughput against interactivity on the third."""
    kinds = list(dict.fromkeys(kind for curve in curves for kind in curve.picture.axes))
    for axes, kind in zip(panels, kinds, strict=False):
        latency(axes, kind, curves)
    speeds(panels[2], curves, whose)
    if len(curves) == 1:
        distinguish(panels[2], curves[0])
        label_loads(panels[2], curves[0])
    for axes in panels:
        handles, labels = axes.get_legend_handles_labels()
        if once := dict(zip(labels, handles, strict=True)):
            legend_below(axes, handles=once.values(), labels=once.keys(), fontsize=8, ncols=2)


def styled(curves: Sequence[Curve]) -> Iterator[tuple[Curve, tuple[str, str] | None]]:
    """Each curve with its own colour and mark, where there are several."""
    return zip(curves, cycle(STYLES) if len(curves) > 1 else repeat(None), strict=False)


def looks(curve: Curve, one: Load, style: tuple[str, str] | None) -> dict[str, Any]:
    """How a test is marked: in the style of its run among several, else by its outcome; hollow on a busy machine."""
    color, shape = style or (
        ORANGE if one.mark == "own" else BLUE if curve.has_kept(one) else RED,
        SHAPES[one.mark],
    )
    outcome = f"the full test, {one.outcome}" if one.mark == "own" else one.outcome
    fill = "white" if one.probe.busy else color
    look = {"color": color, "marker": shape, "markerfacecolor": fill, "markersize": 14 if shape == "*" else 6}
    return look | {"label": curve.name if style else outcome, "linestyle": "none", "zorder": 3}


def latency(axes: Any, kind: str, curves: Sequence[Curve]) -> None:
    """A bar for each test from its middle to its slowest, which is marked; nothing is drawn for loads between them."""
    every: list[float] = []
    for curve, style in styled(curves):
        for one in curve.picture.loads:
            if values := [value for point in curve.picture.points if (value := one.at(kind, point))]:
                look = looks(curve, one, style)
                axes.plot([one.probe.load] * 2, [min(values), max(values)], color=look["color"], linewidth=1)
                axes.plot(one.probe.load, max(values), **look)
                every += values
    for most in sorted({limit for curve in curves if (limit := curve.picture.limits.get(kind))}):
        axes.axhline(most, color=RED, linestyle="--", linewidth=1, label=f"limit {number(most)} ms")
        every.append(most)
    loads = sorted({one.probe.load for curve in curves for one in curve.picture.loads})
    units = sorted({curve.picture.unit for curve in curves})
    if units != [Poisson.unit]:
        axes.set_xscale("log", base=2)
        ticks = [load for load, before in zip(loads, [0.0, *loads], strict=False) if load > NARROW * before]
        axes.set_xticks(ticks, [number(load) for load in ticks])
    else:
        start = 0 if loads[0] < loads[-1] / 2 or len(loads) < 2 else loads[0] - AXIS_MARGIN * (loads[-1] - loads[0])
        axes.set_xlim(start, loads[-1] + AXIS_MARGIN * (loads[-1] - start))
    if every:
        logarithmic(axes.yaxis)
        axes.set_ylim(min(every) / HEADROOM, max(every) * HEADROOM)
    name = TITLES.get(kind.upper(), f"{kind} of a query")
    axes.set(title=f"{name}, p50 to p99" if len(curves) == 1 else name, xlabel=", ".join(units))
    axes.set_ylabel("ms (logarithmic)")


def speeds(axes: Any, curves: Sequence[Curve], whose: str) -> None:
    """Output tokens/s of a GPU against tokens/s of one user: what load costs who is served."""
    points = [point for curve in curves for point in curve.points]
    for curve, style in styled(curves):
        for user, speed, one in curve.points:
            axes.plot(user, speed, **looks(curve, one, style) | ({} if style else {"label": ""}))
    axes.set(title="Throughput against interactivity", xlabel="interactivity: output tokens/s of one user")
    axes.set(ylabel=f"throughput: output tokens/s per {whose}")
    axes.set(xlim=(0, 1.12 * max((user for user, *_ in points), default=1.0)))
    axes.set(ylim=(0, 1.15 * max((speed for _, speed, _ in points), default=1.0)))
    thousands(axes.xaxis, axes.yaxis)


def distinguish(axes: Any, curve: Curve) -> None:
    """Rings around what is best of the tests that kept the limits: the knee, with the largest product of both speeds;
    the cheapest, by price; and the one of least energy."""
    kept = [point for point in curve.points if curve.has_kept(point[2])]
    rings: list[tuple[tuple[float, float, Load], str, str]] = []
    if kept:
        rings.append((max(kept, key=lambda point: point[0] * point[1]), "o", "knee"))
    if kept and curve.price:
        best = max(kept, key=lambda point: point[1])
        rings.append((best, "s", f"cheapest: {number(best[2].probe.cost(curve.price), 3)} per million tokens"))
    if counted := [point for point in kept if point[2].probe.joules_per_token]:
        best = min(counted, key=lambda point: point[2].probe.joules_per_token or 0.0)
        rings.append((best, "D", f"least energy: {number(best[2].probe.joules_per_token, 3)} J per token"))
    for ((user, speed, _), shape, said), color in zip(rings, cycle((ORANGE, GREEN, GREY))):
        look = {"markersize": 15, "markerfacecolor": "none", "linestyle": "none"}
        axes.plot(user, speed, shape, color=color, label=said, **look)


def label_loads(axes: Any, curve: Curve) -> None:
    """The load of each point that is not close to a labelled one: those that keep the limits first, of those the best.
    The axes must have their final limits."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    labelled: list[tuple[float, float]] = []
    for user, speed, one in sorted(
        curve.points, key=lambda point: (not curve.has_kept(point[2]), -point[0] * point[1])
    ):
        place = user / right, speed / top
        if all(math.dist(place, other) > CLOSE for other in labelled):
            labelled.append(place)
            text = f"{number(one.probe.load, 3)}{'' if one.probe.qps is None else '/s'}"
            axes.annotate(text, (user, speed), (0, 8), textcoords="offset points", ha="center", fontsize=8)
