"""What must be said of a result where the search changed the server."""

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.search import ALL, Bench
from harness.rates import search
from harness.rates.state_left import caution_on_changed_server
from harness.report import answer
from harness.report import report as rendering
from harness.results.outcome import Outcome
from harness.runs.run_folder import RunFolder
from tests.conftest import tells
from tests.rates.outcomes import full, overloaded, steady
from tests.support import example_runs


def drifted(drift: float) -> Outcome:
    test = full(40, 50, True)
    assert test.queue
    return test.model_copy(update={"queue": replace(test.queue, drift=drift)})


def test_a_server_that_became_faster_within_a_test() -> None:
    assert tells(
        caution_on_changed_server([steady(30, 100), drifted(0.37)]),
        "of the state that the search left",
        "37%",
        "faster",
    )
    assert tells(caution_on_changed_server([drifted(-0.2)]), "20% slower")
    assert caution_on_changed_server([drifted(0.07), steady(30, 100)]) == ""


def test_a_rate_that_held_after_a_lower_one_had_failed() -> None:
    said = caution_on_changed_server([overloaded(27, 21, 9000), steady(42, 100)])
    assert tells(said, "42 queries/s held after 27 had failed")
    assert caution_on_changed_server([overloaded(60, 50, 9000), steady(48, 100)]) == ""
    refused = example_runs.changed(overloaded(27, 21, 9000), refused=9, full_at=3)
    assert caution_on_changed_server([refused, steady(42, 100)]) == ""  # with fewer in flight


def test_the_page_says_so(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "20260131-000000-x", scenario="server", server_target_qps="max")
    probes = [overloaded(27, 21, 9000), steady(42, 100)]
    example_runs.note(RunFolder(folder.parent, folder.name), probes=probes)
    summary = rendering.build_report(folder)
    assert any(
        tells(line.text, "of the state that the search left") for line in answer.lines_below_title(summary, True)
    )
    assert "of the state that the search left" in (folder / "report.md").read_text()


@pytest.mark.parametrize(("name", "is_said"), [("an autoscaler to 3 replicas", True), ("shared, 30/s, 30 ms", False)])
def test_an_autoscaler_is_noticed_and_a_steady_server_is_not(name: str, is_said: bool) -> None:
    bench = Bench(next(case for case in ALL if case.name == name), 0)
    search.search(bench)
    assert bool(caution_on_changed_server(bench.probes)) is is_said
