"""Files are written whole or not at all."""

import errno
import fcntl
import json
import os
import stat
import threading
from pathlib import Path

import pytest

from harness.core import files
from harness.core.errors import UsageError
from harness.core.files import write_json, write_text


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_text(tmp_path / "taken", "text")
    (tmp_path / "old").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "old", "new \ud800")
    with pytest.raises(TypeError):
        write_json(tmp_path / "old", {"key": object()})
    assert names(tmp_path) == {"taken", "old"}
    assert (tmp_path / "old").read_text() == "old"


def test_a_reader_never_meets_half_a_file(tmp_path: Path):
    path = tmp_path / "data.json"
    write_json(path, [0] * 10_000)
    stop = threading.Event()
    lengths = set()

    def look() -> None:
        while not stop.is_set():
            lengths.add(len(json.loads(path.read_text())))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(50):
        write_json(path, [1] * 10_000)
    stop.set()
    reader.join()
    assert lengths == {10_000}


def test_written_files_may_be_read_by_others(tmp_path: Path):
    write_text(tmp_path / "report.md", "text")
    assert (tmp_path / "report.md").stat().st_mode & 0o777 == 0o644


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # waits for nobody, should it be replaced
    write_text(pipe, "a,b\n")
    assert os.read(reader, 100) == b"a,b\n"
    os.close(reader)
    assert pipe.is_fifo()


def test_results_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    with files.atomic_update(tmp_path) as place:
        (place / "plots").mkdir()
        (place / "plots" / "a.png").write_text("a")
        assert not (tmp_path / "plots").exists()
    assert (tmp_path / "plots" / "a.png").exists()
    with pytest.raises(OSError), files.atomic_update(tmp_path) as place:
        (place / "overall.json").write_text("{")
        raise OSError("disk full")
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]


@pytest.mark.parametrize(("mask", "modes"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664)])
def test_a_file_has_the_modes_that_the_umask_leaves(mask: int, modes: int, tmp_path: Path) -> None:
    before = os.umask(mask)
    try:
        files.write_text(tmp_path / "a", "x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == modes


def test_a_folder_whose_modes_cannot_be_set_is_written_into(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    for name in ("chmod", "fchmod"):
        monkeypatch.setattr(os, name, refused)
    files.write_text(tmp_path / "a", "x")
    assert (tmp_path / "a").read_text() == "x" and [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("number", sorted(errno.errorcode))
def test_only_a_lock_that_somebody_has_says_that_something_runs(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """flock(2) and fcntl(2) say EAGAIN or EACCES then; every other error is of the mount, and proves nothing."""

    def refuse(file: object, how: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    if number in (errno.EAGAIN, errno.EACCES):
        with pytest.raises(UsageError, match="a sweep is still running"), files.lock_folder(tmp_path, "a sweep"):
            pass
        assert files.is_locked(tmp_path)
        return
    with files.lock_folder(tmp_path, "a sweep"):
        pass
    said = capsys.readouterr().err
    assert os.strerror(number) in said and str(tmp_path) in said and "running" not in said
    assert files.is_locked(tmp_path) is None


def test_the_lock_of_a_folder_is_seen_by_others(tmp_path: Path) -> None:
    assert files.is_locked(tmp_path) is None  # there is none
    with files.lock_folder(tmp_path, "a sweep"):
        assert files.is_locked(tmp_path)
        with pytest.raises(UsageError, match="still running"), files.lock_folder(tmp_path, "a sweep"):
            pass
    assert files.is_locked(tmp_path) is False
