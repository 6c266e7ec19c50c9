"""A report opens each file of a test once."""

import json
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.report import report as rendering
from tests.conftest import run
from tests.support import example_runs

opened: list[str] = []
watching = False


def note(event: str, arguments: tuple[object, ...]) -> None:
    if watching and event == "open" and isinstance(arguments[0], str | Path):
        opened.append(str(arguments[0]))


sys.addaudithook(note)  # which cannot be taken away again


@contextmanager
def opens() -> Iterator[list[str]]:
    """The paths that are opened while the block runs."""
    global watching  # noqa: PLW0603
    opened.clear()
    watching = True
    try:
        yield opened
    finally:
        watching = False


def of_tests(paths: list[str], folder: Path) -> Counter[str]:
    """How often each file of the test that was read most was opened: the best level's, or the only test's."""
    tests: dict[Path, Counter[str]] = {}
    for path in map(Path, paths):
        if path.parent != folder and path.is_relative_to(folder):
            tests.setdefault(path.parent, Counter())[path.name] += 1
    return max(tests.values(), key=lambda found: sum(found[name] for name in READ))


READ = ("mlperf_log_detail.txt", "requests.csv", "machine.csv", "machine.json")
FLAGS = ("--backend", "echo", "--mode", "performance", "--min-duration", "3", "--total-sample-count", "16")


@pytest.mark.slow
@pytest.mark.parametrize(
    "load", [("--scenario", "offline"), ("--scenario", "server", "--server-target-qps", "50"), ("--concurrency", "1,4")]
)
def test_each_file_of_a_test_once_and_once_for_its_digest(load: tuple[str, ...], tmp_path: Path) -> None:
    done = run(tmp_path, *FLAGS, *load, "--extra-metrics")
    with opens() as paths:
        rendering.build_report(done.folder)
    found = of_tests(paths, done.folder)
    assert {name: found[name] for name in READ} == dict.fromkeys(READ, 2)
    assert set(found.values()) <= {1, 2}


def test_an_open_is_seen(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run")
    with opens() as paths:
        json.loads((folder / "config.json").read_text())
        (folder / "Performance" / "requests.csv").read_text()
    assert of_tests(paths, folder) == {"requests.csv": 1}
