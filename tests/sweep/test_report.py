"""What the report of a sweep says: effects, verdicts of several rounds, pictures."""

import json
import math
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import mlperf
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import files
from harness.core.errors import UsageError
from harness.core.statistics import paired_changes
from harness.report import regression
from harness.report.answer_comparison import AnswerPair
from harness.report.charts import HOLLOW_NOTE
from harness.runs import run_folder
from harness.sweep import file as sweep_file
from harness.sweep import pictures
from harness.sweep import report as plots
from harness.sweep.experiment import ExperimentRecord
from harness.sweep.experiment_result import experiment_rows
from harness.sweep.file import BASELINE
from harness.sweep.findings import (
    LOST_SCORE,
    SCORE_WORDS,
    SweepReport,
    accuracy_lines,
    document,
    finding_lines,
    finding_text,
    uneven_work_lines,
)
from tests.conftest import tells
from tests.support import example_runs
from tests.support.example_sweeps import SHORT, kept, ran, state, written


def screen_lines(report: SweepReport) -> list[str]:
    """The lines of the last screen, labels before them."""
    screen = document(report)
    return [screen.title, *(f"{line.label}: {line.text}" for line in screen.lines)]


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
    (tmp_path / "sweep.json").write_text(json.dumps(kept(given)))
    report = plots.build_report(tmp_path)
    title, *lines = screen_lines(report)
    words = "\n".join(lines)
    assert tells(title, "fast helped: 50 % faster than the baseline (interval 40 to 61 %, ")
    assert title.endswith(": 150 against 100 output tokens/s")
    assert "helped: fast +50 % (+40.2 to +60.5 %), unsure +10 % (+3.24 to +17.2 %)" in lines
    assert tells(words, "hurt: slow -50 % (")
    assert tells(words, "unclear: same +1 % (-4.45 to +6.76 %)", "--repeat")
    assert tells(words, "unsafe: wrong (ROUGE-1 20, -20.00 ")
    assert tells(words, "INVALID: short")
    assert tells(words, "accuracy: not shown", ": unsure")
    assert tells(words, "too short: brief +100 %")
    assert "failed: broken: no memory" in lines
    page = (tmp_path / "report.md").read_text()
    assert "| ~~300~~ " in page and "| ~~200~~ " in page
    assert "| output tokens/s | duration, s | ROUGE-1 |" in page
    assert "peak memory" not in page  # no run measured it
    table = page.split("## All experiments")[1].split("## Runs")[0]
    assert len({line.count("|") for line in table.splitlines() if line.startswith("|")}) == 1
    assert {path.name for path in (tmp_path / "plots").glob("*.png")} == {"speedups.png", "pareto.png"}


def test_the_subject_counts_what_ran_and_what_did_not() -> None:
    records = [
        replace(ran(BASELINE, 100), seconds=40.0),
        replace(ran("a", 120), seconds=41.0),
        ExperimentRecord("broken", 0, "failed", "no memory", seconds=9.0),
        ExperimentRecord("old", 0, "skipped", "no such argument"),
    ]
    given = state(*records, ran("b", 100), ran("c", 100))
    given = replace(given, records=tuple(records))
    subject = document(SweepReport(given, plots.experiment_rows(given))).subject
    assert 'Sweep "s", baseline and 5 changes: 3 runs in 1:30, 1 skipped, 2 not run' in subject


def test_other_work_has_other_tokens_and_no_caution() -> None:
    given = state(ran(BASELINE, 100), ran("a", 100, duration_s=20.0))
    base, other = given.sweep.experiments
    for settings, is_named in (({}, True), ({"max_new_tokens": 16}, False)):
        items = (base, replace(other, settings=settings))
        changed = replace(given, sweep=replace(given.sweep, experiments=items))
        assert bool([*uneven_work_lines(SweepReport(changed, plots.experiment_rows(changed)))]) == is_named


@pytest.mark.parametrize(("seconds", "is_named"), [(10.0, False), (14.0, False), (20.0, True)])
def test_tests_of_other_lengths_are_named(seconds: float, is_named: bool) -> None:
    given = state(
        *(ran(BASELINE, 100, turn) for turn in range(3)),
        *(ran("a", 100, turn, duration_s=seconds if turn == 1 else 10.0) for turn in range(3)),
    )
    report = SweepReport(given, plots.experiment_rows(given))
    lines = [line.text for line in uneven_work_lines(report)]
    assert [("tests of a produced" in line) for line in lines] == [True] * is_named


