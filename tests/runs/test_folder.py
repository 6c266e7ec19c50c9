"""The results folder: runs, status, latest, history, retention."""

import errno
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import BAD_INPUT, UsageError
from harness.core.files import read_json, write_json
from harness.core.progress import Stage
from harness.results import benchmark_run
from harness.runs import history, run_folder
from harness.runs.history import finish, read_history
from harness.runs.run_folder import RunFolder, open_run
from tests.conftest import tells
from tests.support import example_runs

LABEL = "datacenter-offline"
LINE: dict[str, Any] = {
    "started": "2026-01-31T10:15:00+0000",
    "mlperf_version": "5.1",
    "model": "demo",
    "category": "datacenter",
    "scenario": "offline",
    "mode": "both",
    "samples": 256,
    "comparable": False,
    "valid": True,
    "tokens_per_sec": 5309.4,
    "samples_per_sec": 41.5,
    "mean_new_tokens": 128.0,
    "verdict": "PASS",
    "precision": "bf16",
    "quantization": "none",
}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def lines(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (results / "history.jsonl").read_text().splitlines()]


def test_a_new_run_is_named_by_time_and_label_and_is_running(tmp_path: Path):
    run = open_run(tmp_path / "a" / "results", LABEL)
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{LABEL}(-\d+)?", run.name)
    assert run.path == tmp_path / "a" / "results" / run.name
    assert read_json(run.path / "status.json")["status"] == "running"


def test_runs_of_the_same_second_have_names_of_their_own(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: open_run(tmp_path, LABEL), range(40)))
    assert len({run.name for run in runs}) == 40
    assert names(tmp_path) == {run.name for run in runs}


@pytest.mark.parametrize("below", ["", "results", "deep/results"])
def test_a_results_folder_that_cannot_be_written_is_named(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=f"--results-dir {tmp_path}/file.*is a file") as error:
        open_run(tmp_path / "file" / below, LABEL)
    assert error.value.exit_code == BAD_INPUT


def test_a_file_system_that_takes_no_folders_is_named():
    with pytest.raises(UsageError, match="--results-dir /proc/results: cannot write there"):
        open_run(Path("/proc/results"), LABEL)


