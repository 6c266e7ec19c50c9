"""A run has one result: title, tiles, index, history, comparison, gate, sweep and MLflow name one figure and one
verdict, whatever the tests of the run.
"""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from harness.config.comparability import INVALID
from harness.core import last_screen
from harness.core.document import Document, to_markdown
from harness.core.files import write_json
from harness.core.formatting import number
from harness.core.statistics import FEWEST_P99
from harness.report import answer, compare, compare_page, regression, run_page
from harness.report import report as rendering
from harness.report.compare import ComparedRun
from harness.report.load_view import LoadPicture
from harness.report.regression import Sides, parse_condition
from harness.report.run_report import RunReport
from harness.results import metrics, outcome
from harness.results.outcome import Doubt, Outcome
from harness.results.summary import CURVE_UNITS, Summary
from harness.runs import history
from harness.runs.run_folder import RunFolder
from harness.sweep.experiment import from_summary
from tests.conftest import tells
from tests.support import example_runs

ASKED: dict[str, dict[str, Any]] = {
    "offline": {},
    "server": {"scenario": "server", "server_target_qps": "max"},
    "interactive": {"scenario": "interactive", "server_target_qps": 8.5},
    "singlestream": {"category": "edge", "scenario": "singlestream"},
    "multistream": {"category": "edge", "scenario": "multistream", "samples_per_query": "2,4,8"},
    "concurrency": {"concurrency": "2,4,8"},
    "arrivals": {"arrivals": "poisson", "server_target_qps": 8.5},
}
GIVEN = ("interactive", "arrivals")
BUSY = "other programs used 1.0 of 2 CPU cores during the test"
DISPUTE = "tokens: 64 here, 57 by usage"
SPEED = "tokens_per_sec"


@dataclass(frozen=True)
class Case:
    """What a generated run was like; `levels`: speed, whether over its limits, and queries of each, where it has
    several.
    """

    samples: int
    is_busy: bool
    is_valid: bool
    is_over: bool
    is_disputed: bool
    levels: tuple[tuple[float, bool], ...]


CASES = st.builds(
    Case,
    samples=st.sampled_from((64, 1000)),
    is_busy=st.booleans(),
    is_valid=st.booleans(),
    is_over=st.booleans(),
    is_disputed=st.booleans(),
    levels=st.lists(st.tuples(st.floats(100, 9999), st.booleans()), min_size=1, max_size=3).map(tuple),
)


class Runs(dict[str, ComparedRun]):
    def __repr__(self) -> str:
        return "runs"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    """A run of each scenario, whose machine nobody else used."""
    place, found = tmp_path_factory.mktemp("runs"), Runs()
    for name, flags in ASKED.items():
        folder = example_runs.run(place / name, **flags)
        write_json(folder / "Performance" / "machine.json", {"others_cpu_cores": 0.0, "others": []})
        rendering.build_report(folder)
        found[name] = compare.read_run(folder)
    return found


def like(summary: Summary, case: Case) -> Summary:
    """A run of a scenario as a case has it: its tests, and of these the one that is its result."""
    test, unit = summary.run.performance, summary.scenario.pattern.unit
    assert test is not None
    is_own = bool(test.details.concurrency or test.details.arrivals)
    levels = tuple(level(unit, n, speed, over, case) for n, (speed, over) in enumerate(case.levels, start=1))
    chosen = (outcome.best_load(levels) or levels[-1]) if unit in CURVE_UNITS and len(levels) > 1 else None
    changed: dict[str, Any] = {
        "samples": case.samples * test.details.samples_per_query,
        "valid": case.is_valid or is_own,
        "others": [BUSY] if case.is_busy else [],
        "disagreements": [DISPUTE] if case.is_disputed else [],
    }
    if test.details.limits_ms and case.is_over:
        changed["limits_ms"] = test.details.limits_ms.__class__(1.0, 1.0)
    if chosen:
        changed |= {"tokens_per_sec": chosen.tokens_per_sec, "steady": None, "valid": chosen.valid}
        changed |= (
            {"concurrency": int(chosen.load)} if test.details.concurrency else {"samples_per_query": int(chosen.load)}
        )
        changed["samples"] = case.samples * (1 if test.details.concurrency else int(chosen.load))
        changed["limits_ms"] = None  # those of the levels are in their reasons
    performance = example_runs.with_performance(test, **changed)
    search = list(levels) if chosen else None
    return summary.model_copy(
        update={"run": summary.run.model_copy(update={"performance": performance, "search": search})}
    )


def level(unit: str, n: int, speed: float, is_over: bool, case: Case) -> Outcome:
    is_own = unit == "in flight"
    reasons = [{"name": "TTFT", "what": "TTFT p99 3 of 2 ms"}] if is_over and is_own else []
    return Outcome.model_validate(
        {
            "load": 2**n,
            "unit": unit,
            "valid": is_own or not is_over,
            "has_own_limits": is_own,
            "reasons": reasons,
            "tokens_per_sec": speed,
            "samples_per_sec": speed / 128,
            "queries": case.samples,
            "others": [BUSY] if case.is_busy else [],
        }
    )


