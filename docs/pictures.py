"""Draws pictures of these pages again, each from a run kept in docs/runs.

    python -m docs.pictures

A kept run is the summary.json of its folder, and machine.csv of each test that a picture shows.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks import h200_settings
from harness.core import files
from harness.loadgen.recorder import FILE, Recording
from harness.report import answer, plots, style, timelines
from harness.results import telemetry
from harness.results.summary import Summary
from harness.results.telemetry import shares_of
from harness.runs.folder import FOLDER, Test

HERE = Path(__file__).parent
RUNS, IMAGES = HERE / "runs", HERE / "img"
Draw = Callable[[Path, Summary], Any]


def machine(folder: Path, summary: Summary) -> Any:
    recording = Recording.read(folder / "Performance" / FILE)
    times = list(shares_of({"performance test": recording}))
    return timelines.machine(recording, list(telemetry.ran_out(telemetry.usage_of(recording), None, times)), times)


def stages(folder: Path, summary: Summary) -> Any:
    tests: tuple[Test, ...] = ("accuracy", "performance")
    recordings = {test: Recording.read(folder / FOLDER[test] / FILE) for test in tests}
    return timelines.stages(recordings, summary.meta.stages)


PICTURES: dict[str, tuple[str, Draw]] = {  # name of the picture: the run that it is of, and how it is drawn
    "demo-timeline": ("demo-offline", stages),
    "h200-machine": ("h200-offline", machine),
    "h200-rates": ("h200-server", lambda folder, summary: plots.draw_curves(summary)),
}


def main() -> None:
    for name, (run, draw) in PICTURES.items():
        summary = files.read(RUNS / run / "summary.json", Summary)
        style.save({name: draw(RUNS / run, summary)}, IMAGES, answer.footer(summary))
        (IMAGES / f"{name}.svg").unlink(missing_ok=True)
    style.save({"h200-settings": h200_settings.draw()}, IMAGES)
    (IMAGES / "h200-settings.svg").unlink()


if __name__ == "__main__":
    main()
