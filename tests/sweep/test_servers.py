"""Servers under the same requests: the interval under the stopping rule, rounds A B B A, the gate, and real rounds."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from benchmarks.rounds import simulate
from harness.commands import compare
from harness.config.comparability import CONFIGURED_RATE, INVALID
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.core.progress import Display
from harness.core.system import System
from harness.report import report as rendering
from harness.sweep import file, loop
from harness.sweep import report as sweep_report
from harness.sweep.crew import Crew
from harness.sweep.experiment import ExperimentRecord, Job, Watch
from harness.sweep.experiment_result import are_all_narrow, experiment_rows
from harness.sweep.file import BASELINE, Sweep
from harness.sweep.findings import State, SweepReport, document
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import SweepOptions, SweepState
from tests.conftest import ROOT, called, ended, patience, tells
from tests.support import example_runs as folders
from tests.support.example_sweeps import ran, state, written
from tests.support.fake_servers import Fake, serving

SCATTER = (1.01, 0.99, 1.0, 1.02, 0.98, 1.0, 1.01, 0.99)
BOTH = ("http://127.0.0.1:8/v1", "http://127.0.0.1:9/v1")
TWO = (
    "baseline: {{set: {{model: demo, endpoint: '{}', concurrency: 2, mode: performance, min_duration: 1, "
    "input_len: 16, output_len: 4}}}}\nisolation: [{{name: other, set: {{endpoint: '{}'}}}}]\n"
)


@pytest.mark.parametrize("drift", [0.0, 0.05])
@pytest.mark.parametrize("scatter", [0.01, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("ratio", [0.0, 0.02, 0.05])
def test_the_interval_holds_under_the_rule_by_which_a_session_ends(ratio: float, scatter: float, drift: float) -> None:
    found = simulate(ratio, scatter, drift, sessions=4000)
    assert found.covered >= 0.93
    if not ratio:
        assert found.different <= 0.05


def test_an_interval_without_the_correction_would_not_hold() -> None:
    assert simulate(0.0, 0.01, 0.0, sessions=4000, share=0.95).different > 0.06


def asked(**settings: object) -> Sweep:
    return compare.sweep_of(compare.CompareConfig(model="demo", endpoint=BOTH, **settings))


def compared(ratio: float = 1.0, rounds: int = 8, busy: tuple[int, ...] = (), **options: object) -> SweepReport:
    """A comparison whose B is `ratio` times as fast as the baseline in rounds that scatter by a percent."""
    records = [
        ran(name, 100 * (ratio * SCATTER[n % 8] if name == "B" else 1.0), n, verdict=None, ttft_p99_ms=50.0 + n % 2)
        for n in range(rounds)
        for name in (BASELINE, "B")
    ]
    load = ("other programs used 1.9 of 2 CPU cores",)
    records = [
        replace(each, outcome=replace(each.outcome, background_load=load)) if each.round in busy else each
        for each in records
    ]
    sweep = asked()
    state = State("c", "s", System(cpu="a CPU", cores=2, packages={}), sweep, tuple(records), **options)  # type: ignore[arg-type]
    return SweepReport(state, tuple(experiment_rows(state)))


def test_the_first_server_is_the_baseline_and_each_other_a_letter() -> None:
    sweep = asked()
    assert sweep.is_of_servers and [item.name for item in sweep.experiments] == [BASELINE, "B"]
    assert sweep.experiments[1].changes == (f"endpoint={BOTH[1]}",)
    assert asked() == sweep != asked(concurrency=4)


def test_only_servers_with_the_same_settings_share_a_process(tmp_path: Path) -> None:
    same = written(tmp_path, TWO.format(*BOTH))
    assert file.load_sweep(same).is_of_servers
    other = written(
        tmp_path, TWO.format(*BOTH).replace("{endpoint: 'http://127.0.0.1:9", "{seed: 1, endpoint: 'http://a")
    )
    assert not file.load_sweep(other).is_of_servers


def test_a_difference_is_said_with_its_interval_its_tails_and_where_each_is() -> None:
    screen = document(compared(1.12))
    assert tells(screen.title, "B is 12 % faster ", " %, 8 of 8 pairs): ", " against 100 output tokens/s")
    lines = {line.label: line.text for line in screen.lines}
    assert (lines[BASELINE], lines["B"]) == BOTH
    assert tells(lines["TTFT p99, ms"], "B is equal to the baseline within 0.1 %")


def test_pairs_on_a_busy_machine_are_left_out_where_enough_are_not() -> None:
    report = compared(1.12, busy=(1, 2, 3))
    assert len(report.rows[1].pairs) == 5 and report.rows[1].effect == "helped"
    hollow = compared(1.2, rounds=4, busy=(0, 1, 2, 3), fail_if=("output_tokens_per_s<-3%",))
    title = document(hollow).title
    assert tells(title, "B was 21 % faster ", "4 of 4 pairs) while the machine was busy: do not publish")
    assert [one.verdict for one in hollow.judgements] == ["NOT JUDGED"]


def with_runs(report: SweepReport, name: str, turns: tuple[int, ...], **outcome: Any) -> SweepReport:
    """The same sweep with other outcomes of one side's rounds."""
    records = tuple(
        replace(each, outcome=replace(each.outcome, **outcome))
        if (each.experiment, each.round in turns) == (name, True)
        else each
        for each in report.state.records
    )
    state = replace(report.state, records=records)
    return SweepReport(state, tuple(experiment_rows(state)))


