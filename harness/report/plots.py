"""The pictures of a report, drawn from LoadGen's own logs. Each answers one question."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, repeat
from pathlib import Path
from typing import Any, Self

from harness.config.patterns import Poisson
from harness.core.markdown import number
from harness.loadgen.recorder import FILE, Recording
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun
from harness.report import answer, timelines
from harness.report.loads import Load, LoadPicture
from harness.report.style import (
    BLUE,
    FAR_LIMIT,
    GREEN,
    GREY,
    ORANGE,
    RED,
    TITLES,
    from_the_top,
    legend_below,
    logarithmic,
    pyplot,
    save,
    thousands,
)
from harness.results import performance, verdicts
from harness.results.profile import Profile
from harness.results.summary import Summary
from harness.runs.folder import FOLDER, Test
from harness.runs.outcome import Doubt, Outcome

# A profile in a picture, and profiles side by side: what the engine's time went to.
PARTS = {"GPU": "kernel time", "CPU": "the operators' self time"}


def kinds(profile: Profile) -> Any:
    figure, axes = pyplot().subplots(figsize=(8, 0.4 * len(profile.kinds) + 1.2))
    bars = axes.barh([*profile.shares], [*profile.shares.values()], color=BLUE, height=0.6)
    axes.bar_label(bars, fmt="%.1f %%", padding=4, fontsize=9)
    from_the_top(axes)
    idle = f"; the GPU idle for {profile.idle_percent:.0f} % of the window" if profile.idle_percent is not None else ""
    axes.set(title=f"What the engine's time went to{idle}", xlabel=f"% of {PARTS[profile.device or 'CPU']}")
    axes.set_xlim(0, 1.1 * profile.kinds[0].percent)
    return figure


ProfileValue = str | float | None
PROFILE_COLUMNS = (  # name, label, and the field of a profile
    ("profile_s", "profile: window, s", "seconds"),
    ("profile_active_s", "profile: a kernel ran, s", "active_s"),
    ("profile_idle_percent", "profile: idle, %", "idle_percent"),
    ("profile_kernel_ms", "profile: mean kernel, ms", "mean_kernel_ms"),
    ("profile_gaps", "profile: gaps", "gaps"),
    ("profile_gap_ms", "profile: mean gap, ms", "mean_gap_ms"),
)


def side_by_side(profiles: Sequence[Profile | None]) -> list[tuple[str, str, tuple[ProfileValue, ...]]]:
    """Name, label and each run's value, the kinds by what they take in the first profile; None where there is none."""
    found = [profile or Profile() for profile in profiles]
    kinds = dict.fromkeys(kind for profile in found for kind in profile.shares)
    return [
        ("profile_failure", "profile: failed", tuple(each.failure or None for each in found)),
        *((name, label, tuple(getattr(each, field) for each in found)) for name, label, field in PROFILE_COLUMNS),
        *(
            (
                f"profile_{kind.replace(' ', '_')}_percent",
                f"profile: {kind}, %",
                tuple(each.shares.get(kind, 0.0) if each.device else None for each in found),
            )
            for kind in kinds
        ),
    ]


# How latency grows with load, and what the load costs who is served: a point a test, of one run or of several.
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
        test = summary.performance
        picture = LoadPicture.of(summary, test.limits_ms if test else None)
        return cls(name, picture, max(1, summary.gpus), summary.price) if picture else None

    def has_kept(self, one: Load) -> bool:
        """Whether a test may be an answer, and kept the limits."""
        is_over = one.test.has_own_limits and one.test.reasons  # also where the limits of its run are not known
        return one.stands and not is_over and not one.over(self.picture.limits)

    @property
    def points(self) -> list[tuple[float, float, Load]]:
        """Output tokens/s of one user, and of all on one of the GPUs, by the first: 1,000 / TPOT p50, at fixed
        concurrency / TPOT p90, as MLPerf Endpoints has it."""
        found = []
        for one in self.picture.loads:
            each = one.test.at("tpot", "p90" if one.test.has_own_limits else "p50")
            if each and one.test.tokens_per_sec:
                found.append((1000 / each, one.test.tokens_per_sec / self.share, one))
        return sorted(found, key=lambda point: point[:2])


def draw_curves(summary: Summary) -> Any:
    figure, panels = pyplot().subplots(1, 3, figsize=(14, 4.6))
    draw(panels, [*filter(None, [Curve.of(summary)])], "GPU" if summary.gpus else "machine")
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
    """How a test is marked: in the style of its run among several, else by its outcome; hollow on a busy machine, and
    grey where that leaves its verdict open."""
    color, shape = style or (
        ORANGE if one.mark == "own" else GREY if one.doubt else BLUE if curve.has_kept(one) else RED,
        SHAPES[one.mark],
    )
    outcome = f"the full test, {one.standing}" if one.mark == "own" else one.standing
    fill = "white" if one.test.has(Doubt.BUSY) else color
    return {
        "label": curve.name if style else outcome,
        "color": color,
        "marker": shape,
        "markerfacecolor": fill,
        "markersize": 14 if shape == "*" else 6,
        "linestyle": "none",
        "zorder": 3,
    }


