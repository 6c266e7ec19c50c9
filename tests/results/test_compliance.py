"""TEST06: real LoadGen, real vLLM; the official verification where the submodule is there."""

import json
import shutil
import subprocess
import sys
from array import array
from pathlib import Path
from typing import Any

import pytest

from harness.config.run import RunConfig
from harness.core.errors import LoadGenError
from harness.loadgen import log as loadgen_log
from harness.results import test06_verdict
from tests.conftest import ROOT, Finished

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
    outcome, text = test06_verdict.judge_test06(folder, OFFICIAL_EOS, RunConfig(scenario="server"))
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
    assert test06_verdict.begins_as_reported(entry, [7, 8, 9]) is passed
    assert not test06_verdict.begins_as_reported(entry, [7][: len(reported) - 1])


@pytest.mark.parametrize(
    "change", [half_a_token, lambda entry: entry.update(token_data=""), lambda entry: entry.pop("token_data")]
)
def test_a_first_token_is_a_whole_token(change: Any) -> None:
    entry = {"data": "0700000008000000", "token_data": "07000000"}
    assert test06_verdict.begins_as_reported(entry, [7, 8])
    change(entry)
    assert not test06_verdict.begins_as_reported(entry, [7, 8])


def test_too_few_answers_are_no_test06(server: Finished, tmp_path: Path) -> None:
    folder = tmp_path / "log"
    shutil.copytree(server.folder / "Compliance" / "TEST06", folder)
    path = folder / "mlperf_log_accuracy.json"
    path.write_text(json.dumps(json.loads(path.read_text())[:99]))
    with pytest.raises(LoadGenError, match="99 samples logged"):
        test06_verdict.judge_test06(folder, EOS, RunConfig(scenario="server"))
    path.write_text("[")
    with pytest.raises(LoadGenError, match=r"mlperf_log_accuracy.json: .*TEST06"):
        test06_verdict.judge_test06(folder, EOS, RunConfig(scenario="server"))


@pytest.mark.parametrize("text", ["[" * 100_000, '[{"data": ' + "7" * 5000 + "}]", '[{"data": 5, "token_count": 1}]'])
def test_a_damaged_test06_log_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "mlperf_log_accuracy.json").write_text(text)
    with pytest.raises(LoadGenError, match="mlperf_log_accuracy") as error:
        test06_verdict.judge_test06(tmp_path, EOS, RunConfig(scenario="server"))
    assert "\n" not in str(error.value)
