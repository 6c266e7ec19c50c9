"""The pictures of a report, drawn from LoadGen's own logs. Each answers one question."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import util_logs
from harness import rules
from harness.errors import UsageError
from harness.results import FOLDER, read, read_columns
from harness.search import Probe
from harness.summary import Accuracy, Performance, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LABELLED = 10  # points that can all have their names beside them
BLUE, ORANGE, GREY, RED = "#2f6db5", "#e07b39", "#8a8f98", "#c0392b"


def draw(folder: Path, summary: Summary) -> dict[str, str]:
    """Draws what the run has data for into plots/; returns name -> path relative to `folder`."""
    style()
    drawn: dict[str, Figure] = {}
    run, logs = summary.run, folder / FOLDER["performance"]
    if run.accuracy:
        drawn["scores"] = scores(run.accuracy)
        if (table := folder / FOLDER["accuracy"] / "samples.csv").exists():
            drawn["length"] = by_length(table)
    if run.performance and (logs / util_logs.TRACE).exists():
        samples = util_logs.read_trace(logs)
        tokens = read(logs / "tokens.json", list[int]) if (logs / "tokens.json").exists() else []
        if summary.scenario.streaming:
            drawn["latency_cdf"] = latencies(samples, tokens, run.performance)
        else:
            drawn["tokens_per_sec"] = throughput(samples, tokens)
    if run.search and run.performance:
        drawn["search"] = rates(run.search, run.performance)
    if run.performance and (logs / "machine.csv").exists():
        drawn["machine"] = machine(logs / "machine.csv")
    if stages := summary.meta.stages:
        tests = {"accuracy test": folder / FOLDER["accuracy"], "performance test": logs}
        last = dict(stages)  # of a test that was run again, the recording is the last one's
        loads = [(start, tests[name] / "machine.csv") for name, start in last.items() if name in tests]
        drawn["timeline"] = timeline(stages, [(start, path) for start, path in loads if path.exists()])
    return save(drawn, folder / "plots")


def style() -> None:
    """What all pictures have in common; they are files, never windows."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 10}
    )


def save(drawn: "dict[str, Figure]", folder: Path) -> dict[str, str]:
    """Writes the figures as PNG files; name -> path relative to the folder above."""
    from matplotlib import pyplot

    folder.mkdir(exist_ok=True)
    for name, figure in drawn.items():
        figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight")
    pyplot.close("all")
    return {name: f"{folder.name}/{name}.png" for name in drawn}


def scores(accuracy: Accuracy) -> Any:
    """How far is each score from its threshold?"""
    from matplotlib import pyplot

    checks = accuracy.checks
    figure, axes = pyplot.subplots(figsize=(8, 0.55 * len(checks) + 1.2))
    shares = [100 * check.score / check.reference for check in checks]
    for row, (check, share) in enumerate(zip(checks, shares, strict=True)):
        good = check.low <= check.score and (check.high is None or check.score <= check.high)
        axes.plot(share, row, "o", color=BLUE if good else RED, markersize=9, zorder=3)
        axes.annotate(f"{check.score:,.6g}", (share, row), (0, 9), textcoords="offset points", ha="center", fontsize=9)
        if check.interval:
            ends = [100 * end / check.reference for end in check.interval]
            axes.plot(ends, [row, row], color=BLUE if good else RED, linewidth=2, alpha=0.5)
        for bound in (check.low, check.high):
            if bound is not None:
                at = 100 * bound / check.reference
                axes.plot([at, at], [row - 0.35, row + 0.35], color=RED, linewidth=2)
    axes.axvline(100, color=GREY, linewidth=1)
    axes.set_yticks(range(len(checks)), [check.name for check in checks])
    axes.set_ylim(len(checks) - 0.4, -0.7)
    lines = "; lines: 95 % intervals" if any(check.interval for check in checks) else ""
    axes.set_xlabel(f"% of the reference score; red bars: what must be kept to{lines}")
    axes.set_title(f"Accuracy against its thresholds: {accuracy.verdict}")
    return figure