def test_one_slow_test_is_left_out_and_named() -> None:
    found = document(with_runs(compared(1.12, rounds=6), BASELINE, (2,), flaws=("one request took 80 % of the test",)))
    assert tells(found.title, "B is 12 % faster ", "5 of 5 pairs)")
    lines = {line.text for line in found.lines if line.label == "left out"}
    assert lines == {
        "1 of 6 runs of baseline: one request took 80 % of the test",
        "1 of 6 runs of B: the baseline's of the same round does not count",
    }
    void = document(with_runs(compared(1.12, rounds=6), BASELINE, (0, 1, 2, 3), flaws=("one request took 80 %",)))
    assert "no speedup can be given" in void.title


def test_a_run_beside_one_of_the_baseline_that_is_left_out_is_compared_with_none() -> None:
    report = compared(1.0, rounds=4, fail_if=("output_tokens_per_s<-3%",))
    records = tuple(each for each in report.state.records if each.experiment == BASELINE or each.round == 3)
    alone = replace(report.state, records=records)
    found = with_runs(SweepReport(alone, ()), BASELINE, (3,), valid=False, flaws=(INVALID,))
    assert found.rows[1].change is None and [one.verdict for one in found.judgements] == ["NOT JUDGED"]


@pytest.mark.parametrize(
    ("outcome", "verdicts"),
    [
        ({"valid": False, "flaws": (INVALID,)}, ["NOT JUDGED"]),
        ({"flaws": ("an answer was cut",)}, ["NOT JUDGED"]),
        ({"verdict": "FAIL"}, ["FAIL", "NOT JUDGED"]),
    ],
)
def test_the_gate_does_not_pass_what_does_not_count(outcome: dict[str, Any], verdicts: list[str]) -> None:
    report = compared(1.5, rounds=4, fail_if=("output_tokens_per_s<-3%",))
    assert [one.verdict for one in with_runs(report, "B", (*range(4),), **outcome).judgements] == verdicts


def test_a_speed_that_was_given_is_not_judged() -> None:
    given = compared(0.7, fail_if=("output_tokens_per_s<-3%", "ttft_p99_ms>+50%")).state
    items = tuple(
        replace(each, settings=each.settings | {"scenario": "server", "server_target_qps": 2.0, "levels": None})
        for each in given.sweep.experiments
    )
    state = replace(given, sweep=replace(given.sweep, experiments=items))
    speed, latency = SweepReport(state, tuple(experiment_rows(state))).judgements
    assert (speed.verdict, speed.text) == ("NOT JUDGED", CONFIGURED_RATE) and latency.verdict == "PASS"


def test_nothing_is_judged_against_a_baseline_that_does_not_count() -> None:
    (one,) = with_runs(
        compared(1.2, fail_if=("output_tokens_per_s<-3%",)), BASELINE, (*range(8),), valid=False, flaws=(INVALID,)
    ).judgements
    assert (one.verdict, one.text) == ("NOT JUDGED", "the baseline's speed does not count")


def test_the_gate_judges_by_the_interval_that_the_title_has() -> None:
    report = compared(0.9, fail_if=("output_tokens_per_s<-10%",))
    change = report.rows[1].change
    assert change and tells(report.judgements[0].text, change.signed)


