"""What all pictures have in common: colours, style, and how they are written."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREY, RED = "#2f6db5", "#e07b39", "#8a8f98", "#c0392b"
TITLES = {"latency": "latency", "TTFT": "time to first token (TTFT)", "TPOT": "time per output token (TPOT)"}
FAR = 3  # times the largest value: a limit beyond is named at the edge instead of squeezing the curve


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
