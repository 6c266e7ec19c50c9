"""The tiles at the head of report.html: each of them says something, or is not there."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from harness.core import files
from harness.core.formatting import number
from harness.loadgen.test_run import MACHINE_FILE, RECORDING
from harness.report import answer, charts
from harness.report import report as rendering
from harness.results.summary import Summary
from tests.conftest import ROOT
from tests.support import example_runs


def tiles(folder: Path) -> dict[str, str]:
    """Heading and text of each."""
    rendering.build_report(folder)
    found = re.findall(
        r'<section class="tile">\s*<h2>(.*?)</h2>(.*?)</section>', (folder / "report.html").read_text(), re.S
    )
    return {re.sub(r"<.*", "", head, flags=re.S): text for head, text in found}


@pytest.mark.parametrize(
    ("settings", "recorded", "wanted"),
    [
        ({}, False, ["Speed"]),
        ({"price_per_hour": 2.0}, False, ["Speed", "Cost"]),
        ({}, True, ["Speed", "Bottleneck"]),
        ({"price_per_hour": 1.0}, True, ["Speed", "Cost", "Bottleneck"]),  # as make demo has them
        ({"scenario": "server", "server_target_qps": 8.5}, False, ["Speed", "Latency against the limits"]),
    ],
)
def test_a_tile_with_nothing_to_say_is_left_out(
    tmp_path: Path, settings: dict[str, Any], recorded: bool, wanted: list[str]
) -> None:
    folder = example_runs.run(tmp_path / "run", **settings)
    if recorded:
        rows = [f"{second},{second % 7 * 10}" for second in range(1, 9)]
        (folder / "Performance" / RECORDING).write_text("\n".join(["seconds,cpu_percent", *rows]) + "\n")
    found = tiles(folder)
    assert list(found) == wanted
    for text in found.values():
        assert 'id="price"' in text or not ('class="big">\N{EN DASH}' in text or "not measured" in text)


def test_what_bound_a_test_on_a_busy_machine_is_not_known_and_has_no_tile(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run")
    logs = folder / "Performance"
    (logs / RECORDING).write_text(
        "\n".join(["seconds,cpu_percent", *(f"{second},50" for second in range(1, 9))]) + "\n"
    )
    assert "Bottleneck" in tiles(folder)
    (logs / MACHINE_FILE).write_text(json.dumps({"background_load": ["other programs used 1.5 of 2 CPU cores"]}))
    assert "Bottleneck" not in tiles(folder)


def test_the_latency_tile_does_not_repeat_the_title(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", category="edge", scenario="singlestream")
    text = tiles(folder)["Latency"]
    assert "p90" in answer.title(files.read(folder / "summary.json", Summary))
    assert "p50" in text and "p90" not in text


def test_the_tile_of_speed_is_the_figure_of_the_title(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run")
    text = tiles(folder)["Speed"]
    result = files.read(folder / "summary.json", Summary).result
    assert result is not None and result.samples_per_sec
    (largest,) = re.findall(r'class="big">(.*?)<small>(.*?)</small>', text)
    assert largest == (number(result.samples_per_sec), "samples/s")
    assert "tokens/s including prompt tokens" in text


def test_pictures_have_the_colours_of_the_page() -> None:
    (light, *_) = re.findall(r":root \{(.*?)\}", (ROOT / "templates" / "page" / "page.css").read_text(), re.S)
    page_colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", light))
    assert {name: page_colors[name] for name in charts.PALETTE} == charts.PALETTE