def by_length(path: Path) -> Any:
    """Do long prompts score worse?"""
    import numpy as np
    from matplotlib import pyplot

    score = rules.SHORT_SCORES[0]
    columns = read_columns(path, ("prompt_tokens", score))
    lengths, scores = np.array(columns["prompt_tokens"], dtype=float), np.array(columns[score], dtype=float)
    figure, axes = pyplot.subplots(figsize=(8, 3.4))
    axes.plot(lengths, scores, ".", color=BLUE, alpha=0.35, markersize=5)
    groups = np.array_split(np.argsort(lengths, kind="stable"), min(10, len(scores)))
    means = [(lengths[group].mean(), scores[group].mean()) for group in groups]
    axes.plot(*zip(*means, strict=True), "o-", color=ORANGE, label="mean of each tenth")
    axes.set(xlabel="prompt tokens", ylabel=rules.SCORES[score], title="Score by prompt length", ylim=(0, 102))
    axes.legend(loc="lower right", framealpha=0.9)
    return figure


def throughput(samples: Sequence[util_logs.Sample], tokens: Sequence[int]) -> Any:
    """Is the engine busy from beginning to end?"""
    import numpy as np
    from matplotlib import pyplot

    order = np.argsort([sample.latency_ms for sample in samples])
    ends = np.array([sample.latency_ms / 1000 for sample in samples])[order]
    figure, (top, bottom) = pyplot.subplots(2, 1, figsize=(8, 5.5), sharex=True)
    top.plot(ends, np.arange(1, len(ends) + 1), color=BLUE)
    top.set_ylabel("samples completed")
    top.set_title("Completions over time, as LoadGen logged them")
    if len(tokens) == len(samples):
        edges = np.linspace(0, ends[-1], 41)
        new, _ = np.histogram(ends, bins=edges, weights=np.array(tokens, dtype=float)[order])
        bottom.stairs(new / np.diff(edges), edges, fill=True, color=BLUE, alpha=0.35)
        mean = sum(tokens) / ends[-1]
        bottom.axhline(mean, color=ORANGE, label=f"mean {mean:,.0f} tokens/s")
        bottom.legend(loc="upper left", framealpha=0.9)
    bottom.set_ylabel("output tokens/s")
    bottom.set_xlabel("seconds (a sample's tokens count when it completes)")
    figure.align_ylabels()
    return figure


def latencies(samples: Sequence[util_logs.Sample], tokens: Sequence[int], test: Performance) -> Any:
    """What share of queries waited how long, and where is the limit?"""
    import numpy as np
    from matplotlib import pyplot

    series: dict[str, list[float]] = {"latency": [sample.latency_ms for sample in samples], "TTFT": [], "TPOT": []}
    if all(sample.ttft_ms is not None for sample in samples):
        series["TTFT"] = [sample.ttft_ms or 0 for sample in samples]
        if len(tokens) == len(samples):
            series["TPOT"] = [
                (sample.latency_ms - (sample.ttft_ms or 0)) / (count - 1)
                for sample, count in zip(samples, tokens, strict=True)
                if count > 1
            ]
    limits = {"TTFT": "ttft", "TPOT": "tpot"}
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6))
    for axes, (name, values) in zip(panels, series.items(), strict=True):
        logged = getattr(test, f"{name.lower()}_ms")
        if values:
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), color=BLUE)
        if logged:
            axes.plot(logged.p99, 0.99, "o", color=ORANGE, label=f"p99 {logged.p99:,.4g} ms", zorder=4)
        if test.limits_ms and name in limits:
            limit = getattr(test.limits_ms, limits[name])
            axes.axvline(limit, color=RED, linestyle="--", label=f"limit {limit:g} ms")
        axes.set(title=name, xlabel="ms", ylim=(0, 1.03))
        axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    panels[0].set_ylabel("share of queries at most this long")
    figure.tight_layout()
    return figure


