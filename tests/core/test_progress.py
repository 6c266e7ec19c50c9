"""What a person sees, and what happens where nobody can see it any more."""

import errno
import io
import math
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from harness.core import files, processes
from harness.core.errors import BAD_INPUT, ENGINE_FAILED, BenchmarkError, EngineError, UsageError
from harness.core.files import read_json
from harness.core.interrupts import INTERRUPTED
from harness.core.progress import Counters, Display, failsafe_console, progress_text
from harness.results.benchmark_run import facts_of
from harness.runs import ending
from harness.runs.run_folder import RunFolder, open_run


@pytest.fixture(autouse=True)
def heeding(monkeypatch: pytest.MonkeyPatch) -> None:
    """What gives up ignores signals from then on; these tests, and the processes of those after them, do not."""
    monkeypatch.setattr(processes, "ignore_signals", lambda: None)


def full() -> tuple[int, int]:
    return os.open(os.devnull, os.O_RDONLY), os.open("/dev/full", os.O_WRONLY)


@pytest.mark.parametrize("kind", [os.pipe, pty.openpty, full])
def test_a_reader_that_goes_away_ends_nothing(kind: Callable[[], tuple[int, int]]) -> None:
    reader, writer = kind()
    with Display(failsafe_console(writer)) as display:
        os.close(writer)
        display.stage("accuracy test")
        while kind is not full and b"accuracy test" not in os.read(reader, 1000):
            pass
        os.close(reader)
        display._last_refresh = -math.inf
        display.tick(Counters(issued=4, completed=2, tokens=100), 4)
        display.leave_line("PASS")
        display.stage("performance test")
        table = Table("one")
        for _ in range(1000):  # more than any buffer holds
            table.add_row("a number")
        display.console.print(table)
        display.say("the end")
    assert [name for name, *_ in display.stages] == ["accuracy test", "performance test"]


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(KeyboardInterrupt(), INTERRUPTED, "interrupted"), (OSError(28, "No space left"), ENGINE_FAILED, "failed")],
)
def test_a_run_that_is_complete_stays_so(tmp_path: Path, error: BaseException, code: int, status: str) -> None:
    def ended(run: RunFolder) -> str:
        assert ending.fail(error, run, Console(quiet=True)) == code
        return str(read_json(run.path / "status.json")["status"])

    run = open_run(tmp_path, "one")
    assert ended(run) == status
    run.set_status("complete")
    assert ended(run) == "complete"


def test_a_folder_that_is_gone_is_named(tmp_path: Path) -> None:
    run, screen = open_run(tmp_path, "one"), Console(record=True, width=200)
    shutil.rmtree(run.path)
    with pytest.raises(BenchmarkError, match="folder was deleted"):
        files.check_space(run.path)
    assert ending.fail(OSError(2, "No such file or directory"), run, screen) == ENGINE_FAILED
    assert "folder was deleted" in screen.export_text()
    assert not run.path.exists()


@pytest.mark.parametrize(
    "breaks",
    [
        lambda path: files.write_json(path / "summary.json", {}),
        lambda path: (path / "requests.csv").open("w"),
        facts_of,
    ],
)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOENT])
def test_a_run_folder_that_fails_during_the_run_is_no_wrong_input(
    number: int, breaks: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler tries again what ended with 3, and not what ended with 2."""

    def refused(path: Path, *_: object, **how: object) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.chdir(tmp_path)
    run, screen = open_run(Path("results"), "one"), Console(record=True, width=200)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refused)
        with pytest.raises((OSError, UsageError)) as caught:
            breaks(run.path)
    assert ending.fail(caught.value, run, screen) == ENGINE_FAILED
    (said, _) = screen.export_text().splitlines()
    assert said.startswith("error: ") and run.name in said
    assert ending.fail(OSError(number, os.strerror(number), "elsewhere"), run, Console(quiet=True)) == BAD_INPUT


def test_the_clock_of_a_stage_without_ticks_goes_on() -> None:
    reader, writer = pty.openpty()
    shown = b""
    with Display(failsafe_console(writer)) as display:
        display.stage("scoring")
        while b"scoring  0:01" not in shown:
            is_readable, _, _ = select.select([reader], [], [], 10.0)
            assert is_readable, shown
            shown += os.read(reader, 1000)
    os.close(writer)
    os.close(reader)
    assert b"scoring  0:00" in shown


def test_time_left_is_no_less_than_a_rate_needs() -> None:
    counters = Counters(issued=2, completed=2, tokens=100)
    assert "0:30 left" in progress_text(counters, 8, 10.0)
    assert "1:10 left" in progress_text(counters, 8, 10.0, least_s=80.0)


def test_time_left_of_a_schedule_goes_by_it_from_the_first_answers_on() -> None:
    """50 a second are issued; those that run have hardly begun to be answered."""
    assert "10:32 left" in progress_text(Counters(issued=200, completed=20), 30_000, 4.0)


def test_no_time_left_is_said_of_a_test_that_is_longer_than_expected() -> None:
    """LoadGen sent another pass of 13,368, and the screen said "0:02 left" for five minutes."""
    counters = Counters(issued=28_117, completed=28_082, tokens=3_600_000)
    text = progress_text(counters, 26_736, 632.0, rate=44.0)
    assert "left" not in text and "%" not in text and "28,082 done, 26,736 were expected" in text


def test_time_left_goes_by_the_recent_rate() -> None:
    display = Display(Console(quiet=True))
    display.stage("performance test")
    assert display.recent_rate(30.0, 0) is None  # a first half minute without an answer
    rate = display.recent_rate(60.0, 1800)
    assert rate == 60.0
    counters = Counters(issued=40_104, completed=1800, tokens=1800)
    assert "10:38 left" in progress_text(counters, None, 60.0, rate=rate)
    assert display.recent_rate(120.0, 1800 + 30 * 60) == 30.0
    assert display.recent_rate(180.0, 3600 + 20 * 60) == 20.0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_lead_nowhere(closed: str) -> None:
    code = "from harness.core.startup import open_streams; open_streams()"
    code += "; import sys; print(1, flush=True); sys.stdin.read()"
    shell = f"{shlex.quote(sys.executable)} -c {shlex.quote(f'{code}; print(2, file=sys.stderr)')} {closed}"
    done = subprocess.run(shell, shell=True, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (
        0,
        "" if " >&-" in f" {closed}" else "1\n",
        "" if "2>&-" in closed else "2\n",
    )


def test_a_full_disk_is_named_whatever_it_breaks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "SPARE_BYTES", 2**62)
    run = open_run(tmp_path, "one")
    assert ending.fail(EngineError("vLLM did not start"), run, Console(quiet=True)) == ENGINE_FAILED
    assert "is full" in read_json(run.path / "status.json")["reason"]


def test_what_matters_fits_eighty_columns() -> None:
    counters = Counters(issued=40_104, started=6_546, completed=5_734, tokens=733_952, first_token_s=1374.0)
    line = "performance test  10:12" + progress_text(counters, 40_104, 612.0, 600.0, 9.4)
    assert "TTFT 210 ms" in line[:80] and "left" in line[:80]
    assert re.search(r" (\d+) % ", line)[1] == "14"  # type: ignore[index]


def test_on_a_terminal_a_line_of_each_stage_stays() -> None:
    text = io.StringIO()
    with Display(Console(file=text, force_terminal=True, width=120)) as display:
        display.stage("calibrating")
        display.stage("accuracy test")
        display.leave_line("accuracy: PASS")
        display.stage("performance test")
    said = text.getvalue()
    assert "calibrating, 0:00" in said and "accuracy test, 0:00" not in said
