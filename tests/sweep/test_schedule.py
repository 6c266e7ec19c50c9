"""Which experiment runs where and when: GPUs side by side, the time limit, finalists."""

import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.core import system
from harness.core.errors import UsageError
from harness.core.progress import Display
from harness.core.statements import Statement
from harness.sweep import experiment, lanes, loop
from harness.sweep import report as sweep_report
from harness.sweep.crew import Crew, Runner
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord, Job, Watch
from harness.sweep.experiment_result import experiment_rows
from harness.sweep.file import BASELINE, Sweep
from harness.sweep.findings import SweepReport, document
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import SweepOptions, SweepState
from tests.conftest import tells
from tests.support.example_sweeps import loaded, opened, ran, state

# Side by side.


def test_the_cores_are_divided_among_the_gpus() -> None:
    both = lanes.divide_lanes(["2", "5"], range(8))
    assert [(lane.gpu, lane.number, set(lane.cores)) for lane in both] == [
        ("2", 0, {0, 1, 2, 3}),
        ("5", 1, {4, 5, 6, 7}),
    ]
    assert both[1].env == {"CUDA_VISIBLE_DEVICES": "5"}
    assert Lane().env == {}
    assert [set(lane.cores) for lane in lanes.divide_lanes(list("0123"), {7, 9})] == [{7}, {7}, {9}, {9}]


def test_one_gpu_is_nothing_to_run_side_by_side_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "visible_gpus", lambda: ["0"])
    with pytest.raises(UsageError, match="1 visible GPU"):
        lanes.choose_lanes(True)
    assert lanes.choose_lanes(False) == [Lane()]


BOTH = lanes.divide_lanes(["0", "1"], system.cores())  # two GPUs side by side


def work(
    found: Sweep,
    folder: Path,
    options: SweepOptions,
    run: Runner,
    places: Sequence[Lane] = (Lane(),),
    resume: bool = False,
) -> SweepState:
    """A sweep whose jobs `run` runs, once they are done."""
    state = opened(found, folder, options, resume)
    with Display(Console(quiet=True)) as display:
        loop.run_rounds(state, Crew(state, run, display), places)
    return state


def test_side_by_side_each_gpu_has_its_own_baseline_and_cores(tmp_path: Path) -> None:
    meeting = threading.Barrier(2, timeout=20)  # broken unless two run at the same time
    cores: dict[str, set[int]] = {}

    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        if job.item.name == BASELINE and job.round == 0:
            meeting.wait()
        cores[lane.gpu] = os.sched_getaffinity(0)
        return replace(ran(job.item.name, 100.0, job.round), gpu=lane.gpu, final=job.final, seconds=1.0)

    found = loaded(tmp_path, "".join(f"  - {{name: n{n}, set: {{max_num_seqs: {n}}}}}\n" for n in (2, 4, 8)))
    records = work(found, tmp_path, SweepOptions(repeat=2), run, BOTH).kept.records
    assert {(r.round, r.gpu) for r in records if r.experiment == BASELINE} >= {(0, "0"), (0, "1")}
    ran_once = sorted((r.experiment, r.round) for r in records if r.experiment != BASELINE)
    assert ran_once == [(f"n{n}", turn) for n in (2, 4, 8) for turn in (0, 1)]
    for record in records:  # each after the baseline of the same round and GPU
        assert any(r.key == (BASELINE, record.round, False, record.place) for r in records)
    if len(system.cores()) > 1:
        assert not cores["0"] & cores["1"]


def test_a_change_is_that_against_the_baseline_of_the_same_gpu() -> None:
    base = replace(ran(BASELINE, 100), gpu="0"), replace(ran(BASELINE, 50), gpu="1")
    given = state(*base, replace(ran("a", 55), gpu="1"))
    (row,) = (row for row in experiment_rows(given) if row.name == "a")
    assert row.gain and row.gain.mean == pytest.approx(1.1)
    said = " ".join(line.text for line in document(SweepReport(given, tuple(experiment_rows(given)))).lines)
    assert "share the CPU" in said


