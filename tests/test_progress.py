"""What a person sees, and what happens where nobody can see it any more."""

import math
import os
import pty
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from harness import processes, results
from harness.errors import ENGINE_FAILED, INTERRUPTED, EngineError
from harness.progress import Display, lasting_console
from harness.results import RunFolder, open_run, read_json
from harness.sut import Counters


@pytest.fixture(autouse=True)
def heeding(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gives up ignores signals from then on; these tests, and the processes of those after them, do not."""
    monkeypatch.setattr(processes, "ignore_signals", lambda: None)


def full() -> tuple[int, int]:
    return os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("kind", [os.pipe, pty.openpty, full])
def test_a_reader_that_goes_away_ends_nothing(kind: Callable[[], tuple[int, int]]) -> None:
    reader, writer = kind()
    with Display(lasting_console(writer)) as display:
        os.close(writer)
        display.stage("accuracy test")
        while kind is not full and b"accuracy test" not in os.read(reader, 1000):
            pass
        os.close(reader)
        display._shown = -math.inf
        display.tick(Counters(issued=4, completed=2, tokens=100), 4)
        display.done("PASS")
        display.stage("performance test")
        table = Table("one")
        for _ in range(1000):  # more than any buffer holds
            table.add_row("a number")
        display.console.print(table)
        display.say("the end")
    assert [name for name, _ in display.stages] == ["accuracy test", "performance test"]


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(KeyboardInterrupt(), INTERRUPTED, "interrupted"), (OSError(28, "No space left"), ENGINE_FAILED, "failed")],
)
def test_a_run_that_is_complete_stays_so(tmp_path: Path, error: BaseException, code: int, status: str) -> None:
    def ended(run: RunFolder) -> str:
        assert processes.fail(error, run, Console(quiet=True)) == code
        return str(read_json(run.path / "status.json")["status"])

    run = open_run(tmp_path, "one")
    assert ended(run) == status
    run.set_status("complete")
    assert ended(run) == "complete"


def test_a_full_disk_is_named_whatever_it_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "SPARE_BYTES", 2**62)
    run = open_run(tmp_path, "one")
    assert processes.fail(EngineError("vLLM did not start"), run, Console(quiet=True)) == ENGINE_FAILED
    assert "is full" in read_json(run.path / "status.json")["reason"]
