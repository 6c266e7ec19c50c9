"""The pictures of a sweep: a curve where its experiments differ in one number."""

from dataclasses import replace
from itertools import combinations
from math import dist
from pathlib import Path
from typing import Any

import pytest

from harness.report import charts
from harness.sweep import pictures
from harness.sweep.experiment_result import experiment_rows
from tests.support.example_sweeps import loaded, ran, state

SPEEDS = {"baseline": 100.0, "a": 150.0, "b": 180.0, "c": 190.0}


def curve_of(folder: Path, experiments: str, **changed: Any) -> Any:
    sweep = loaded(folder, experiments)
    records = [ran(item.name, SPEEDS[item.name], **changed) for item in sweep.experiments]
    return pictures.setting_curve(experiment_rows(replace(state(*records), sweep=sweep)))


def test_a_sweep_over_one_number_has_a_curve(tmp_path: Path) -> None:
    rows = [
        f"  - {{name: {name}, set: {{max_num_seqs: {value}}}}}" for name, value in zip("abc", (8, 256, 32), strict=True)
    ]
    curve = curve_of(tmp_path, "\n".join(rows))
    line = curve.series[0]
    assert line.points == [(8.0, 150.0), (32.0, 190.0), (256.0, 180.0)]  # the baseline leaves it to the engine
    assert curve.x == "max_num_seqs" and curve.across.is_log


def test_an_argument_of_the_engine_counts_too(tmp_path: Path) -> None:
    rows = [
        f"  - {{name: {name}, engine: {{block_size: {value}}}}}"
        for name, value in zip("abc", (16, 32, 64), strict=True)
    ]
    assert curve_of(tmp_path, "\n".join(rows)).x == "block_size"


@pytest.mark.parametrize(
    "changes",
    [
        ("set: {max_num_seqs: 8}", "set: {max_num_seqs: 16}", "set: {batch_size: 4}"),
        ("set: {quantization: fp8}", "set: {quantization: none}", "set: {kv_cache_dtype: fp8}"),
        ("engine: {enable_prefix_caching: true}", "engine: {enable_prefix_caching: false}", "set: {batch_size: 4}"),
    ],
)
def test_other_sweeps_have_none(tmp_path: Path, changes: tuple[str, ...]) -> None:
    rows = [f"  - {{name: {name}, {change}}}" for name, change in zip("abc", changes, strict=True)]
    assert curve_of(tmp_path, "\n".join(rows)) is None


def test_two_values_are_no_curve(tmp_path: Path) -> None:
    rows = [f"  - {{name: {name}, set: {{max_num_seqs: {value}}}}}" for name, value in zip("ab", (8, 256), strict=True)]
    assert curve_of(tmp_path, "\n".join(rows)) is None


def test_the_numbers_of_points_that_lie_close_together_can_be_read_on_a_phone() -> None:
    speeds = {"baseline": 100.0, "a": 99.0, "b": 101.0, "c": 111.0, "d": 112.0, "e": 150.0}
    panel = pictures.trade_off(experiment_rows(state(*(ran(name, speed) for name, speed in speeds.items()))))
    assert list(panel.names_of_points) == [*speeds]
    middles = []
    width, height = charts.NARROW_PLOT
    for series in panel.series:
        for (x, y), text in series.marked:
            if text:
                left, top = panel.across.place(x) / 100 * width, panel.down.top(y, height)
                middles.append((left + series.text_shift.right, top - series.text_shift.up))
    assert len(middles) == len(speeds)
    assert all(dist(one, other) >= charts.TEXT_ROOM for one, other in combinations(middles, 2))