def rates(probes: Sequence[Probe], test: Performance) -> Any:
    """At which rate do TTFT and TPOT break their limits?"""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 3.8))
    for axes, name in zip(panels, ("ttft", "tpot"), strict=True):
        points = [(probe.qps, getattr(probe, f"{name}_p99"), probe.valid) for probe in probes]
        known = sorted((qps, value, valid) for qps, value, valid in points if value is not None)
        axes.plot([qps for qps, *_ in known], [value for _, value, _ in known], color=GREY, linewidth=1, zorder=2)
        for verdict, color, label in ((True, BLUE, "probe, VALID"), (False, RED, "probe, INVALID")):
            some = [(qps, value) for qps, value, valid in known if valid is verdict]
            axes.plot([qps for qps, _ in some], [value for _, value in some], "o", color=color, label=label)
        if found := getattr(test, f"{name}_ms"):
            axes.plot(test.target_qps, found.p99, "*", color=ORANGE, markersize=14, label="the run")
        if test.limits_ms:
            limit = getattr(test.limits_ms, name)
            axes.axhline(limit, color=RED, linestyle="--", label=f"limit {limit:g} ms")
        axes.set(title=f"{name.upper()} p99 by rate", xlabel="queries/s", ylabel="ms", ylim=(0, None))
        axes.legend(fontsize=8, framealpha=0.9)
    figure.tight_layout()
    return figure


def recorded(path: Path) -> tuple[list[float], dict[str, list[float | None]]]:
    """machine.csv: the seconds, and the columns of numbers beside them. Raises UsageError for a damaged one."""
    columns = read_columns(path)
    seconds = columns.pop("seconds", [])
    if None in seconds or (columns and not seconds):
        raise UsageError(f"{path}: a line without its seconds.")
    return [second for second in seconds if second is not None], columns


def machine(path: Path) -> Any:
    """What did the machine do meanwhile?"""
    from matplotlib import pyplot

    seconds, columns = recorded(path)
    kinds = [("percent", "load, %"), ("gib", "memory, GiB"), ("w", "power, W")]
    kinds = [kind for kind in kinds if any(name.endswith(f"_{kind[0]}") for name in columns)]
    figure, panels = pyplot.subplots(
        max(1, len(kinds)), 1, figsize=(8, 2.2 * max(1, len(kinds))), sharex=True, squeeze=False
    )
    for axes, (unit, label) in zip(panels[:, 0], kinds, strict=False):
        for name in columns:
            if name.endswith(f"_{unit}"):
                axes.plot(seconds, filled(columns[name]), label=name.removesuffix(f"_{unit}"))
        axes.set_ylabel(label)
        axes.legend(loc="lower right", fontsize=8)
    panels[-1, 0].set_xlabel("seconds")
    return figure


def filled(values: Sequence[float | None]) -> list[float]:
    """Values with a gap in the line where there is none."""
    return [math.nan if value is None else value for value in values]


def timeline(stages: Sequence[tuple[str, float]], loads: Sequence[tuple[float, Path]]) -> Any:
    """Where did the time go: the engine at work, or waiting? Stages with their starts; the machine's load if recorded.

    The last stage ends the picture.
    """
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1 + bool(loads), 1, figsize=(8, 0.3 * len(stages) + 1.2 + 1.8 * bool(loads)), sharex=True, squeeze=False
    )
    axes = panels[0, 0]
    ends = [start for _, start in stages[1:]]
    for row, ((name, start), end) in enumerate(zip(stages, ends, strict=False)):
        works = name.endswith("test") or name.startswith(("calibrating", "probe", "TEST"))
        axes.barh(row, end - start, left=start, color=BLUE if works else GREY, height=0.6)
        axes.annotate(f"{end - start:.0f} s", (end, row), (4, 0), textcoords="offset points", va="center", fontsize=8)
    axes.set_yticks(range(len(ends)), [name for name, _ in stages[:-1]])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.07 * ends[-1])
    axes.set_title("Where the time went: the engine answers (blue), or does not (grey)")
    for start, path in loads:
        seconds, columns = recorded(path)
        cards = [name for name in columns if name.endswith("_load_percent")]
        for name in cards or ["cpu_percent"] if columns else []:
            times = [start + second for second in seconds]
            panels[1, 0].plot(times, filled(columns.get(name, [None] * len(times))), color=BLUE, linewidth=1)
        panels[1, 0].set(ylabel="GPU load, %" if cards else "CPU load, %", ylim=(0, 105))
    panels[-1, 0].set_xlabel("seconds since the command began")
    return figure


