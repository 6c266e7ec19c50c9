"""Draws docs/img/architecture.png: the floors of `harness`, and the path of one number through its classes.

    python -m docs.generate.architecture

The floors are FLOORS of `harness`. The path is a list of classes, each with its module; a class that is not there is an
error.
"""

from importlib import import_module
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, NamedTuple

from harness import FLOORS
from harness.report.charts import PALETTE, pyplot

if TYPE_CHECKING:
    from matplotlib.axes import Axes

IMAGE = Path(__file__).parents[1] / "img" / "architecture.png"


class Step(NamedTuple):
    """A class on the path of a number, and what it is in a few words."""

    module: str
    class_name: str
    description: str


PATH = (  # of one number, from a request to what a person reads
    Step("config.run", "RunConfig", "what was asked"),
    Step("config.plan", "Plan", "every auto resolved"),
    Step("config.patterns", "LoadPattern", "how queries are sent"),
    Step("loadgen.requests", "Request", "a row of requests.csv"),
    Step("loadgen.test_run", "TestRun", "a test, read once"),
    Step("results.outcome", "Outcome", "its figures and doubts"),
    Step("results.summary", "Summary", "`result` is one outcome"),
    Step("core.document", "Document", "what is said of it"),
    Step("report.page", "page", "terminal, Markdown, HTML"),
)
LINE_WIDTH = 15  # characters of a line below a step
LEFT_WIDTH = 3.4  # inches beside the first step, for the names of the packages
STEP_WIDTH = 1.35  # inches
FLOOR_HEIGHT = 0.72  # inches
MIDDLE = 0.35  # of a floor, where its text and its steps are; axes have a unit a floor


def draw() -> None:
    """Draw the picture. Raises AttributeError or ModuleNotFoundError if a class of the path is not there."""
    width = LEFT_WIDTH + STEP_WIDTH * len(PATH)
    figure, axes = pyplot().subplots(figsize=(width, FLOOR_HEIGHT * len(FLOORS)))
    draw_floors(axes)
    draw_path(axes)
    axes.set(xlim=(0, width), ylim=(-0.2, len(FLOORS)))
    axes.set_title("The packages of harness/: imports run downward. Dots: the way of one number", loc="left")
    axes.axis("off")
    figure.savefig(IMAGE, dpi=100, bbox_inches="tight")
    pyplot().close(figure)


def draw_floors(axes: "Axes") -> None:
    for floor, packages in enumerate(FLOORS):
        axes.axhline(floor - 0.1, color="#d5dae0", linewidth=0.8)
        axes.text(0.1, floor + MIDDLE, ", ".join(packages), va="center", fontsize=12)


def draw_path(axes: "Axes") -> None:
    floor_of_package = {name: floor for floor, packages in enumerate(FLOORS) for name in packages}
    xs, ys = [], []
    for number, step in enumerate(PATH):
        getattr(import_module(f"harness.{step.module}"), step.class_name)  # An error shows that the class moved.
        package = step.module.partition(".")[0]
        x, y = LEFT_WIDTH + STEP_WIDTH * number, floor_of_package[package] + MIDDLE
        label_step(axes, step, (x, y))
        xs.append(x)
        ys.append(y)
    axes.plot(xs, ys, "o-", color=PALETTE["blue"], linewidth=1.2, alpha=0.6)


def label_step(axes: "Axes", step: Step, point: tuple[float, float]) -> None:
    """Write the class above its point, and the description below it."""
    description = "\n".join(wrap(step.description, LINE_WIDTH))
    axes.annotate(step.class_name, point, (0, 9), textcoords="offset points", ha="center", fontsize=10, weight="bold")
    axes.annotate(description, point, (0, -9), textcoords="offset points", ha="center", va="top", fontsize=8)


if __name__ == "__main__":
    draw()