def test_a_limit_on_a_count_that_is_0_is_judged() -> None:
    report = compared(1.0, fail_if=("ttft_p99_ms>50", "ttft_p99_ms>+5%"))
    records = tuple(
        replace(each, outcome=replace(each.outcome, values=each.outcome.values | {"ttft_p99_ms": 0.0}))
        for each in report.state.records
    )
    state = replace(report.state, records=records)
    found = SweepReport(state, tuple(experiment_rows(state))).judgements
    assert [one.verdict for one in found] == ["PASS", "NOT JUDGED"] and "0 has no change" in found[1].text


def test_a_title_has_the_gravest_verdict_before_what_was_found() -> None:
    found = document(compared(0.9, fail_if=("output_tokens_per_s<-20%", "ttft_p99_ms>50"))).title
    assert found.startswith("FAIL: B: ttft_p99_ms>50; B is 10 % slower ")
    assert document(compared(1.1, fail_if=("output_tokens_per_s<-20%",))).title.startswith("PASS; B is 10 % faster ")


def test_the_gate_has_the_conditions_of_finished_runs() -> None:
    expected = {
        "output_tokens_per_s<-3%": "FAIL",
        "output_tokens_per_s<-20%": "PASS",
        "output_tokens_per_s<-10%": "NOT JUDGED",
        "ttft_p99_ms>2000": "PASS",
        "ttft_p99_ms>50": "FAIL",
        "tpot_p99_ms>+1%": "NOT JUDGED",
        "answers changed": "NOT JUDGED",
    }
    report = compared(0.9, fail_if=tuple(expected))
    assert {one.condition.removeprefix("B: "): one.verdict for one in report.judgements} == expected
    assert document(report).tone == "bad"


def test_a_session_ends_when_enough_is_known() -> None:
    known, unknown = (compared(1.0, within=within).state for within in (5.0, 0.1))
    assert are_all_narrow(known, 8) and not are_all_narrow(unknown, 8)


@pytest.mark.parametrize(("wide", "ends"), [((), True), (("b",), False), (("c",), False), (("b", "c"), False)])
def test_a_session_ends_only_when_every_interval_is_narrow(wide: tuple[str, ...], ends: bool) -> None:
    records = [
        ran(name, 100 * (SCATTER[n] ** 10 if name in wide else 1 + SCATTER[n] / 1000), n)
        for n in range(8)
        for name in (BASELINE, *"bcdefg")
    ]
    assert are_all_narrow(replace(state(*records), within=5.0), 8) == ends


def test_rounds_alternate_until_the_interval_is_narrow(tmp_path: Path) -> None:
    names: list[str] = []

    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        names.append(f"{job.item.name[0]}{job.round}")
        return ran(job.item.name, 100.0 * SCATTER[job.round % 8], job.round, verdict=None)

    sweep, options = asked(), SweepOptions(repeat=16, alternate=True)
    state = loop.begin_sweep(sweep, tmp_path, [*sweep.experiments], options, {}, False, 2.0)
    with Display(Console(quiet=True)) as display:
        loop.run_rounds(state, Crew(state, run, display), [Lane()])
    assert names == ["b0", "B0", "B1", "b1", "b2", "B2", "B3", "b3"]


def test_a_pair_is_of_one_session(tmp_path: Path) -> None:
    sweep, options = asked(), SweepOptions(repeat=4, alternate=True)
    state: SweepState = loop.begin_sweep(sweep, tmp_path, [*sweep.experiments], options, {}, False, 2.0)
    state.keep(records=(ran(BASELINE, 100.0), ran("B", 100.0), ran("B", 100.0, 1)))
    again = loop.begin_sweep(sweep, tmp_path, [*sweep.experiments], options, {}, True, 2.0)
    assert [(record.experiment, record.round) for record in again.kept.records] == [(BASELINE, 0), ("B", 0)]
    with pytest.raises(UsageError, match="different version"):
        loop.begin_sweep(asked(concurrency=4), tmp_path, [], options, {}, True, 2.0)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["http://127.0.0.1:9/v1"], "at least two servers"),
        (["http://127.0.0.1:9/v1", "before"], "at least two servers"),
        (["http://127.0.0.1:9/v1", "http://127.0.0.1:9/v1"], "given twice"),
        (["before", "after", "--quantization", "fp8"], "sweep.py FILE --repeat"),
        ([*BOTH, "--quantization", "fp8"], "--quantization"),
        ([*BOTH, "--server-target-qps", "max"], "single number"),
        ([*BOTH, "--concurrency", "1,2"], "single number"),
        ([*BOTH, "--fail-if", "speed<3"], "no metric speed"),
        ([*BOTH, "--rounds", "1"], "rounds"),
        ([*BOTH, "--resume"], "nothing to resume"),
        (["nothing", "nowhere"], "no such path"),
    ],
)
def test_what_cannot_be_compared_ends_in_one_line(words: list[str], said: str, tmp_path: Path) -> None:
    done = called("compare", "compare", *words, "--results-dir", str(tmp_path))
    assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_servers_and_runs_come_first() -> None:
    assert list(compare.parse_sides(["http://a", "b", "--model", "http://c"])) == [
        *("--endpoint=http://a", "--side=b"),
        *("--model", "http://c"),
    ]


