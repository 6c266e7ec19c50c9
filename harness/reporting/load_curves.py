"""How latency grows with load: one point a test, by rate, by samples per query or by requests in flight."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.common.markdown import number
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
from harness.results.performance import Performance
from harness.runs.probe import Probe

Point = tuple[float, float, Probe]  # tokens/s of one user, of all, and the test
HEADROOM = 1.35  # times the largest value: room above it on a logarithmic axis, and below the smallest
AXIS_MARGIN = 0.06  # of an axis of rates, beside the first and the last
CLOSE = 0.06  # of the axes: a point as near to a labelled one has no label


@dataclass(frozen=True)
class Panel:
    """One kind of latency by load: its middle, and its tail."""

    kind: str  # as fields of Probe and Performance begin
    middle: str
    tail: str

    @property
    def title(self) -> str:
        return TITLES.get(self.kind.upper(), f"{self.kind} of a query")

    def of(self, probe: Probe, point: str) -> float | None:
        """The latency of a probe at its middle or its tail, ms."""
        value: float | None = getattr(probe, f"{self.kind}_{point}")
        return value or None  # a logarithmic axis has no zero


@dataclass(frozen=True)
class LoadAxis:
    """What differs between the tests of a curve."""

    name: str
    unit: str
    panels: tuple[Panel, Panel]
    doubling: bool = True  # its values double, rather than grow evenly
    step: bool = False  # a curve of measured points alone: nothing is said of loads between them


TOKENS = (Panel("ttft", "p50", "p99"), Panel("tpot", "p50", "p99"))
RATE = LoadAxis("rate", "queries/s", TOKENS, doubling=False)
BATCH = LoadAxis("batch", "samples per query", (Panel("latency", "p50", "p90"), Panel("tpot", "p50", "p99")))
CONCURRENCY = LoadAxis("concurrency", "requests in flight", TOKENS, step=True)


def load_of(probe: Probe) -> LoadAxis:
    return RATE if probe.qps is not None else BATCH if probe.concurrency is None else CONCURRENCY


def draw_load_curves(probes: Sequence[Probe], test: Performance | None, gpus: int) -> Any:
    """Latencies by load, with their limits; output speed of the machine against that of one user. `test` is the run's
    own, where it came to that."""
    varied = load_of(probes[0])
    figure, panels = pyplot().subplots(1, 3, figsize=(14, 4.6))
    for axes, panel in zip(panels, varied.panels, strict=False):
        latency(axes, panel, probes)
        own_test(axes, panel, test)
        limit(axes, panel, test)
        frame(axes, panel, probes, test)
        axes.set(title=f"{panel.title} by {varied.name}", ylabel="ms (logarithmic)")
        legend_below(axes, fontsize=8, ncols=2)
    price = test.cost.price_per_hour if test and test.cost else None
    speeds(panels[2], probes, max(1, gpus), "GPU" if gpus else "machine")
    cheapest(panels[2], probes, max(1, gpus), price)
    if panels[2].get_legend_handles_labels()[0]:
        legend_below(panels[2], fontsize=8)
    label_loads(panels[2], probes, max(1, gpus))
    figure.tight_layout()
    return figure


def frame(axes: Any, panel: Panel, probes: Sequence[Probe], test: Performance | None) -> None:
    """The axes: the load; the latency, logarithmic, with room for all that is drawn."""
    varied = load_of(probes[0])
    if varied.doubling:
        sizes = sorted({int(probe.load) for probe in probes})
        axes.set_xscale("log", base=2)
        axes.set_xticks(sizes, [str(size) for size in sizes])
        axes.set(xlabel=varied.unit)
    else:
        low, high = (choose(probe.load for probe in probes) for choose in (min, max))
        start = 0 if low < high / 2 or low == high else low - AXIS_MARGIN * (high - low)
        axes.set(xlabel=varied.unit, xlim=(start, high + AXIS_MARGIN * (high - start)))
    latencies = [value for probe in probes for point in (panel.middle, panel.tail) if (value := panel.of(probe, point))]
    latencies += [value for value in (own(panel, test), most(panel, test)) if value]
    if latencies:
        logarithmic(axes.yaxis)
        axes.set_ylim(min(latencies) / HEADROOM, max(latencies) * HEADROOM)


def latency(axes: Any, panel: Panel, probes: Sequence[Probe]) -> None:
    """The middle, dotted and hollow, and the tail, drawn through and filled, by load; each test's verdict as a mark."""
    for point, line in ((panel.middle, ":"), (panel.tail, "-")):
        points = sorted((p.load, value) for p in probes if (value := panel.of(p, point)) is not None)
        look = {"marker": "d", "markerfacecolor": "white", "markersize": 5} if point == panel.middle else {}
        axes.plot(*columns(points), line, color=GREY, linewidth=1, zorder=2, label=point, **look)
    for label in dict.fromkeys(map(verdict, probes)):
        tested = [probe for probe in probes if verdict(probe) == label]
        shown = [(p.load, value) for p in tested if (value := panel.of(p, panel.tail)) is not None]
        if shown:
            one = tested[0]
            mark = "o" if one.has_held else "D" if one.valid else "X"
            color = BLUE if good(one) else RED
            fill = "white" if one.busy else color
            axes.plot(*columns(shown), mark, color=color, markerfacecolor=fill, label=f"{panel.tail}, {label}")


