"""Draws the floors of the house, and the way of one number through them, as FLOORS and the modules' classes have them.

    python -m docs.generate.architecture

The way is a list of classes, each with the module that defines it; a class that has moved is an error.
"""

from importlib import import_module
from pathlib import Path
from textwrap import wrap

from harness import FLOORS
from harness.report.charts import PALETTE, pyplot

IMAGE = Path(__file__).parents[1] / "img" / "architecture.png"
WAY = (  # of one number, from a request to what a person reads
    ("config.run", "RunConfig", "what was asked"),
    ("config.plan", "Plan", "every auto resolved"),
    ("config.patterns", "LoadPattern", "how queries are sent"),
    ("loadgen.requests", "Request", "a row of requests.csv"),
    ("loadgen.test_run", "TestRun", "a test, read once"),
    ("results.outcome", "Outcome", "its figures and doubts"),
    ("results.summary", "Summary", "`result` is one outcome"),
    ("core.document", "Document", "what is said of it"),
    ("report.page", "page", "terminal, Markdown, HTML"),
)
LONGEST = 15  # characters of a line below a step
LEFT, STEP, HIGH = 3.4, 1.35, 0.72  # inches: beside the first step, of a step, of a floor


def draw() -> None:
    left, floors = LEFT, {name: floor for floor, names in enumerate(FLOORS) for name in names}
    wide = left + STEP * len(WAY)
    figure, axes = pyplot().subplots(figsize=(wide, HIGH * len(FLOORS)))
    for floor, names in enumerate(FLOORS):
        axes.axhline(floor - 0.1, color="#d5dae0", linewidth=0.8)
        axes.text(0.1, floor + 0.35, ", ".join(names), va="center", fontsize=12)
    points = []
    for n, (module, name, said) in enumerate(WAY):
        getattr(import_module(f"harness.{module}"), name)  # it is there
        points.append((left + STEP * n, floors[module.partition(".")[0]] + 0.35))
        words = "\n".join(wrap(said, LONGEST))
        axes.annotate(name, points[-1], (0, 9), textcoords="offset points", ha="center", fontsize=10, weight="bold")
        axes.annotate(words, points[-1], (0, -9), textcoords="offset points", ha="center", va="top", fontsize=8)
    axes.plot(*zip(*points, strict=True), "o-", color=PALETTE["blue"], linewidth=1.2, alpha=0.6)
    axes.set(xlim=(0, wide), ylim=(-0.2, len(FLOORS)))
    axes.set_title("The packages of harness/: imports run downward. Dots: the way of one number", loc="left")
    axes.axis("off")
    figure.savefig(IMAGE, dpi=100, bbox_inches="tight")
    pyplot().close(figure)


if __name__ == "__main__":
    draw()