def test_equal_answers_are_called_the_same() -> None:
    given = state(ran(BASELINE, 100), ran("a", 120, verdict="INCONCLUSIVE"))
    rows = plots.experiment_rows(given)
    report = SweepReport(given, rows, compared_answers={"a": AnswerPair(64, {}, True, [])})
    lines = [line.text for line in accuracy_lines(report)]
    assert lines == ["the same answers as the baseline's: a"]
    assert "INCONCLUSIVE (the same answers" in str(plots.experiment_table(rows, {}, report.same_answers))


def busy(record: ExperimentRecord) -> ExperimentRecord:
    return replace(record, outcome=replace(record.outcome, background_load=("other programs used 1.9 of 2 CPU cores",)))


def test_a_group_is_a_column_where_the_file_names_one(tmp_path: Path) -> None:
    loaded = sweep_file.load_sweep(
        written(
            tmp_path,
            SHORT + "isolation:\n  - {name: a, group: memory, set: {seed: 1}}\n  - {name: b, set: {seed: 2}}\n",
        )
    )
    assert [item.group for item in loaded.experiments] == ["", "memory", ""]
    given = replace(state(ran(BASELINE, 100), ran("a", 120), ran("b", 90)), sweep=loaded)
    table = str(plots.experiment_table(plots.experiment_rows(given), {}))
    assert table.startswith("| experiment | group |") and "| a | memory |" in table and "| b | – |" in table
    plain = state(ran(BASELINE, 100), ran("a", 120))
    assert "group" not in str(plots.experiment_table(plots.experiment_rows(plain), {})).splitlines()[0]


def test_a_busy_machine_gives_no_verdict() -> None:
    hurt = state(ran(BASELINE, 100), busy(ran("a", 50)), ran("b", 50))
    assert {row.name: row.effect for row in plots.experiment_rows(hurt)} == {
        BASELINE: "unknown",
        "a": "busy machine",
        "b": "hurt",
    }
    words = "\n".join(screen_lines(SweepReport(hurt, tuple(plots.experiment_rows(hurt)))))
    assert tells(words, "busy machine: a -50 % while the machine was busy")
    start = state(busy(ran(BASELINE, 100)), ran("b", 50))
    assert [row.effect for row in plots.experiment_rows(start)] == ["unknown", "busy machine"]
    title, *_ = screen_lines(SweepReport(start, tuple(plots.experiment_rows(start))))
    assert tells(title, "b is not known to be faster or slower than the baseline: -50 % ", "needs at least 3")


def test_a_test_that_is_too_short_is_no_title() -> None:
    given = state(ran(BASELINE, 100), ran("a", 200, duration_s=4.9))
    assert screen_lines(SweepReport(given, tuple(plots.experiment_rows(given))))[0] == (
        "a was twice as fast as the baseline (interval 1.9 to 2.1 times, one run of each) in tests under 5 s: measure "
        "for longer"
    )


def test_rounds_are_held_against_their_own_baseline() -> None:
    first = ran(BASELINE, 100), ran("a", 120), ran("b", 90)
    second = ran(BASELINE, 50, 1), ran("a", 55, 1), ran("b", 60, 1)
    rows = {row.name: row for row in plots.experiment_rows(state(*first, *second))}
    gain = rows["a"].gain
    assert gain is not None and gain.mean == pytest.approx((1.1 * 1.2) ** 0.5) and gain.basis == "2 of 2 pairs"
    assert rows["b"].effect == "unclear"  # once better, once worse
    assert rows["a"].speed == 87.5


def test_the_worst_round_decides_on_accuracy() -> None:
    given = state(ran(BASELINE, 100), ran("a", 120), ran(BASELINE, 100, 1), ran("a", 120, 1, verdict="INCONCLUSIVE"))
    rows = {row.name: row for row in plots.experiment_rows(given)}
    assert rows[BASELINE].accuracy == "SAFE"
    assert rows["a"].accuracy == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("flaw", "reason"),
    [
        ({"valid": False}, "the baseline is INVALID"),
        ({"verdict": "FAIL"}, "the baseline's accuracy gate failed"),
        ({"flaws": ("a latency over its limit",)}, "the baseline: a latency over its limit"),
    ],
)
def test_a_change_from_a_baseline_that_does_not_count_is_struck_out(flaw: dict[str, Any], reason: str) -> None:
    given = state(ran(BASELINE, 100, **flaw), ran("a", 120))
    report = SweepReport(given, tuple(plots.experiment_rows(given)))
    assert all(row.gain is None for row in report.rows) and report.judged == []
    texts = {row.name: plots.change_text(row) for row in report.rows}
    assert texts == {BASELINE: "–", "a": f"~~+20 % (+13.5 to +26.8 %)~~ {reason}"}
    assert "no speedup can be given" in "\n".join(screen_lines(report))


