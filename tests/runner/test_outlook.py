"""--dry-run says what a run would do, and --json prints its summary alone."""

import json
import os
import shutil
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.random_llama import QUANTIZATION
from harness.__main__ import main
from harness.config import pretrained, quantization
from harness.config.mlperf import SCENARIOS, Scenario
from harness.config.plan import Plan, duration_text
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core import startup
from harness.core.errors import UsageError
from harness.rates.bench import OFFLINE_MARGIN
from harness.rates.trials import Trial
from harness.runner import samples, steps
from harness.runner.levels import plan_at_level
from harness.runner.rate import rate_source
from tests.conftest import ROOT, called, ended


def dry_run(**flags: Any) -> str:
    lines: list[str] = []
    assert steps.dry_run(RunConfig(**{"model": "demo", **flags}), lines.append) == 0
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({}, ["accuracy test: 256 samples", "calibration: at most 1.0 min", "at least 10 s", "no: the demo model"]),
        (
            {"scenario": "server", "server_target_qps": "4,8"},
            ["2 rates: of 459 queries or more, about", "performance test: at least 20 s"],
        ),
        ({"scenario": "server", "server_target_qps": 8}, ["512 queries in about 1.1 min"]),
        ({"scenario": "server", "server_target_qps": "max"}, ["search for the highest rate"]),
        ({"scenario": "server", "quick": True}, ["lone requests, a burst, two probes: at most 2.0 min"]),
        (
            {"scenario": "server", "quick": True, "minutes": 5},
            ["lone requests, a burst, two probes: at most 5.0 min"],
        ),
        (
            {"concurrency": "1,4,16"},
            [
                "2 lower levels: at least 40 s, each of 64 requests or more",
                "expected time after the engine's start: at least 1.0 min ("
                "2 lower levels at least 40 s, performance test at least 20 s",
            ],
        ),
        ({"scenario": "multistream", "samples_per_query": "1,2", "mode": "performance"}, ["1 smaller batch"]),
        ({"mode": "accuracy"}, ["accuracy test"]),
        (
            {"mode": "performance"},
            ["start: at least 10 s", "calibration at most 1.0 min, performance test at least 10 s"],
        ),
    ],
    ids=str,
)
def test_it_says_what_would_be_run(flags: dict[str, Any], words: list[str], tmp_path: Path) -> None:
    page = dry_run(**flags, results_dir=tmp_path / "none")
    assert all(word in page for word in words), page
    assert not (tmp_path / "none").exists()


def test_after_the_first_answers_the_whole_is_said_again() -> None:
    """64 requests of 3 s, alone and two at a time, and 10 s of four at a time, which answer 64 in 48 s."""
    config = RunConfig(model="demo", mode="performance", concurrency="1,2,4", min_duration=10)
    plan, _ = samples.prepare_plan(config, pretrained.load_tokenizer(config))
    rate_of_one = 1 / 3 / OFFLINE_MARGIN

    def tried(plan: Plan, level: int, samples: int) -> Plan:
        bench: Any = SimpleNamespace(plan=plan, trial=lambda _: Trial(samples, 4 / rate_of_one))
        return plan_at_level(bench, level)

    first = tried(plan, 1, 4)
    assert rate_source(config).duration_line(first) == (
        "expected time after the engine's start: at least 5.6 min (2 lower levels at least 4.8 min, performance test "
        "48 s)"
    )
    last = tried(first, 4, 16)
    assert last.duration_line() == "expected time from now on: about 48 s (performance test 48 s)"
    both = replace(last, config=config.with_settings(mode="both"), samples=32)
    assert (
        both.duration_line() == "expected time from now on: about 1.2 min (accuracy test 24 s, performance test 48 s)"
    )


@pytest.mark.parametrize("rules", SCENARIOS.values(), ids=attrgetter("name"))
def test_every_pattern_has_a_source_of_its_load(rules: Scenario) -> None:
    config = RunConfig(scenario=rules.name, mode="performance")
    assert rate_source(config).part_before(resolve(config, [], 0)) is not None