def test_without_flags_it_is_a_short_test() -> None:
    servers = ("http://a", "http://b")
    config = compare.CompareConfig(model="demo", endpoint=servers)
    assert (config.levels, config.mode, config.total_sample_count, config.min_duration) == ((16,), "both", 256, 10.0)
    config = compare.CompareConfig(
        model="demo", endpoint=servers, server_target_qps=2.0, workload="chat", min_duration=5.0
    )
    assert (config.scenario, config.mode, config.min_duration) == ("server", "performance", 5.0)
    for chosen in ({"server_target_qps": 2.0}, {"scenario": "interactive"}):  # LoadGen judges them by their duration
        config = compare.CompareConfig(model="demo", endpoint=servers, workload="chat", **chosen)  # type: ignore[arg-type]
        assert config.min_duration == RunConfig(scenario="server").min_duration


def test_finished_runs_are_compared_as_report_does(tmp_path: Path) -> None:
    runs = [str(folders.run(tmp_path / name)) for name in ("before", "after")]
    for run in runs:
        rendering.build_report(Path(run))
    done, same = called("compare", "compare", *runs), called("report", "report.py", "--compare", *runs)
    assert done.returncode == 0 and "before" in done.stdout and done.stdout == same.stdout


COMMON = [
    "--model",
    "demo",
    "--concurrency",
    "8",
    "--min-duration",
    "2",
    "--total-sample-count",
    "32",
    "--rounds",
    "2",
    "--max-new-tokens",
    "4",
]


def state_of(place: Path) -> tuple[Path, State]:
    (folder,) = (place / "sweeps").glob("2*-compare")
    return folder, sweep_report.read_state(folder)


@pytest.mark.slow
def test_two_servers_whose_times_are_set(tmp_path: Path) -> None:
    """Real LoadGen; the second server takes 60 ms an answer less."""
    with (
        serving(Fake(delay_s=0.2, pause_s=0.06, usage=False)) as a,
        serving(Fake(delay_s=0.14, pause_s=0.06, usage=False)) as b,
    ):
        done = ended("-m", "harness", "compare", a.address, b.address, *COMMON, "--results-dir", str(tmp_path))
        bodies = [[body for body in fake.asked if "prompt" in body] for fake in (a, b)]
    folder, state = state_of(tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    order = [f"{each.experiment[0]}{each.round}" for each in state.records]
    assert order == ["b0", "B0", "B1", "b1", "b2", "B2", "B3", "b3"]
    report = sweep_report.build_report(folder)
    assert report.compared_answers["B"].samples == 32 and not report.compared_answers["B"].differing
    assert [row.accuracy for row in report.rows] == ["not judged"] * 2  # scored, and compared with each other alone
    assert not any("not shown to hold" in line.text for line in document(report).lines)  # no answer differs
    prompts = [{tuple(body["prompt"]) for body in asked} for asked in bodies]
    assert prompts[0] == prompts[1]
    gain = report.rows[1].gain
    assert gain, done.stdout
    assert 1.15 < gain.mean < 1.35  # 260 ms to 200 ms
    assert json.loads((folder / "status.json").read_text())["status"] == "complete"
    assert all((folder / record.run / "summary.json").exists() for record in state.records if record.run)


@pytest.mark.slow
def test_a_server_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    with serving(Fake(usage=False)) as a:
        words = (a.address, "http://127.0.0.1:9/v1", "--fail-if", "output_tokens_per_s<-3%", "--json")
        done = ended("-m", "harness", "compare", *words, *COMMON, "--results-dir", str(tmp_path))
    assert done.returncode == 2 and "Traceback" not in done.stderr and "Connection refused" in done.stderr


def test_an_address_without_a_scheme_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="http://localhost:8000"):
        compare.CompareConfig(side=("localhost:8000", "localhost:8001"), fail_if=("answers changed",))