def test_noise_is_no_finding() -> None:
    """Of fewer than three rounds runs are taken to scatter by 2 %, or by more where they do."""
    first, second = (ran(BASELINE, 100), ran("a", 103)), (ran(BASELINE, 100, 1), ran("a", 104, 1))
    rows = {row.name: row for row in plots.experiment_rows(state(*first, *second))}
    assert rows["a"].effect == "unclear"
    third = ran(BASELINE, 100, 2), ran("a", 103.5, 2)
    assert {row.name: row.effect for row in plots.experiment_rows(state(*first, *second, *third))}["a"] == "helped"


@pytest.mark.parametrize("named", [{"scenario": "server"}, {}])  # which the rate chooses where none is named
def test_at_a_fixed_rate_the_speed_is_no_finding(named: dict[str, object]) -> None:
    def at(rate: object, speed: float) -> list[str]:
        settings = {**named, "server_target_qps": rate}
        given = state(ran(BASELINE, 100, duration_s=600.0), ran("a", speed, duration_s=600.0))
        items = tuple(replace(item, settings=settings) for item in given.sweep.experiments)
        given = replace(given, sweep=replace(given.sweep, experiments=items))
        return screen_lines(SweepReport(given, tuple(plots.experiment_rows(given))))[:2]

    title, *_ = at(40, 103)
    assert tells(title, "the same rate", "TTFT and TPOT")
    assert tells(at("max", 103)[0], "a is not clearly faster or slower ", ": +3 %")
    assert tells(at("max", 107)[0], "a is 7 % faster")


@pytest.mark.parametrize(
    "other",
    [
        {"category": "edge"},
        {"total_sample_count": 20},
        {"scenario": "singlestream"},
        {"concurrency": 4},
        {"input_len": 64, "output_len": 512},
        {"workload": "chat"},
        {"max_new_tokens": 16},
    ],
)
def test_speeds_at_other_work_are_not_compared(other: dict[str, object]) -> None:
    given = state(ran(BASELINE, 100, duration_s=600.0), ran("a", 200, duration_s=600.0))
    base, item = given.sweep.experiments
    given = replace(given, sweep=replace(given.sweep, experiments=(base, replace(item, settings=other))))
    (row,) = (row for row in plots.experiment_rows(given) if row.name == "a")
    assert (row.gain, row.effect) == (None, "unknown")
    lines = screen_lines(SweepReport(given, tuple(plots.experiment_rows(given))))
    assert [line for line in lines if tells(line, "not compared: a: ", "(--")]
    assert finding_text(SweepReport(given, tuple(plots.experiment_rows(given)))).startswith(
        "nothing could be compared: 1 "
    )


def test_a_line_names_few_experiments_and_counts_the_rest() -> None:
    names = [f"row-{n}" for n in range(15)]
    given = state(
        *(ran(BASELINE, 100, turn) for turn in range(3)), *(ran(n, 150, turn) for n in names for turn in range(3))
    )
    (helped,) = (
        line for line in screen_lines(SweepReport(given, tuple(plots.experiment_rows(given)))) if "helped:" in line[:8]
    )
    assert "row-5" in helped and "row-6" not in helped and helped.endswith(" and 9 more")


def test_what_a_busy_machine_slowed_down_is_on_no_front() -> None:
    panel = pictures.trade_off(
        plots.experiment_rows(state(ran("a", 100.0, rouge1=50.0), busy(ran("b", 90.0, rouge1=60.0))))
    )
    (front,) = (series for series in panel.series if series.name == "Pareto front")
    assert [x for x, _ in front.points] == [100.0]
    assert HOLLOW_NOTE in panel.title