def speedups(rows: Sequence[tuple[str, float, float, float, bool]]) -> Any:
    """How much faster or slower is each experiment? Rows: name, ratio to the baseline, lowest, highest, usable."""
    from matplotlib import pyplot

    style()
    figure, axes = pyplot.subplots(figsize=(8, 0.38 * len(rows) + 1.2))
    for place, (_, ratio, low, high, usable) in enumerate(rows):
        axes.barh(place, ratio, color=BLUE if usable else "none", edgecolor=BLUE if usable else RED, height=0.65)
        if not usable:
            axes.barh(place, ratio, color="none", edgecolor=RED, hatch="///", height=0.65, linewidth=0)
        if high > low:
            axes.plot([low, high], [place, place], color="black", linewidth=1.5)
        axes.annotate(f"{ratio:.2f}", (high, place), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.axvline(1, color=GREY, linewidth=1)
    axes.set_yticks(range(len(rows)), [name for name, *_ in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 1.1 * max(high for _, _, _, high, _ in rows))
    axes.set_xlabel("output tokens/s, baseline = 1" + ("" if all(r[4] for r in rows) else "; hatched: not usable"))
    axes.set_title("Speed against the baseline")
    axes.grid(axis="y", visible=False)
    return figure


def trade_off(points: Sequence[tuple[str, float, float, bool]]) -> Any:
    """What does speed cost in accuracy? Points: name, output tokens/s, the first of the scores, usable."""
    from matplotlib import pyplot

    style()
    figure, axes = pyplot.subplots(figsize=(8, 4.6))
    front = pareto([(speed, score) for _, speed, score, usable in points if usable])
    heights = (7, -13, 19, -25)  # neighbours are labelled at different heights
    for place, (name, speed, score, usable) in enumerate(sorted(points, key=lambda point: point[1])):
        axes.plot(speed, score, "o" if usable else "x", color=BLUE if usable else RED, markersize=7, zorder=3)
        if len(points) <= LABELLED or not usable or name == "baseline" or (speed, score) in front:
            label = (0, heights[place % len(heights)])
            axes.annotate(name, (speed, score), label, textcoords="offset points", fontsize=8, ha="center")
    if front:
        ring = {"markersize": 12, "markerfacecolor": "none"}
        axes.plot(*zip(*front, strict=True), "o-", color=ORANGE, label="Pareto front", zorder=2, **ring)
        axes.legend(loc="best", framealpha=0.9)
    axes.margins(0.15)
    axes.set(
        xlabel="output tokens/s",
        ylabel=rules.SCORES[rules.SHORT_SCORES[0]],
        title="Speed against accuracy" + crosses([p[3] for p in points]),
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


def path(steps: Sequence[tuple[str, float, bool]]) -> Any:
    """What does each step of a stack add? Steps: name, output tokens/s, usable."""
    from matplotlib import pyplot

    style()
    figure, axes = pyplot.subplots(figsize=(8, 3.8))
    speeds = [speed for _, speed, _ in steps]
    axes.plot(range(len(steps)), speeds, color=BLUE, linewidth=2)
    for place, (_, speed, usable) in enumerate(steps):
        axes.plot(place, speed, "o" if usable else "x", color=BLUE if usable else RED, markersize=8)
        axes.annotate(f"{speed:,.0f}", (place, speed), (0, 8), textcoords="offset points", ha="center", fontsize=9)
    names = [("+ " if place else "") + name for place, (name, *_) in enumerate(steps)]
    axes.set_xticks(range(len(steps)), names, rotation=20, ha="right")
    axes.set_ylim(0, 1.15 * max(speeds))
    axes.set(ylabel="output tokens/s", title="Stacked: each step keeps all before it" + crosses([s[2] for s in steps]))
    return figure
