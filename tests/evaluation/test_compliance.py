"""TEST06 and TEST04: real LoadGen, real vLLM; the official verification where the submodule is there."""

import json
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from harness.common.errors import LoadGenError, UsageError
from harness.config.run import RunConfig
from harness.evaluation import compliance
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import read_requests
from harness.workloads.cnn_dailymail import from_json
from tests import made
from tests.conftest import ROOT, Finished, run, tells

OFFICIAL = ROOT / "third_party" / "inference" / "compliance" / "TEST06" / "run_verification.py"
EOS = 703  # of the demo's tokenizer
# The official script takes an id given with -e as text, which equals no token, so that its check of the end cannot
# fail. Its default is a number: the comparison plants that one.
OFFICIAL_EOS = 2


def officially(folder: Path, scenario: str, out: Path) -> str:
    """What the official script writes about a TEST06 run."""
    command = [sys.executable, str(OFFICIAL), "-c", str(folder), "-o", str(out), "-s", scenario]
    subprocess.run(command, check=True, capture_output=True)
    return (out / "TEST06" / "verify_accuracy.txt").read_text()


def test_test06_of_real_runs(offline: Finished, server: Finished) -> None:
    for done, first in ((offline, None), (server, True)):
        outcome = done.summary["run"]["compliance"]["test06"]
        assert outcome["passed"]
        assert list(outcome["checks"].values()) == [first, True, True]
        assert outcome["facts"] == {"samples": 100, "eos": EOS}
        assert "TEST06: PASS" in (done.folder / "report.md").read_text()
        facts = loadgen_log.read(done.folder / "Compliance" / "TEST06")
        assert facts.effective["min_duration_ms"] == 0
        assert facts.samples == 100
        assert facts.errors == []


def doctored(folder: Path, target: Path, change: Any) -> Path:
    """A copy of a TEST06 run with its log changed: `change` is given the last entry."""
    shutil.copytree(folder, target)
    path = target / "mlperf_log_accuracy.json"
    entries = json.loads(path.read_text())
    change(entries[-1])
    path.write_text(json.dumps(entries))
    return target


def two_ends(entry: dict[str, Any]) -> None:
    end = OFFICIAL_EOS.to_bytes(4, "little").hex().upper()
    entry["data"] += 2 * end
    entry["token_count"] += 2


def another_start(entry: dict[str, Any]) -> None:
    entry["token_data"] = "00000000" if entry["token_data"] != "00000000" else "01000000"


def wrong_count(entry: dict[str, Any]) -> None:
    entry["token_count"] += 1


def half_a_token(entry: dict[str, Any]) -> None:
    entry["token_data"] = entry["data"][:4]


FAULTS = {
    "end of text at most once": two_ends,
    "first token": another_start,
    "token count": wrong_count,
}


@pytest.mark.parametrize("check", [None, *FAULTS])
def test_test06_sees_each_fault_as_the_official_verification_does(
    server: Finished, tmp_path: Path, check: str | None
) -> None:
    change = FAULTS[check] if check else lambda entry: None
    folder = doctored(server.folder / "Compliance" / "TEST06", tmp_path / "log", change)
    outcome, text = compliance.judge_test06(folder, OFFICIAL_EOS, RunConfig(scenario="server"))
    assert [name for name, passed in outcome.checks.items() if not passed] == ([check] if check else [])
    assert outcome.passed == (check is None)
    if OFFICIAL.exists():
        assert text == officially(folder, "Server", tmp_path)


@pytest.mark.parametrize(
    ("reported", "passed"),
    [((7,), True), ((7, 8), True), ((7, 8, 9), True), ((7, 9), False), ((8,), False), ((), False)],
)
def test_what_was_reported_is_how_the_answer_begins(reported: tuple[int, ...], passed: bool) -> None:
    """The reports of all published Server and Interactive logs hold two tokens."""
    entry = {"token_data": array("i", reported).tobytes().hex()}
    assert compliance.is_as_reported(entry, [7, 8, 9]) is passed
    assert not compliance.is_as_reported(entry, [7][: len(reported) - 1])


@pytest.mark.parametrize(
    "change", [half_a_token, lambda entry: entry.update(token_data=""), lambda entry: entry.pop("token_data")]
)
def test_a_first_token_is_a_whole_token(change: Any) -> None:
    entry = {"data": "0700000008000000", "token_data": "07000000"}
    assert compliance.is_as_reported(entry, [7, 8])
    change(entry)
    assert not compliance.is_as_reported(entry, [7, 8])


@pytest.mark.parametrize(("repeated_ms", "passed"), [(100, True), (84, True), (83, False), (50, False)])
def test_test04_holds_latencies_against_each_other_where_queries_come_one_by_one(
    tmp_path: Path, repeated_ms: float, passed: bool
) -> None:
    for name, latency in (("ordinary", 100), ("repeated", repeated_ms)):
        folder = made.run(tmp_path / name, category="edge", scenario="singlestream") / "Performance"
        log = folder / "mlperf_log_detail.txt"
        entry = {"key": "early_stopping_latency_ss", "value": round(latency * 1e6), "metadata": {}}
        log.write_text(f"{log.read_text()}:::MLLOG {json.dumps(entry)}\n")
    outcome, text = compliance.judge_test04(tmp_path / "repeated/Performance", tmp_path / "ordinary/Performance", 0)
    assert outcome.passed is passed and text.endswith(f"TEST {'PASS' if passed else 'FAIL'}\n")
    assert outcome.facts["allowed"] == 1.2


