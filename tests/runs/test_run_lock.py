"""A run that was killed says "running" for ever; its lock tells that it is over, and only where that is certain."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.core.files import read_json
from harness.runs import run_lock
from harness.runs.history import delete_runs, finish, older_runs
from harness.runs.run_folder import RunFolder, ended_early, open_run, readable_status
from harness.runs.run_lock import LOCK_FILE, life_of
from tests.conftest import ROOT, patience, tells

BEGIN = """
import os, sys, time
from pathlib import Path
from harness.runs.run_folder import open_run
run = open_run(Path(sys.argv[1]), "killed")
if sys.argv[2] == "forks" and not os.fork():
    time.sleep(60)
print(run.path, flush=True)
time.sleep(60)
"""


class Begun:
    """A run of another process, which goes on until it is killed."""

    def __init__(self, results_dir: Path, how: str = "alone") -> None:
        command = [sys.executable, "-c", BEGIN, str(results_dir), how]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert self.process.stdout
        self.folder = Path(self.process.stdout.readline().strip())

    def kill(self) -> Path:
        self.process.kill()
        self.process.wait()
        return self.folder

    def end(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)


def test_a_run_that_goes_on_is_running_and_one_that_was_killed_is_over(tmp_path: Path) -> None:
    begun = Begun(tmp_path)
    assert life_of(begun.folder) == "running"
    assert ended_early(begun.folder) == "it still runs"
    with pytest.raises(UsageError, match="still runs"):
        delete_runs([begun.folder], tmp_path)
    folder = begun.kill()
    assert life_of(folder) == "over"
    status = readable_status(folder)
    assert status and (status.status, status.reason) == ("failed", "it was killed")
    assert read_json(folder / "status.json")["status"] == "failed"  # for whoever reads the file alone
    assert not (folder / LOCK_FILE).exists()
    assert delete_runs([folder], tmp_path) == [folder.name]


def test_keep_all_0_deletes_what_was_killed_and_keeps_what_runs(tmp_path: Path) -> None:
    killed, running = Begun(tmp_path), Begun(tmp_path)
    killed.kill()
    time.sleep(1.1)  # a later second: older runs began before this one
    finish(open_run(tmp_path, "last"), {}, keep_all=False)
    assert (killed.folder.exists(), running.folder.exists()) == (False, True)
    running.end()


def test_an_orphan_that_a_killed_run_left_behind_is_no_life_of_it(tmp_path: Path) -> None:
    begun = Begun(tmp_path, "forks")
    folder = begun.kill()
    until = time.monotonic() + patience(5)
    while life_of(folder) != "over" and time.monotonic() < until:
        time.sleep(0.05)
    assert life_of(folder) == "over"
    begun.end()


def unknown(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the lock of a killed run says."""
    record = json.loads((folder / LOCK_FILE).read_text())
    changed = change(record)
    (folder / LOCK_FILE).write_text(json.dumps(record if changed is None else changed))


@pytest.mark.parametrize(
    "change",
    [
        lambda record: record.update(boot="of another machine"),
        lambda record: record.update(processes="pid:[of another container]"),
        lambda record: record.update(host="another"),
        lambda record: record.update(locked=False),
        lambda record: record.clear(),
        lambda record: [record],
        lambda record: "x" * 100,
    ],
)
def test_what_is_not_known_is_neither_deleted_nor_hidden(change: Callable[[Any], object], tmp_path: Path) -> None:
    folder = Begun(tmp_path).kill()
    unknown(folder, change)
    assert life_of(folder) == "not known"
    status = readable_status(folder)
    assert status and status.status == "running"
    assert ended_early(folder) == "it is not known whether it still runs"
    with pytest.raises(UsageError) as refused:
        delete_runs([folder], tmp_path)
    assert tells(str(refused.value), str(folder), "not known", "rm -r")
    time.sleep(1.1)
    assert older_runs(open_run(tmp_path, "last")) == [] and folder.exists()


def test_a_run_of_an_older_version_has_no_lock(tmp_path: Path) -> None:
    folder = Begun(tmp_path).kill()
    (folder / LOCK_FILE).unlink()
    assert life_of(folder) == "not known"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL])
def test_a_mount_without_locks_proves_nothing(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(file: int, how: int) -> None:
        raise OSError(number, os.strerror(number))

    killed = Begun(tmp_path).kill()
    monkeypatch.setattr(fcntl, "flock", refuse)
    assert life_of(killed) == "not known"
    run = open_run(tmp_path, "unlocked")  # which is begun all the same
    monkeypatch.undo()
    run_lock.forget_locks()  # as if its process had been killed
    assert life_of(run.path) == "not known"


def test_locks_that_do_nothing_prove_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lambda file, how: None)
    run = open_run(tmp_path, "unlocked")
    run_lock.forget_locks()
    assert life_of(run.path) == "not known"


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/etc/passwd"), os.mkfifo, lambda path: path.mkdir()])
def test_a_lock_that_is_no_file_is_not_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    folder = Begun(tmp_path).kill()
    (folder / LOCK_FILE).unlink()
    make(folder / LOCK_FILE)
    assert life_of(folder) == "not known"


@pytest.mark.parametrize("status", ["complete", "failed", "interrupted"])
def test_a_run_that_has_said_how_it_ended_leaves_no_lock(status: Any, tmp_path: Path) -> None:
    run = open_run(tmp_path, "mine")
    assert life_of(run.path) == "running" and (run.path / LOCK_FILE).exists()
    run.set_status(status)
    assert not (run.path / LOCK_FILE).exists()
    run.set_status("running")  # as a sweep that is resumed
    assert life_of(run.path) == "running"
    RunFolder(run.results_dir, run.name).fail("failed")
    assert not (run.path / LOCK_FILE).exists()
