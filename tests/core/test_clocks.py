"""The system clock may be set at any moment: it gives time stamps, and no duration or deadline goes by it."""

import ast
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from harness.core.locations import CHECKOUT
from harness.loadgen import loadgen_test
from tests.conftest import launch, patience
from tests.support.warm_process import Warm

OF_THE_SYSTEM = {
    *("time.time", "time.time_ns", "time.strftime", "time.localtime", "time.gmtime", "time.ctime", "time.asctime"),
    *("time.clock_gettime", "datetime.now", "datetime.utcnow", "datetime.today", "date.today"),
}
IN_FILES = {"st_mtime", "st_ctime", "st_mtime_ns", "st_ctime_ns", "getmtime", "getctime", "create_time"}
STAMPS = {  # what needs the system's clock by its nature
    ("core/processes.py", "start_guard"): "a mark that no other command has",
    ("core/progress.py", "stage"): "the time before a line",
    ("core/progress.py", "leave_line"): "the time before a line",
    ("core/progress.py", "leave_row"): "the time before a line",
    ("core/progress.py", "tick"): "the time before a line",
    ("runs/run_folder.py", "open_run"): "the name of a run",
    ("runs/run_folder.py", "now"): "the time stamp of every record",
    ("runs/run_order.py", "start_of"): "a folder that says nothing of its run's start",
    ("loadgen/session.py", "clock_offset"): "whether LoadGen's own clock was set during a test",
}


def uses(source: str) -> Iterator[tuple[str, str]]:
    """Each use of the system's clock, and the innermost function that it is in."""
    tree = ast.parse(source)
    names = {
        alias.asname or alias.name: alias.name
        for each in ast.walk(tree)
        if isinstance(each, ast.ImportFrom) and each.module in ("time", "datetime", "os.path")
        for alias in each.names
    }

    def look(node: ast.AST, within: str) -> Iterator[tuple[str, str]]:
        within = node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else within
        if isinstance(node, ast.Attribute):
            text = ".".join(ast.unparse(node).split(".")[-2:])
            if text in OF_THE_SYSTEM or node.attr in IN_FILES:
                yield within, text
        elif isinstance(node, ast.Name) and f"time.{names.get(node.id)}" in OF_THE_SYSTEM:
            yield within, node.id
        for child in ast.iter_child_nodes(node):
            yield from look(child, within)

    yield from look(tree, "")


def test_only_time_stamps_go_by_the_systems_clock() -> None:
    package = CHECKOUT / "harness"
    found = {
        (str(path.relative_to(package)), within)
        for path in sorted(package.rglob("*.py"))
        for within, _ in uses(path.read_text())
    }
    assert found == set(STAMPS)


@pytest.mark.parametrize(
    "line",
    [
        "until = time.time() + 5",
        "begin = datetime.datetime.now()",
        "age = path.stat().st_mtime",
        "clock = time.time",
        "from time import time as t\n    begin = t()",
        "begin = datetime.now(UTC)",
    ],
)
def test_a_new_use_is_found(line: str) -> None:
    assert [within for within, _ in uses(f"def work(path):\n    {line}\n    time.monotonic()")] == ["work"]


def set_on(seconds: float) -> None:
    """The system's clock is set half a second after each of LoadGen's tests began."""
    real, work, begun = time.time, loadgen_test.run_test, list[float]()

    def test(*given: object) -> None:
        begun.append(time.monotonic())
        work(*given)  # type: ignore[arg-type]

    time.time = lambda: real() + seconds * bool(begun and time.monotonic() > begun[-1] + 0.5)
    loadgen_test.run_test = test


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "seconds", "code"),
    [
        (("--scenario", "singlestream", "--category", "edge"), 3600, 3),
        (("--scenario", "singlestream", "--category", "edge"), -3600, 3),
        (("--concurrency", "2"), 3600, 0),
    ],
    ids=["on", "back", "timed by the client"],
)
def test_a_clock_that_is_set_during_a_test(flags: tuple[str, ...], seconds: float, code: int, tmp_path: Path) -> None:
    """Nothing waits by it; a test that LoadGen times by it has no result, and says so."""
    how = ("--backend", "echo", "--mode", "performance", "--min-duration", "3")
    begun = partial(Warm, before=partial(set_on, seconds))
    ended, output, took = launch("run.py", tmp_path, *how, *flags, start=begun)
    assert ended == code, output
    assert took < patience(30)
    said = f"error: the system clock was set by {seconds:+,.0f} s in a test that LoadGen times by it"
    assert (said in output) == bool(code)
