"""What a sweep runs and records: failures, interruptions, resumption, on real runs where it matters."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from rich.console import Console

from harness.core import files, nvml, processes
from harness.core.errors import ENGINE_FAILED, BenchmarkError, UsageError
from harness.core.interrupts import INTERRUPTED
from harness.core.locations import ROOT
from harness.core.progress import Display
from harness.sweep import experiment, loop
from harness.sweep import file as sweep_file
from harness.sweep import report as sweep_report
from harness.sweep.experiment import ExperimentRecord, Job
from harness.sweep.file import BASELINE, Experiment
from harness.sweep.lanes import Lane
from harness.sweep.loop import resume_sweep
from tests.conftest import patience, tells
from tests.runs.test_failed_runs import engines
from tests.support.example_sweeps import SHORT, opened, written


def sweep(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "sweep.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, **({"timeout": 500} | options))


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "isolation:\n  - {name: a, set: {x: 1}}\n  - {name: b, set: {seed: -1}}\n  - {name: a}\n")
    done = sweep(path)
    assert done.returncode == 2
    assert [f"{path}:{line}:" in done.stderr for line in (2, 3, 4)] == [True] * 3
    assert "Traceback" not in done.stderr


@pytest.mark.engine
def test_a_sweep_goes_on_after_failures_and_resumes(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        SHORT
        + "isolation:\n"
        + "  - {name: refused, set: {max_model_len: 256}}\n"
        + "  - {name: dead, set: {gpu_memory_utilization: 1.0}}\n"
        + "  - {name: gone, engine: {use_v2_block_manager: true}}\n"
        + "  - {name: unheard, env: {VLLM_NO_SUCH_THING: 1}}\n",
    )
    first = sweep(path, "--results-dir", tmp_path, "--only", "refused", "--only", "gone", "--only", "unheard")
    assert first.returncode == 0, first.stderr
    (folder,) = (tmp_path / "sweeps").glob("2*")
    found = {record.experiment: record for record in sweep_report.read_state(folder).records}
    assert list(found) == [BASELINE, "refused", "gone", "unheard"]
    assert found[BASELINE].status == "complete"
    assert found[BASELINE].outcome.values["tokens_per_sec"]
    assert found["refused"].status == "failed"
    assert "--max-model-len" in found["refused"].reason
    assert found["gone"].status == found["unheard"].status == "skipped"
    assert "use_v2_block_manager" in found["gone"].reason
    assert "VLLM_NO_SUCH_THING" in found["unheard"].reason
    page = (folder / "report.md").read_text()
    assert found["refused"].reason in page
    assert (tmp_path / "sweeps" / "latest").resolve() == folder.resolve()

    second = sweep(path, "--results-dir", tmp_path, "--resume")
    assert second.returncode == 0, second.stderr
    again = {record.experiment: record for record in sweep_report.read_state(folder).records}
    assert again[BASELINE] == found[BASELINE]
    assert again["refused"] == found["refused"]
    assert again["dead"].status == "failed"
    assert "memory" in again["dead"].reason
    assert len(list((folder / BASELINE).glob("2*"))) == 1

    path.write_text(path.read_text() + "  - {name: new, set: {seed: 1}}\n")
    third = sweep(path, "--results-dir", tmp_path, "--resume")
    assert third.returncode == 2
    assert "--resume" in third.stderr


def test_a_sweep_is_not_resumed_with_other_software(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n")
    asked = sweep_file.load_sweep(path)
    state = opened(asked, tmp_path)
    state.keep()
    place = state.folder
    assert resume_sweep(asked, tmp_path) == (place, state.kept)
    facts = json.loads((place.path / "sweep.json").read_text())
    facts["system"]["packages"]["torch"] = "1.0"
    facts["system"]["cores"] += 1
    (place.path / "sweep.json").write_text(json.dumps(facts))
    with pytest.raises(UsageError, match=r"cores and torch; .*--resume"):
        resume_sweep(sweep_file.load_sweep(path), tmp_path)


@pytest.mark.engine
def test_a_run_that_was_killed_is_called_that(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n")
    words = [sys.executable, str(ROOT / "sweep.py"), str(path), "--results-dir", str(tmp_path), "--only", "a"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not (runs := list((tmp_path / "sweeps").glob(f"2*/{BASELINE}/2*/status.json"))):
        time.sleep(0.1)
    (run,) = (each for each in psutil.Process(process.pid).children() if str(ROOT / "run.py") in each.cmdline())
    run.kill()
    while not (records := sweep_report.read_state(runs[0].parents[2]).records):
        time.sleep(0.1)
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert records[0].status == "failed"
    assert records[0].reason.startswith("run.py was ended by SIGKILL")
    assert json.loads(runs[0].read_text())["status"] == "failed"


@pytest.mark.engine
def test_what_a_run_that_died_leaves_behind_is_ended(tmp_path: Path) -> None:
    words = f"sleep 300 & echo $! > {tmp_path}/child; kill -KILL $$"
    process = subprocess.Popen(["bash", "-c", words], start_new_session=True)
    process.wait()
    child = psutil.Process(int((tmp_path / "child").read_text()))
    processes.end_group(process)
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_run_that_never_began_did_not_come_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "  env: {PYTHONHASHSEED: never}\nisolation:\n  - {name: a, set: {seed: 1}}\n")
    done = sweep(path, "--results-dir", tmp_path)
    assert done.returncode == 3 and done.stderr.startswith("error: the baseline did not complete: ")
    (folder,) = (tmp_path / "sweeps").glob("2*")
    assert [record.status for record in sweep_report.read_state(folder).records] == ["failed", "failed"]


@pytest.mark.engine
def test_a_hanging_experiment_is_ended(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {min_duration: 300}}\n")
    done = sweep(path, "--results-dir", tmp_path, "--timeout", "8")
    assert done.returncode == 3, done.stderr
    (folder,) = (tmp_path / "sweeps").glob("2*")
    assert [record.status for record in sweep_report.read_state(folder).records] == ["timeout", "timeout"]
    assert "no speedup can be given" in done.stdout
    lock = (folder / ".lock").open()
    fcntl.flock(lock, fcntl.LOCK_EX)
    again = sweep(path, "--results-dir", tmp_path, "--resume")
    assert again.returncode == 2
    assert "still running" in again.stderr
    assert not engines()


@pytest.mark.engine
def test_ctrl_c_ends_the_experiment_too_and_the_sweep_goes_on_later(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {max_num_seqs: 8}}\n")
    command = [sys.executable, str(ROOT / "sweep.py"), str(path), "--results-dir", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONUNBUFFERED": "1"})
    screen = tmp_path / "sweeps"
    until = time.monotonic() + 120
    while not any("starting vLLM" in file.read_text() for file in screen.glob(f"2*/{BASELINE}/screen.txt")):
        assert time.monotonic() < until
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    (folder,) = (tmp_path / "sweeps").glob("2*")
    assert [record.status for record in sweep_report.read_state(folder).records] == ["interrupted"]
    assert json.loads((folder / "status.json").read_text())["status"] == "interrupted"
    assert not engines()


def test_the_next_one_waits_for_the_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [9 << 30, 9 << 30, 2 << 30]
    monkeypatch.setattr(nvml, "gpu_memory_used", lambda _: taken.pop(0) if len(taken) > 1 else taken[0])
    record = ExperimentRecord("one", 0, "failed", "no room")
    assert experiment.wait_for_gpu_memory(record, 2 << 30, Lane()) == record
    assert taken == [2 << 30]
    monkeypatch.setattr(experiment, "MEMORY_WAIT_S", 0.1)
    assert tells(experiment.wait_for_gpu_memory(record, 0, Lane()).reason, "no room; GPU memory ", "0.1 s ")
    done = ExperimentRecord("one", 0, "complete")
    assert experiment.wait_for_gpu_memory(done, 0, Lane()).reason.startswith("GPU memory")


def test_an_interruption_while_memory_is_waited_for_costs_no_record_and_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = sweep_file.load_sweep(written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n"))
    state = opened(few, tmp_path)
    monkeypatch.setattr(experiment, "wait_for_gpu_memory", Mock(side_effect=KeyboardInterrupt))
    with Display(Console()) as display:
        code = loop.run_sweep(
            state, [Lane()], display, lambda job, lane, watch: ExperimentRecord(BASELINE, 0, "complete")
        )
    assert code == INTERRUPTED
    folder = state.folder.path
    assert [record.status for record in sweep_report.read_state(folder).records] == ["complete"]
    assert json.loads((folder / "status.json").read_text())["status"] == "interrupted"
    assert "--resume" in (folder / "report.md").read_text() and (folder / "report.html").exists()


def test_a_sweep_begins_with_how_many_it_runs(tmp_path: Path) -> None:
    file_text = SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n  - {name: b, set: {seed: 2}}\n"
    state = opened(sweep_file.load_sweep(written(tmp_path, file_text)), tmp_path)
    assert loop.chosen_text(state) == "baseline and 2 changes"
    state.skipped["b"] = "no such argument"
    assert tells(loop.chosen_text(state), "baseline and 2 changes", "1 ", "skipped")


@pytest.mark.parametrize(
    ("begun", "done", "message"),
    [
        (False, [], r"the disk of .* is full.*\.$"),
        (True, [], r"No space left on device\.$"),
        (
            True,
            [ExperimentRecord(BASELINE, 0, "complete")],
            r"No space left on device\. --resume continues from here\.$",
        ),
    ],
)
def test_a_full_disk_ends_a_sweep_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, done: list[ExperimentRecord], message: str
) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n")
    ran = Mock(side_effect=[*done, OSError(errno.ENOSPC, "No space left on device")])
    if not begun:
        monkeypatch.setattr(files, "SPARE_BYTES", 2**62)
    asked = sweep_file.load_sweep(path)
    state = opened(asked, tmp_path)
    with (
        Display(Console(quiet=True)) as display,
        pytest.raises(BenchmarkError, match=message) as error,
    ):
        loop.run_sweep(state, [Lane()], display, ran)
    assert error.value.exit_code == ENGINE_FAILED
    assert ran.called == begun
    (status,) = (tmp_path / "sweeps").glob("2*/status.json")
    assert files.read_json(status)["status"] == "failed"
    assert (status.parent / "report.html").exists() == bool(done)  # of nothing there is no report


def test_a_lock_that_is_a_fifo_is_named_and_not_waited_for(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n")
    asked = sweep_file.load_sweep(path)
    state = opened(asked, tmp_path)
    state.keep(note="")
    os.mkfifo(lock := state.folder.path / ".lock")
    done = sweep(path, "--results-dir", tmp_path, "--resume", timeout=patience(20))
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done.stderr
    assert tells(done.stderr, f"error: {lock}: ", "not a regular file") and lock.is_fifo()


def test_a_job_is_named_by_its_round_of_those_that_were_planned() -> None:
    experiment = Experiment("a", "", "isolation", {}, {}, {})
    labels = [Job(experiment, index).label(rounds) for index, rounds in ((0, 1), (0, 4), (3, 4), (4, 4))]
    assert labels == ["a", "a (1 of 4)", "a (4 of 4)", "a (round 5)"]
    assert Job(experiment, 0, final=True).label(4) == "a at full length"


def test_an_experiment_that_cannot_be_started_is_recorded(tmp_path: Path) -> None:
    job = Job(Experiment("a", "", "isolation", {}, {}, {"A": "\0"}), 0)
    lock = os.open(tmp_path, os.O_RDONLY)
    record = experiment.run_experiment(job, Lane(), lambda _: None, tmp_path, 10, lock)
    assert record.status == "failed" and tells(record.reason, "run.py ", ": embedded null byte")
