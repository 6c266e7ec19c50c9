"""How latency grows with load: one point a test, by rate or by samples per query."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness.common.markdown import number
from harness.reporting.style import BLUE, FAR, GREY, ORANGE, RED, TITLES
from harness.results.summary import Performance
from harness.runs.probe import Probe

Point = tuple[float, float, Probe]  # tokens/s of one user, of all, and the test
CLOSE = 0.08  # of an axis: labels that are nearer cover each other


@dataclass(frozen=True)
class Panel:
    """One kind of latency by load: its middle, and its tail."""

    kind: str  # as fields of Probe and Performance begin
    middle: str
    tail: str

    @property
    def title(self) -> str:
        return TITLES.get(self.kind.upper(), f"{self.kind} of a query")


RATES = (Panel("ttft", "p50", "p99"), Panel("tpot", "p50", "p99"))
BATCHES = (Panel("latency", "p50", "p90"), Panel("tpot", "p50", "p99"))


def draw(probes: Sequence[Probe], test: Performance | None, gpus: int) -> Any:
    """Latencies by load, with their limits; output speed of the machine against that of one user. `test` is the run's
    own, where it came to that."""
    from matplotlib import pyplot

    by_rate = probes[0].qps is not None
    unit = "queries/s" if by_rate else "samples per query"
    figure, panels = pyplot.subplots(1, 3, figsize=(14, 3.8))
    for axes, panel in zip(panels, RATES if by_rate else BATCHES, strict=False):
        latency(axes, panel, probes)
        if test and (found := getattr(test, f"{panel.kind}_ms")) and test.target_qps:
            label = f"{panel.tail} of the run"
            axes.plot(test.target_qps, getattr(found, panel.tail), "*", color=ORANGE, markersize=14, label=label)
        axes.set(title=f"{panel.title} by {'rate' if by_rate else 'batch'}", xlabel=unit, ylabel="ms", ylim=(0, None))
        if not by_rate:
            sizes = [int(probe.load) for probe in probes]
            axes.set_xscale("log", base=2)
            axes.set_xticks(sizes, [str(size) for size in sizes])
        mark_limit(axes, getattr(test.limits_ms, panel.kind, None) if test else None)
        axes.legend(fontsize=8, framealpha=0.9)
    speeds(panels[2], probes, max(1, gpus), "GPU" if gpus else "machine")
    figure.tight_layout()
    return figure


def latency(axes: Any, panel: Panel, probes: Sequence[Probe]) -> None:
    """The middle and the tail by load, and each test's verdict on the tail."""
    for point, line in ((panel.middle, ":"), (panel.tail, "-")):
        known = sorted((p.load, value) for p in probes if (value := getattr(p, f"{panel.kind}_{point}")) is not None)
        axes.plot([x for x, _ in known], [y for _, y in known], line, color=GREY, linewidth=1, zorder=2, label=point)
    for label in dict.fromkeys(map(verdict, probes)):
        points = [(p.load, getattr(p, f"{panel.kind}_{panel.tail}"), p) for p in probes if verdict(p) == label]
        shown = [(load, value, p) for load, value, p in points if value is not None]
        if shown:
            color, mark = BLUE if shown[0][2].valid else RED, "o" if shown[0][2].held else FELL.get(label, "X")
            name = f"{panel.tail}, {label}"
            axes.plot([x for x, *_ in shown], [y for _, y, _ in shown], mark, color=color, label=name)


FELL = {"INVALID by TTFT": "v", "INVALID by TPOT": "^", "INVALID, too few queries": "s", "VALID, queue grew": "D"}


def verdict(probe: Probe) -> str:
    """LoadGen's verdict on a probe, and in two words why it fell."""
    if probe.valid:
        return "VALID, queue grew" if probe.grew else "VALID"
    limits = " and ".join(name for name in ("TTFT", "TPOT") if f"{name} p99" in probe.why)
    return f"INVALID by {limits}" if limits else "INVALID, too few queries" if probe.more else "INVALID"


def mark_limit(axes: Any, limit: float | None) -> None:
    """A limit as a line; if it is far off, in words at the edge."""
    if limit and limit > FAR * axes.get_ylim()[1]:
        where = {"xycoords": "axes fraction", "va": "top", "fontsize": 9, "color": RED}
        axes.annotate(f"limit {number(limit)} ms \N{UPWARDS ARROW}", (0.02, 0.98), **where)
    elif limit:
        axes.axhline(limit, color=RED, linestyle="--", label=f"limit {number(limit)} ms")
        axes.set_ylim(0, max(axes.get_ylim()[1], 1.06 * limit))


def speeds(axes: Any, probes: Sequence[Probe], share: int, whose: str) -> None:
    """Output tokens/s of a GPU against tokens/s of one user (1,000 / TPOT p50): what load costs who is served.

    The knee is the VALID load with the largest product of both.
    """
    measured = [probe for probe in probes if probe.tpot_p50 and probe.tokens_per_sec]
    points = [(1000 / (p.tpot_p50 or 1), (p.tokens_per_sec or 0) / share, p) for p in measured]
    known = sorted(points, key=lambda point: point[:2])
    axes.plot([user for user, *_ in known], [speed for _, speed, _ in known], color=GREY, linewidth=1)
    for user, speed, probe in known:
        axes.plot(user, speed, "o", color=BLUE if probe.valid else RED)
    for user, speed, probe in apart(known):
        label = f"{probe.load:.3g}" + ("/s" if probe.qps is not None else "")
        axes.annotate(label, (user, speed), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    if good := [(user, speed) for user, speed, probe in known if probe.valid]:
        user, speed = max(good, key=lambda point: point[0] * point[1])
        axes.plot(user, speed, "o", markersize=14, markerfacecolor="none", color=ORANGE, label="knee")
        axes.legend(fontsize=8, framealpha=0.9)
    axes.set(title="Speed for all against speed for one", xlabel="output tokens/s of one user, median")
    most = max((speed for _, speed, _ in known), default=1.0)
    axes.set(ylabel=f"output tokens/s per {whose}", xlim=(0, None), ylim=(0, 1.15 * most))


def apart(points: Sequence[Point]) -> list[Point]:
    """Those points whose labels do not cover each other's: the VALID ones first, and of those the best."""
    wide, high = max((x for x, *_ in points), default=1.0), max((y for _, y, _ in points), default=1.0)
    chosen: list[Point] = []
    for user, speed, probe in sorted(points, key=worth):
        if not any(abs(user - x) < CLOSE * wide and abs(speed - y) < CLOSE * high for x, y, _ in chosen):
            chosen.append((user, speed, probe))
    return chosen


def worth(point: Point) -> tuple[bool, float]:
    """The smaller, the sooner a point is labelled."""
    user, speed, probe = point
    return not probe.valid, -user * speed
