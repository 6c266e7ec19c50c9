"""Labels for the points of a picture, none over another or over a point."""

from collections.abc import Sequence
from typing import Any

PLACES = (  # of a label, from its point: offset in points, and how it is aligned; the first that is free
    ((0, 8), "center", "bottom"),
    ((8, 0), "left", "center"),
    ((0, -8), "center", "top"),
    ((-8, 0), "right", "center"),
)
MARK = 4.0  # pixels from the middle of a point that its mark takes

Point = tuple[float, float, str]


def label_points(axes: Any, points: Sequence[Point]) -> list[str]:
    """Labels the points (x, y, words) that have room for it, the first first; returns the words that were written.

    The axes must have their final limits and place.
    """
    from matplotlib.transforms import Bbox

    renderer = axes.figure.canvas.get_renderer()
    middles = [axes.transData.transform((x, y)) for x, y, _ in points]
    taken = [Bbox.from_bounds(x - MARK, y - MARK, 2 * MARK, 2 * MARK) for x, y in middles]
    written = []
    for x, y, words in points:
        for offset, across, up in PLACES:
            how = {"ha": across, "va": up, "fontsize": 8, "zorder": 8}
            label = axes.annotate(words, (x, y), offset, textcoords="offset points", **how)
            box = label.get_window_extent(renderer)
            if not any(box.overlaps(other) for other in taken) and inside(axes, box):
                taken.append(box)
                written.append(words)
                break
            label.remove()
    return written


def inside(axes: Any, box: Any) -> bool:
    """Whether a label is within the picture of its axes, and a little above."""
    frame = axes.get_window_extent()
    return bool(box.x0 >= frame.x0 and box.x1 <= frame.x1 + 20 and box.y0 >= frame.y0 and box.y1 <= frame.y1)
