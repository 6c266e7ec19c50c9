"""Which experiments run."""

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core import vllm_source
from harness.core.errors import UsageError
from harness.core.locations import ROOT
from harness.engines import vllm_arguments
from harness.sweep import choice, file
from tests.conftest import tells
from tests.support.example_sweeps import loaded


@pytest.mark.parametrize(("version", "copies", "why"), [((0, 32), 1, "0.33"), ((0, 32), 2, ""), ((0, 33), 1, "")])
def test_what_a_version_does_not_heed_is_skipped(
    version: tuple[int, int], copies: int, why: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(vllm_arguments, "installed_version", lambda: version)
    monkeypatch.setattr(vllm_source, "arguments", lambda: frozenset({"prefill_schedule_interval"}))
    found = loaded(
        tmp_path, f"  - {{name: a, set: {{data_parallel_size: {copies}}}, engine: {{prefill_schedule_interval: 2}}}}\n"
    )
    reasons = choice.find_unsupported(found)
    assert list(reasons) == (["a"] if why else [])
    assert not why or tells(reasons["a"], "prefill_schedule_interval", "data parallelism", why)


def test_without_vllm_a_sweep_ends_before_its_first_experiment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each experiment ended with the same error. One with an interpreter of its own has its own vLLM."""
    monkeypatch.setattr(vllm_source, "folder", lambda: None)
    sweep = loaded(tmp_path, "  - {name: a, set: {batch_size: 2}}\n")
    with pytest.raises(UsageError, match="no vLLM that can be started") as error:
        choice.find_unsupported(sweep)
    assert "\n" not in str(error.value)
    elsewhere = [replace(item, python="/usr/bin/python3") for item in sweep.experiments]
    assert choice.find_unsupported(replace(sweep, experiments=tuple(elsewhere))) == {}


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_no_shipped_sweep_measures_anything_twice(path: Path) -> None:
    found = [(each.settings, each.engine, each.env) for each in file.load_sweep(path).experiments]
    assert not any(one in found[:number] for number, one in enumerate(found))
