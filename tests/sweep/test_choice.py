"""Which experiments run: one that has the settings of another is found before."""

from pathlib import Path

import pytest

from harness.common.paths import ROOT
from harness.sweep import choice
from harness.sweep import file as sweep_file
from tests.sweep.made import loaded


@pytest.mark.parametrize(
    "change",
    [
        "set: {max_model_len: 1024}",
        "set: {precision: bf16}",
    ],
)
def test_an_experiment_that_measures_nothing_new_is_found(tmp_path: Path, change: str) -> None:
    found = loaded(tmp_path, f"  - {{name: a, {change}}}\n")
    assert dict(choice.repetitions(found.experiments)) == {"a": "baseline"}


@pytest.mark.parametrize(
    "change",
    [
        "engine: {enable_prefix_caching: true}",
        "engine: {compilation_config: {mode: 0}}",
        "set: {max_model_len: 512}",
        "env: {A: 1}",
        "engine: {stream_interval: 1}",
    ],
)
def test_one_that_does_is_not(tmp_path: Path, change: str) -> None:
    assert not dict(choice.repetitions(loaded(tmp_path, f"  - {{name: a, {change}}}\n").experiments))


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_shipped_sweep_measures_anything_twice(path: Path) -> None:
    assert not dict(choice.repetitions(sweep_file.load(path).experiments))