@pytest.mark.parametrize("name", ASKED)
@settings(max_examples=12)
@given(CASES)
def test_every_place_names_one_figure_and_one_verdict(name: str, runs: Runs, case: Case) -> None:
    before = runs[name]
    summary = like(before.summary, case)
    found, speed = summary.result, metrics.METRIC_BY_NAME[SPEED].of(summary)
    assert found is not None and speed is not None and found.tokens_per_sec == speed
    assert {Doubt.BUSY: case.is_busy, Doubt.FEW: case.samples < FEWEST_P99} == {
        doubt: doubt in found.doubts for doubt in (Doubt.BUSY, Doubt.FEW)
    }
    shown, word = number(speed), found.verdict.word
    title, tile = answer.title(summary), page_of(before, summary)
    if word == "INVALID":
        assert title.startswith("INVALID") and "of an INVALID test" in tile
    elif "no level is within" not in title and name != "singlestream":
        assert f"{shown} output tokens/s" in title, title
    assert (f"{shown} output tokens/s" in title) != (f"<p>{shown} output tokens/s.</p>" in tile)
    assert ("DISPUTED" in title) == case.is_disputed
    if found.has_own_limits and "no level" not in title:
        words = {"within": "within the limits", "not judged": "not judged"}.get(word, "over the limits")
        assert words in title, title
    document = answer.document(summary, whole=True)
    assert to_markdown(document).splitlines()[0] == f"# {title}"
    assert " ".join(screen_of(document).split()).startswith(title)
    read_again = Summary.model_validate_json(summary.model_dump_json())
    assert read_again.result == found and answer.title(read_again) == title
    line = rendering.history_line(summary)
    assert (line[SPEED], line["result"], line["flaws"]) == (speed, word, found.flaws)
    assert line["others"] == ([BUSY] if case.is_busy else [])
    kept = from_summary(summary)
    assert kept.values[SPEED] == speed and [*kept.flaws] == found.flaws and bool(kept.background_load) == case.is_busy
    assert metrics.values(summary, "mlflow")[SPEED] == speed
    is_clean = not (found.flaws or case.is_busy)
    after = ComparedRun(before.folder, before.facts, summary)
    reason = compare_page.refusal_text(before, after, "A", "B")
    if name not in GIVEN:  # whose rate was given, so that no speed of it is compared
        assert (reason == "") == is_clean, reason
    judged = regression.judge(Sides([before], [after]), [parse_condition("tokens_per_sec>0")])
    is_judged = not (case.is_busy or case.is_disputed or INVALID in found.flaws or name in GIVEN)
    assert (judged[-1].verdict != "NOT JUDGED") == is_judged, judged[-1].why
    if is_judged:
        assert judged[-1].run == shown
    (column,) = [column for column in compare_page.columns([before, after]) if column.name == SPEED]
    assert column.label == "output tokens/s" and column.values[1] == speed and column.texts[1] == shown


def screen_of(document: Document) -> str:
    """The last screen of a command, without the path."""
    console = Console(file=io.StringIO(), width=80)
    last_screen.show(console, document)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def page_of(run: ComparedRun, summary: Summary) -> str:
    report = RunReport(summary, run.facts, {}, LoadPicture.of(summary, run.facts.plan.limits))
    return run_page.run_page(report, answer.document(summary, whole=True), None)


def test_an_index_says_what_a_title_says(tmp_path: Path) -> None:
    for n, why in enumerate(("", "TTFT p99 3,000 of 2,000 ms")):
        folder = example_runs.run(tmp_path / f"2026013{n}-a", concurrency="4")
        example_runs.levels(folder, [example_runs.probe(None, True, tokens_per_sec=300.0, concurrency=4, why=why)])
        summary = rendering.build_report(folder)
        history.finish(RunFolder(tmp_path, folder.name), rendering.history_line(summary))
    rendering.write_index(tmp_path)
    rows = [line for line in (tmp_path / "index.md").read_text().splitlines() if "-a" in line]
    assert [" within |" in row for row in rows] == [False, True] and " over: TTFT |" in rows[0]


@pytest.mark.parametrize("asked", [ASKED["concurrency"], ASKED["multistream"]], ids=["concurrency", "multistream"])
def test_a_result_below_a_busy_level_is_compared_with_nothing(tmp_path: Path, asked: dict[str, Any]) -> None:
    """On an idle machine the larger load may have been the result: two runs of one machine are no 75 % apart."""
    compared = []
    for name, busy in (("a", ""), ("b", BUSY)):
        folder = example_runs.run(tmp_path / name, **asked)
        unit = "concurrency" if "concurrency" in asked else "samples_per_query"
        loads = [(2, 500.0, ""), (8, 2000.0, busy)]
        levels = [
            example_runs.probe(None, True, tokens_per_sec=v, busy=b, queries=500, **{unit: n}) for n, v, b in loads
        ]
        example_runs.levels(folder, levels)
        for place in folder.rglob("mlperf_log_detail.txt"):
            write_json(place.parent / "machine.json", {"others_cpu_cores": 0.0, "others": []})
        rendering.build_report(folder)
        compared.append(compare.read_run(folder))
    idle_run, busy_run = compared
    assert [run.summary.result and run.summary.result.load for run in compared] == [8, 2]
    assert compare_page.refusal_text(idle_run, busy_run, "A", "B") == "the machine was busy in B"
    judged = regression.judge(Sides([idle_run], [busy_run]), [parse_condition("tokens_per_sec<-3%")])
    assert judged[0].verdict == "NOT JUDGED"
    said = [line.text for line in answer.document(busy_run.summary).lines]
    assert any(tells(text, "other programs ran", " 8 ", "do not pass this number on") for text in said)
    assert from_summary(busy_run.summary).background_load and rendering.history_line(busy_run.summary)["others"]
