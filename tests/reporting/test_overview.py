"""All pictures of a run in one; the names of bars that stand for runs on several machines."""

import shutil
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

from matplotlib import pyplot

from harness.common import files
from harness.loadgen.test_run import TestRun
from harness.reporting import compare_plot, plots, style
from harness.results.summary import Summary
from harness.runs.records import MachineUse
from tests.conftest import ROOT


def picture(path: Path, wide: int, high: int) -> Path:
    pyplot.imsave(path, [[[0.0, 0.0, 1.0]] * wide] * high)
    return path


def test_the_pictures_stand_in_columns_of_about_one_height(tmp_path: Path) -> None:
    shapes = ((100, 40), (100, 90), (100, 30), (100, 20))
    given = [picture(tmp_path / f"{n}.png", *shape) for n, shape in enumerate(shapes)]
    style.overview(given, tmp_path / "overview.png", "a title")
    high, wide, _ = pyplot.imread(tmp_path / "overview.png").shape
    inches = style.HEADING + 0.9 * style.PANEL_INCHES  # 40 + 30 + 20 beside 90
    assert abs(high / 110 - inches) < 0.02 and abs(wide / 110 - 2 * style.PANEL_INCHES) < 0.02


def test_a_report_leaves_it(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "docs" / "runs" / "h200-offline", tmp_path / "run")
    summary = files.read(tmp_path / "run" / "summary.json", Summary)
    test = TestRun(tmp_path / "run" / "Performance", Mock(), (), MachineUse(), None)
    assert len(plots.draw_plots(tmp_path / "run", summary, test)) > 1
    assert (tmp_path / "run" / "plots" / "overview.png").stat().st_size > 1000


def run(label: str, *gpus: str) -> SimpleNamespace:
    system = SimpleNamespace(gpus=list(gpus), cpu="a CPU")
    meta = SimpleNamespace(label=label)
    return SimpleNamespace(summary=SimpleNamespace(meta=meta, system=system, gpu_models=system.gpus))


def test_bars_of_several_machines_are_named_by_their_gpus() -> None:
    runs = [run("fp8", "NVIDIA H200"), run("fp8", *["NVIDIA L40S"] * 2), run("fp8")]
    assert compare_plot.names(runs) == ["H200: fp8", "2x L40S: fp8", "a CPU: fp8"]  # type: ignore[arg-type]
    assert compare_plot.names(runs[:1] * 2) == ["fp8 (1)", "fp8 (2)"]  # type: ignore[arg-type]
