"""The shared memory that vLLM's processes talk through, looked at before the engine starts."""

from pathlib import Path

import pytest

from harness.common.errors import UsageError
from harness.engines import shared_memory


def test_what_engines_need() -> None:
    assert shared_memory.bytes_needed(1, 1, on_gpus=False) == 160 * 2**20  # as the demo takes
    assert shared_memory.bytes_needed(1, 1, on_gpus=True) == 0
    assert shared_memory.bytes_needed(2, 4, on_gpus=True) == 320 * 2**20


class Place:
    """Docker's default: 64 MB."""

    f_bavail, f_frsize = 16384, 4096


def test_too_little_is_one_line_with_the_flag_of_docker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_memory.os, "statvfs", lambda _: Place)
    with pytest.raises(UsageError, match=r"64 MiB free.*160.*--shm-size"):
        shared_memory.check(1, 1, on_gpus=False)
    shared_memory.check(1, 1, on_gpus=True)


def test_a_system_without_such_a_place_is_let_through(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shared_memory, "SHM", tmp_path / "none")
    assert shared_memory.check(8, 8, on_gpus=True) == f"no {tmp_path / 'none'} on this system"
