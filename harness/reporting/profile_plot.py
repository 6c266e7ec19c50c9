"""The picture of a profile: what the engine's time went to."""

from typing import Any

from harness.profiling.traces import Profile
from harness.reporting.style import BLUE

PARTS = {"GPU": "kernel time", "CPU": "the operators' self time"}


def kinds(profile: Profile) -> Any:
    """A bar for each kind of kernel, or of operator."""
    from matplotlib import pyplot

    rows = range(len(profile.kinds))
    figure, axes = pyplot.subplots(figsize=(8, 0.4 * len(profile.kinds) + 1.2))
    axes.barh(rows, [kind.percent for kind in profile.kinds], color=BLUE, height=0.6)
    for row, kind in zip(rows, profile.kinds, strict=True):
        text = f"{kind.percent:.1f} %"
        axes.annotate(text, (kind.percent, row), (4, 0), textcoords="offset points", va="center", fontsize=9)
    axes.set_yticks(rows, [kind.name for kind in profile.kinds])
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)
    axes.set_xlim(0, 1.1 * profile.kinds[0].percent)
    idle = f"; the GPU idle for {profile.idle_percent:.0f} % of the window" if profile.idle_percent is not None else ""
    axes.set_xlabel(f"% of {PARTS[profile.device or 'CPU']}")
    axes.set_title(f"What the engine's time went to{idle}")
    return figure
