"""A sweep of estimates: ranked by the rate that each setting should keep, capped, and the best confirmed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from harness.core.progress import Display
from harness.rates import quick
from harness.rates.goal import Goal
from harness.results.outcome import Queue
from harness.sweep import experiment, experiment_result, file, findings, loop, sweep_state
from harness.sweep import report as sweep_report
from harness.sweep.experiment import ExperimentOutcome, ExperimentRecord, Job, Watch, outcome_of
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import SweepOptions
from tests.conftest import tells
from tests.support.example_sweeps import opened, written

FILE = """
baseline: {set: {model: demo, scenario: server, mode: performance, quick: true}}
isolation:
  - {name: fast, set: {max_num_batched_tokens: 4096}}
  - {name: slow, set: {max_num_seqs: 8}}
"""
RATES = {"baseline": 50.0, "fast": 60.0, "slow": 20.0, "capped": 63.0}


def estimated(rate: float | None, *doubts: str, running: int | None = 200) -> ExperimentOutcome:
    return ExperimentOutcome({"estimated_qps": rate, "most_running": running}, flaws=doubts)


def swept(
    folder: Path, limit: float = float("inf"), **found: ExperimentOutcome
) -> tuple[list[tuple[str, bool, dict[str, object]]], experiment.State]:
    """What a sweep of estimates runs, in order, and what is kept of it."""
    sweep = file.load_sweep(written(folder, FILE))
    state = opened(sweep, folder, SweepOptions(limit=limit))
    ran = list[tuple[str, bool, dict[str, object]]]()

    def runner(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        ran.append((job.item.name, job.final, job.item.settings))
        state.began -= 120  # as if it took so long
        if job.final:
            values = {"tokens_per_sec": 128 * 59.0, "target_qps": 59.0, "duration_s": 601.0}
            return job.record(lane, "complete", seconds=900, outcome=ExperimentOutcome(values, valid=True))
        outcome = found.get(job.item.name) or estimated(RATES[job.item.name])
        return job.record(lane, "complete", seconds=120, outcome=outcome)

    with Display(Console(quiet=True)) as display:
        loop.run_sweep(state, [Lane()], display, runner)
    return ran, state.kept


def test_the_best_estimate_is_capped_and_the_better_of_the_two_confirmed(tmp_path: Path) -> None:
    ran, state = swept(tmp_path)
    assert [(name, final) for name, final, _ in ran] == [
        *((name, False) for name in ("baseline", "fast", "slow", "capped")),
        ("capped", True),
    ]
    capped, confirmed = ran[-2][2], ran[-1][2]
    assert capped["max_num_seqs"] == 200 and capped["max_num_batched_tokens"] == 4096 and capped["quick"]
    assert confirmed["server_target_qps"] == "max" and "quick" not in confirmed and "min_duration" not in confirmed
    report = findings.SweepReport(
        state,
        tuple(experiment_result.experiment_rows(state)),
        tuple(experiment_result.experiment_rows(state, final=True)),
    )
    assert tells(findings.finding_title(report), "capped helped:", "63 against 50 estimated queries/s")
    said = {line.label: line.text for line in findings.finding_lines(report)}
    assert tells(said["full length"], "capped: 7,552 output tokens/s at 59 queries/s")
    assert tells(said["estimates"], "never VALID")
    assert "too short" not in said
    row = sweep_report.record_cells("fast", next(each for each in state.records if each.experiment == "fast"))
    assert row[-1] == "fast: about 60 queries/s"


def test_a_time_limit_leaves_time_to_confirm(tmp_path: Path) -> None:
    *_, (name, final, confirmed) = swept(tmp_path, limit=720.0)[0]
    assert final and name == "capped"
    assert sweep_state.SHORTEST_FULL_TEST_S <= float(str(confirmed["min_duration"])) <= 300


@pytest.mark.parametrize(("limit", "names"), [(400.0, ["baseline"]), (450.0, ["baseline", "fast"])])
def test_the_best_of_what_there_was_time_for_is_confirmed(tmp_path: Path, limit: float, names: list[str]) -> None:
    ran, state = swept(tmp_path, limit=limit)
    assert [(name, final) for name, final, _ in ran] == [*((name, False) for name in names), (names[-1], True)]
    assert tells(state.note, "left no time for", "slow", "capped")


def test_a_long_time_limit_makes_no_test_longer_than_mlperfs(tmp_path: Path) -> None:
    *_, (_, final, confirmed) = swept(tmp_path, limit=7200.0)[0]
    assert final and "min_duration" not in confirmed


def test_without_a_law_nothing_is_compared_and_nothing_confirmed(tmp_path: Path) -> None:
    none = {name: estimated(None, "it completes in waves") for name in ("baseline", "fast", "slow")}
    ran, state = swept(tmp_path, **none)
    assert [name for name, *_ in ran] == ["baseline", "fast", "slow"]
    report = findings.SweepReport(state, tuple(experiment_result.experiment_rows(state)))
    assert tells(findings.finding_title(report), "the baseline's rate cannot be estimated")
    assert any("waves" in line.text for line in findings.finding_lines(report) if line.label == "not counted")


def test_what_is_capped_already_is_not_capped_again(tmp_path: Path) -> None:
    known = {"slow": estimated(70.0, running=8), "baseline": estimated(50.0, running=None)}
    ran, _ = swept(tmp_path, **known)
    assert [(name, final) for name, final, _ in ran][-2:] == [("slow", False), ("slow", True)]


def test_an_estimate_is_read_from_its_run(tmp_path: Path) -> None:
    found = quick.Estimate(
        ttft_alone_ms=16.0,
        tpot_alone_ms=3.2,
        capacity=61.0,
        capacity_error=2.0,
        ranges={"Server's limits": (57.0, 62.0)},
        rate=59.5,
        most_running=200,
        doubts=(),
        background_load=("other programs",),
        command="",
    )
    (tmp_path / quick.FILE).write_text(json.dumps(found.model_dump()))
    outcome = outcome_of(tmp_path)
    assert {name: value for name, value in outcome.values.items() if value is not None} == {
        "estimated_qps": 59.5,
        "capacity_qps": 61.0,
        "tpot_alone_ms": 3.2,
        "most_running": 200,
    }
    assert outcome.valid is None and outcome.background_load == ("other programs",)
    assert outcome_of(None) == ExperimentOutcome()


RECORDED = json.loads((Path(__file__).parents[1] / "rates" / "recorded.json").read_text())


@pytest.mark.parametrize(("probes", "limit", "low", "high"), [(0, 30, 185, 215), (1, 100, 720, 765)])
def test_how_many_requests_keep_tpot_on_an_h200(probes: int, limit: float, low: int, high: int) -> None:
    """Measured with at most 208 running: Interactive's p99 was 26.6 to 28.3 of 30 ms."""
    for probe in [*RECORDED.values()][probes]:
        found = quick.most_running(Queue(**probe["queue"]), Goal(600, 459, 2000, limit))
        assert found is not None and low <= found <= high
    flat = replace(Queue(**probe["queue"]), each_s=0.0, prompt_s=0.0)
    assert quick.most_running(flat, Goal(600, 459, 2000, limit)) is None
