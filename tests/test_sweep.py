"""Sweeps: the file, what runs, what is recorded, what the report says."""

import errno
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from harness.commands.sweep import run_sweep
from harness.common import disk, files, processes, system
from harness.common.errors import ENGINE_FAILED, BenchmarkError, UsageError
from harness.common.paths import ROOT
from harness.common.progress import Display
from harness.config.plan import resolve
from harness.config.run import RunConfig
from harness.runs import folder as results
from harness.sweep import experiment, loop, plots
from harness.sweep import file as sweep_file
from harness.sweep import report as sweep_report
from harness.sweep.choice import Choice
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord
from harness.sweep.file import BASELINE, Experiment, Sweep
from harness.sweep.knob import Knob, knob
from harness.sweep.loop import new, resume
from tests import made
from tests.test_ends import engines

SHORT = "baseline:\n  set: {model: demo, total_sample_count: 16, mode: performance, min_duration: 0.5}\n"


def written(folder: Path, text: str, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def sweep(*arguments: str | Path, **options: object) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    command = [sys.executable, str(ROOT / "sweep.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=500, **options)


@pytest.mark.parametrize("path", sorted((ROOT / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_sweep_is_sound(path: Path) -> None:
    found = sweep_file.load(path)
    assert len(found.experiments) > 5
    assert all(item.about for item in found.experiments)
    assert all(item.changes or item.name.startswith("len-2668") for item in found.experiments[1:])


def test_the_three_kinds(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        SHORT
        + "  engine: {stream_interval: 1}\n"
        + "isolation:\n  - {name: one, set: {max-num-seqs: 8}}\n"
        + "stacked:\n  - {name: two, set: {max_num_seqs: 16}}\n"
        + "  - {name: three, engine: {stream_interval: null}, env: {A: 1}}\n"
        + "grid:\n  set: {max_num_seqs: [4, 8]}\n  engine: {block_size: [16, 32]}\n",
    )
    found = {item.name: item for item in sweep_file.load(path).experiments}
    assert list(found)[:4] == [BASELINE, "one", "two", "three"]
    assert len(found) == 8
    assert found["one"].settings["max_num_seqs"] == 8
    assert "max_num_seqs" not in found[BASELINE].settings
    assert found["three"].settings["max_num_seqs"] == 16
    assert "engine_arg" not in found["three"].settings
    assert found["three"].env == {"A": "1"}
    assert found["three"].changes == ("max_num_seqs=16", "no stream_interval", "A=1")
    assert found["max_num_seqs-8+block_size-32"].settings["engine_arg"] == ["stream_interval=1", "block_size=32"]


def test_a_file_extends_another(tmp_path: Path) -> None:
    theirs = "isolation:\n  - {name: a, set: {max_num_seqs: 8}}\n  - {name: b, set: {seed: 1}}\n"
    written(tmp_path, SHORT + theirs, "x.yaml")
    path = written(tmp_path, "extends: x.yaml\nbaseline: {set: {seed: 3}}\nisolation:\n  - {name: a, set: {seed: 4}}\n")
    found = {item.name: item.settings for item in sweep_file.load(path).experiments}
    assert list(found) == [BASELINE, "a", "b"]
    assert (found[BASELINE]["seed"], found["a"]["seed"], found["b"]["seed"]) == (3, 4, 1)
    assert "max_num_seqs" not in found["a"]
    assert all(settings["model"] == "demo" for settings in found.values())


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("isolation:\n  - {name: a, set: {max_num_sex: 1}}\n", 2, "did you mean max_num_seqs"),
        ("isolation:\n  - name: a\n    sett: {seed: 1}\n", 3, "did you mean set"),
        ("isolation:\n  - name: a\n    set:\n      seed: -1\n", 2, "--seed"),
        ("isolation:\n  - {name: a}\n  - {name: a}\n", 3, "second experiment"),
        ("isolation:\n  - {set: {seed: 1}}\n", 2, "name"),
        ("isolation:\n  - name: a\n    set: {results_dir: x}\n", 3, "sweep itself"),
        ("isolation:\n  - name: a\n    set: {engine_arg: [x=1]}\n", 3, "under `engine:`"),
        ("baseline:\n  set:\n    seed: 1\n    seed: 2\n", 4, "twice"),
        ("baseline: {}\n", 1, "no experiments"),
        ("baseline: {\n\n", 3, "not YAML"),
        ("about: 2024-13-45\n", 1, "not YAML"),
        (
            "baseline: {engine: {quantization: fp8}}\nisolation:\n  - {name: a}\n",
            1,
            "quantization has --quantization",
        ),
        ("about: x\nextends: nowhere.yaml\n", 2, "nowhere.yaml"),
        ("extends: mine.yaml\n", 1, "extends itself"),
        ("- a\n", 1, "baseline"),
        ("isolation:\n  - {name: report.md}\n", 2, "choose another"),
        ("isolation:\n  - {name: max_num_seqs-8}\ngrid: {set: {max_num_seqs: [8]}}\n", 3, "second experiment"),
        ("grid: {set: {max_num_seqs: []}}\n", 1, "at least 1"),
        ("isolation:\n  - name: a\n    env:\n      HF_TOKEN: x\n", 4, "no secrets"),
        ("isolation:\n  - name: a\n    engine: {hf_token: x}\n", 3, "no secrets"),
        ("isolation:\n  - name: a\n    engine:\n      deep: [{api_key: x}]\n", 4, "no secrets"),
        ("isolation:\n  - name: a\n    env: {A=B: x}\n", 3, "match"),
        ("isolation:\n  - name: a\n    set: {max-num-seqs: 1, max_num_seqs: 2}\n", 3, "twice"),
        ("baseline: {engine: &e {c: *e}}\n", 1, "itself"),
        ("baseline: {set: {scenario: server}}\nisolation:\n  - {name: a}\n", 1, "server_target_qps"),
        ("isolation:\n  - {name: a}\nreferences:\n  theirs: 0\n", 4, "greater than 0"),
        ("isolation:\n  - {name: a}\nreferences: [8255]\n", 3, "references"),
        ("baseline: {set: {seed: -1}}\nisolation:\n  - {name: a}\n", 1, "baseline: --seed"),
    ],
)
def test_a_mistake_has_its_line(tmp_path: Path, text: str, line: int, word: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        sweep_file.load(path)
    assert f"{path}:{line}:" in str(caught.value)
    assert word in str(caught.value)


def test_every_mistake_is_named_at_once(tmp_path: Path) -> None:
    path = written(tmp_path, "isolation:\n  - {name: a, set: {x: 1}}\n  - {name: b, set: {seed: -1}}\n  - {name: a}\n")
    done = sweep(path)
    assert done.returncode == 2
    assert [f"{path}:{line}:" in done.stderr for line in (2, 3, 4)] == [True] * 3
    assert "Traceback" not in done.stderr


@given(st.dictionaries(st.text(max_size=8), st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists)))
def test_no_file_is_a_stack_trace(tmp_path_factory: pytest.TempPathFactory, data: dict[str, object]) -> None:
    path = written(tmp_path_factory.mktemp("any"), json.dumps(data))
    with pytest.raises(UsageError):
        sweep_file.load(path)


# What is recorded, on real runs.


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
    found = {record.experiment: record for record in sweep_report.read(folder).records}
    assert list(found) == [BASELINE, "refused", "gone", "unheard"]
    assert found[BASELINE].status == "complete"
    assert found[BASELINE].outcome.get("tokens_per_sec")
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
    again = {record.experiment: record for record in sweep_report.read(folder).records}
    assert again[BASELINE] == found[BASELINE]
    assert again["refused"] == found["refused"]
    assert again["dead"].status == "failed"
    assert "memory" in again["dead"].reason
    assert len(list((folder / BASELINE).glob("2*"))) == 1

    path.write_text(path.read_text() + "  - {name: new, set: {seed: 1}}\n")
    third = sweep(path, "--results-dir", tmp_path, "--resume")
    assert third.returncode == 2
    assert "another state" in third.stderr


def test_a_sweep_is_not_resumed_with_other_software(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n")
    place = new(sweep_file.load(path), tmp_path).folder
    assert resume(sweep_file.load(path), tmp_path).folder == place
    facts = json.loads((place.path / "sweep.json").read_text())
    facts["system"]["packages"]["torch"] = "1.0"
    facts["system"]["cores"] += 1
    (place.path / "sweep.json").write_text(json.dumps(facts))
    with pytest.raises(UsageError, match="made with other cores and packages"):
        resume(sweep_file.load(path), tmp_path)


@pytest.mark.engine
def test_a_run_that_was_killed_is_called_that(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n")
    words = [sys.executable, str(ROOT / "sweep.py"), str(path), "--results-dir", str(tmp_path), "--only", "a"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    while not (runs := list((tmp_path / "sweeps").glob(f"2*/{BASELINE}/2*/status.json"))):
        time.sleep(0.1)
    psutil.Process(process.pid).children()[0].kill()
    while not (records := sweep_report.read(runs[0].parents[2]).records):
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
    experiment.end(process)
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


@pytest.mark.slow
def test_a_run_that_never_began_did_not_come_to_its_end(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "  env: {PYTHONHASHSEED: never}\nisolation:\n  - {name: a, set: {seed: 1}}\n")
    assert sweep(path, "--results-dir", tmp_path).returncode == 3
    (folder,) = (tmp_path / "sweeps").glob("2*")
    assert [record.status for record in sweep_report.read(folder).records] == ["failed", "failed"]


@pytest.mark.engine
def test_a_hanging_experiment_is_ended(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {min_duration: 300}}\n")
    done = sweep(path, "--results-dir", tmp_path, "--timeout", "8")
    assert done.returncode == 3, done.stderr
    (folder,) = (tmp_path / "sweeps").glob("2*")
    assert [record.status for record in sweep_report.read(folder).records] == ["timeout", "timeout"]
    assert "nothing to compare with" in done.stdout
    lock = (folder / ".lock").open()
    fcntl.flock(lock, fcntl.LOCK_EX)
    again = sweep(path, "--results-dir", tmp_path, "--resume")
    assert again.returncode == 2
    assert "still going on" in again.stderr
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
    assert [record.status for record in sweep_report.read(folder).records] == ["interrupted"]
    assert json.loads((folder / "status.json").read_text())["status"] == "interrupted"
    assert not engines()


def test_the_next_one_waits_for_the_gpus_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = [9 << 30, 9 << 30, 2 << 30]
    monkeypatch.setattr(system, "gpu_memory_used", lambda _: taken.pop(0) if len(taken) > 1 else taken[0])
    record = ExperimentRecord("one", 0, "failed", "no room")
    assert experiment.wait_for_gpu_memory(record, 2 << 30) == record
    assert taken == [2 << 30]
    monkeypatch.setattr(experiment, "MEMORY_WAIT_S", 0.1)
    assert experiment.wait_for_gpu_memory(record, 0).reason == "no room; GPU memory was still taken 0.1 s after its end"
    assert experiment.wait_for_gpu_memory(ExperimentRecord("one", 0, "complete"), 0).reason.startswith("GPU memory")


def test_an_interruption_while_memory_is_waited_for_costs_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = sweep_file.load(written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n"))
    going = new(few, tmp_path)
    monkeypatch.setattr(experiment, "run_experiment", lambda *_, **__: ExperimentRecord(BASELINE, 0, "complete"))
    monkeypatch.setattr(experiment, "wait_for_gpu_memory", Mock(side_effect=KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt), Display(Console()) as display:
        loop.rounds(list(few.experiments), Choice(), going, 0, display)
    assert [record.status for record in sweep_report.read(going.folder.path).records] == ["complete"]


@pytest.mark.parametrize(("begun", "message"), [(False, "the disk of .* is full"), (True, "No space left on device")])
def test_a_full_disk_ends_a_sweep_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool, message: str
) -> None:
    path = written(tmp_path, SHORT + "isolation:\n  - {name: a, set: {seed: 1}}\n")
    ran = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    monkeypatch.setattr(experiment, "run_experiment", ran)
    if not begun:
        monkeypatch.setattr(disk, "SPARE_BYTES", 2**62)
    monkeypatch.setattr(processes, "install_signal_handlers", lambda: None)
    with pytest.raises(BenchmarkError, match=f"{message}.*--resume goes on from here") as error:
        run_sweep(path, Choice(), resume=False, dry_run=False, results_dir=tmp_path, mlflow=False)
    assert error.value.exit_code == ENGINE_FAILED
    assert ran.called == begun
    (status,) = (tmp_path / "sweeps").glob("2*/status.json")
    assert files.read_json(status)["status"] == "failed"


# What the report says.


def state(*records: ExperimentRecord) -> sweep_report.State:
    names = dict.fromkeys(record.experiment for record in records)
    kinds = {BASELINE: "baseline"}
    items = tuple(Experiment(name, "", kinds.get(name, "stacked"), {}, {}, {}) for name in names)  # type: ignore[arg-type]
    system = {"gpus": [], "cpu": "a CPU", "cores": 2, "packages": {"vllm": "0"}, "git_revision": None}
    return sweep_report.State("python sweep.py", "2026-01-31T10:00:00+0000", system, Sweep("s", "", items), records)


def ran(name: str, speed: float, turn: int = 0, **more: object) -> ExperimentRecord:
    known = {"tokens_per_sec": speed, "valid": True, "verdict": "PASS", "rouge1": 40.0, "duration_s": 10.0, **more}
    verdicts = {key: known.pop(key) for key in ("valid", "verdict")}
    return ExperimentRecord(name, turn, "complete", outcome=ExperimentOutcome(known, **verdicts))


def test_the_words_follow_from_the_numbers(tmp_path: Path) -> None:
    given = state(
        ran(BASELINE, 100),
        ran("fast", 150),
        ran("slow", 50),
        ran("same", 101),
        ran("wrong", 300, verdict="FAIL", rouge1=20.0),
        ran("unsure", 110, verdict="INCONCLUSIVE"),
        ran("short", 200, valid=False),
        ran("brief", 200, duration_s=4.9),
        ExperimentRecord("broken", 0, "failed", "no memory"),
    )
    (tmp_path / "sweep.json").write_text(json.dumps(asdict(given)))
    report = sweep_report.build(tmp_path)
    words = "\n".join(sweep_report.findings(report))
    assert "Helped: fast (+50.0 %), unsure (+10.0 %)." in words
    assert "Hurt: slow (-50.0 %)." in words
    assert "no difference: same" in words
    assert "Unsafe, whatever the speed: wrong (ROUGE-1 -20.00)." in words
    assert "INVALID by LoadGen, so no speed to go by: short." in words
    assert "Accuracy not shown to hold: unsure." in words
    assert "Tests under 5 s, too short to tell: brief (+100.0 %)." in words
    assert "broken failed: no memory" in words
    page = (tmp_path / "report.md").read_text()
    assert "~~300~~ not usable" in page
    assert "~~200~~ not usable" in page
    assert "| output tokens/s | duration, s | ROUGE-1 |" in page
    assert "peak memory" not in page  # no run measured it
    table = page.split("## All experiments")[1].split("## Runs")[0]
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {"speedups.png", "pareto.png", "stack.png"}


def turned(*values: float | None, key: str = "max_num_seqs") -> Sweep:
    settings = [{"scenario": "offline"} | ({} if value is None else {key: value}) for value in values]
    names = [BASELINE, *(f"n{place}" for place in range(1, len(values)))]
    kinds = ["baseline", *["isolation"] * (len(values) - 1)]
    items = [
        Experiment(name, "", kind, given, {}, {}) for name, kind, given in zip(names, kinds, settings, strict=True)
    ]  # type: ignore[arg-type]
    return Sweep("s", "", tuple(items))


def test_a_sweep_over_one_number_is_told_from_others() -> None:
    assert knob(turned(None, 16, 64)) == Knob("max_num_seqs", {"n1": 16, "n2": 64})
    assert knob(turned(8, 16)) == Knob("max_num_seqs", {BASELINE: 8, "n1": 16})
    assert knob(turned(None, 16)) is None  # one number alone is no axis
    assert knob(turned(8, None, 16)) is None
    assert knob(turned(False, True, True)) is None
    assert knob(turned(None)) is None
    other = replace(turned(8, 16).experiments[1], env={"VLLM_X": "1"})
    assert knob(Sweep("s", "", (turned(8).experiments[0], other))) is None


def test_a_number_has_an_axis_instead_of_bars(tmp_path: Path) -> None:
    runs = ran(BASELINE, 100, tpot_p99_ms=9.0), ran("n1", 150, tpot_p99_ms=12.0), ran("n2", 160, tpot_p99_ms=30.0)
    given = replace(state(*runs), sweep=turned(4, 16, 64))
    (tmp_path / "sweep.json").write_text(json.dumps(asdict(given)))
    drawn: list[Any] = []
    draw = plots.by_number
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "by_number", lambda *asked: drawn.append(draw(*asked)) or drawn[-1])
        sweep_report.build(tmp_path)
    speed, tail = drawn[0].axes
    assert speed.get_xlabel() == "--max-num-seqs"
    assert [list(line) for line in speed.lines[0].get_xydata()] == [[4, 100], [16, 150], [64, 160]]
    assert [list(line) for line in tail.lines[0].get_xydata()] == [[4, 9], [16, 12], [64, 30]]
    assert speed.get_xscale() == "log"
    assert (tmp_path / "plots" / "speedups.png").exists()


def test_speeds_known_from_elsewhere_are_drawn_and_told(tmp_path: Path) -> None:
    path = written(tmp_path, SHORT + "references: {theirs: 120}\nisolation:\n  - {name: a, set: {seed: 1}}\n")
    mine = written(tmp_path, "extends: mine.yaml\nreferences: {limit: 300.0}\n", "other.yaml")
    known = sweep_file.load(mine).references
    assert known == {"theirs": 120.0, "limit": 300.0}
    assert sweep_file.load(path).references == {"theirs": 120.0}

    runs = ran(BASELINE, 100), ran("fast", 150), ran("brief", 400, duration_s=4.9), busy(ran("busy", 200))
    given = state(*runs, ran("wrong", 500, verdict="FAIL"))
    given = replace(given, sweep=replace(given.sweep, references=known))
    words = list(sweep_report.against_references(sweep_report.Report(given, tuple(sweep_report.rows(given)))))
    assert words == [
        "The fastest, fast (150 output tokens/s), has 1.250 times theirs.",
        "The fastest, fast (150 output tokens/s), has 0.500 times limit.",
    ]
    bars = plots.speedups([(BASELINE, 1.0, 1.0, 1.0, True), ("fast", 1.5, 1.5, 1.5, True)], known, 100.0).axes[0]
    lines = {line.get_label(): line.get_xdata()[0] for line in bars.lines[1:]}
    assert lines == {"theirs: 120": 1.2, "limit: 300": 3.0}
    assert bars.get_xlim()[1] > 3.0
    stack = plots.path([(BASELINE, 100, True), ("fast", 150, True)], known).axes[0]
    assert {line.get_label(): line.get_ydata()[0] for line in stack.lines[-2:]} == {
        "theirs: 120": 120,
        "limit: 300": 300,
    }


def busy(record: ExperimentRecord) -> ExperimentRecord:
    return replace(record, outcome=replace(record.outcome, background_load=("other programs used 1.9 of 2 CPU cores",)))


def test_on_an_axis_what_ran_on_a_busy_machine_is_hollow() -> None:
    given = replace(state(ran(BASELINE, 100), busy(ran("n1", 150)), ran("n2", 160)), sweep=turned(4, 16, 64))
    turn = knob(given.sweep)
    assert turn
    figure = plots.by_number("--max-num-seqs", sweep_report.on_axis(sweep_report.rows(given), turn), {})
    points = [line for line in figure.axes[0].lines if line.get_marker() == "o"]
    assert [point.get_markerfacecolor() == "white" for point in points] == [False, True, False]
    assert figure.axes[0].get_ylabel() == "output tokens/s; hollow: machine busy"


def test_a_busy_machine_gives_no_verdict() -> None:
    hurt = state(ran(BASELINE, 100), busy(ran("a", 50)), ran("b", 50))
    assert {row.name: row.effect for row in sweep_report.rows(hurt)} == {
        BASELINE: "unknown",
        "a": "busy machine",
        "b": "hurt",
    }
    words = "\n".join(sweep_report.findings(sweep_report.Report(hurt, tuple(sweep_report.rows(hurt)))))
    assert "Other programs used the machine, so nothing can be said of: a (-50.0 %)." in words
    start = state(busy(ran(BASELINE, 100)), ran("b", 50))
    assert [row.effect for row in sweep_report.rows(start)] == ["unknown", "busy machine"]


def test_rounds_are_held_against_their_own_baseline() -> None:
    first = ran(BASELINE, 100), ran("a", 120), ran("b", 90)
    second = ran(BASELINE, 50, 1), ran("a", 55, 1), ran("b", 60, 1)
    rows = {row.name: row for row in sweep_report.rows(state(*first, *second))}
    ratio = rows["a"].ratio
    assert ratio is not None
    assert (ratio.low, ratio.mean, ratio.high) == pytest.approx((1.1, 1.15, 1.2))
    assert rows["a"].effect == "helped"
    assert rows["b"].effect == "no difference"  # once better, once worse
    assert rows["a"].speed == 87.5


def test_the_worst_round_decides_on_accuracy() -> None:
    given = state(ran(BASELINE, 100), ran("a", 120), ran(BASELINE, 100, 1), ran("a", 120, 1, verdict="INCONCLUSIVE"))
    rows = {row.name: row for row in sweep_report.rows(given)}
    assert rows[BASELINE].accuracy == "SAFE"
    assert rows["a"].accuracy == "INCONCLUSIVE"


@pytest.mark.parametrize("flaw", [{"valid": False}, {"verdict": "FAIL"}])
def test_nothing_is_held_against_a_baseline_that_does_not_count(flaw: dict[str, object]) -> None:
    given = state(ran(BASELINE, 100, **flaw), ran("a", 120))
    report = sweep_report.Report(given, tuple(sweep_report.rows(given)))
    assert all(row.ratio is None for row in report.rows)
    assert "nothing to compare with" in "\n".join(sweep_report.findings(report))


@pytest.mark.parametrize(("seconds", "effect"), [(600.0, "helped"), (6.0, "no difference")])
def test_noise_is_no_finding(seconds: float, effect: str) -> None:
    first = ran(BASELINE, 100), ran("a", 104, duration_s=seconds)
    second = ran(BASELINE, 100, 1), ran("a", 105, 1, duration_s=seconds)
    rows = {row.name: row for row in sweep_report.rows(state(*first, *second))}
    assert rows["a"].effect == effect


def test_at_a_fixed_rate_the_speed_is_no_finding() -> None:
    def at(rate: object, speed: float) -> list[str]:
        settings = {"scenario": "server", "server_target_qps": rate}
        given = state(ran(BASELINE, 100, duration_s=600.0), ran("a", speed, duration_s=600.0))
        items = tuple(replace(item, settings=settings) for item in given.sweep.experiments)
        given = replace(given, sweep=replace(given.sweep, experiments=items))
        return list(sweep_report.findings(sweep_report.Report(given, tuple(sweep_report.rows(given)))))[:1]

    assert at(40, 103) == ["The baseline's speed is its target rate: what compares is TTFT and TPOT at the same rate."]
    assert at("max", 103) == ["Made no difference: a (+3.0 %)."]
    assert at("max", 107) == ["Helped: a (+7.0 %)."]


@pytest.mark.parametrize(
    "other",
    [
        {"category": "edge"},
        {"total_sample_count": 20},
        {"scenario": "singlestream"},
        {"input_len": 64, "output_len": 512},
        {"workload": "chat"},
        {"max_new_tokens": 16},
    ],
)
def test_speeds_at_other_work_are_not_compared(other: dict[str, object]) -> None:
    given = state(ran(BASELINE, 100, duration_s=600.0), ran("a", 200, duration_s=600.0))
    base, item = given.sweep.experiments
    given = replace(given, sweep=replace(given.sweep, experiments=(base, replace(item, settings=other))))
    (row,) = (row for row in sweep_report.rows(given) if row.name == "a")
    assert (row.ratio, row.effect) == (None, "unknown")
    said = list(sweep_report.findings(sweep_report.Report(given, tuple(sweep_report.rows(given)))))
    assert [line for line in said if line.startswith("a is not compared: it is other work than the baseline's (--")]


def test_what_a_busy_machine_slowed_down_is_on_no_front() -> None:
    from harness.sweep.plots import trade_off

    figure = trade_off([("a", 100.0, 50.0, True, True), ("b", 90.0, 60.0, True, False)])
    (front,) = (line for line in figure.axes[0].lines if line.get_label() == "Pareto front")
    assert list(front.get_xdata()) == [100.0]
    assert "hollow: machine busy" in figure.axes[0].get_title()


def test_an_experiment_that_cannot_be_started_is_recorded(tmp_path: Path) -> None:
    item = Experiment("a", "", "isolation", {}, {}, {"A": "\0"})
    record = experiment.run_experiment(item, 0, tmp_path, 10, os.open(tmp_path, os.O_RDONLY), lambda _: None)
    assert (record.status, record.reason) == ("failed", "run.py could not be started: embedded null byte")


def test_a_sweep_of_accuracy_alone_needs_no_speed() -> None:
    none = {"valid": None, "tokens_per_sec": None}
    given = state(ran(BASELINE, 0, **none), ran("a", 0, **none), ran("b", 0, **none, verdict="FAIL", rouge1=30.0))
    report = sweep_report.Report(given, tuple(sweep_report.rows(given)))
    assert list(sweep_report.findings(report)) == ["Safe: baseline, a.", "Unsafe: b (ROUGE-1 -10.00)."]


def test_only_what_all_runs_lack_stands_above_the_table(tmp_path: Path) -> None:
    given = state(replace(ran(BASELINE, 100), run="baseline/1"), replace(ran("a", 120), run="a/1"))
    for run, lacking in (("baseline/1", ["short"]), ("a/1", ["short", "speculative decoding"])):
        (tmp_path / run).mkdir(parents=True)
        plan = resolve(RunConfig(model="demo"), [], 0)
        made.record(results.RunFolder(tmp_path, run), plan, command="c", started="s", system={})
        made.note(results.RunFolder(tmp_path, run), deviations=lacking)
    (tmp_path / "sweep.json").write_text(json.dumps(asdict(given)))
    sweep_report.build(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "results:** short.\n" in page
    assert "complete (not comparable: speculative decoding)" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"sweep": {}, "records": []}', "written in an older format; use the version that wrote it"),
        ("[]", "sweep.json: not an object"),
        ("{", "sweep.json: not JSON"),
        ('{"schema_version": 2}', "sweep.json: command: Field required"),
    ],
)
def test_a_sweep_that_cannot_be_read_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        sweep_report.read(tmp_path)


def test_a_folder_without_a_sweep_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no sweep\.json in it"):
        sweep_report.read(tmp_path)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100)), max_size=20))
def test_the_pareto_front(points: list[tuple[float, float]]) -> None:
    front = plots.pareto(points)
    for x, y in points:
        assert any(a >= x and b >= y for a, b in front)
    for point in front:
        beaten = [p for p in points if p[0] >= point[0] and p[1] >= point[1] and p != point]
        assert not beaten