def test_too_few_answers_are_no_test06(server: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    shutil.copytree(server.folder / "Compliance" / "TEST06", folder)
    path = folder / "mlperf_log_accuracy.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:99]))
    with pytest.raises(LoadGenError, match="99 samples logged"):
        compliance.judge_test06(folder, EOS, RunConfig(scenario="server"))
    path.write_text("[")
    with pytest.raises(LoadGenError, match=r"mlperf_log_accuracy.json: .*TEST06"):
        compliance.judge_test06(folder, EOS, RunConfig(scenario="server"))


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    """A folder with the demo's model four times as wide, without weights: reading its prompts takes most of a run."""
    folder = tmp_path / "wide"
    shutil.copytree(ROOT / "demo" / "model", folder, ignore=shutil.ignore_patterns("*.safetensors"))
    path = folder / "config.json"
    shape = ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads")
    config = json.loads(path.read_text())
    path.write_text(json.dumps(config | {key: 4 * config[key] for key in shape}))
    return folder


@pytest.mark.engine
def test_test04_repeats_an_ordinary_sample_and_catches_a_cache(offline: Finished, wide: Path, tmp_path: Path) -> None:
    model = ("--model", str(wide), "--load-format", "dummy", "--max-model-len", "1024", "--max-num-seqs", "16")
    data = ("--dataset-path", "demo/cnn_eval.json", "--total-sample-count", "32", "--max-new-tokens", "8")
    test = ("--category", "edge", "--mode", "performance", "--min-duration", "1", "--compliance", "test04")
    engine = ("--engine-arg", "enable_prefix_caching=true", "--engine-arg", "enforce_eager=true")
    done = run(tmp_path, *model, *data, *test, *engine)
    assert done.code == 1, done.output
    outcome = done.summary["run"]["compliance"]["test04"]
    assert not outcome["passed"]
    assert outcome["checks"]["no faster than ordinary samples"] is False
    assert outcome["facts"]["samples_per_sec"] > 1.3 * outcome["facts"]["reference_samples_per_sec"]
    folder = done.folder / "Compliance" / "TEST04"
    assert len({request.output_tokens for request in read_requests(folder)}) == 1  # one sample, always the same answer
    assert "TEST FAIL" in (folder / "verify_performance.txt").read_text()
    report = (done.folder / "report.md").read_text()
    assert tells(report, "TEST04: FAIL", "Prefix caching was on")

    reference = offline.folder / "Performance"
    outcome, text = compliance.judge_test04(reference, reference, 0)
    assert outcome.passed
    assert text.endswith("TEST PASS\n")


def result_log(folder: Path, **changed: Any) -> Path:
    """A folder with the log of an Offline test at ten samples per second."""
    folder.mkdir()
    values = {
        **{"loadgen_version": "6.0.17", "effective_scenario": "Offline", "effective_test_mode": "PerformanceOnly"},
        **{"result_validity": "VALID", "result_min_duration_met": True, "result_samples_per_second": 10.0},
    }
    lines = [{"key": key, "value": value} for key, value in (values | changed | {"num_errors": 0}).items()]
    text = "".join(f"{loadgen_log.MARK}{json.dumps(line)}\n" for line in lines)
    (folder / loadgen_log.DETAIL).write_text(text)
    return folder


INVALID = {"result_validity": "INVALID", "result_min_duration_met": False}
FAILS = {
    "performance test is VALID": (INVALID, {}),
    "test of the repeated sample is VALID": ({}, INVALID),
    "no faster than ordinary samples": ({}, {"result_samples_per_second": 11.1}),
}


@pytest.mark.parametrize("check", [None, *FAILS])
def test_test04_fails_where_a_result_is_invalid_or_faster(tmp_path: Path, check: str | None) -> None:
    before, after = FAILS[check] if check else ({}, {"result_samples_per_second": 10.9})
    reference, repeated = result_log(tmp_path / "before", **before), result_log(tmp_path / "after", **after)
    outcome, text = compliance.judge_test04(repeated, reference, 7)
    assert [name for name, passed in outcome.checks.items() if not passed] == ([check] if check else [])
    assert outcome.passed == (check is None)
    assert text.endswith("TEST FAIL\n" if check else "TEST PASS\n")
    assert outcome.headline == (f"TEST04: FAIL ({check})" if check else "TEST04: PASS")


def test_test04_compares_no_two_scenarios(tmp_path: Path) -> None:
    reference = result_log(tmp_path / "before")
    other = result_log(tmp_path / "after", effective_scenario="SingleStream")
    with pytest.raises(loadgen_log.LogError, match="it says SingleStream, not Offline"):
        compliance.judge_test04(other, reference, 0)


@pytest.mark.parametrize("text", ["[" * 100_000, '[{"data": ' + "7" * 5000 + "}]", '[{"data": 5, "token_count": 1}]'])
def test_a_damaged_test06_log_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "mlperf_log_accuracy.json").write_text(text)
    with pytest.raises(LoadGenError, match="mlperf_log_accuracy") as error:
        compliance.judge_test06(tmp_path, EOS, RunConfig(scenario="server"))
    assert "\n" not in str(error.value)


def test_the_ordinary_sample_is_near_both_means(offline: Finished) -> None:
    records = from_json(ROOT / "demo" / "cnn_eval.json")
    prompts = [len(record.tokens or []) for record in records]
    folder = offline.folder / "Performance"
    index = compliance.typical_sample(folder, prompts)
    answers = {request.sample: request.output_tokens for request in read_requests(folder)}
    assert prompts[index] == pytest.approx(sum(prompts) / len(prompts), rel=0.1)
    assert answers[index] == pytest.approx(sum(answers.values()) / len(answers), rel=0.1)


@pytest.mark.parametrize("flags", [{"mode": "accuracy"}, {"scenario": "server"}, {"scenario": "interactive"}])
def test_test04_is_refused_where_there_is_no_speed_to_compare(flags: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="--compliance test04"):
        RunConfig(compliance="test04", **flags)