def test_a_failure_on_one_gpu_ends_the_others(tmp_path: Path) -> None:
    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        if lane.gpu == "1":
            raise OSError("full")
        until = time.monotonic() + 20
        while not watch("going"):
            assert time.monotonic() < until
        return ExperimentRecord(job.item.name, job.round, "interrupted", gpu=lane.gpu)

    with pytest.raises(OSError, match="full"):
        work(loaded(tmp_path, "  - {name: a, set: {seed: 1}}\n"), tmp_path, SweepOptions(), run, BOTH)


# The time limit, and what is worth most.


@pytest.mark.parametrize(
    ("screen", "stage"),
    [
        ("", ""),
        ("demo, datacenter offline\n", ""),
        ("08:28:27 accuracy test  0:15  62 %\n", "accuracy test  0:15  62 %"),
        ("08:28:42 performance test\n         128 samples in about 16 s\n", "performance test"),
        ("08:29:10 writing the report\n\n951.4 output tokens/s, accuracy PASS\n", "writing the report"),
    ],
)
def test_the_stage_of_a_run_is_its_last_line_with_a_time_without_that(tmp_path: Path, screen: str, stage: str) -> None:
    (tmp_path / "screen.txt").write_text(screen)
    assert experiment.last_stage(tmp_path / "screen.txt") == stage


def test_the_time_limit_leaves_the_least_valuable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        now[0] += 60
        return replace(ran(job.item.name, 100.0, job.round), seconds=60.0)

    names = "  - {name: a, set: {seed: 1}}\n  - {name: b, set: {seed: 2}}\n  - {name: c, priority: 1, set: {seed: 3}}\n"
    found = loaded(tmp_path, names)
    state = work(found, tmp_path, SweepOptions(limit=200.0), run)
    assert [record.experiment for record in state.kept.records] == [BASELINE, "c", "a"]
    (folder,) = (tmp_path / "sweeps").glob("2*")
    assert tells(sweep_report.read_state(folder).note, "time limit of 3.33333 min ", " b")
    state = work(found, tmp_path, SweepOptions(), run, resume=True)
    assert [record.experiment for record in state.kept.records] == [BASELINE, "c", "a", "b"]
    assert sweep_report.read_state(folder).note == ""


def test_what_runs_at_the_time_limit_is_ended_and_runs_again_later(tmp_path: Path) -> None:
    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        until = time.monotonic() + 20
        while not watch("going"):
            assert time.monotonic() < until
        return ExperimentRecord(job.item.name, job.round, "interrupted", "interrupted")

    found = loaded(tmp_path, "  - {name: a, set: {seed: 1}}\n")
    (record,) = work(found, tmp_path, SweepOptions(limit=0.5), run).kept.records
    assert (record.status, record.reason) == ("interrupted", "ended by the time limit")
    assert record.status not in experiment.ENDED_STATUSES


def test_finalists_run_without_what_shortens_them(tmp_path: Path) -> None:
    asked = []

    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        name, settings = job.item.name, job.item.settings
        asked.append((name, job.final, "total_sample_count" in settings, "min_duration" in settings))
        speed = {BASELINE: 100.0, "fast": 130.0, "faster": 140.0, "slow": 50.0}[name]
        return replace(
            ran(name, speed, job.round),
            final=job.final,
            outcome=ExperimentOutcome(
                ran(name, speed).outcome.values, True, ran_out=(Statement("the CPU was busy", "buy more"),)
            ),
        )

    names = "".join(f"  - {{name: {n}, set: {{seed: {s}}}}}\n" for s, n in enumerate(("fast", "faster", "slow")))
    records = work(loaded(tmp_path, names), tmp_path, SweepOptions(finalists=1), run).kept.records
    assert asked[4:] == [(BASELINE, True, False, False), ("faster", True, False, False)]
    assert asked[0] == (BASELINE, False, True, True)
    (folder,) = (tmp_path / "sweeps").glob("2*")
    report = sweep_report.build_report(folder)
    assert [row.name for row in report.finalists] == [BASELINE, "faster"]
    assert len(records) == 6
    page = (folder / "report.md").read_text()
    assert "## At full length" in page and "| the CPU was busy |" in page
    assert tells(page, "| full length | faster: 140 output tokens/s, the highest of 2")