def latency(axes: Any, kind: str, curves: Sequence[Curve]) -> None:
    """A bar for each test from its middle to its slowest, which is marked; nothing is drawn for loads between them."""
    every: list[float] = []
    for curve, style in styled(curves):
        for one in curve.picture.loads:
            if values := [value for point in curve.picture.points if (value := one.test.at(kind, point))]:
                look = looks(curve, one, style)
                axes.plot([one.test.load] * 2, [min(values), max(values)], color=look["color"], linewidth=1)
                axes.plot(one.test.load, max(values), **look)
                every += values
    for most in sorted({limit for curve in curves if (limit := curve.picture.limits.get(kind))}):
        axes.axhline(most, color=RED, linestyle="--", linewidth=1, label=f"limit {number(most)} ms")
        every.append(most)
    loads = sorted({one.test.load for curve in curves for one in curve.picture.loads})
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
    title = f"{name}, p50 to p99" if len(curves) == 1 else name
    axes.set(title=title, xlabel=", ".join(units), ylabel="ms (logarithmic)")


def speeds(axes: Any, curves: Sequence[Curve], whose: str) -> None:
    """Output tokens/s of a GPU against tokens/s of one user: what load costs who is served."""
    points = [point for curve in curves for point in curve.points]
    for curve, style in styled(curves):
        for user, speed, one in curve.points:
            axes.plot(user, speed, **looks(curve, one, style) | ({} if style else {"label": ""}))
    axes.set(
        title="Throughput against interactivity",
        xlabel="interactivity: output tokens/s of one user",
        ylabel=f"throughput: output tokens/s per {whose}",
        xlim=(0, 1.12 * max((user for user, *_ in points), default=1.0)),
        ylim=(0, 1.15 * max((speed for _, speed, _ in points), default=1.0)),
    )
    thousands(axes.xaxis, axes.yaxis)


def distinguish(axes: Any, curve: Curve) -> None:
    """Rings around what is best of the tests that kept the limits: the knee, with the largest product of both speeds;
    the cheapest, by price; and the one of least energy."""
    kept = [point for point in curve.points if curve.has_kept(point[2])]
    rings = [(max(kept, key=lambda point: point[0] * point[1]), "o", "knee")] if kept else []
    if kept and curve.price:
        best = max(kept, key=lambda point: point[1])
        rings.append((best, "s", f"cheapest: {number(best[2].test.cost(curve.price), 3)} per million tokens"))
    if counted := [(joules, point) for point in kept if (joules := point[2].test.joules_per_output_token)]:
        joules, best = min(counted, key=lambda each: each[0])
        rings.append((best, "D", f"least energy: {number(joules, 3)} J per token"))
    for ((user, speed, _), shape, said), color in zip(rings, cycle((ORANGE, GREEN, GREY))):
        axes.plot(user, speed, shape, color=color, label=said, markersize=15, markerfacecolor="none", linestyle="none")


