"""Runs side by side as a picture: a panel for each quantity that two of them have, and their curves in one."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from harness.common.files import naming
from harness.common.schema import gpu_names
from harness.reporting import answer
from harness.reporting.compare import ComparedRun
from harness.reporting.curves import Curve, draw
from harness.reporting.style import BLUE, RED, footer, pyplot, thousands
from harness.results import metrics

PANELS = ("tokens_per_sec", "latency_p99_ms", "ttft_p99_ms", "tpot_p99_ms", "cost_per_million_output_tokens")
LONGEST_NAME = 40  # characters of a run's name


def write(path: Path, runs: Sequence[ComparedRun]) -> None:
    picture = BytesIO()  # a pipe, which may be what is named, cannot be gone back in
    figure = draw_comparison(runs)
    footer(figure, foot(runs))
    figure.savefig(picture, format="png", dpi=110, bbox_inches="tight")
    pyplot().close("all")
    with naming(path):
        path.write_bytes(picture.getvalue())


def foot(runs: Sequence[ComparedRun]) -> str:
    each = [answer.footer(run.summary).split(" \N{MIDDLE DOT} ") for run in runs]
    return " \N{MIDDLE DOT} ".join(part for part in each[0] if all(part in other for other in each))


def draw_comparison(runs: Sequence[ComparedRun]) -> Any:
    """Bars above, curves below where two runs have tested several loads."""
    values = {name: [metrics.BY_NAME[name].of(run.summary) for run in runs] for name in PANELS}
    shown = {name: found for name, found in values.items() if sum(value is not None for value in found) > 1}
    swept = [run for run in runs if run.summary.run.search]
    high, curves = 0.4 * len(runs) + 1.4, 4.4 * (len(swept) > 1)
    width = max(3.2 * len(shown) + 2, 14 if curves else 0)
    figure = pyplot().figure(figsize=(width, high + curves), layout="constrained")
    parts = figure.subfigures(2, 1, height_ratios=(high, curves)) if curves else [figure]
    bars(parts[0], runs, shown)
    if curves:
        found = [Curve.of(run.summary, name) for run, name in zip(swept, names(swept), strict=True)]
        whose = "GPU" if any(run.summary.gpus for run in swept) else "machine"
        draw(parts[1].subplots(1, 3), [curve for curve in found if curve], whose)
    return figure


def bars(part: Any, runs: Sequence[ComparedRun], shown: dict[str, list[float | None]]) -> None:
    """A bar for each run, red where LoadGen calls it INVALID, hollow where the machine was busy; the first on top."""
    panels, labels = part.subplots(1, max(1, len(shown)), sharey=True, squeeze=False), names(runs)
    colors = [BLUE if (test := run.summary.run.performance) and test.valid else RED for run in runs]
    filled = ["none" if run.busy else color for run, color in zip(runs, colors, strict=True)]
    for axes, (name, found) in zip(panels[0], shown.items(), strict=False):
        metric = metrics.BY_NAME[name]
        widths = [value or 0 for value in found]
        drawn = axes.barh(labels, widths, color=filled, edgecolor=colors, height=0.65)
        texts = ["–" if value is None else metric.text(value) for value in found]
        axes.bar_label(drawn, texts, padding=3, fontsize=8)
        axes.set(title=metric.label, xlim=(0, 1.3 * max(widths) or 1))
        axes.locator_params(axis="x", nbins=4)
        axes.grid(axis="y", visible=False)
        thousands(axes.xaxis)
    panels[0, 0].invert_yaxis()
    notes = (
        ("red: INVALID by LoadGen", any(run.validity == "INVALID" for run in runs)),
        ("hollow: machine busy", any(run.busy for run in runs)),
    )
    panels[0, 0].set_xlabel("; ".join(note for note, true in notes if true))


def names(runs: Sequence[ComparedRun]) -> list[str]:
    """Each run's label, or what its folder is called without the time, after its machine where they have several;
    numbered where that is not enough."""
    said = [run.summary.meta.label or short(run.folder.name) for run in runs]
    machines = [
        gpu_names([run.summary.system.cpu] if run.summary.gpu_models == [] else run.summary.gpu_models) for run in runs
    ]
    if len(set(machines)) > 1:  # what tells the runs apart stands first
        short_names = [machine.replace("NVIDIA ", "") for machine in machines]
        said = [f"{machine}: {name}" for machine, name in zip(short_names, said, strict=True)]
    again = [f"{name} ({said[: n + 1].count(name)})" if said.count(name) > 1 else name for n, name in enumerate(said)]
    return [
        name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}\N{HORIZONTAL ELLIPSIS}" for name in again
    ]


def short(name: str) -> str:
    """A run's id without the time that it begins with."""
    head, _, rest = name.partition("-")
    clock, _, words = rest.partition("-")
    return words if head.isdigit() and clock.isdigit() and words else name
