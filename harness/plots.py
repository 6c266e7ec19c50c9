"""The pictures of a report, drawn from LoadGen's own logs. Each answers one question."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import util_logs
from harness.results import read_json

BLUE, ORANGE, GREY, RED = "#2f6db5", "#e07b39", "#8a8f98", "#c0392b"


def draw(folder: Path, summary: dict[str, Any]) -> dict[str, str]:
    """Draws what the run has data for into plots/; returns name -> path relative to `folder`."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 10}
    )
    (folder / "plots").mkdir(exist_ok=True)
    drawn: dict[str, Any] = {}
    run = summary["run"]
    if "accuracy" in run:
        drawn["scores"] = scores(run["accuracy"])
        if (table := folder / "Accuracy" / "samples.csv").exists():
            drawn["length"] = by_length(table)
    logs = folder / "Performance"
    if "performance" in run and (logs / util_logs.TRACE).exists():
        samples = util_logs.read_trace(logs)
        tokens = read_json(logs / "tokens.json") or []
        if summary["meta"]["scenario"] == "offline":
            drawn["throughput"] = throughput(samples, tokens)
        else:
            drawn["latency"] = latencies(samples, tokens, run["performance"])
    if "performance" in run and (logs / "machine.csv").exists():
        drawn["machine"] = machine(logs / "machine.csv")
    for name, figure in drawn.items():
        figure.savefig(folder / "plots" / f"{name}.png", dpi=110, bbox_inches="tight")
    from matplotlib import pyplot

    pyplot.close("all")
    return {name: f"plots/{name}.png" for name in drawn}


def scores(accuracy: dict[str, Any]) -> Any:
    """How far is each score from its threshold?"""
    from matplotlib import pyplot

    checks = accuracy["checks"]
    figure, axes = pyplot.subplots(figsize=(8, 0.55 * len(checks) + 1.2))
    shares = [100 * check["score"] / check["reference"] for check in checks]
    for row, (check, share) in enumerate(zip(checks, shares, strict=True)):
        good = check["low"] <= check["score"] and (check["high"] is None or check["score"] <= check["high"])
        axes.plot(share, row, "o", color=BLUE if good else RED, markersize=9, zorder=3)
        axes.annotate(
            f"{check['score']:,.6g}", (share, row), (0, 9), textcoords="offset points", ha="center", fontsize=9
        )
        if check["interval"]:
            ends = [100 * end / check["reference"] for end in check["interval"]]
            axes.plot(ends, [row, row], color=BLUE if good else RED, linewidth=2, alpha=0.5)
        for bound in (check["low"], check["high"]):
            if bound is not None:
                at = 100 * bound / check["reference"]
                axes.plot([at, at], [row - 0.35, row + 0.35], color=RED, linewidth=2)
    axes.axvline(100, color=GREY, linewidth=1)
    axes.set_yticks(range(len(checks)), [check["name"] for check in checks])
    axes.set_ylim(len(checks) - 0.4, -0.7)
    axes.set_xlabel("% of the reference score; red bars: what must be kept to")
    axes.set_title(f"Accuracy against its thresholds: {accuracy['verdict']}")
    return figure


def by_length(path: Path) -> Any:
    """Do long prompts score worse?"""
    import csv

    import numpy as np
    from matplotlib import pyplot

    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    lengths = np.array([int(row["prompt_tokens"]) for row in rows])
    scores = np.array([float(row["rouge1"]) for row in rows])
    figure, axes = pyplot.subplots(figsize=(8, 3.4))
    axes.plot(lengths, scores, ".", color=BLUE, alpha=0.35, markersize=5)
    groups = np.array_split(np.argsort(lengths, kind="stable"), min(10, len(rows)))
    means = [(lengths[group].mean(), scores[group].mean()) for group in groups]
    axes.plot(*zip(*means, strict=True), "o-", color=ORANGE, label="mean of each tenth")
    axes.set(xlabel="prompt tokens", ylabel="ROUGE-1", title="Score by prompt length", ylim=(0, 102))
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
    bottom.set_ylabel("tokens/s")
    bottom.set_xlabel("seconds (a sample's tokens count when it completes)")
    figure.align_ylabels()
    return figure


def latencies(samples: Sequence[util_logs.Sample], tokens: Sequence[int], test: dict[str, Any]) -> Any:
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
        logged = test[f"{name.lower()}_ms"]
        if values:
            axes.plot(np.sort(values), np.arange(1, len(values) + 1) / len(values), color=BLUE)
        if logged:
            axes.plot(logged["p99"], 0.99, "o", color=ORANGE, label=f"p99 {logged['p99']:,.4g} ms", zorder=4)
        if test["limits_ms"] and name in limits:
            limit = test["limits_ms"][limits[name]]
            axes.axvline(limit, color=RED, linestyle="--", label=f"limit {limit:g} ms")
        axes.set(title=name, xlabel="ms", ylim=(0, 1.03))
        axes.set_xlim(0, 1.06 * axes.get_xlim()[1])
        axes.legend(loc="lower right", framealpha=0.9)
    panels[0].set_ylabel("share of queries at most this long")
    figure.tight_layout()
    return figure


def machine(path: Path) -> Any:
    """What did the machine do meanwhile?"""
    import csv

    from matplotlib import pyplot

    rows = list(csv.DictReader(path.open()))
    kinds = [("percent", "load, %"), ("gib", "memory, GiB"), ("w", "power, W")]
    kinds = [kind for kind in kinds if rows and any(name.endswith(f"_{kind[0]}") for name in rows[0])]
    figure, panels = pyplot.subplots(
        max(1, len(kinds)), 1, figsize=(8, 2.2 * max(1, len(kinds))), sharex=True, squeeze=False
    )
    seconds = [float(row["seconds"]) for row in rows]
    for axes, (unit, label) in zip(panels[:, 0], kinds, strict=False):
        for name in rows[0]:
            if name.endswith(f"_{unit}"):
                axes.plot(seconds, [float(row[name]) for row in rows], label=name.removesuffix(f"_{unit}"))
        axes.set_ylabel(label)
        axes.legend(loc="lower right", fontsize=8)
    panels[-1, 0].set_xlabel("seconds")
    return figure