def columns(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def own(panel: Panel, test: Performance | None) -> float | None:
    """The tail of the run's own test, ms; None where its load is no point of the axis."""
    found = getattr(test, f"{panel.kind}_ms") if test and test.target_qps and not test.concurrency else None
    value: float | None = getattr(found, panel.tail) if found else None
    return value


def most(panel: Panel, test: Performance | None) -> float | None:
    """The limit of the tail, ms."""
    value: float | None = getattr(test.limits_ms, panel.kind, None) if test else None
    return value


def own_test(axes: Any, panel: Panel, test: Performance | None) -> None:
    """The run's own test as a star, hollow where the machine was busy."""
    if not test or (value := own(panel, test)) is None:
        return
    fill, said = ("white", ", machine busy") if test.background_load else (ORANGE, "")
    look = {"color": ORANGE, "markerfacecolor": fill, "markersize": 14, "linestyle": "none"}
    axes.plot(test.target_qps, value, marker="*", label=f"{panel.tail} of the run{said}", zorder=5, **look)


def verdict(probe: Probe) -> str:
    """LoadGen's verdict on a probe; at fixed concurrency, which has none, the limits'."""
    if probe.busy:
        return "machine busy, not judged"
    if probe.concurrency is not None:
        return "over the limits" if probe.why else "within the limits"
    if not probe.valid:
        return "INVALID"
    return "VALID, queue grew" if probe.has_grown else "VALID"


def good(probe: Probe) -> bool:
    """Whether nothing speaks against it."""
    return not probe.busy and (probe.valid if probe.concurrency is None else not probe.why)


def limit(axes: Any, panel: Panel, test: Performance | None) -> None:
    """The limit of the 99th percentile as a line."""
    if (value := most(panel, test)) is not None:
        axes.axhline(value, color=RED, linestyle="--", label=f"limit {number(value)} ms")


def speed_points(probes: Sequence[Probe], share: int) -> list[Point]:
    """The tests by the speed of one user: tokens/s of one user, of each of `share` GPUs.

    One user's speed is 1,000 / TPOT p50; at fixed concurrency / TPOT p90, as MLPerf Endpoints has it.
    """
    points = [
        (user, probe.tokens_per_sec / share, probe)
        for probe in probes
        if (user := one_user(probe)) and probe.tokens_per_sec
    ]
    return sorted(points, key=lambda point: point[:2])


def one_user(probe: Probe) -> float | None:
    each = probe.tpot_p50 if probe.concurrency is None else probe.tpot_p90
    return 1000 / each if each else None


def speeds(axes: Any, probes: Sequence[Probe], share: int, whose: str) -> None:
    """Output tokens/s of a GPU against tokens/s of one user: what load costs who is served.

    The knee is the VALID load, or that within the limits, with the largest product of both.
    """
    points = speed_points(probes, share)
    drawn = {
        "color": GREY,
        "linewidth": 1,
        "drawstyle": "steps-pre" if probes and load_of(probes[0]).step else "default",
    }
    axes.plot([user for user, *_ in points], [speed for _, speed, _ in points], **drawn)
    for user, speed, probe in points:
        axes.plot(user, speed, "o" if good(probe) else "X", color=BLUE if good(probe) else RED)
    if kept := [(user, speed) for user, speed, probe in points if good(probe)]:
        user, speed = max(kept, key=lambda point: point[0] * point[1])
        axes.plot(user, speed, "o", markersize=14, markerfacecolor="none", color=ORANGE, label="knee")
    highest = max((speed for _, speed, _ in points), default=1.0)
    fastest = max((user for user, *_ in points), default=1.0)
    axes.set(title="Throughput against interactivity", xlabel="interactivity: output tokens/s of one user")
    axes.set(ylabel=f"throughput: output tokens/s per {whose}", xlim=(0, 1.12 * fastest), ylim=(0, 1.15 * highest))
    thousands(axes.xaxis, axes.yaxis)


def cheapest(axes: Any, probes: Sequence[Probe], share: int, price: float | None) -> None:
    """A ring around the point that keeps the limits and costs least, by price, and by energy where that is another."""
    kept = [point for point in speed_points(probes, share) if good(point[2])]
    if price and kept:
        user, speed, probe = max(kept, key=lambda point: point[1])
        said = f"cheapest: {number(probe.cost(price), 3)} per million tokens"
        axes.plot(user, speed, "s", markersize=13, markerfacecolor="none", color=GREEN, label=said, linestyle="none")
    if counted := [point for point in kept if point[2].joules_per_token]:
        user, speed, probe = min(counted, key=lambda point: point[2].joules_per_token or 0.0)
        said = f"least energy: {number(probe.joules_per_token, 3)} J per token"
        axes.plot(user, speed, "D", markersize=16, markerfacecolor="none", color=GREY, label=said, linestyle="none")


def worth(point: Point) -> tuple[bool, float]:
    """The smaller, the sooner a point is labelled."""
    user, speed, probe = point
    return not good(probe), -user * speed


def label_loads(axes: Any, probes: Sequence[Probe], share: int) -> None:
    """The load of each point that is not close to a labelled one: those that keep the limits first, of those the best.
    The axes must have their final limits."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    labelled: list[tuple[float, float]] = []
    for user, speed, probe in sorted(speed_points(probes, share), key=worth):
        place = user / right, speed / top
        if all(math.dist(place, other) > CLOSE for other in labelled):
            labelled.append(place)
            text = f"{number(probe.load, 3)}{'' if probe.qps is None else '/s'}"
            axes.annotate(text, (user, speed), (0, 8), textcoords="offset points", ha="center", fontsize=8)
