"""What all pictures have in common: colours, style, numbers on axes, the footer, and how they are written."""

from functools import cache
from pathlib import Path
from typing import Any

from harness.core.markdown import number
from harness.report.page import PALETTE

BLUE, ORANGE, GREY, RED, GREEN, PURPLE = PALETTE.values()
TITLES = {"latency": "latency", "TTFT": "time to first token (TTFT)", "TPOT": "time per output token (TPOT)"}
FAR_LIMIT = 3  # times the largest value: a limit beyond is named at the edge instead of squeezing the curve


@cache
def pyplot() -> Any:
    """matplotlib's pyplot in the style of all pictures, set once; they are files, never windows."""
    import matplotlib.pyplot

    matplotlib.use("Agg")
    matplotlib.rcParams.update(
        {"axes.spines.top": False, "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "font.size": 10}
        | {"svg.fonttype": "none", "svg.hashsalt": "pictures", "legend.framealpha": 0.9, "text.parse_math": False}
    )
    return matplotlib.pyplot


def thousands(*axis: Any) -> None:
    for one in axis:
        one.set_major_formatter(lambda value, _: number(value, 6))


def logarithmic(axis: Any) -> None:
    """A logarithmic axis of heights whose ticks are 1, 2, 5, 10, ..."""
    from matplotlib import ticker

    axis.axes.set_yscale("log")
    axis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
    axis.set_minor_locator(ticker.NullLocator())
    thousands(axis)


def legend_below(axes: Any, **how: Any) -> None:
    """The legend under the plot, where it hides nothing."""
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, **how)


def legend_beside(axes: Any) -> None:
    axes.legend(loc="center left", bbox_to_anchor=(1, 0.5), fontsize=8, frameon=False)


def from_the_top(axes: Any) -> None:
    """Rows of bars, the first on top, with no lines between them."""
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


def footer(figure: Any, words: str) -> None:
    box, height = figure.get_tightbbox(), figure.get_figheight()
    x, y = max(0.0, box.x0) / figure.get_figwidth(), (box.y0 - 0.1) / height
    figure.text(x, y, words, fontsize=7, color=GREY, va="top", ha="left")


def save(drawn: dict[str, Any], folder: Path, words: str = "") -> dict[str, str]:
    """Writes the figures as SVG files, and as PNG files with these words under each; name -> path of the PNG relative
    to the folder above."""
    folder.mkdir(exist_ok=True)
    for name, figure in drawn.items():
        nothing = {"Date": None, "Creator": None}
        figure.savefig(folder / f"{name}.svg", bbox_inches="tight", dpi=110, metadata=nothing)
        if words:
            footer(figure, words)
        figure.savefig(folder / f"{name}.png", dpi=110, bbox_inches="tight")
    pyplot().close("all")
    return {name: f"{folder.name}/{name}.png" for name in drawn}
