"""The pictures of a report, drawn from LoadGen's own logs. Each answers one question."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import loadgen_log, profile_plot, rules, timelines
from harness.figures import BLUE, GREY, ORANGE, RED, save, style
from harness.pages import number
from harness.results import FOLDER, read, read_columns
from harness.search import Probe
from harness.summary import Accuracy, Performance, Summary

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(folder: Path, summary: Summary) -> dict[str, str]:
    """Draws what the run has data for into plots/; returns name -> path relative to `folder`."""
    style()
    drawn: dict[str, Figure] = {}
    run, logs = summary.run, folder / FOLDER["performance"]
    if run.accuracy:
        drawn["scores"] = scores(run.accuracy)
        if (table := folder / FOLDER["accuracy"] / "samples.csv").exists():
            drawn["length"] = by_length(table)
    if run.performance and (logs / loadgen_log.TRACE).exists():
        samples = loadgen_log.read_trace(logs)
        tokens = read(logs / "tokens.json", list[int]) if (logs / "tokens.json").exists() else []
        if summary.scenario.streaming:
            drawn["latency_cdf"] = latencies(samples, tokens, run.performance, summary.scenario.headline)
        else:
            drawn["tokens_per_sec"] = throughput(samples, tokens)
    if run.search and run.performance:
        drawn["search"] = rates(run.search, run.performance, summary.system.gpu_count)
    if run.performance and (logs / "machine.csv").exists():
        drawn["machine"] = timelines.machine(logs / "machine.csv")
    if run.profile and run.profile.kinds:
        drawn["profile"] = profile_plot.kinds(run.profile)
    if summary.meta.stages:
        drawn["timeline"] = timelines.stages(folder, summary.meta.stages)
    return save(drawn, folder / "plots")


def scores(accuracy: Accuracy) -> Any:
    """Each score against its threshold."""
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
    """Scores by length of the prompt."""
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


def throughput(samples: Sequence[loadgen_log.Sample], tokens: Sequence[int]) -> Any:
    """Completions over time. A busy engine climbs evenly; LoadGen logs ends alone in Offline."""
    import numpy as np
    from matplotlib import pyplot

    counted = len(tokens) == len(samples)
    ends = np.array([sample.latency_ms / 1000 for sample in samples])
    order = np.argsort(ends)
    weights = np.array(tokens) if counted else np.ones(len(samples))
    done = np.cumsum(weights[order])
    unit = "output tokens" if counted else "samples"
    figure, axes = pyplot.subplots(figsize=(8, 3.6))
    axes.plot([0, *ends[order]], [0, *done], color=BLUE, drawstyle="steps-post", label=f"{unit} of completed samples")
    mean = f"mean {number(done[-1] / ends.max())} {unit}/s"
    axes.plot([0, ends.max()], [0, done[-1]], color=ORANGE, linestyle="--", linewidth=1, label=mean)
    axes.set(xlabel="seconds", ylabel=unit, xlim=(0, None), ylim=(0, None))
    axes.set_title("Completions over time, as LoadGen logged them")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.legend(loc="upper left", framealpha=0.9)
    return figure


FAR = 3  # times the largest value: a limit beyond is named at the edge instead of squeezing the curve


def latencies(samples: Sequence[loadgen_log.Sample], tokens: Sequence[int], test: Performance, headline: str) -> Any:
    """The share of queries by latency, with the limit. `headline` names the metric that is the result."""
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
    figure, panels = pyplot.subplots(1, 3, figsize=(12, 3.6))
    for axes, (name, values) in zip(panels, series.items(), strict=True):
        kind = name.lower()
        most = max(values, default=0.0)
        if values:
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), color=BLUE)
        if logged := getattr(test, f"{kind}_ms"):
            point = "p90" if headline == f"{kind}_p90_ms" else "p99"
            value = getattr(logged, point)
            label = f"{point} {number(value)} ms"
            axes.plot(value, int(point[1:]) / 100, "o", color=ORANGE, label=label, zorder=4)
        axes.set(title=TITLES[name], xlabel="ms", ylim=(0, 1.03))
        axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
        if limit := getattr(test.limits_ms, kind, None):
            mark_limit(axes, limit, far=limit > FAR * most > 0)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, frameon=False)
    panels[0].set_ylabel("share of queries at most this long")
    figure.tight_layout()
    return figure


TITLES = {"latency": "latency", "TTFT": "time to first token (TTFT)", "TPOT": "time per output token (TPOT)"}


def mark_limit(axes: Any, limit: float, far: bool) -> None:
    """The limit of a 99th percentile as a line; if it is far off, in words at the edge."""
    if far:
        where = {"xycoords": "axes fraction", "ha": "right", "fontsize": 9, "color": RED}
        axes.annotate(f"limit {number(limit)} ms \N{RIGHTWARDS ARROW}", (0.99, 0.06), **where)
    else:
        axes.axvline(limit, color=RED, linestyle="--", label=f"limit {number(limit)} ms")
        axes.set_xlim(0, max(axes.get_xlim()[1], 1.06 * limit))


def rates(probes: Sequence[Probe], test: Performance, gpus: int) -> Any:
    """TTFT and TPOT by rate, with their limits; output speed of the machine against that of one user."""
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 3, figsize=(14, 3.8))
    for axes, name in zip(panels, ("ttft", "tpot"), strict=False):
        for point, line in (("p50", ":"), ("p99", "-")):
            known = sorted((p.qps, value) for p in probes if (value := getattr(p, f"{name}_{point}")) is not None)
            axes.plot(
                *zip(*known, strict=True), line, color=GREY, linewidth=1, zorder=2, label=point
            ) if known else None
        for verdict, color, label in ((True, BLUE, "VALID"), (False, RED, "INVALID")):
            points = [(p.qps, getattr(p, f"{name}_p99")) for p in probes if p.valid is verdict]
            some = [(qps, value) for qps, value in points if value is not None]
            axes.plot([qps for qps, _ in some], [value for _, value in some], "o", color=color, label=f"p99, {label}")
        if found := getattr(test, f"{name}_ms"):
            axes.plot(test.target_qps, found.p99, "*", color=ORANGE, markersize=14, label="p99 of the run")
        axes.set(title=f"{TITLES[name.upper()]} by rate", xlabel="queries/s", ylabel="ms", ylim=(0, None))
        if (limit := getattr(test.limits_ms, name, None)) and limit > FAR * axes.get_ylim()[1]:
            where = {"xycoords": "axes fraction", "va": "top", "fontsize": 9, "color": RED}
            axes.annotate(f"limit {number(limit)} ms \N{UPWARDS ARROW}", (0.02, 0.98), **where)
        elif limit:
            axes.axhline(limit, color=RED, linestyle="--", label=f"limit {number(limit)} ms")
        axes.legend(fontsize=8, framealpha=0.9)
    speeds(panels[2], probes, max(1, gpus), "GPU" if gpus else "machine")
    figure.tight_layout()
    return figure


def speeds(axes: Any, probes: Sequence[Probe], share: int, whose: str) -> None:
    """Output tokens/s of a GPU against tokens/s of one user (1,000 / TPOT p50): what load costs who is served.

    The knee is the VALID rate with the largest product of both.
    """
    measured = [probe for probe in probes if probe.tpot_p50 and probe.tokens_per_sec]
    known = sorted((1000 / (p.tpot_p50 or 1), (p.tokens_per_sec or 0) / share, p.qps, p.valid) for p in measured)
    axes.plot([user for user, *_ in known], [speed for _, speed, *_ in known], color=GREY, linewidth=1)
    for user, speed, qps, valid in known:
        axes.plot(user, speed, "o", color=BLUE if valid else RED)
        axes.annotate(f"{qps:.3g}/s", (user, speed), (0, 7), textcoords="offset points", ha="center", fontsize=8)
    if good := [(user, speed) for user, speed, _, valid in known if valid]:
        user, speed = max(good, key=lambda point: point[0] * point[1])
        axes.plot(user, speed, "o", markersize=14, markerfacecolor="none", color=ORANGE, label="knee")
        axes.legend(fontsize=8, framealpha=0.9)
    axes.set(title="Speed for all against speed for one", xlabel="output tokens/s of one user, median")
    most = max((speed for _, speed, *_ in known), default=1.0)
    axes.set(ylabel=f"output tokens/s per {whose}", xlim=(0, None), ylim=(0, 1.15 * most))
