"""The line that an error ends in."""

from harness.core.message_text import line_of, why

HUGE = "9" * 100_000


def test_a_line_ends_whatever_was_given() -> None:
    assert line_of(f"--seed {HUGE}: no number") == f"--seed {'9' * 200}...: no number".replace("...:", "...")
    path = "/" + "a/" * 2000
    assert line_of(f"{path}: no such file") == f"{path}: no such file"
    assert len(line_of("ab " * 40_000)) <= 1000
    assert why(OSError()) == "OSError" and why(OSError(2, "gone")) == "gone"
