"""The picture of the architecture: the way of one number leads over classes that are there."""

from pathlib import Path

import pytest

from docs.generate import architecture
from harness import FLOORS


def test_the_way_of_one_number_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "IMAGE", tmp_path / "a.png")
    architecture.draw()
    assert (tmp_path / "a.png").stat().st_size > 10_000
    floors = {name for names in FLOORS for name in names}
    assert {step.module.partition(".")[0] for step in architecture.PATH} < floors


def test_a_class_that_moved_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(architecture, "IMAGE", tmp_path / "a.png")
    monkeypatch.setattr(architecture, "PATH", (architecture.Step("core.document", "Gone", ""),))
    with pytest.raises(AttributeError):
        architecture.draw()
