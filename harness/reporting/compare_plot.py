"""Runs side by side as a picture: a panel for each quantity that two of them have."""

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from harness.common.files import named
from harness.reporting.compare import Compared
from harness.reporting.style import BLUE, RED, style
from harness.results import metrics

PANELS = ("tokens_per_sec", "latency_p99_ms", "ttft_p99_ms", "tpot_p99_ms", "cost_per_million_output_tokens")


def write(path: Path, runs: Sequence[Compared]) -> None:
    """Writes the picture as a PNG file."""
    from matplotlib import pyplot

    style()
    picture = BytesIO()  # a pipe, which may be what is named, cannot be gone back in
    draw(runs).savefig(picture, format="png", dpi=110, bbox_inches="tight")
    pyplot.close("all")
    with named(path):
        path.write_bytes(picture.getvalue())


def draw(runs: Sequence[Compared]) -> Any:
    """A bar for each run, red where LoadGen calls it INVALID, hollow where the machine was busy; the first on top."""
    from matplotlib import pyplot

    values = {name: [metrics.BY_NAME[name].of(run.summary) for run in runs] for name in PANELS}
    shown = {name: found for name, found in values.items() if sum(value is not None for value in found) > 1}
    figure, panels = pyplot.subplots(
        1, max(1, len(shown)), figsize=(3.2 * len(shown) + 2, 0.4 * len(runs) + 1.4), sharey=True, squeeze=False
    )
    for axes, (name, found) in zip(panels[0], shown.items(), strict=False):
        metric = metrics.BY_NAME[name]
        for row, (run, value) in enumerate(zip(runs, found, strict=True)):
            test = run.summary.run.performance
            color = BLUE if test and test.valid else RED
            axes.barh(row, value or 0, color="none" if run.busy else color, edgecolor=color, height=0.65)
            label = metric.text(value) if value is not None else "–"
            axes.annotate(label, (value or 0, row), (3, 0), textcoords="offset points", va="center", fontsize=8)
        axes.set(title=metric.label, xlim=(0, 1.25 * max(value or 0 for value in found) or 1))
        axes.grid(axis="y", visible=False)
    panels[0, 0].set_yticks(range(len(runs)), [run.folder.name for run in runs])
    panels[0, 0].invert_yaxis()
    notes = (
        ("red: INVALID by LoadGen", any(run.validity == "INVALID" for run in runs)),
        ("hollow: machine busy", any(run.busy for run in runs)),
    )
    panels[0, 0].set_xlabel("; ".join(note for note, true in notes if true))
    figure.tight_layout()
    return figure
