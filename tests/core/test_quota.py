"""Cores in a container, with files as Linux's control groups have them."""

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import system
from harness.engines import openai
from harness.loadgen import background_load, gpu_readings
from harness.runner import steps

Group = Callable[..., None]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """Writes the files of a container's group; the machine has 16 cores."""
    monkeypatch.setattr(system.os, "sched_getaffinity", lambda pid: set(range(16)))
    monkeypatch.setattr(system, "CGROUP", tmp_path)

    def write(quota: str, used_us: int = 0) -> None:
        (tmp_path / "cpu.max").write_text(f"{quota}\n")
        (tmp_path / "cpu.stat").write_text(f"usage_usec {used_us}\nuser_usec 1\nsystem_usec 2\nnr_throttled 3\n")

    return write


@pytest.mark.parametrize(
    ("quota", "count"),
    [
        ("400000 100000", 4),
        ("50000 100000", 1),
        ("250000 100000", 3),
        ("3200000 100000", 16),
        ("max 100000", 16),
        ("", 16),
    ],
)
def test_the_cores_of_a_container_are_those_of_its_quota(group: Group, quota: str, count: int) -> None:
    group(quota)
    assert system.core_count() == count
    assert (system.container_cpu_s() is None) == (count == 16)


def test_without_a_group_the_cores_are_those_of_the_machine(group: Group) -> None:
    assert system.core_count() == 16 and system.container_cpu_s() is None


def test_clients_machine_and_doctor_count_by_the_quota(group: Group) -> None:
    group("400000 100000")
    assert system.detect().cores == 4
    assert background_load.BackgroundLoad().cores == 4
    assert "4 CPU cores" in steps.machine(resolve(RunConfig(model="demo"), [], 0), [])
    engine = openai.create(resolve(RunConfig(model="demo", endpoint=("http://h/v1",)), [], 0), Path())
    engine.loop.close()
    assert engine.processes == 2


def test_other_programs_of_a_container_are_those_that_use_its_quota(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not those of the machine, which take nothing from it."""
    monkeypatch.setattr(background_load.psutil, "cpu_times", lambda percpu: pytest.fail("the machine's times"))
    now = iter((100.0, 110.0))
    monkeypatch.setattr(gpu_readings.time, "monotonic", lambda: next(now))
    own = iter(({1: 5.0}, {1: 15.0}))
    monkeypatch.setattr(background_load, "cpu_by_process", lambda roots: next(own) if roots else {})
    group("400000 100000", 20_000_000)
    with background_load.watch_others() as found:
        group("400000 100000", 50_000_000)
    assert found.cpu_cores == 2.0  # of 30 s in 10 s another 20 were not this process's
    assert "2.0 of 4 CPU cores" in found.warnings()[0]