def test_a_sweep_of_accuracy_alone_needs_no_speed() -> None:
    none = {"valid": None, "tokens_per_sec": None}
    given = state(ran(BASELINE, 0, **none), ran("a", 0, **none), ran("b", 0, **none, verdict="FAIL", rouge1=30.0))
    report = SweepReport(given, tuple(plots.experiment_rows(given)))
    assert screen_lines(report) == [
        "b lost accuracy",
        "safe: baseline, a",
        "unsafe: b (ROUGE-1 30, -10.00 against the baseline)",
    ]


def test_only_what_all_runs_lack_stands_above_the_table(tmp_path: Path) -> None:
    given = state(replace(ran(BASELINE, 100), run="baseline/1"), replace(ran("a", 120), run="a/1"))
    for run, lacking in (("baseline/1", ["short"]), ("a/1", ["short", "speculative decoding"])):
        (tmp_path / run).mkdir(parents=True)
        plan = resolve(RunConfig(model="demo"), [], 0)
        example_runs.record(run_folder.RunFolder(tmp_path, run), plan, command="c", started="s", system={})
        example_runs.note(run_folder.RunFolder(tmp_path, run), deviations=lacking)
    (tmp_path / "sweep.json").write_text(json.dumps(kept(given)))
    plots.build_report(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert "| not comparable with MLPerf | short |\n" in page
    assert "complete (not comparable with MLPerf: speculative decoding)" in page


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[]", "sweep.json: not an object"),
        ("{", "sweep.json: not JSON"),
        ('{"schema_version": 2}', "sweep.json: command is missing"),
    ],
)
def test_a_sweep_that_cannot_be_read_says_why(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "sweep.json").write_text(text)
    with pytest.raises(UsageError, match=message):
        plots.read_state(tmp_path)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 100)), max_size=20))
def test_the_pareto_front(points: list[tuple[float, float]]) -> None:
    front = pictures.pareto_front(points)
    for x, y in points:
        assert any(a >= x and b >= y for a, b in front)
    for point in front:
        beaten = [p for p in points if p[0] >= point[0] and p[1] >= point[1] and p != point]
        assert not beaten


@pytest.mark.parametrize(
    ("speeds", "effect"),
    [
        ((103.0, 103.5, 102.8), "helped"),
        ((97.0, 96.5, 97.2), "hurt"),
        ((100.3, 99.9, 100.1), "no difference"),
        ((100.2, 100.21, 100.19), "no difference"),  # sure, and nothing
        ((110.0, 95.0, 104.0), "unclear"),
    ],
)
def test_the_verdict_of_several_rounds_is_their_interval(speeds: tuple[float, ...], effect: str) -> None:
    runs = [ran(BASELINE, 100, turn) for turn in range(3)] + [ran("a", speed, t) for t, speed in enumerate(speeds)]
    given = state(*runs)
    (row,) = (row for row in experiment_rows(given) if row.name == "a")
    assert row.effect == effect
    assert row.gain and tells(row.gain.signed, " % (", " to ")


def test_the_interval_is_students() -> None:
    runs = [
        record
        for turn, speed in enumerate((101, 103, 102))
        for record in (ran(BASELINE, 100, turn), ran("a", speed, turn))
    ]
    (three,) = (row.gain for row in experiment_rows(state(*runs)) if row.name == "a")
    assert three and three[1:3] == pytest.approx(
        (0.9953, 1.0453), abs=2e-4
    )  # 1.02 times exp(+-4.303 x 0.0098 / sqrt(3))


def test_a_sweep_of_before_is_still_read(tmp_path: Path) -> None:
    old = kept(state(ran(BASELINE, 100)))
    for record in old["records"]:
        del record["gpu"], record["final"], record["outcome"]["ran_out"]
    del old["note"]
    files.write_json(tmp_path / "sweep.json", old)
    assert plots.read_state(tmp_path).records == (ran(BASELINE, 100),)


@pytest.mark.parametrize(
    ("samples", "differing", "verdict"),
    [(1, 1, "not clear"), (29, 29, "not clear"), (400, 9, "not clear"), (400, 40, "lost"), (100, 0, "not clear"),
     (1000, 0, "holds"), (1000, 1, "not clear")],
)  # fmt: skip
def test_few_pairs_do_not_tell_what_was_lost(samples: int, differing: int, verdict: str) -> None:
    theirs = [[90.0]] * samples
    (found,) = paired_changes(theirs, [[0.0]] * differing + theirs[differing:])
    assert (
        SCORE_WORDS[regression.judge_answer_pair(LOST_SCORE, AnswerPair(samples, {"rouge1": found}, True, [])).verdict]
        == verdict
    )


