"""Every option that takes a number, with what is no number; one of each type with all that is none, or too much."""

import re
from pathlib import Path
from typing import Any

import pytest

from harness.__main__ import main
from harness.config import pretrained
from harness.config.engine import EngineConfig
from harness.runs import ending
from tests.commands.test_every_path import LONGEST_S, alarm
from tests.conftest import called, patience
from tests.support.hostile_files import command_words, commands, end

pytestmark = pytest.mark.slow
NUMBERS = re.compile(r"^(N|X|SECONDS|MINUTES|SHARE)\b|\bN\[")
EVERYWHERE = ["nan", "-1", "1e400", "", "1\a"]
ONCE = ["inf", "-inf", "0", "9" * 400, "1 %", "true", "0x10", "1,", "\u0663", "1_000", "--"]
MAY_BE = {
    "0": {
        "--seed",
        "--finalists",
        "--keep-all",
        "--price-per-hour",
        "--max-failed",
        "--wait-ready",
    }
}


def takes_number(parameter: Any) -> bool:
    return parameter.bare_type() in ("int", "float") or bool(NUMBERS.search(str(parameter.metavar or "")))


OPTIONS = [(words, each) for words, command in commands() for each in command.params if takes_number(each)]
TYPES = {(each.bare_type(), str(each.metavar)): (words, each) for words, each in reversed(OPTIONS)}
CASES = [(*option, text) for option in OPTIONS for text in EVERYWHERE]
CASES += [(*option, text) for option in TYPES.values() for text in ONCE]


@pytest.fixture(scope="module", autouse=True)
def imports() -> None:
    """What a run imports first takes longer than the alarm allows on a busy machine, and must not be cut in half."""
    pretrained.load_tokenizer(EngineConfig(model="demo"))


@pytest.mark.parametrize(("words", "parameter", "text"), CASES, ids=lambda value: getattr(value, "name", value)[:20])
def test_a_number_that_is_none_ends_in_one_line(
    words: str,
    parameter: Any,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ending, "exit", end)
    with alarm(patience(LONGEST_S)):
        done = called(main, "llama31-mlperf", *command_words(words, parameter, text, tmp_path))
    assert "Traceback" not in done.stderr, done.stderr
    said = done.stderr + capfd.readouterr().err  # a run writes past Python's own streams
    lines = [line for line in said.splitlines() if not line.startswith(("partial results: ", "run folder: "))]
    assert len(lines) == (1 if done.returncode in (2, 3) else 0), said
    allowed = MAY_BE.get(text, set())
    if "*" not in allowed and parameter.opts[0] not in allowed:
        assert done.returncode == 2, (done.returncode, done.stdout[-300:], done.stderr)
        assert parameter.opts[0] in said, said  # it, and nothing else, is refused
