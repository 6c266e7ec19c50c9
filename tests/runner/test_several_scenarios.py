"""--scenario offline,server: two runs of one command, which share one engine."""

import json
from pathlib import Path

import mlperf_loadgen as lg
import pytest

from harness.commands.run import words_of_run
from harness.config.mlperf import SCENARIOS
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import NOT_ACCEPTED, UsageError
from harness.loadgen.loadgen_test import CHANGING_SETTINGS, FIXED_SETTINGS, LoadGenSettings
from tests.conftest import launch, run

ECHO = ("--backend", "echo", "--mode", "performance", "--min-duration", "1", "--total-sample-count", "16")


def test_each_run_has_the_flags_that_its_scenario_uses() -> None:
    config = RunConfig(scenario="offline,server", model="demo", server_target_qps=5, batch_size=4, label="both")
    offline, server = config.runs
    assert [item.scenario for item in config.runs] == ["offline", "server"]
    assert (offline.batch_size, offline.server_target_qps, offline.label) == (4, "auto", "both")
    assert (server.batch_size, server.server_target_qps, server.label) == (None, 5, "both")
    assert not offline.following_scenarios and not server.following_scenarios


def test_the_minutes_are_those_of_the_search() -> None:
    offline, server = RunConfig(scenario="offline,server", server_target_qps="max", minutes=30).runs
    assert (offline.minutes, server.minutes) == (None, 30)


def test_one_scenario_is_one_run() -> None:
    config = RunConfig(scenario="server")
    assert config.runs == [config]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"scenario": "offline,servr"}, "servr"),
        ({"scenario": "offline,offline"}, "given twice"),
        ({"scenario": "offline,server", "quick": True}, "--quick"),
        ({"scenario": "offline,server", "profile": True}, "--profile is of one run"),
        (
            {"scenario": "offline,singlestream", "server_target_qps": 5},
            "no effect with --scenario offline,singlestream",
        ),
        ({"scenario": "server,singlestream", "category": "datacenter"}, "--category datacenter"),
    ],
)
def test_what_cannot_be_run_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        _ = RunConfig.from_mapping(settings).runs


@pytest.mark.parametrize("given", ["--scenario offline,server", "--scenario=offline,server"])
def test_a_run_keeps_the_command_that_repeats_it_alone(given: str) -> None:
    words = f"--model demo {given} --server-target-qps 5 --sort-by-length --label x".split()
    config = RunConfig(scenario="offline,server", model="demo", server_target_qps=5, sort_by_length=True, label="x")
    offline, server = (words_of_run(words, config, item) for item in config.runs)
    assert offline == ["--model", "demo", "--sort-by-length", "--label", "x", "--scenario", "offline"]
    assert server == ["--model", "demo", "--server-target-qps", "5", "--label", "x", "--scenario", "server"]


@pytest.mark.parametrize("scenario", ["offline", "server", "multistream"])
def test_a_second_run_of_a_process_has_the_settings_that_loadgen_would_read(
    scenario: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    category = SCENARIOS[scenario].categories[-1]
    config = RunConfig(scenario=scenario, category=category, input_len=16, output_len=8, mode="performance")
    if scenario == "server":
        config = config.with_settings(ttft_limit=700, tpot_limit=70)
    plan = resolve(config, [], 0)
    monkeypatch.setattr(LoadGenSettings, "has_read_user_conf", False)
    first = LoadGenSettings().prepare(plan, tmp_path)
    assert LoadGenSettings.has_read_user_conf
    second = LoadGenSettings().prepare(plan, tmp_path)
    for name in (*CHANGING_SETTINGS, *(name for name, _ in FIXED_SETTINGS.values())):
        assert getattr(first, name) == getattr(second, name), name


def test_every_setting_that_a_pattern_fixes_is_known_to_loadgen() -> None:
    assert all(hasattr(lg.TestSettings(), name) for name, _ in FIXED_SETTINGS.values())
    for rules in SCENARIOS.values():
        plan = resolve(RunConfig(scenario=rules.name, mode="performance"), [], 0)
        assert rules.pattern.fixed_settings(plan).keys() <= FIXED_SETTINGS.keys()


@pytest.mark.slow
def test_two_runs_and_the_newest_is_the_second(tmp_path: Path) -> None:
    done = run(tmp_path, *ECHO, "--scenario", "offline,server")
    assert done.code == 0, done.output
    offline, server = sorted(tmp_path.glob("2*"))
    assert (tmp_path / "latest").readlink().name == server.name
    kept = json.loads((server / "config.json").read_text())
    assert kept["command"].endswith("--scenario server")
    assert any(offline.name in note for note in kept["plan"]["notes"])  # its rate is a share of that run's
    for folder in (offline, server):
        assert json.loads((folder / "status.json").read_text())["status"] == "complete"
        assert "No errors encountered" in (folder / "Performance/mlperf_log_summary.txt").read_text()


@pytest.mark.slow
def test_a_run_that_fails_is_the_last(tmp_path: Path) -> None:
    code, output = launch(
        "run.py", tmp_path, "--backend", "echo", "--scenario", "offline,server", "--total-sample-count", "32"
    )[:2]
    assert code == NOT_ACCEPTED
    assert len(list(tmp_path.glob("2*"))) == 1
    assert "not run: server" in output


@pytest.mark.engine
def test_vllm_starts_once(tmp_path: Path) -> None:
    done = run(tmp_path, "--scenario", "offline,server", "--mode", "performance", "--min-duration", "2")
    assert done.code == 0, done.output
    assert done.output.count("starting vLLM") == 1
    offline, server = (json.loads((folder / "summary.json").read_text()) for folder in sorted(tmp_path.glob("2*")))
    assert offline["meta"]["engine_start_s"] == server["meta"]["engine_start_s"]
    assert server["run"]["performance"]["valid"] is not None