def label_loads(axes: Any, curve: Curve) -> None:
    """The load of each point that is not close to a labelled one: those that keep the limits first, of those the best.
    The axes must have their final limits."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    labelled: list[tuple[float, float]] = []
    for user, speed, one in sorted(curve.points, key=lambda at: (not curve.has_kept(at[2]), -at[0] * at[1])):
        place = user / right, speed / top
        if all(math.dist(place, other) > CLOSE for other in labelled):
            labelled.append(place)
            text = f"{number(one.test.load, 3)}{'/s' * (curve.picture.unit == Poisson.unit)}"
            axes.annotate(text, (user, speed), (0, 8), textcoords="offset points", ha="center", fontsize=8)


def draw_plots(folder: Path, summary: Summary, test: TestRun | None) -> dict[str, str]:
    """Draws what the run has data for into plots/; returns name -> path relative to `folder`. `test`: the performance
    test."""
    drawn: dict[str, Any] = {}
    run, measured, result, recordings = summary.run, summary.performance, summary.result, dict[Test, Recording]()
    if run.accuracy:
        drawn["scores"] = scores(run.accuracy)
        recordings["accuracy"] = Recording.read(folder / FOLDER["accuracy"] / FILE)
    if measured and test and result:
        recordings["performance"] = test.recording
        if measured.ttft_ms and test.is_timed:
            drawn["latency_cdf"] = latencies(test.counted, measured, result, summary.scenario.headline)
        elif not measured.ttft_ms and (figure := completions(test.answered)):
            drawn["tokens_per_sec"] = figure
    if run.search:
        drawn["search"] = draw_curves(summary)
    if measured and test and test.recording:
        part = measured.steady
        ends = (part.begin_s, part.begin_s + part.seconds) if part and part.begin_s is not None else None
        drawn["machine"] = timelines.machine(test.recording, measured.ran_out, measured.gpu_time, ends)
    if run.profile and run.profile.kinds:
        drawn["profile"] = kinds(run.profile)
    if summary.meta.stages:
        drawn["timeline"] = timelines.stages(recordings, summary.meta.stages)
    return save(drawn, folder / "plots", answer.footer(summary))


def scores(accuracy: verdicts.Accuracy) -> Any:
    checks = accuracy.checks
    figure, axes = pyplot().subplots(figsize=(8, 0.55 * len(checks) + 1.2))
    for place, check in enumerate(checks):
        share = 100 * check.score / check.reference
        good = check.low <= check.score and (check.high is None or check.score <= check.high)
        color = BLUE if good else RED
        axes.plot(share, place, "o", color=color, markersize=9, zorder=3)
        beside = {"xytext": (5 if good else -5, 8), "ha": "left" if good else "right"}  # away from its threshold
        axes.annotate(number(check.score, 6), (share, place), textcoords="offset points", fontsize=9, **beside)
        if check.interval:
            ends = [100 * end / check.reference for end in check.interval]
            axes.plot(ends, [place, place], color=color, linewidth=2, alpha=0.5)
        for bound in (check.low, check.high):
            if bound is not None:
                axes.plot([100 * bound / check.reference] * 2, [place - 0.35, place + 0.35], color=RED, linewidth=2)
    axes.axvline(100, color=GREY, linewidth=1)
    axes.set_yticks(range(len(checks)), [check.name for check in checks])
    lines = "; lines: 95 % intervals" if any(check.interval for check in checks) else ""
    label = f"% of the reference score; red bars: thresholds{lines}"
    title = f"Accuracy against its thresholds: {accuracy.verdict}"
    axes.set(title=title, xlabel=label, ylim=(len(checks) - 0.4, -0.7))
    return figure


def completions(requests: Sequence[Request]) -> Any | None:
    """Output tokens of the answers that had ended by each time. Nothing else is known in Offline: not when an answer
    began nor what the engine did meanwhile. None without times."""
    ended = sorted((request.done_s, request.output_tokens) for request in requests if request.done_s)
    if not ended:
        return None
    ends, sums = [0.0, *(end for end, _ in ended)], [0, *accumulate(count for _, count in ended)]
    figure, axes = pyplot().subplots(figsize=(8, 3.4))
    axes.step(ends, sums, where="post", color=BLUE, label="tokens of the answers that have ended")
    mean = f"mean {number(sums[-1] / ends[-1])} output tokens/s"
    axes.plot([0, ends[-1]], [0, sums[-1]], color=ORANGE, linestyle="--", linewidth=1, label=mean)
    title = "Completed tokens against time, by the ends that LoadGen logged"
    axes.set(title=title, xlabel="seconds", ylabel="output tokens", xlim=(0, None), ylim=(0, None))
    thousands(axes.yaxis)
    legend_below(axes, ncols=2)
    return figure


def latencies(requests: Sequence[Request], test: performance.Performance, found: Outcome, headline: str) -> Any:
    """The share of queries by latency, with the limit. `headline` names the metric that is the result."""
    import numpy as np

    each = test.samples_per_query
    queries = [requests[first : first + each] for first in range(0, len(requests), each)]
    series = {
        "latency": [max(request.latency_ms or 0.0 for request in query) for query in queries],
        "TTFT": [time for request in requests if (time := request.ttft_ms) is not None],
        "TPOT": [time for request in requests if (time := request.tpot_ms) is not None],
    }
    figure, panels = pyplot().subplots(1, 3, figsize=(12, 3.6))
    for axes, (name, values) in zip(panels, series.items(), strict=True):
        kind = name.lower()
        if values:
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), color=BLUE)
        point = "p90" if headline == f"{kind}_p90_ms" else "p99"
        if (value := found.at(kind, point)) is not None:
            is_slowest = point == "p99" and found.has(Doubt.FEW)
            label = f"{'slowest' if is_slowest else point} {number(value)} ms"
            axes.plot(value, 1 if is_slowest else int(point[1:]) / 100, "o", color=ORANGE, label=label, zorder=4)
        axes.set(title=TITLES[name], xlabel="ms", ylim=(0, 1.03))
        thousands(axes.xaxis)
        axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
        if limit := getattr(test.limits_ms, kind, None):
            mark_limit(axes, limit, far=limit > FAR_LIMIT * max(values, default=0.0) > 0)
        legend_below(axes, ncols=2)
    panels[0].set_ylabel("share of queries at most this long")
    figure.tight_layout()
    return figure


def mark_limit(axes: Any, limit: float, far: bool) -> None:
    """The limit of a 99th percentile as a line; if it is far off, in words at the edge."""
    if far:
        text = f"limit {number(limit)} ms \N{RIGHTWARDS ARROW}"
        axes.annotate(text, (0.99, 0.06), xycoords="axes fraction", ha="right", fontsize=9, color=RED)
    else:
        axes.axvline(limit, color=RED, linestyle="--", label=f"limit {number(limit)} ms")
        axes.set_xlim(0, max(axes.get_xlim()[1], 1.06 * limit))
