"""A bisection as a whole: planted causes, what is not reproduced, starts that fail, time, resumption, the words."""

import sys
from dataclasses import replace
from pathlib import Path
from random import Random
from unittest.mock import Mock

import pytest
from rich.console import Console

from harness.commands import sweep as sweep_command
from harness.core.command import start
from harness.core.errors import UsageError
from harness.core.interrupts import INTERRUPTED
from harness.core.progress import Display
from harness.report.answer_comparison import AnswerPair, Divergence
from harness.report.regression import parse_condition
from harness.sweep import bisect, bisect_report, experiment, loop
from harness.sweep import report as sweep_report
from harness.sweep.bisect_findings import BisectFindings
from harness.sweep.bisection import BAD, GOOD_AGAIN
from harness.sweep.experiment import ExperimentRecord, Job, Watch
from harness.sweep.file import BASELINE
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import SweepOptions
from tests.conftest import tells
from tests.support.example_bisections import (
    GOOD_TEXT,
    SIX,
    Planted,
    begun,
    cause_of,
    findings,
    is_beside_the_baseline,
    searched,
    sides,
)

NAMES = list(SIX)
ONE = frozenset(NAMES[3:4])
TWO = frozenset([NAMES[0], NAMES[4]])


def needs(dependent: str, other: str) -> object:
    """An engine that starts with one setting only beside another."""
    return lambda settings: dependent not in settings or other in settings


def planted_case(seed: int) -> tuple[Planted, frozenset[str]]:
    """One of forty engines, and its cause: eight of each of five kinds."""
    random = Random(seed)
    one, two = frozenset([random.choice(NAMES)]), frozenset(random.sample(NAMES, 2))
    others = [name for name in NAMES if name not in one]
    dependent, other = random.sample(others, 2)
    cases = [
        (Planted({one: 0.85}, 0.01, seed=seed), one),
        (Planted({two: 0.85}, 0.01, seed=seed), two),
        (Planted({one: 0.88}, 0.02, seed=seed), one),
        (Planted({}, 0.02, seed=seed), frozenset[str]()),
        (Planted({one: 0.85}, 0.01, starts=needs(dependent, other), seed=seed), one),  # type: ignore[arg-type]
    ]
    return cases[seed % 5]


