"""The line that an error ends in."""

import pytest

from harness.core.message_text import line_of, system_reason, warn

HUGE = "9" * 100_000


def test_a_line_ends_whatever_was_given() -> None:
    assert line_of(f"--seed {HUGE}: no number") == f"--seed {'9' * 200}...: no number".replace("...:", "...")
    path = "/" + "a/" * 2000
    assert line_of(f"{path}: no such file") == f"{path}: no such file"
    assert len(line_of("ab " * 40_000)) <= 1000
    assert system_reason(OSError()) == "OSError" and system_reason(OSError(2, "gone")) == "gone"


def test_a_warning_of_many_lines_is_shown_whole(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [f"reason {number}: {'word ' * 10}end" for number in range(50)]
    warn("\n".join(["error: refused:", *lines]))
    assert capsys.readouterr().err.splitlines() == ["error: refused:", *lines]
    warn("word " * 1000)
    assert len(capsys.readouterr().err) < 1000