@pytest.mark.parametrize("in_container", [False, True])
def test_in_a_container_the_user_who_owns_the_folder_is_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_container: bool
):
    monkeypatch.setattr(run_folder, "is_in_container", lambda: in_container)
    with pytest.raises(UsageError) as error, run_folder.writing_to(tmp_path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    assert str(error.value).startswith(f"--results-dir {tmp_path}: cannot write there: ")
    assert ('--user "$(id -u):$(id -g)"' in str(error.value)) == in_container


def test_finish_completes_the_run_and_adds_one_line(tmp_path: Path):
    first, second = open_run(tmp_path, LABEL), open_run(tmp_path, LABEL)
    finish(first, {"samples": 1})
    finish(second, {"samples": 2})
    assert lines(tmp_path) == [{"run": first.name, "samples": 1}, {"run": second.name, "samples": 2}]
    assert read_json(first.path / "status.json")["status"] == "complete"


def test_latest_is_the_last_finished_run(tmp_path: Path):
    first = open_run(tmp_path, LABEL)
    assert not (tmp_path / "latest").exists()
    finish(first, LINE)
    failed = open_run(tmp_path, LABEL)
    failed.set_status("failed", "no GPU")
    open_run(tmp_path, LABEL)
    assert (tmp_path / "latest").readlink() == Path(first.name)


def test_latest_always_points_to_a_finished_run(tmp_path: Path):
    finish(open_run(tmp_path, LABEL), LINE)
    stop = threading.Event()
    seen: list[str] = []

    def look() -> None:
        while not stop.is_set():
            seen.append(json.loads((tmp_path / "latest" / "status.json").read_text()).get("status", "missing"))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(100):
        finish(open_run(tmp_path, LABEL), LINE)
    stop.set()
    reader.join()
    assert set(seen) == {"complete"}
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_latest_replaces_a_stale_link(tmp_path: Path):
    (tmp_path / "latest").symlink_to("gone")
    run = open_run(tmp_path, LABEL)
    finish(run, LINE)
    assert (tmp_path / "latest").resolve() == run.path


def test_a_history_that_cannot_be_written_takes_nothing_from_the_run(tmp_path: Path):
    (tmp_path / "history.jsonl").mkdir()
    run, said = open_run(tmp_path, LABEL), []
    finish(run, LINE, say=said.append)
    assert len(said) == 1 and tells(said[0], f"{tmp_path / 'history.jsonl'} ", "Is a directory")
    assert (tmp_path / "latest").resolve() == run.path


def test_a_link_that_cannot_move_takes_nothing_from_the_run(tmp_path: Path):
    (tmp_path / "latest").mkdir()
    run, said = open_run(tmp_path, LABEL), []
    finish(run, LINE, say=said.append)
    assert "latest could not be moved" in said[0]
    assert not list(tmp_path.glob(".latest*"))
    assert read_json(run.path / "status.json")["status"] == "complete"
    assert [line["run"] for line in read_history(tmp_path)] == [run.name]


def test_keep_all_0_deletes_only_older_runs_that_ended(tmp_path: Path):
    ended: list[RunFolder] = []
    for status in ("complete", "failed", "interrupted"):
        ended.append(open_run(tmp_path, LABEL))
        ended[-1].set_status(status)
        ended[-1].subfolder("Performance").joinpath("mlperf_log_detail.txt").write_text("log")
    running = open_run(tmp_path, LABEL)
    for folder in ("sweeps/a/run", "mmlu/run"):
        (tmp_path / folder).mkdir(parents=True)
        write_json(tmp_path / folder / "status.json", {"status": "complete"})
    (tmp_path / "mine").mkdir()
    (tmp_path / ".gitkeep").touch()
    last = open_run(tmp_path, LABEL)
    finish(last, LINE, keep_all=False)
    kept = {running.name, last.name, "sweeps", "mmlu", "mine", "latest", "history.jsonl", ".gitkeep"}
    assert names(tmp_path) == kept
    assert (tmp_path / "sweeps/a/run/status.json").exists() and (tmp_path / "mmlu/run/status.json").exists()


def test_the_tenth_run_of_a_second_is_no_older_than_the_second(tmp_path: Path):
    """Nor is one of another label in that second."""
    stem = "20260131-101500"
    for name in (f"{stem}-run", f"{stem}-run-2", f"{stem}-run-10", f"{stem}-other-2"):
        (tmp_path / name).mkdir()
        RunFolder(tmp_path, name).set_status("complete")
    finish(RunFolder(tmp_path, f"{stem}-run-2"), LINE, keep_all=False)
    assert names(tmp_path) == {f"{stem}-run-2", f"{stem}-run-10", f"{stem}-other-2", "latest", "history.jsonl"}


def test_keep_all_0_leaves_linked_folders_alone(tmp_path: Path):
    elsewhere = open_run(tmp_path / "elsewhere", LABEL)
    elsewhere.set_status("complete")
    results = tmp_path / "results"
    results.mkdir()
    (results / "link").symlink_to(elsewhere.path)
    finish(open_run(results, LABEL), LINE, keep_all=False)
    assert elsewhere.path.exists() and (results / "link").exists()


def test_runs_are_kept_unless_asked(tmp_path: Path):
    first, second = open_run(tmp_path, LABEL), open_run(tmp_path, LABEL)
    finish(first, LINE)
    finish(second, LINE)
    assert first.path.exists() and second.path.exists()


def test_history_outlives_its_runs(tmp_path: Path):
    runs = [open_run(tmp_path, LABEL) for _ in range(3)]
    for run in runs:
        finish(run, LINE, keep_all=False)
    assert [line["run"] for line in read_history(tmp_path)] == [run.name for run in runs]


def test_there_is_no_history_before_the_first_run(tmp_path: Path):
    assert list(read_history(tmp_path)) == []


@pytest.mark.parametrize("broken", [b'{"run": "a", "samp', b"", b"[1]", b"5", b"\xff\xfe\x00", b"null"], ids=repr)
def test_history_skips_lines_that_are_not_whole(tmp_path: Path, broken: bytes):
    (tmp_path / "history.jsonl").write_bytes(b'{"run": "a"}\n' + broken + b'\n{"run": "b"}\n')
    assert list(read_history(tmp_path)) == [{"run": "a"}, {"run": "b"}]


def test_a_line_cut_short_does_not_spoil_the_next(tmp_path: Path):
    (tmp_path / "history.jsonl").write_text('{"run": "a"}\n{"run": "b", "samp')
    run = open_run(tmp_path, LABEL)
    finish(run, LINE)
    assert [line["run"] for line in read_history(tmp_path)] == ["a", run.name]


@settings(max_examples=30, deadline=None)
@given(text=st.text())
def test_any_line_survives_the_history(tmp_path_factory: pytest.TempPathFactory, text: str):
    results = tmp_path_factory.mktemp("results")
    finish(open_run(results, LABEL), {"model": text})
    assert [line["model"] for line in read_history(results)] == [text]


def test_a_fact_noted_later_leaves_the_plan_as_it_is(tmp_path: Path):
    run = open_run(tmp_path, LABEL)
    plan = resolve(RunConfig(), [], 0)
    example_runs.record(run, plan.with_note("a lower rate", target_qps=5.0))
    kept = benchmark_run.facts_of(run.path)
    kept.stages = [Stage("calibrating", 1.5, "load")]
    benchmark_run.BenchmarkRun(run, None, kept).save()
    facts = read_json(run.path / "config.json")
    assert (facts["plan"]["target_qps"], facts["plan"]["notes"][-1]) == (5.0, "a lower rate")
    assert facts["stages"] == [["calibrating", 1.5, "load"]]


def test_a_full_disk_does_not_leave_a_run_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = open_run(tmp_path, LABEL)
    size = (run.path / "status.json").stat().st_size
    monkeypatch.setattr(run_folder, "write_text", full)
    run.fail("failed", "the disk is full: é " * 100)
    kept = run_folder.status_of(run.path)
    assert kept is not None and kept.status == "failed" and kept.reason.startswith("the disk is full")
    assert (run.path / "status.json").stat().st_size == size


def test_runs_that_began_later_are_kept(tmp_path: Path) -> None:
    for name in ("20260101-000000-a", "20260101-000002-b", "20260101-000001-me"):
        run = RunFolder(tmp_path, name)
        run.path.mkdir()
        run.set_status("complete")
    me = RunFolder(tmp_path, "20260101-000001-me")
    assert [path.name for path in history.older_runs(me)] == ["20260101-000000-a"]
