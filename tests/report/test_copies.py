"""A run is known by when it began and by its logs: names of folders and copies of them change nothing."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.__main__ import command_of
from harness.commands import report
from harness.core.errors import UsageError
from harness.report import compare
from harness.report import report as rendering
from harness.runs import history
from harness.runs.history import read_history
from harness.runs.run_folder import RunFolder
from harness.runs.run_order import start_of
from tests.support import example_runs

CONDITION = "output_tokens_per_s<-3%"


def labelled(results_dir: Path, count: int = 3) -> list[Path]:
    """Finished runs of two labels in turn, with their lines in the history."""
    folders = []
    for n in range(2 * count):
        folder = example_runs.run(results_dir / f"20260131-10{n:02}00", label="ab"[n % 2], scenario="offline")
        rendering.build_report(folder)
        folders.append(folder)
    return folders


def screens(results_dir: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What each command says that takes several runs, without the names of their folders."""
    where = ["--results-dir", str(results_dir)]
    commands = (
        ["report", "--compare", "a", "b", *where],
        ["report", "b", "--baseline", "a", "--fail-if", CONDITION, *where],
        ["report", "--matrix", "label", "a", "b", *where],
        ["report", "--last", "4", *where],
    )
    said = []
    for name, *words in commands:
        with pytest.raises(SystemExit) as end:
            command_of(name).main(words, standalone_mode=True)
        said.append(f"{end.value.code}: {capsys.readouterr().out}")
    return [re.sub(rf"{re.escape(str(results_dir))}/[\w-]+", "RUN", text) for text in said]


def rename_backwards(folders: list[Path]) -> None:
    for n, folder in enumerate(reversed(folders)):
        folder.rename(folder.with_name(f"run-{'abcdef'[n]}"))


def copy_twice(folders: list[Path]) -> None:
    for folder in folders:
        shutil.copytree(folder, folder.with_name(f"{folder.name} - Copy"))
        shutil.copytree(folder, folder.with_name(f"0 {folder.name}"))


@pytest.mark.parametrize("change", [rename_backwards, copy_twice], ids=["renamed", "copied"])
def test_names_and_copies_change_no_verdict(
    change: Callable[[list[Path]], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = labelled(tmp_path)
    before = screens(tmp_path, capsys)
    change(folders)
    for said, had in zip(screens(tmp_path, capsys), before, strict=True):
        assert said.splitlines() == had.splitlines()


def test_copies_of_one_run_are_one_run(tmp_path: Path) -> None:
    run = example_runs.run(tmp_path / "run")
    rendering.build_report(run)
    copies = [Path(shutil.copytree(run, tmp_path / name)) for name in ("copy", "another")]
    runs, left_out = compare.load_runs([run, *copies])
    assert [found.folder.name for found in runs] == ["run"] and len(left_out) == 2
    with pytest.raises(UsageError, match="two runs or more, not 1"):
        compare.load_runs([run])
    other = example_runs.run(tmp_path / "other")
    rendering.build_report(other)
    runs, left_out = compare.load_runs([run, *copies, other])
    assert [found.folder.name for found in runs] == ["run", "other"]
    assert [str(copy) in reason for copy, reason in zip(copies, left_out, strict=True)] == [True, True]


def test_a_copy_that_was_rendered_again_is_a_copy(tmp_path: Path) -> None:
    run = example_runs.run(tmp_path / "run")
    rendering.build_report(run)
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    rendering.build_report(copy)
    assert compare.read_run(run).identity == compare.read_run(copy).identity


def test_two_runs_of_one_second_are_two(tmp_path: Path) -> None:
    first = example_runs.run(tmp_path / "first")
    second = Path(shutil.copytree(first, tmp_path / "second"))
    log = second / "Performance" / "mlperf_log_detail.txt"
    log.write_text(log.read_text() + "\n")  # the logs of two tests are never the same
    for folder in (first, second):
        rendering.build_report(folder)
    assert len(compare.load_runs([first, second])[0]) == 2


def test_the_start_decides_what_is_older_and_the_newest(tmp_path: Path) -> None:
    first, second, third = (example_runs.run(tmp_path / name) for name in ("z-first", "y-second", "a-third"))
    assert start_of(first) < start_of(second) < start_of(third)
    assert {path.name for path in history.older_runs(RunFolder(tmp_path, third.name))} == {"z-first", "y-second"}
    (tmp_path / "latest").symlink_to("nowhere")
    history.mend_latest(tmp_path)
    assert (tmp_path / "latest").resolve() == third


def test_a_folder_without_a_start_has_that_of_its_name(tmp_path: Path) -> None:
    names = ("20260131-101500", "20260131-101500-2", "20260131-101500-night-2", "20260131-101501-night")
    for name in names:
        (tmp_path / name).mkdir()
    starts = [start_of(tmp_path / name) for name in names]
    assert starts == sorted(starts) and starts[1] == starts[2]


def test_a_line_that_stands_twice_in_a_merged_history_counts_once(tmp_path: Path) -> None:
    old = '{"run": "b", "started": "2026-01-31T10:16:00+0000"}\n'
    new = '{"run": "a", "started": "2026-01-31T10:15:00+0000"}\n'
    (tmp_path / "history.jsonl").write_text(old + new + old)
    assert [line["run"] for line in read_history(tmp_path)] == ["a", "b"]


def test_a_run_compared_with_its_copies_is_said_to_be_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = example_runs.run(tmp_path / "run")
    rendering.build_report(run)
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    report.compare_runs([run, copy], None, None, None)
    said = capsys.readouterr()
    assert "one run and its copies" in said.out and str(copy) in said.err
    with pytest.raises(UsageError, match="copies of one"):
        report.compare_runs([run, copy], tmp_path / "table.csv", None, None)
    assert not (tmp_path / "table.csv").exists()