def test_other_minutes_continue_with_the_earlier_test_length(tmp_path: Path) -> None:
    servers = ("http://a:1/v1", "http://b:1/v1")
    first, second = (compare.CompareConfig(endpoint=servers, minutes=minutes) for minutes in (1.0, 60.0))
    assert first.min_duration != second.min_duration
    loop.begin_sweep(compare.sweep_of(first), tmp_path, [], SweepOptions(), {}, False, 2.0).keep(note="")
    assert loop.with_earlier_length(compare.sweep_of(second), tmp_path) == compare.sweep_of(first)


@pytest.mark.slow
def test_a_server_that_fails_ends_it_and_keeps_what_was_measured(tmp_path: Path) -> None:
    with serving(Fake(delay_s=0.05)) as a, serving(Fake(delay_s=0.05, fault="500", after=32 + 16 + 40 + 66)) as b:
        done = ended("-m", "harness", "compare", a.address, b.address, *COMMON, "--results-dir", str(tmp_path))
    assert done.returncode == 3 and tells(done.stderr, "error: B: ", "too much to do", "--resume"), done.stderr
    folder, state = state_of(tmp_path)
    assert json.loads((folder / "status.json").read_text())["status"] == "failed"
    assert state.records and (folder / "report.md").exists()


@pytest.mark.slow
def test_an_interrupted_comparison_goes_on_later(tmp_path: Path) -> None:
    with serving(Fake(delay_s=0.05)) as a, serving(Fake(delay_s=0.05)) as b:
        words = ["-m", "harness", "compare", a.address, b.address, *COMMON, "--results-dir", str(tmp_path)]
        process = subprocess.Popen(
            [sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, env=os.environ | {"HF_HUB_OFFLINE": "1"}
        )
        until = time.monotonic() + patience(60)
        while not list(tmp_path.glob("sweeps/2*/B/2*/summary.json")):
            assert time.monotonic() < until
            time.sleep(0.2)
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        said = process.communicate(timeout=60)[0].decode()
        assert process.returncode == 130, said
        folder, before = state_of(tmp_path)
        assert json.loads((folder / "status.json").read_text())["status"] == "interrupted"
        done = ended(*words, "--resume")
    assert done.returncode == 0, done.stdout + done.stderr
    folder, after = state_of(tmp_path)
    assert len([each for each in after.records if each.status == "complete"]) == 8
    assert after.records[:2] == before.records[:2]


@pytest.mark.slow
def test_a_sweep_file_of_two_servers(tmp_path: Path) -> None:
    with serving(Fake(delay_s=0.002)) as first, serving(Fake(delay_s=0.02)) as second:
        path = written(tmp_path, TWO.format(first.address, second.address))
        done = ended("sweep.py", str(path), "--results-dir", str(tmp_path / "results"))
    assert done.returncode == 0, done.stderr
    state = sweep_report.read_state(tmp_path / "results" / "sweeps" / "latest")
    speeds = {each.experiment: each.outcome.values["tokens_per_sec"] or 0.0 for each in state.records}
    assert speeds[BASELINE] > speeds["other"] > 0
    assert tells(" ".join(done.stdout.split()), "output 4, demo model") and "not shown to hold" not in done.stdout


@pytest.mark.parametrize(("ratio", "verdict"), [(0.25, "FAIL"), (0.95, "NOT JUDGED"), (2.5, "PASS")])
def test_a_change_is_judged_on_a_busy_machine_if_its_interval_holds_what_others_took(
    ratio: float, verdict: str
) -> None:
    """Programs that took a fifth of the cores explain a loss of 5 %, but no loss of 75 %."""
    busy = compared(ratio, rounds=4, busy=(0, 1, 2, 3), fail_if=("output_tokens_per_s<-3%",))
    rounds = (0, 1, 2, 3)
    known = with_runs(with_runs(busy, "B", rounds, others_cpu_share=0.2), BASELINE, rounds, others_cpu_share=0.2)
    assert [judgement.verdict for judgement in known.judgements] == [verdict]
