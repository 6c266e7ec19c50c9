"""Experiments that measure the duplicates as another are found before they run."""

from pathlib import Path

import pytest

from harness.common.paths import ROOT
from harness.sweep import duplicates
from harness.sweep import file as sweep_file
from tests.sweep.made import H200, loaded


@pytest.mark.parametrize(
    "change",
    [
        "engine: {enable_prefix_caching: false}",
        "engine: {enable_chunked_prefill: true}",
        "engine: {async_scheduling: true}",
        "engine: {compilation_config: {mode: 3}}",
        "engine: {optimization_level: 3}",
        "engine: {stream_interval: 128}",
        "set: {max_model_len: 1024}",
        "set: {precision: bf16}",
    ],
)
def test_an_experiment_that_measures_nothing_new_is_found(tmp_path: Path, change: str) -> None:
    found = loaded(tmp_path, f"  - {{name: a, {change}}}\n")
    assert {name: why.split()[-1] for name, why in duplicates.repeated(found.experiments).items()} == {"a": "baseline"}


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
    assert not duplicates.repeated(loaded(tmp_path, f"  - {{name: a, {change}}}\n").experiments)


def test_what_a_large_gpu_gets_unasked_is_known(tmp_path: Path) -> None:
    given = "  - {name: a, set: {max_num_batched_tokens: 16384}}\n  - {name: b, set: {max_num_seqs: 1024}}\n"
    found = loaded(tmp_path, given).experiments
    assert not duplicates.repeated(found)
    assert set(duplicates.repeated(found, H200)) == {"a", "b"}


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_shipped_sweep_measures_anything_twice(path: Path) -> None:
    found = sweep_file.load(path).experiments
    assert not duplicates.repeated(found)
    assert not duplicates.repeated(found, H200)
