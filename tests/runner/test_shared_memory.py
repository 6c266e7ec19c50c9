"""The shared memory that vLLM's processes talk through, looked at before the engine starts."""

from pathlib import Path

import pytest

from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.nvml import GPU
from harness.runner import doctor

DEMO = RunConfig(model="demo")


def test_what_engines_need() -> None:
    assert doctor.shm_bytes(1, 1, on_gpus=False) == 160 * 2**20  # as the demo takes
    assert doctor.shm_bytes(1, 1, on_gpus=True) == 0
    assert doctor.shm_bytes(2, 4, on_gpus=True) == 320 * 2**20


class Place:
    """Docker's default: 64 MB."""

    f_bavail, f_frsize = 16384, 4096


def test_too_little_is_one_line_with_the_flag_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.os, "statvfs", lambda _: Place)
    with pytest.raises(UsageError, match=r"64 MiB free.*160.*--shm-size"):
        doctor.shm(DEMO)
    monkeypatch.setattr(doctor.nvml, "gpus", lambda: [GPU("a card", 2**36)])
    assert doctor.shm(DEMO) == "64 MiB free, 0 needed"


def test_a_system_without_such_a_place_is_let_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(doctor, "SHM", tmp_path / "none")
    assert doctor.shm(DEMO) == f"no {tmp_path / 'none'} on this system"
