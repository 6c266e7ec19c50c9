"""The whole programme on GPUs: its order, what is resumed, what is kept. No engine runs here."""

import os
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from benchmarks import h200
from benchmarks.h200 import Programme, Step, best, why_not, within
from harness.core import files
from harness.core.errors import UsageError
from tests.sweep.made import kept, ran, state


def test_every_scenario_has_a_sweep_before_its_full_run() -> None:
    names = [step.name for step in Programme(Path("x"), False).steps()]
    assert names[0] == "checkpoint"
    for scenario in h200.SCENARIOS:
        assert names.index(f"sweep-{scenario}") < names.index(f"{scenario}-1")
    assert names[-3:] == ["offline-2", "server-2", "interactive-2"]


def test_a_step_that_ended_is_not_run_again_and_a_lost_host_loses_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def stopped(words, *_):  # type: ignore[no-untyped-def]
        asked.append(words)
        return 3 if len(asked) == 1 else 0

    monkeypatch.setattr(h200, "ended_within", stopped)
    programme = Programme(tmp_path, True)
    for folder in (programme.work, programme.results):
        folder.mkdir()
    (step,) = (step for step in programme.steps() if step.name == "sweep-offline")
    until = h200.time.monotonic() + 3600
    assert not h200.attempt(programme, step, until)
    assert not programme.done(step)
    assert h200.attempt(programme, step, until)
    assert h200.attempt(programme, step, until)
    assert len(asked) == 2
    assert asked[0][1] == "sweep.py" and "--time-limit" in asked[0]
    assert "exit code 3" not in files.read_json(programme.record(step))["reason"]


def test_weights_that_are_gone_with_their_host_are_made_again(tmp_path: Path) -> None:
    programme = Programme(tmp_path, False)
    step = next(programme.steps())
    assert not programme.done(step)
    programme.model.mkdir(parents=True)
    (programme.model / "model.safetensors.index.json").write_text("{}")
    assert programme.done(step)


def test_a_full_run_takes_the_best_setting_without_what_shortens_it(tmp_path: Path) -> None:
    given = state(ran("baseline", 100.0), ran("fast", 130.0), ran("invalid", 200.0, valid=False))
    items = tuple(
        replace(item, settings={"max_num_seqs": number, "total_sample_count": 9, "min_duration": 2})
        for number, item in enumerate(given.sweep.experiments, start=1)
    )
    given = replace(given, sweep=replace(given.sweep, experiments=items))
    programme = Programme(tmp_path, False)
    place = programme.results / "sweep-offline"
    place.mkdir(parents=True)
    programme.work.mkdir()
    files.write_json(place / "sweep.json", kept(given))
    assert best(place / "sweep.json").name == "fast"
    words, env = programme.full(Step("offline-2", "full", 30, "offline", 2))
    settings = files.read_json(Path(words[2]))
    assert settings == {
        "max_num_seqs": 2,
        "profile": True,
        "data_parallel_size": 2,
        "tensor_parallel_size": 1,
        "model": str(programme.model),
    }
    assert env == {}  # no GPU here
    with pytest.raises(UsageError, match=r"sweep\.json: No such file"):
        programme.full(Step("server-1", "full", 30, "server"))


def test_a_step_that_takes_too_long_is_ended_with_all_below_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    words = ["bash", "-c", f"sleep 300 & echo $! > {pid}; wait"]
    with (tmp_path / "screen").open("w") as screen:
        assert h200.ended_within(words, os.environ, screen, 1.0) == 124
        assert h200.ended_within(["bash", "-c", "exit 3"], os.environ, screen, 60.0) == 3
    left = [process for process in psutil.process_iter() if process.pid == int(pid.read_text())]
    assert all(process.status() == psutil.STATUS_ZOMBIE for process in left)


@pytest.mark.parametrize(
    ("step", "left", "gpus", "word"),
    [
        (Step("a", "full", 30, gpus=2), 1e5, 1, "2 GPUs"),
        (Step("a", "full", 30), 60.0 * 29, 1, "30 minutes"),
        (Step("a", "sweep", 60), 60.0, 1, "no time"),
        (Step("a", "sweep", 60), 600.0, 1, ""),
    ],
)
def test_what_is_not_begun_says_why(step: Step, left: float, gpus: int, word: str) -> None:
    reason = why_not(step, left, gpus, False)
    assert word in reason and bool(word) == bool(reason)


def test_the_folder_stays_small(tmp_path: Path) -> None:
    for name, size in (("a.png", 30), ("b.png", 50), ("machine.csv", 40), ("summary.json", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    assert within(tmp_path, 100) == ["b.png"]
    assert within(tmp_path, 20) == ["a.png", "machine.csv"]
    assert (tmp_path / "summary.json").exists()
