"""The pictures of a sweep: a curve where its experiments differ in one number."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

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