def test_it_ends_where_the_run_would() -> None:
    with pytest.raises(UsageError, match="this data set has 256 samples"):
        dry_run(total_sample_count=257)


@pytest.mark.slow
def test_the_summary_alone_is_printed(tmp_path: Path) -> None:
    flags = ("--model", "demo", "--backend", "echo", "--mode", "performance", "--min-duration", "1", "--json")
    done = ended("run.py", *flags, "--results-dir", str(tmp_path))
    assert json.loads(done.stdout)["run"]["performance"]["valid"]
    assert "performance test: VALID" in done.stderr


def other_model(folder: Path, **changes: object) -> str:
    """The demo model with another config."""
    shutil.copytree(ROOT / "demo" / "model", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--results-dir", "/proc/x"), "--results-dir /proc/x"),
        (("--engine-arg", "nosuch=1"), "--engine-arg nosuch"),
        (("--tensor-parallel-size", "999"), "--tensor-parallel-size 999"),
        (("--endpoint", "http://127.0.0.1:9/v1"), "no server there"),
        (("--model", "{no layers}"), "0 layers"),
        (("--model", "{other}"), "NoSuchForCausalLM"),
        (("--model", "nobody/has-this"), "cannot load nobody/has-this"),
    ],
    ids=str,
)
def test_what_could_not_begin_is_found_without_beginning(words: tuple[str, ...], said: str, tmp_path: Path) -> None:
    places = {
        "{no layers}": lambda: other_model(tmp_path / "m", num_hidden_layers=0),
        "{other}": lambda: other_model(tmp_path / "m", architectures=["NoSuchForCausalLM"]),
    }
    flag, value = words
    value = places[value]() if value in places else value
    place = () if flag == "--results-dir" else ("--results-dir", str(tmp_path / "results"))
    model = () if flag == "--model" else ("--model", "demo")
    data = ("--dataset-path", str(ROOT / "demo" / "cnn_eval.json"), "--total-sample-count", "9")
    done = called(main, "llama31-mlperf", "run", *model, flag, value, *place, *data, "--dry-run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert said in done.stderr
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (None, "bf16"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"}, "fp8 (dynamic)"),
        (QUANTIZATION, "fp8 (static, compressed-tensors)"),
    ],
)
def test_weights_are_named_by_their_format(stored: dict[str, object] | None, said: str, tmp_path: Path) -> None:
    changes = {"quantization_config": stored} if stored else {}
    assert quantization.format_of(RunConfig(model=other_model(tmp_path / "m", **changes))) == said


def test_lengths_of_time_have_the_unit_that_people_take() -> None:
    assert [duration_text(seconds) for seconds in (9, 90, 9_000, 6_684_000)] == ["9 s", "1.5 min", "2.5 h", "77.4 days"]


def test_a_variable_of_the_checkouts_env_file_is_read_and_what_is_set_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("# a token\nHF_TOKEN=from-the-file\nOTHER_WORD=a=b\nEMPTY_WORD=\nno line of it\n")
    monkeypatch.setattr(startup, "CHECKOUT", tmp_path)
    monkeypatch.setenv("HF_TOKEN", "set")
    monkeypatch.delenv("OTHER_WORD", raising=False)
    startup.read_environment()
    assert (os.environ["HF_TOKEN"], os.environ["OTHER_WORD"]) == ("set", "a=b")
    assert "EMPTY_WORD" not in os.environ
    monkeypatch.delenv("OTHER_WORD")
    (tmp_path / ".env").write_bytes(b"A=\xff")
    with pytest.raises(UsageError, match=r"\.env"):
        startup.read_environment()


def test_queries_of_several_samples_are_counted_as_loadgen_counts_them() -> None:
    config = RunConfig(model="demo", mode="performance", scenario="multistream", samples_per_query=8, min_duration=30)
    plan, _ = samples.prepare_plan(config, pretrained.load_tokenizer(config))
    assert plan.pattern.length(replace(plan, expected_latency_ms=100.0)) == (300, 30.0)