@pytest.mark.parametrize(("rounds", "is_assumed"), [(2, True), (3, False)])
def test_the_assumed_scatter_is_said_only_where_it_is_used(rounds: int, is_assumed: bool) -> None:
    records = []
    for turn in range(rounds):
        records += [ran(BASELINE, 100 + turn, turn), ran("a", 105, turn)]
    lines = finding_lines(plots.read_results(Path(), state(*records)))
    (text,) = (str(line.text) for line in lines if line.label == "interval")
    assert text.startswith("95 %") and ("fewer than 3 pairs" in text) == is_assumed


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        ("interrupted", "interrupted", "interrupted"),
        ("interrupted", "ended by the time limit", "interrupted: ended by the time limit"),
        ("failed", "no memory", "failed: no memory"),
    ],
)
def test_a_reason_that_repeats_the_status_is_said_once(status: Any, reason: str, text: str) -> None:
    record = ExperimentRecord("b1", 0, status, reason)
    assert record.failure_text == text
    lines = finding_lines(plots.read_results(Path(), state(ran(BASELINE, 100), record)))
    (line,) = (line for line in lines if line.label == status)
    assert "interrupted" not in str(line.text)


def test_the_page_says_how_many_were_compared(tmp_path: Path) -> None:
    files.write_json(tmp_path / "sweep.json", kept(state(ran(BASELINE, 100), ran("a", 103), ran("b", 104))))
    plots.build_report(tmp_path)
    page = (tmp_path / "report.md").read_text()
    assert tells(page, "| compared | 2 ", "5 % ") and tells(page, "| interval |", "at least 2 %")


@pytest.mark.parametrize("scatter", [0.01, 0.02])
@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_of_twenty_changes_of_nothing_one_helps_in_one_sweep_of_twenty_at_most(rounds: int, scatter: float) -> None:
    rng, helped = Random(rounds), 0
    names = [BASELINE, *(f"n{number}" for number in range(20))]
    for _ in range(200):
        records = (ran(name, 100 * math.exp(rng.gauss(0, scatter)), turn) for turn in range(rounds) for name in names)
        given = state(*records)
        title = document(SweepReport(given, tuple(experiment_rows(given)))).title
        helped += "helped" in title and not title.startswith("no change helped")
    assert helped <= 10


HEAD = ",".join(("index", "prompt_tokens", *mlperf.ROUGE))


@pytest.mark.parametrize(("change", "verdict"), [(0.0, "holds"), (-0.1, "holds"), (-2.0, "lost"), (-0.4, "not clear")])
def test_what_the_gate_leaves_open_the_pairs_tell(tmp_path: Path, change: float, verdict: str) -> None:
    rng = Random(1)
    base = [rng.gauss(40, 10) for _ in range(400)]
    for name, scores in ((BASELINE, base), ("a", [value + change + rng.gauss(0, 1) for value in base])):
        (tmp_path / name / "Accuracy").mkdir(parents=True)
        lines = [f"{index},500{f',{value}' * len(mlperf.ROUGE)}" for index, value in enumerate(scores)]
        (tmp_path / name / "Accuracy" / "samples.csv").write_text("\n".join([HEAD, *lines]))
        answers = [{"qsl_idx": index, "data": f"0{len(name) % 8}000000"} for index in range(len(scores))]
        (tmp_path / name / "Accuracy" / "mlperf_log_accuracy.json").write_text(json.dumps(answers))
    unsure = {"verdict": "INCONCLUSIVE"}
    given = state(*(replace(ran(name, 100, **unsure), run=name) for name in (BASELINE, "a")))
    files.write_json(tmp_path / "sweep.json", kept(given))
    report = plots.build_report(tmp_path)
    assert {name: SCORE_WORDS[found.verdict] for name, found in report.score_judgements.items()} == {"a": verdict}
    page = (tmp_path / "report.md").read_text()
    assert f": {verdict}) |" in page
    lines = "\n".join(screen_lines(report))
    assert tells(lines, "accuracy: not shown", ": a") == (verdict == "not clear")
    (tmp_path / "a" / "Accuracy" / "samples.csv").write_text(f"{HEAD}\n0,500,x\n")
    with pytest.raises(UsageError, match=r"samples\.csv:2: rouge1: not a number"):
        plots.build_report(tmp_path)
