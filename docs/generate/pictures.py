"""Draws pictures of these pages again, each from a run kept in docs/runs.

    python -m docs.generate.pictures

A kept run is the summary.json of its folder, and machine.csv of each test that a picture shows. Two are kept whole:
they are rendered again, and their pages photographed by Chromium.
"""

import base64
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

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
Draw = Callable[[Path, Summary], Sequence[Panel]]


def machine(folder: Path, summary: Summary) -> Sequence[Panel]:
    recording = Recording.read(folder / "Performance" / RECORDING)
    times = list(shares_of({"performance test": recording}))
    ran_out = list(telemetry.ran_out(telemetry.usage_of(recording), None, times, {}, client=False, others_percent=0.0))
    return machine_pictures.machine_panels(recording, ran_out, times)


def stages(folder: Path, summary: Summary) -> Sequence[Panel]:
    return [machine_pictures.stage_bars(summary.meta.stages)]


def rates(folder: Path, summary: Summary) -> Sequence[Panel]:
    loads = LoadPicture.of(summary, summary.result.details.limits_ms if summary.result else None)
    return load_pictures.load_curves({"": loads}) if loads else []


PICTURES: dict[str, tuple[str, Draw]] = {  # name of the picture: the run that it is of, and how it is drawn
    "demo-concurrency": ("demo-concurrency", rates),
    "demo-timeline": ("demo-offline", stages),
    "h200-machine": ("h200-offline", machine),
    "h200-rates": ("h200-server", rates),
}


PAGES = {
    "page-h200": ("h200-whole", 960),
    "page-demo": ("demo", 790),
}  # picture: the whole run, and pixels of its page


def photograph(name: str, run: str, height: int) -> None:
    """Renders a whole run again, and takes a picture of the head of its page."""
    folder = RUNS / run
    rendering.build_report(folder)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place, browser(Path(place)) as tab:
        tab.open(folder / "report.html")
        clip = {"x": 0, "y": 0, "width": 1280, "height": height, "scale": 1}
        shot = tab.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    (IMAGES / f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def main() -> None:
    for name, (run, height) in PAGES.items():
        photograph(name, run, height)
    for name, (run, draw) in PICTURES.items():
        summary = files.read(RUNS / run / "summary.json", Summary)
        charts.save_pictures({name: (name, draw(RUNS / run, summary))}, IMAGES, subject.footer(summary))
    charts.save_pictures({"h200-settings": ("Offline by setting", h200_settings.panels())}, IMAGES)


if __name__ == "__main__":
    main()
