"""GOOD and BAD as runs, files and environments: what a run can set of their differences, and what it cannot."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import UsageError
from harness.report import report as rendering
from harness.report.regression import parse_condition
from harness.sweep import bisect, bisect_report, bisect_sides, loop
from harness.sweep.bisect import BisectState
from harness.sweep.bisection import BAD
from harness.sweep.experiment import ExperimentRecord, Job, Watch
from harness.sweep.file import BASELINE
from harness.sweep.lanes import Lane
from harness.sweep.sweep_state import SweepOptions
from tests.conftest import tells
from tests.support import example_runs
from tests.support.example_bisections import GOOD_TEXT, searched
from tests.support.example_sweeps import ran

SPEED = [parse_condition("output_tokens_per_s<-3%")]
ANSWERS = [parse_condition("answers changed>1%")]


def finished(folder: Path, system: dict[str, Any] | None = None, **flags: Any) -> Path:
    """A finished run with its report."""
    run = example_runs.run(folder, system, **flags)
    rendering.build_report(run)
    return run


def system(**changes: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(example_runs.SYSTEM, default=str)), **changes}


def test_the_settings_of_two_runs_are_taken_apart(tmp_path: Path) -> None:
    arguments = ("enable_prefix_caching=false", "max_logprobs=3")
    good = finished(tmp_path / "a", max_num_seqs=8, engine_arg=arguments[1:], label="before")
    bad = finished(
        tmp_path / "b", engine_arg=arguments, engine_patch=("single-row",), label="after", quantization="fp8"
    )
    _, bisection = bisect.bisection_plan([str(good), str(bad)], [], SPEED, 1, tmp_path)
    shown = [(change.part, change.words) for change in bisection.differences]
    assert shown == [
        ("set", "quantization=fp8"),
        ("set", "no max_num_seqs"),
        ("engine", "enable_prefix_caching=false"),
        ("patch", "engine_patch single-row"),
    ]
    by_label = bisect.bisection_plan(["before", "after"], [], SPEED, 1, tmp_path)[1]
    assert by_label.differences == bisection.differences


def test_an_experiment_has_some_of_bads_settings(tmp_path: Path) -> None:
    good = finished(tmp_path / "a", max_num_seqs=8)
    bad = finished(tmp_path / "b", engine_arg=("max_logprobs=3",), engine_patch=("single-row",))
    side, other = bisect_sides.load_sides([str(good), str(bad)], tmp_path)
    changes = bisect_sides.testable_differences(side, other)
    everything = bisect_sides.side_with_changes(side, changes)
    assert everything.by_part == other.by_part
    assert bisect_sides.side_with_changes(side, ()).by_part == side.by_part
    item = bisect.make_step(side, "step-1", changes[1:2], "performance", "", "step")
    assert item.settings["engine_arg"] == ["max_logprobs=3"] and item.settings["max_num_seqs"] == 8
    assert item.changes == ("max_logprobs=3",) and "engine_patch" not in item.settings


def test_variables_and_what_no_run_can_set_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_SET_HERE", "1")
    variables = {"VLLM_X": "1", "VLLM_HIDDEN": "***", "VLLM_SET_HERE": "1"}
    good = finished(tmp_path / "a", system(variables={}, cpu="one", driver="1"))
    bad = finished(tmp_path / "b", system(variables=variables, cpu="another", driver="2"), model="demo")
    _, bisection = bisect.bisection_plan([str(good), str(bad)], [], SPEED, 1, tmp_path)
    assert [change.words for change in bisection.differences] == ["VLLM_X=1"]
    assert tells("; ".join(bisection.untestable), "VLLM_HIDDEN", "VLLM_SET_HERE (set in this shell", "driver (1, 2")
    assert any(text.startswith("cpu (one, another") for text in bisection.untestable)


def test_a_config_file_has_the_variables_of_the_run_beside_it(tmp_path: Path) -> None:
    run = finished(tmp_path / "a", system(variables={"VLLM_X": "1"}))
    file = tmp_path / "b.yaml"
    file.write_text("model: demo\nmin_duration: 5\nmax_num_seqs: 4\n")
    sweep, bisection = bisect.bisection_plan([str(run), str(file)], [], SPEED, 1, tmp_path)
    assert [change.words for change in bisection.differences] == ["max_num_seqs=4"]
    assert all(item.env == {"VLLM_X": "1"} for item in sweep.experiments)


def test_another_model_is_named_and_every_step_has_goods(tmp_path: Path) -> None:
    good, bad = tmp_path / "a.yaml", tmp_path / "b.yaml"
    good.write_text("model: demo\n")
    bad.write_text("model: llama3.1-8b-instruct\nmax_num_seqs: 4\n")
    sweep, bisection = bisect.bisection_plan([str(good), str(bad)], [], SPEED, 1, tmp_path)
    assert tells(bisection.untestable[0], "model (demo, llama3.1-8b-instruct", "first")
    assert {item.settings["model"] for item in sweep.experiments} == {"demo"}


def test_without_a_testable_difference_the_others_are_named(tmp_path: Path) -> None:
    good = finished(tmp_path / "a", system(cpu="one"))
    bad = finished(tmp_path / "b", system(cpu="another"))
    with pytest.raises(UsageError, match=r"nothing that a run can set; not testable: cpu \(one, another\)"):
        bisect.bisection_plan([str(good), str(bad)], [], SPEED, 1, tmp_path)


@pytest.mark.parametrize("is_good", [True, False])
def test_an_invalid_run_may_be_bad_and_not_good(tmp_path: Path, is_good: bool) -> None:
    invalid = finished(tmp_path / "invalid", max_num_seqs=8)
    path = invalid / "summary.json"
    summary = json.loads(path.read_text())
    summary["run"]["performance"]["valid"] = False
    path.write_text(json.dumps(summary))
    valid = finished(tmp_path / "valid")
    words = [str(invalid), str(valid)] if is_good else [str(valid), str(invalid)]
    if not is_good:
        assert bisect.bisection_plan(words, [], SPEED, 1, tmp_path)[1].differences
        return
    with pytest.raises(UsageError, match="is INVALID: only BAD may be"):
        bisect.bisection_plan(words, [], SPEED, 1, tmp_path)
    assert bisect.bisection_plan(words, [], ANSWERS, 1, tmp_path)[1].differences


def environment(folder: Path, version: str) -> str:
    """An interpreter whose environment has another version of a package."""
    package = folder / version / f"vllm-{version}.dist-info"
    package.mkdir(parents=True)
    (package / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}\n")
    python = folder / version / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={folder / version} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return str(python)


def config(folder: Path, more: str = "", name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(GOOD_TEXT + more)
    return str(path)


def test_versions_are_bisected_in_their_order(tmp_path: Path) -> None:
    versions = ["0.29.0", "0.30.0", "0.31.0", "0.32.0", "0.33.0"]
    pythons = [environment(tmp_path, version) for version in versions]
    sweep, bisection = bisect.bisection_plan([config(tmp_path)], pythons, SPEED, 1, tmp_path)
    assert bisection.is_ordered and [change.name for change in bisection.differences] == [
        f"vllm {version}" for version in versions[1:]
    ]
    options = SweepOptions(repeat=4, alternate=True)
    state = loop.begin_sweep(
        sweep, tmp_path, [*sweep.experiments], options, {}, False, 0.0, (SPEED[0].text,), bisection
    )
    assert isinstance(state, BisectState)
    used: list[str] = []

    def run(job: Job, lane: Lane, watch: Watch) -> ExperimentRecord:
        used.append(job.item.python)
        speed = 80.0 if pythons.index(job.item.python) >= 2 else 100.0
        outcome = ran(job.item.name, speed + job.round % 3 / 10, verdict=None).outcome
        return job.record(lane, "complete", seconds=1.0, outcome=outcome)

    found = searched(state, run)
    assert tells(bisect_report.finding_title(found), "first slower: vllm 0.31.0: -20 % (")
    assert bisect_report.exit_code(found.report) == 0
    assert len(found.steps) == 2 and used[0] == pythons[0]
    lines = {line.label: line.text for line in bisect_report.finding_lines(found, tmp_path)}
    assert lines["run again"].startswith(f"{pythons[2]} run.py --config ")
    items = {item.name: item for item in sweep.experiments}
    assert items[BASELINE].python == pythons[0] and items[BAD].python == pythons[-1]


def test_an_environment_is_one_difference_among_others(tmp_path: Path) -> None:
    pythons = [environment(tmp_path, "1.0"), environment(tmp_path, "2.0")]
    good, bad = config(tmp_path), config(tmp_path, "max_num_seqs: 8\n", "bad.yaml")
    sweep, bisection = bisect.bisection_plan([good, bad], pythons, SPEED, 1, tmp_path)
    assert [change.words for change in bisection.differences] == ["max_num_seqs=8", "vllm 2.0"]
    assert [item.python for item in sweep.experiments] == [pythons[0], pythons[0], pythons[1]]
    alone = bisect.bisection_plan([good, bad], pythons[1:], SPEED, 1, tmp_path)[0]
    assert [item.python for item in alone.experiments] == [sys.executable, sys.executable, pythons[1]]


def test_packages_that_a_number_rests_on_are_named_first() -> None:
    before = {"zlib": "1", "vllm": "0.31", "numpy": "1", "a": "1", "b": "1"}
    after = {"zlib": "2", "vllm": "0.32", "numpy": "2", "b": "2"}
    assert bisect_sides.name_change(before, after) == "vllm 0.32, a removed, b 2, 2 more packages"
    assert not bisect_sides.name_change(before, before)