@pytest.fixture
def unwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep sweep.json in memory alone, whose writing takes most of a simulated bisection."""
    monkeypatch.setattr(sweep_report, "write_state", lambda folder, state: None)


@pytest.mark.usefixtures("unwritten")
def test_forty_planted_causes_are_found_and_none_is_named_wrongly(tmp_path: Path) -> None:
    right, wrong = 0, []
    for seed in range(40):
        engine, cause = planted_case(seed)
        place = tmp_path / str(seed)
        place.mkdir()
        found = searched(begun(place), engine)
        is_sure = bisect_report.is_known_for_sure(found)
        named = cause_of(found) if is_sure else frozenset()
        right += named == cause and (is_sure or not found.is_reproduced)
        if named not in (cause, frozenset()):
            wrong.append(seed)
    assert right >= 38
    assert wrong == []


def test_each_step_runs_beside_the_baseline_in_rounds_that_turn_around(tmp_path: Path) -> None:
    engine = Planted({ONE: 0.8}, 0.005)
    state = begun(tmp_path)
    found = searched(state, engine)
    assert is_beside_the_baseline(engine.names)
    assert engine.names[:6] == [BASELINE, GOOD_AGAIN, BAD, BAD, GOOD_AGAIN, BASELINE]
    assert cause_of(found) == ONE
    kinds = {item.name: item.kind for item in state.kept.sweep.experiments}
    assert kinds[BASELINE] == "baseline" and kinds["step-1"] == "step"
    assert sweep_report.read_state(state.folder.path) == state.kept


@pytest.mark.usefixtures("unwritten")
def test_a_machine_that_slows_down_all_the_time_changes_no_verdict(tmp_path: Path) -> None:
    found = searched(begun(tmp_path), Planted({ONE: 0.85}, 0.003, drift=0.005))
    assert cause_of(found) == ONE and bisect_report.is_known_for_sure(found)


@pytest.mark.usefixtures("unwritten")
def test_the_cause_is_said_with_its_interval_and_what_the_others_do(tmp_path: Path) -> None:
    state = begun(tmp_path)
    found = searched(state, Planted({ONE: 0.82}, 0.005, seed=1))
    screen = bisect_report.document(found.report, Path("F"))
    name = next(iter(ONE))
    assert tells(screen.title, f"explained by {name} alone: -1", " % (-", "; the other 5 differences together ", " %")
    lines = {line.label: line for line in screen.lines if line.text}
    assert tells(lines["reproduced"].text, "BAD -1", "GOOD against itself ", "rounds")
    assert tells(lines["differences"].text, "6: ", name)
    steps = lines["steps"].text
    assert tells(steps, f"{len(found.steps)} steps in ", "; expected 3 to 5 steps, about 12 ", " min each")
    step = found.step_of(found.search.smallest)
    assert step and lines["run again"].text == f"python run.py --config F/{step.experiment}/config.yaml"
    assert lines["run again"].is_command and screen.tone == "good"
    assert bisect_report.exit_code(found.report) == 0
    assert len(screen.levels) == 1 + len(found.steps)


def test_the_page_has_the_steps_as_a_table_and_the_sweeps_own_parts(tmp_path: Path) -> None:
    state = begun(tmp_path)
    found = searched(state, Planted({ONE: 0.82}, 0.005, seed=1))
    sweep_report.build_report(state.folder.path)
    page = (state.folder.path / "report.md").read_text()
    title = bisect_report.finding_title(found)
    assert page.splitlines()[0].replace("\\", "") == f"# {title}"
    table = page.split("## Steps")[1].split("## ")[0]
    rows = [line for line in table.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + 2 + len(found.steps)
    assert sum("| met |" in row for row in rows) == sum(step.answer == "fails" for step in found.begun)
    assert all(heading in page for heading in ("## All experiments", "## Runs", "## Reproduce"))


@pytest.mark.usefixtures("unwritten")
def test_two_that_act_only_together_are_named_so(tmp_path: Path) -> None:
    found = searched(begun(tmp_path), Planted({TWO: 0.8}, 0.005))
    title = bisect_report.finding_title(found)
    assert title.startswith("only together: ") and " and " in title
    assert cause_of(found) == TWO
    assert all(found.step_of(found.search.smallest - {place}) for place in found.search.smallest)


@pytest.mark.usefixtures("unwritten")
def test_a_second_cause_among_the_others_is_said(tmp_path: Path) -> None:
    engine = Planted({ONE: 0.8, frozenset(NAMES[:1]): 0.85}, 0.005)
    title = bisect_report.finding_title(searched(begun(tmp_path), engine))
    assert tells(title, " alone: -", "; the other 5 differences together fail as well: -")


@pytest.mark.usefixtures("unwritten")
def test_without_a_difference_nothing_is_searched(tmp_path: Path) -> None:
    found = searched(begun(tmp_path), Planted({}, 0.01))
    assert not found.steps and bisect_report.exit_code(found.report) == 1
    assert tells(bisect_report.finding_title(found), "not reproduced: BAD is ", " % ", "er (", " to ", " %)")


@pytest.mark.usefixtures("unwritten")
def test_a_side_that_does_not_start_ends_it_at_once(tmp_path: Path) -> None:
    engine = Planted({}, starts=lambda settings: not settings)
    found = searched(begun(tmp_path), engine)
    assert len(engine.names) <= 4
    assert tells(bisect_report.finding_title(found), "not reproduced: BAD has no verdict: failed: vLLM did not start")


@pytest.mark.usefixtures("unwritten")
def test_a_half_that_does_not_start_is_a_step_without_a_verdict(tmp_path: Path) -> None:
    order = [difference.words for difference in begun(tmp_path).bisection.differences]
    engine = Planted({frozenset(order[5:]): 0.8}, 0.005, starts=needs(order[0], order[4]))  # type: ignore[arg-type]
    found = searched(begun(tmp_path), engine)
    silent = [step for step in found.steps if step.answer == "no verdict"]
    assert silent and all("did not start" in step.reason and not step.rounds for step in silent)
    assert cause_of(found) == {order[5]} and bisect_report.is_known_for_sure(found)
    assert any(line.label == "no verdict" for line in bisect_report.finding_lines(found, Path("F")))


@pytest.mark.usefixtures("unwritten")
def test_what_is_undecided_gets_further_rounds_and_is_then_called_so(tmp_path: Path) -> None:
    state = begun(tmp_path)
    found = searched(state, Planted({frozenset(NAMES): 0.85}, 0.06, seed=5))
    rounds = {name: state.bisection.scheduled(name) for name in (GOOD_AGAIN, BAD)}
    assert max(rounds.values()) > state.bisection.first_rounds
    assert all(count <= state.bisection.most_rounds for count in rounds.values())
    assert not bisect_report.is_known_for_sure(found) and bisect_report.exit_code(found.report) == 1


@pytest.mark.usefixtures("unwritten")
def test_latencies_are_judged_in_the_same_way(tmp_path: Path) -> None:
    found = searched(begun(tmp_path, "ttft_p99_ms>+10%"), Planted({ONE: 0.8}, 0.01))
    assert cause_of(found) == ONE
    assert tells(bisect_report.finding_title(found), "alone: +2")


def interrupting(engine: Planted, after: int) -> object:
    """The engine until so many runs, then Ctrl-C."""

    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        if len(engine.names) == after:
            return job.record(lane, "interrupted", "interrupted")
        return engine(job, lane, watch)

    return run


@pytest.mark.parametrize("after", [3, 17, 23])
def test_an_interrupted_bisection_goes_on_where_it_was(tmp_path: Path, after: int) -> None:
    engine = Planted({ONE: 0.82}, 0.005)
    state = begun(tmp_path)
    with Display(Console(quiet=True)) as display:
        assert loop.run_sweep(state, [Lane()], display, interrupting(engine, after)) == INTERRUPTED  # type: ignore[arg-type]
    page = (state.folder.path / "report.md").read_text()
    assert "--resume" in page and len(engine.names) == after
    again = begun(tmp_path, resume=True)
    found = searched(again, engine)
    assert again.folder.path == state.folder.path and cause_of(found) == ONE
    whole = Planted({ONE: 0.82}, 0.005)
    other = tmp_path / "other"
    other.mkdir()
    searched(begun(other), whole)
    assert engine.names == whole.names


def test_a_resumed_bisection_has_the_same_sides(tmp_path: Path) -> None:
    begun(tmp_path).keep()
    with pytest.raises(UsageError, match="other settings or differences; run without --resume"):
        begun(tmp_path, differences=NAMES[:3], resume=True)


@pytest.mark.usefixtures("unwritten")
def test_the_end_of_the_time_names_what_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Planted({ONE: 0.82}, 0.005)
    options = SweepOptions(repeat=4, alternate=True, limit=1000.0)
    state = begun(tmp_path, options=options)
    monkeypatch.setattr(type(state), "is_late", lambda self, seconds=0.0: len(engine.names) >= 20)
    found = searched(state, engine)
    title = bisect_report.finding_title(found)
    assert tells(title, "undecided between ", " minutes")
    assert tells(state.kept.note, "left no time for ", "--resume continues")
    assert bisect_report.exit_code(found.report) == 1
    commands = {line.label: line.text for line in bisect_report.finding_lines(found, Path("F")) if line.is_command}
    assert commands["go on"].endswith("--resume")


def test_steps_and_minutes_are_said_before_the_first_step(tmp_path: Path) -> None:
    state = begun(tmp_path)
    first = bisect.announcement(state.bisection)
    assert tells(first, "6 differences: ", *sorted(NAMES, key=first.index))
    assert tells(first, "3 to 5 steps, about 12 if two act only together, each of 4 rounds or more")
    said: list[str] = []
    with Display(Console(quiet=True)) as display:
        display.say = lambda text, style="": said.append(text)  # type: ignore[method-assign,assignment]
        loop.run_sweep(state, [Lane()], display, Planted({ONE: 0.82}, 0.001))
    announced = next(text for text in said if text.startswith("expected: "))
    assert tells(announced, "of 4 min each: 12 to 20 min; step-1: ")
    assert said.index(announced) < next(place for place, text in enumerate(said) if "step-2" in text)


@pytest.mark.usefixtures("unwritten")
def test_answers_are_compared_with_goods_and_with_goods_own(tmp_path: Path) -> None:
    state = begun(tmp_path, "answers changed>1%")
    assert state.bisection.first_rounds == state.bisection.most_rounds == 1
    assert {item.settings["mode"] for item in state.kept.sweep.experiments} == {"accuracy"}
    state.bisection.places_of(BAD)
    found = findings(with_answers(state, {GOOD_AGAIN: 0, BAD: 3}))
    pairs = {GOOD_AGAIN: answers(0), BAD: answers(3)}
    report = replace(found.report, compared_answers=pairs)
    shown = BisectFindings(report, state.bisection)
    assert shown.is_reproduced
    lines = [line.text for line in bisect_report.finding_lines(shown, Path("F")) if line.label == "answers"]
    assert lines[0].startswith("GOOD against itself: 0 of 16 answers differ")
    assert tells(lines[1], "BAD: 3 of 16 answers differ, the first in sample 4 from token 7 on")
    restless = BisectFindings(replace(report, compared_answers=dict.fromkeys(pairs, answers(3))), state.bisection)
    assert tells(bisect_report.finding_title(restless), "not reproduced: GOOD against itself fails as well: 3 of 16 ")


def answers(differing: int) -> AnswerPair:
    parted = [Divergence(4 + place, 10, 7, "1", "2", 40.0, 39.0) for place in range(differing)]
    return AnswerPair(16, {}, True, parted)


def with_answers(state: bisect.BisectState, counts: dict[str, int]) -> bisect.BisectState:
    """The bisection with a run of each experiment in it."""
    state.kept = replace(
        state.kept,
        records=tuple(ExperimentRecord(name, 0, "complete", seconds=1.0) for name in (BASELINE, *counts)),
        bisection=replace(state.bisection, rounds=((GOOD_AGAIN, BAD),)),
    )
    return state


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "bound", "cause"),
    [
        ("token_s=0.008", 40, {"token_s=0.008"}),
        ("token_s=0.004, first_token_s=0.25", 58, {"token_s=0.004", "first_token_s=0.25"}),
    ],
)
def test_the_echo_engine_is_bisected_by_real_runs(tmp_path: Path, arguments: str, bound: int, cause: set[str]) -> None:
    """The load of the machine is left out of it: what is planted is some times as large."""
    good, bad = tmp_path / "good.yaml", tmp_path / "bad.yaml"
    shared = GOOD_TEXT.replace("0.5", "1") + "batch_size: 16\n"
    good.write_text(shared + "engine_arg: [token_s=0.002]\n")
    bad.write_text(shared + f"engine_arg: [{arguments}]\n" + ("max_num_seqs: 8\n" if len(cause) == 1 else ""))
    text = f"output_tokens_per_s<-{bound}%"
    sweep, bisection = bisect.bisection_plan([str(good), str(bad)], [], [parse_condition(text)], 1, tmp_path)
    options = SweepOptions(repeat=4, alternate=True)
    state = loop.begin_sweep(sweep, tmp_path, [*sweep.experiments], options, {}, False, 0.0, (text,), bisection)
    assert isinstance(state, bisect.BisectState)

    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        record = experiment.run_experiment(job, lane, watch, state.folder.path, 120.0, lock)
        return replace(record, outcome=replace(record.outcome, background_load=(), flaws=()))

    with (state.folder.path / "lock").open("w") as file:
        lock = file.fileno()
        found = searched(state, run)
    assert cause_of(found) == cause and bisect_report.is_known_for_sure(found), bisect_report.finding_title(found)
    sweep_report.build_report(state.folder.path)
    page = (state.folder.path / "report.md").read_text()
    assert ("explained by" if len(cause) == 1 else "only together") in page.splitlines()[0]


@pytest.mark.parametrize(
    ("good", "bad", "title"),
    [
        (None, None, "neither GOOD nor BAD was measured"),
        (Mock(), None, "BAD was not measured"),
        (None, Mock(), "GOOD was not measured"),
    ],
)
def test_a_side_that_was_not_measured_is_named(good: object, bad: object, title: str) -> None:
    assert bisect_report.finding_title(Mock(good_again=good, bad=bad)).startswith(title)


def test_bad_input_ends_in_one_line(tmp_path: Path) -> None:
    condition = [parse_condition("output_tokens_per_s<-3%")]
    good, bad = sides(tmp_path, NAMES[:1])
    other = tmp_path / "other.yaml"
    other.write_text(GOOD_TEXT.replace("16", "32"))
    cases: dict[str, tuple[list[str], list[str]]] = {
        "differ in nothing that a run can set": ([good, good], []),
        "are of different work: --total-sample-count 16 and 32": ([good, str(other)], []),
        "takes GOOD and BAD; got 3 sides": ([good, bad, bad], []),
        "needs --python at least twice": ([good], [sys.executable]),
        "is given once or twice with GOOD and BAD": ([good, bad], [sys.executable] * 3),
        "no such path, and no run or label": ([good, "nowhere"], []),
        "No such file": ([good, bad], [str(tmp_path / "no-python")]),
        "not a Python": ([good, bad], ["/bin/false"]),
        "not a Python interpreter": ([good, bad], ["python\0"]),
    }
    for said, (words, pythons) in cases.items():
        with pytest.raises(UsageError, match=said) as error:
            bisect.bisection_plan(words, pythons, condition, 1, tmp_path)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--bisect", "a", "b"], "--bisect needs --fail-if"),
        (["--fail-if", "ttft_p99_ms>9"], "--fail-if needs --bisect GOOD BAD"),
        (["--python", "x", "file.yaml"], "--python needs --bisect GOOD BAD"),
        (["--repeat", "2"], "give a FILE, or --bisect GOOD BAD"),
        (["file.yaml", "--fail-if", "ttft_p99_ms>9", "--bisect", "a", "b"], "remove FILE"),
        (["--within", "2", "--fail-if", "ttft_p99_ms>9", "--bisect", "a", "b"], "remove --within"),
        (["--fail-if", "speed<3", "--bisect", "a", "b"], "no metric speed"),
        (["--fail-if", "ttft_p99_ms>9", "--bisect", "a", "b"], "no such path, and no run or label"),
    ],
)
def test_a_command_line_that_cannot_be_bisected_ends_in_one_line(
    words: list[str], said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["sweep.py", *words, "--results-dir", str(tmp_path)])
    with pytest.raises(SystemExit) as end:
        start(sweep_command.command)
    assert end.value.code == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1 and said in error
