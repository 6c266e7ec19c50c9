"""A run folder that somebody else sent is read, and nothing outside of it is written, sent on or obeyed."""

import ast
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.report import report as rendering
from harness.runs.history import finish
from harness.runs.run_folder import RunFolder, open_run
from harness.sweep import report as sweep_report
from tests.conftest import ROOT, tells
from tests.support import example_runs
from tests.support.example_sweeps import ran, state

ESCAPES = "\x1b[2J\x1b]0;gone\x07\u202e"


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = example_runs.run(tmp_path / "results" / "run", scenario="server", server_target_qps=4.0)
    rendering.build_report(folder)
    return folder


def written_by(render: Callable[[], object], folder: Path) -> list[Path]:
    """The files and folders that a rendering makes or makes anew."""
    before = {path: path.stat().st_ino for path in folder.rglob("*")}
    render()
    files = [path for path in folder.rglob("*") if path.is_file() and before.get(path) != path.stat().st_ino]
    return [*files, *{path.parent for path in files} - {folder}]


def stand_ins(path: Path, elsewhere: Path) -> Path:
    """Put a link in place of a file or a folder; returns what it leads to."""
    victim = elsewhere / path.name
    if path.is_dir():
        shutil.move(path, victim)
        (victim / "mine.txt").write_text("mine")
    else:
        path.unlink()
        victim.write_text("mine")
    path.symlink_to(victim)
    return victim


def contents(place: Path) -> dict[str, bytes]:
    return {str(path.relative_to(place)): path.read_bytes() for path in place.rglob("*") if path.is_file()}


def test_no_file_of_a_run_is_written_through_a_link(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written = written_by(lambda: rendering.build_report(run), run)
    assert {"summary.json", "report.md", "report.html", "overview.png", "plots"} <= {path.name for path in written}
    for path in written:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        stand_ins(path, elsewhere)
        before = contents(elsewhere)
        rendering.build_report(run)
        assert contents(elsewhere) == before, path
        assert not path.is_symlink() and path.exists()
        assert str(path) in capsys.readouterr().err
        shutil.rmtree(elsewhere)


def test_no_file_of_a_sweep_is_written_through_a_link(tmp_path: Path) -> None:
    folder = open_run(tmp_path, "sweep").path
    sweep_report.write_state(folder, state(ran("baseline", 100.0), ran("faster", 120.0)))
    sweep_report.build_report(folder)
    for path in written_by(lambda: sweep_report.build_report(folder), folder):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        stand_ins(path, elsewhere)
        before = contents(elsewhere)
        sweep_report.build_report(folder)
        assert contents(elsewhere) == before, path
        shutil.rmtree(elsewhere)


def test_a_status_is_not_written_through_a_link(tmp_path: Path) -> None:
    run = RunFolder(tmp_path, "run")
    run.path.mkdir()
    (tmp_path / "mine").write_text("mine")
    (run.path / "status.json").symlink_to(tmp_path / "mine")
    run.set_status("failed")
    assert (tmp_path / "mine").read_text() == "mine"
    assert json.loads((run.path / "status.json").read_text())["status"] == "failed"


def test_links_of_the_user_s_own_are_followed(tmp_path: Path) -> None:
    """A results folder, its history and `latest`."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "results").symlink_to(tmp_path / "disk")
    (tmp_path / "kept.jsonl").touch()
    (tmp_path / "disk" / "history.jsonl").symlink_to(tmp_path / "kept.jsonl")
    finish(open_run(tmp_path / "results", "one"), {})
    assert (tmp_path / "kept.jsonl").read_text().count("\n") == 1
    assert (tmp_path / "results" / "latest").exists()


def command(*words: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([sys.executable, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("name", ["report.md", "summary.json", "plots/overview.png", "requests.csv", "status.json"])
def test_a_pipe_among_its_files_neither_hangs_nor_ends_in_a_stack(run: Path, name: str) -> None:
    path = run / name if name != "requests.csv" else run / "Performance" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    for words in (["report.py", run], ["report.py", run, "--check"], ["util_logs.py", run, "--check"]):
        done = command(*words)
        assert "Traceback" not in done.stderr and done.returncode in (0, 1, 2)
        assert len(done.stderr.splitlines()) <= 2


@pytest.mark.parametrize("flag", ["--plot", "--page", "--csv"])
def test_a_pipe_that_nobody_reads_is_one_line(flag: str, run: Path, tmp_path: Path) -> None:
    other = example_runs.run(tmp_path / "results" / "other", scenario="server", server_target_qps=4.0)
    rendering.build_report(other)
    pipe = tmp_path / "pipe.png"
    os.mkfifo(pipe)
    done = command("report.py", "--compare", run, other, flag, pipe)
    assert done.returncode == 2 and tells(done.stderr, "error: ", str(pipe)) and len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("tool", ["report.py", "util_logs.py"])
def test_what_a_sent_file_says_is_not_obeyed(tool: str, run: Path) -> None:
    path = run / "summary.json"
    summary = json.loads(path.read_text())
    summary["run"]["performance"]["tokens_per_sec"] = 1.0
    summary["meta"]["model"] = f"a model{ESCAPES}"
    summary["meta"][f"key{ESCAPES}"] = ESCAPES
    path.write_text(json.dumps(summary))
    done = command(tool, run, "--check")
    assert done.returncode in (1, 2)
    assert not set(ESCAPES) & {*(done.stdout + done.stderr)} - set("[2J]0;gone")


PRINTERS = {"core/message_text.py", "core/errors.py", "core/command.py", "core/guard.py", "core/interrupts.py"}
BEFORE_IMPORTS = {"__init__.py", "__main__.py"}  # of this package: what is missing is said before it is imported


def test_every_command_prints_through_one_function() -> None:
    printing = set()
    for path in (ROOT / "harness").rglob("*.py"):
        name = str(path.relative_to(ROOT / "harness"))
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
                printing.add(name)
    assert printing <= PRINTERS | BEFORE_IMPORTS
