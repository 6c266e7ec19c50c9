"""The energy of a test is what the cards took during it, not since their driver was loaded."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.loadgen import gpu_readings
from harness.loadgen.session import LoadGenSession
from harness.loadgen.test_run import MACHINE_FILE


@pytest.mark.parametrize(
    ("before", "after", "energy"),
    [(7000.0, 7500.5, 500.5), (0.0, 500.0, 500.0), (None, 500.0, None), (7000.0, None, None)],
)
def test_energy_is_the_difference_of_two_readings(
    before: float | None, after: float | None, energy: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readings = iter((before, after))
    monkeypatch.setattr(gpu_readings, "joules", lambda gpus: next(readings))
    engine = SimpleNamespace(prometheus_metrics=list)
    session = SimpleNamespace(engine=engine, busy_gpus=[], warned=True)
    plan = resolve(RunConfig(model="demo", backend="echo", mode="performance"), [], 0)
    with LoadGenSession.record_test(cast(Any, session), tmp_path, plan, cast(Any, SimpleNamespace(timed=False))):
        pass
    assert json.loads((tmp_path / MACHINE_FILE).read_text())["gpu_joules"] == energy
