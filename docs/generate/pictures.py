"""Draws pictures of these pages again, each from a run kept in docs/runs.

    python -m docs.generate.pictures

Of a run, docs/runs has summary.json, and machine.csv of each test that a picture shows. Two runs are there as a whole:
their reports are rendered again, and Chromium takes a picture of their pages.
"""

import base64
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks import h200_settings
from harness.core import files
from harness.loadgen.test_run import RECORDING, Recording
from harness.report import charts, load_pictures, machine_pictures, subject
from harness.report import report as rendering
from harness.report.charts import Panel
from harness.report.load_view import LoadPicture
from harness.results import telemetry
from harness.results.gpu_time_shares import shares_of
from harness.results.summary import Summary
from tests.support.browser import browser

HERE = Path(__file__).parents[1]
RUNS, IMAGES = HERE / "runs", HERE / "img"
PanelDrawer = Callable[[Path, Summary], Sequence[Panel]]  # takes the folder of a run and its summary


def machine(folder: Path, summary: Summary) -> Sequence[Panel]:
    recording = Recording.read(folder / "Performance" / RECORDING)
    gpu_times = list(shares_of({"performance test": recording}))
    limits = telemetry.ran_out(
        telemetry.usage_of(recording),
        concurrency=None,
        times=gpu_times,
        args={},
        client=False,
        others_percent=0.0,
    )
    return machine_pictures.machine_panels(recording, list(limits), gpu_times)


def stages(folder: Path, summary: Summary) -> Sequence[Panel]:
    return [machine_pictures.stage_bars(summary.meta.stages)]


def rates(folder: Path, summary: Summary) -> Sequence[Panel]:
    latency_limits = summary.result.details.limits_ms if summary.result else None
    loads = LoadPicture.of(summary, latency_limits)
    return load_pictures.load_curves({"": loads}) if loads else []


class RunPicture(NamedTuple):
    """A picture of a run, and what draws it."""

    run: str
    draw: PanelDrawer


class PagePicture(NamedTuple):
    """A picture of the head of a run's page, and its height in pixels."""

    run: str
    height: int


PICTURES = {  # by the name of the picture
    "demo-concurrency": RunPicture("demo-concurrency", rates),
    "demo-timeline": RunPicture("demo-offline", stages),
    "h200-machine": RunPicture("h200-offline", machine),
    "h200-rates": RunPicture("h200-server", rates),
}
PAGES = {  # of runs that are kept whole, by the name of the picture
    "page-h200": PagePicture("h200-whole", 960),
    "page-demo": PagePicture("demo", 790),
}
PAGE_WIDTH = 1280  # pixels


def photograph(name: str, run: str, height: int) -> None:
    """Render a whole run again, and take a picture of the head of its page."""
    folder = RUNS / run
    rendering.build_report(folder)
    clip = {"x": 0, "y": 0, "width": PAGE_WIDTH, "height": height, "scale": 1}
    with (
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as browser_folder,
        browser(Path(browser_folder)) as tab,
    ):
        tab.open(folder / "report.html")
        screenshot = tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    (IMAGES / f"{name}.png").write_bytes(base64.b64decode(screenshot["data"]))


def draw_picture(name: str, picture: RunPicture) -> None:
    folder = RUNS / picture.run
    summary = files.read(folder / "summary.json", Summary)
    panels = picture.draw(folder, summary)
    charts.save_pictures({name: (name, panels)}, IMAGES, subject.footer(summary))


def main() -> None:
    for name, page in PAGES.items():
        photograph(name, page.run, page.height)
    for name, picture in PICTURES.items():
        draw_picture(name, picture)
    charts.save_pictures({"h200-settings": ("Offline by setting", h200_settings.panels())}, IMAGES)


if __name__ == "__main__":
    main()
