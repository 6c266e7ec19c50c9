"""The pictures of a report, drawn from LoadGen's own logs. Each answers one question."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.common.markdown import number
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun
from harness.monitoring.recorder import FILE, Recording
from harness.reporting import answer, curves, profiles, timelines
from harness.reporting.style import (
    BLUE,
    FAR_LIMIT,
    GREY,
    ORANGE,
    RED,
    TITLES,
    legend_below,
    pyplot,
    save,
    thousands,
)
from harness.results.performance import Performance
from harness.results.summary import Summary
from harness.results.verdicts import Accuracy
from harness.runs.folder import FOLDER, Test

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_plots(folder: Path, summary: Summary, test: TestRun | None) -> dict[str, str]:
    """Draws what the run has data for into plots/; returns name -> path relative to `folder`. `test`: the performance
    test."""
    drawn: dict[str, Figure] = {}
    run, recordings = summary.run, dict[Test, Recording]()
    if run.accuracy:
        drawn["scores"] = scores(run.accuracy)
        recordings["accuracy"] = Recording.read(folder / FOLDER["accuracy"] / FILE)
    if run.performance and test:
        recordings["performance"] = test.recording
        if run.performance.ttft_ms and test.is_timed:
            requests = (test.window.requests if test.window else []) or test.answered
            drawn["latency_cdf"] = latencies(requests, run.performance, summary.scenario.headline)
        elif not run.performance.ttft_ms and (figure := completions(test.answered)):
            drawn["tokens_per_sec"] = figure
    if run.search:
        drawn["search"] = curves.draw_curves(summary)
    if run.performance and test and test.recording:
        part = run.performance.steady
        ends = (part.begin_s, part.begin_s + part.seconds) if part and part.begin_s is not None else None
        drawn["machine"] = timelines.machine(test.recording, run.performance.ran_out, run.performance.gpu_time, ends)
    if run.profile and run.profile.kinds:
        drawn["profile"] = profiles.kinds(run.profile)
    if summary.meta.stages:
        drawn["timeline"] = timelines.stages(recordings, summary.meta.stages)
    return save(drawn, folder / "plots", answer.footer(summary))


def scores(accuracy: Accuracy) -> Any:
    checks = accuracy.checks
    figure, axes = pyplot().subplots(figsize=(8, 0.55 * len(checks) + 1.2))
    shares = [100 * check.score / check.reference for check in checks]
    for place, (check, share) in enumerate(zip(checks, shares, strict=True)):
        good = check.low <= check.score and (check.high is None or check.score <= check.high)
        axes.plot(share, place, "o", color=BLUE if good else RED, markersize=9, zorder=3)
        beside = {"xytext": (5 if good else -5, 8), "ha": "left" if good else "right"}  # away from its threshold
        axes.annotate(number(check.score, 6), (share, place), textcoords="offset points", fontsize=9, **beside)
        if check.interval:
            ends = [100 * end / check.reference for end in check.interval]
            axes.plot(ends, [place, place], color=BLUE if good else RED, linewidth=2, alpha=0.5)
        for bound in (check.low, check.high):
            if bound is not None:
                at = 100 * bound / check.reference
                axes.plot([at, at], [place - 0.35, place + 0.35], color=RED, linewidth=2)
    axes.axvline(100, color=GREY, linewidth=1)
    axes.set_yticks(range(len(checks)), [check.name for check in checks])
    axes.set_ylim(len(checks) - 0.4, -0.7)
    lines = "; lines: 95 % intervals" if any(check.interval for check in checks) else ""
    axes.set_xlabel(f"% of the reference score; red bars: thresholds{lines}")
    axes.set_title(f"Accuracy against its thresholds: {accuracy.verdict}")
    return figure


def completions(requests: Sequence[Request]) -> Any | None:
    """Output tokens of the answers that had ended by each time. Nothing else is known in Offline: not when an answer
    began nor what the engine did meanwhile. None without times."""
    import numpy as np

    ended = sorted((request.done_s, request.output_tokens) for request in requests if request.done_s)
    if not ended:
        return None
    ends, sums = [0.0, *(end for end, _ in ended)], [0, *np.cumsum([count for _, count in ended]).tolist()]
    figure, axes = pyplot().subplots(figsize=(8, 3.4))
    axes.step(ends, sums, where="post", color=BLUE, label="tokens of the answers that have ended")
    mean = f"mean {number(sums[-1] / ends[-1])} output tokens/s"
    axes.plot([0, ends[-1]], [0, sums[-1]], color=ORANGE, linestyle="--", linewidth=1, label=mean)
    axes.set(xlabel="seconds", ylabel="output tokens", xlim=(0, None), ylim=(0, None))
    axes.set_title("Completed tokens against time, by the ends that LoadGen logged")
    thousands(axes.yaxis)
    legend_below(axes, ncols=2)
    return figure


def latencies(requests: Sequence[Request], test: Performance, headline: str) -> Any:
    """The share of queries by latency, with the limit. `headline` names the metric that is the result."""
    import numpy as np

    each = test.samples_per_query
    queries = [requests[first : first + each] for first in range(0, len(requests), each)]
    series: dict[str, list[float]] = {
        "latency": [max(request.latency_ms or 0.0 for request in query) for query in queries],
        "TTFT": [request.ttft_ms for request in requests if request.ttft_ms is not None],
        "TPOT": [request.tpot_ms for request in requests if request.tpot_ms is not None],
    }
    figure, panels = pyplot().subplots(1, 3, figsize=(12, 3.6))
    for axes, (name, values) in zip(panels, series.items(), strict=True):
        kind = name.lower()
        most = max(values, default=0.0)
        if values:
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), color=BLUE)
        if logged := getattr(test.steady, f"{kind}_ms", None) or getattr(test, f"{kind}_ms"):
            point = "p90" if headline == f"{kind}_p90_ms" else "p99"
            value = getattr(logged, point)
            is_slowest = point == "p99" and test.is_few
            label = f"{'slowest' if is_slowest else point} {number(value)} ms"
            axes.plot(value, 1 if is_slowest else int(point[1:]) / 100, "o", color=ORANGE, label=label, zorder=4)
        axes.set(title=TITLES[name], xlabel="ms", ylim=(0, 1.03))
        thousands(axes.xaxis)
        axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
        if limit := getattr(test.limits_ms, kind, None):
            mark_limit(axes, limit, far=limit > FAR_LIMIT * most > 0)
        legend_below(axes, ncols=2)
    panels[0].set_ylabel("share of queries at most this long")
    figure.tight_layout()
    return figure


def mark_limit(axes: Any, limit: float, far: bool) -> None:
    """The limit of a 99th percentile as a line; if it is far off, in words at the edge."""
    if far:
        where = {"xycoords": "axes fraction", "ha": "right", "fontsize": 9, "color": RED}
        axes.annotate(f"limit {number(limit)} ms \N{RIGHTWARDS ARROW}", (0.99, 0.06), **where)
    else:
        axes.axvline(limit, color=RED, linestyle="--", label=f"limit {number(limit)} ms")
        axes.set_xlim(0, max(axes.get_xlim()[1], 1.06 * limit))
