"""`report.py --check`: whatever was changed in a run's folder by hand is found; what was not is consistent."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import report
from harness.core.statements import Statement
from harness.loadgen.test_run import TestRun
from harness.report import consistency
from harness.report import report as checking
from harness.results import claims
from harness.results.benchmark_run import facts_of
from harness.results.level import level_of
from harness.results.outcome import Outcome
from harness.results.result_test import at_load
from harness.runs.run_folder import TEST_FOLDERS, RunFolder
from tests.conftest import ROOT, called, run, tells

pytestmark = pytest.mark.slow
ECHO = ("--backend", "echo", "--engine-arg", "first_token_s=0.002", "--engine-arg", "token_s=0.0001")
FLAGS = (*ECHO, "--mode", "performance", "--scenario", "server", "--min-duration", "2", "--total-sample-count", "32")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one setting by real LoadGen, the first with probes."""
    place = tmp_path_factory.mktemp("results")
    run(place, *FLAGS, "--server-target-qps", "400,600")
    run(place, *FLAGS, "--server-target-qps", "600")
    return place


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with levels of concurrency and scores."""
    place = tmp_path_factory.mktemp("scored")
    flags = (*ECHO, "--mode", "both", "--no-exit-on-accuracy-fail", "--min-duration", "1", "--total-sample-count", "32")
    run(place, *flags, "--concurrency", "1,4")
    return min(place.glob("2*"))


@pytest.fixture
def levels(scored: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    shutil.copytree(scored, tmp_path / scored.name)
    shutil.copy(scored.parent / "history.jsonl", tmp_path)
    return tmp_path / scored.name


@pytest.fixture
def folder(results: Path, tmp_path: Path) -> Path:
    """A copy of the first run, with the history."""
    first = min(results.glob("2*"))
    shutil.copytree(first, tmp_path / first.name)
    shutil.copy(results / "history.jsonl", tmp_path)
    return tmp_path / first.name


def change(path: Path, pattern: str, new: str | Callable[[re.Match[str]], str]) -> None:
    text = path.read_text()
    changed, count = re.subn(pattern, new, text, count=1, flags=re.M)
    assert count == 1 and changed != text
    path.write_text(changed)


def next_digit(found: re.Match[str]) -> str:
    """The match with its last digit made the next one."""
    return found[0][:-1] + str((int(found[0][-1]) + 1) % 10)


def found(folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert report.check_run(folder) == 1
    said = capsys.readouterr().out
    assert "consistent" not in said
    return said


def test_a_run_as_it_ended_is_consistent(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert report.check_run(folder) == 0
    assert capsys.readouterr().out == "consistent\n"
    assert before == {path: path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_a_digit_of_summary_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder / "summary.json", r'"tokens_per_sec": [\d.]*\d(?=[,\n])', next_digit)
    assert "summary.json: run.performance.tokens_per_sec: " in found(folder, capsys)


@pytest.mark.parametrize(
    "line",
    [
        r"^Completed samples per second +: [\d]+",
        r"^99.00 percentile first token latency \(ns\) +: \d+",
        r"^Mean latency \(ns\) +: \d+",
        r"^schedule_rng_seed : \d+",
    ],
)
def test_a_digit_of_loadgen_s_summary(folder: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    change(folder / "Performance" / "mlperf_log_summary.txt", line, next_digit)
    assert "mlperf_log_summary.txt of Performance, " in found(folder, capsys)


@pytest.mark.parametrize(
    "key",
    [
        "result_first_token_99.00_percentile_latency_ns",
        "result_mean_latency_ns",
        "result_completed_tokens_per_second",
        "result_time_per_output_token_50.00_percentile_ns",
        "effective_schedule_rng_seed",
    ],
)
def test_a_digit_of_its_detail_log(folder: Path, capsys: pytest.CaptureFixture[str], key: str) -> None:
    change(folder / "Performance" / "mlperf_log_detail.txt", rf'"key": "{key}", "value": \d+', next_digit)
    found(folder, capsys)


@pytest.mark.parametrize("column", range(8))
@pytest.mark.parametrize("row", [1, 50, -1])
def test_a_digit_of_a_row_of_the_requests(
    folder: Path, capsys: pytest.CaptureFixture[str], column: int, row: int
) -> None:
    path = folder / "Performance" / "requests.csv"
    rows = [line.split(",") for line in path.read_text().splitlines()]
    cell = rows[row][column]
    rows[row][column] = cell[:-1] + str((int(cell[-1]) + 1) % 10)
    path.write_text("\n".join(map(",".join, rows)) + "\n")
    found(folder, capsys)


@pytest.mark.parametrize("name", ["summary.json", "report.md", "report.html", "Performance/mlperf_log_summary.txt"])
def test_a_changed_verdict(folder: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    path, text = folder / name, (folder / name).read_text()
    if name == "summary.json":
        data = json.loads(text)
        data["run"]["performance"]["valid"] ^= True
        path.write_text(json.dumps(data, indent=2) + "\n")
    else:
        change(path, r"\b(IN)?VALID\b", lambda word: "VALID" if word[1] else "INVALID")
    assert name.rsplit("/", maxsplit=1)[-1] in found(folder, capsys)


def test_a_verdict_of_both_of_loadgen_s_logs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also where the report was made again from them: LoadGen's checks and the limits say otherwise."""
    for name in ("mlperf_log_detail.txt", "mlperf_log_summary.txt"):
        path = folder / "Performance" / name
        verdict = re.search(r"(IN)?VALID", path.read_text())
        assert verdict
        path.write_text(re.sub(r"(IN)?VALID", "VALID" if verdict[1] else "INVALID", path.read_text()))
    found(folder, capsys)


def test_a_line_of_the_history(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change(folder.parent / "history.jsonl", r'"tokens_per_sec": [\d.]*\d(?=[,}])', next_digit)
    assert "history.jsonl: 0.tokens_per_sec" in found(folder, capsys)


def test_the_logs_of_another_run(folder: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same setting, and with the report made again from them."""
    shutil.rmtree(folder / "Performance")
    shutil.copytree(max(results.glob("2*")) / "Performance", folder / "Performance")
    assert "summary.json: run.performance" in found(folder, capsys)
    checking.build_report(folder)
    assert "Performance, beginning of the run and of the test" in found(folder, capsys)


def test_the_probes_of_another_load(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other, *_ = sorted((folder / "Probes").iterdir())
    one.rename(folder / "kept")
    other.rename(one)
    (folder / "kept").rename(other)
    assert f"config.json of Probes/{one.name}: ttft_ms: " in found(folder, capsys)


def forge(folder: Path, name: str, value: object, number: int = 0) -> None:
    """Changes a figure of a test in config.json, and makes the report of it."""
    kept = json.loads((folder / "config.json").read_text())
    assert kept["probes"][number][name] != value
    kept["probes"][number][name] = value
    (folder / "config.json").write_text(json.dumps(kept))
    checking.build_report(folder)


def test_levels_and_scores_as_they_ended_are_consistent(levels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report.check_run(levels) == 0
    assert capsys.readouterr() == ("consistent\n", "")


def test_a_level_that_was_tested_twice(levels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its speeds are means over its tests, which the check makes again with and without the packages of a run."""
    facts = facts_of(levels)
    plan = at_load(facts.plan, facts.probes[0])
    folders = [levels / "Probes" / "1", levels / "Probes" / "1-2"]
    shutil.copytree(levels / "Performance", folders[1])  # at another level, so that its speed is another
    facts.probes[0] = level_of([TestRun.read(folder, plan) for folder in folders], plan, levels)
    (levels / "config.json").write_text(facts.model_dump_json())
    checking.build_report(levels)
    assert report.check_run(levels) == 0
    assert capsys.readouterr().out == "consistent\n"
    assert claims.differing(claims.verify_run(levels)) == []
    summary = json.loads((levels / "summary.json").read_text())
    for name in ("tokens_per_sec", "samples_per_sec", "queries"):
        changed = json.loads(json.dumps(summary))
        changed["run"]["search"][0][name] += 1
        (levels / "summary.json").write_text(json.dumps(changed))
        (claim,) = claims.differing(claims.verify_run(levels))
        assert claim.name == f"search.0.{name}"


# These say which logs an outcome is of, and what no log has.
UNTESTED_FIELDS = ("folder", "load", "unit", "repeats", *consistency.NOT_IN_LOGS)


@pytest.mark.parametrize("number", [0, 1])
@pytest.mark.parametrize("field", [name for name in Outcome.model_fields if name not in UNTESTED_FIELDS])
def test_every_field_of_a_level(levels: Path, field: str, number: int) -> None:
    facts = facts_of(levels)
    assert claims.differing(consistency.probe_claims(levels, facts)) == []
    kept = getattr(facts.probes[number], field)
    changed: object = (kept or 0) + 1 if isinstance(kept, int | float | None) else ("another",)
    changed = not kept if isinstance(kept, bool) else changed
    changed = (Statement("another"),) if field == "reasons" else changed
    facts.probes[number] = facts.probes[number].model_copy(update={field: changed})
    assert any(f": {field}" in str(claim) for claim in claims.differing(consistency.probe_claims(levels, facts)))


def test_levels_without_their_logs(levels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(levels / "Probes" / "1")
    assert "Probes/1" in found(levels, capsys)
    shutil.copytree(levels / "Performance", levels / "Probes" / "1")
    assert "search.0." in found(levels, capsys)
    shutil.copytree(levels / "Performance", levels / "Probes" / "2")
    assert "\nProbes/2/requests.csv: None" in found(levels, capsys)


def test_one_log_of_two_levels(levels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    forge(levels, "folder", "Performance")
    said = found(levels, capsys)
    assert "search.0.tokens_per_sec: " in said


@pytest.mark.parametrize("name", ["rouge.json", "samples.csv", "worst.md", "mlperf_log_accuracy.json"])
def test_a_digit_of_what_was_scored(levels: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    pattern = r'"data" : "\w*?\d' if name == "mlperf_log_accuracy.json" else r"\d\.\d+"
    change(levels / "Accuracy" / name, pattern, next_digit)
    checking.build_report(levels)
    assert found(levels, capsys)


def test_a_report_that_is_gone_is_named_and_can_be_made_again(levels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (levels / "report.md").unlink()
    shutil.rmtree(levels / "plots", ignore_errors=True)
    assert report.check_run(levels) == 0
    said = capsys.readouterr()
    assert said.out == "consistent\n" and said.err.startswith("missing: ") and "report.md" in said.err


@pytest.mark.parametrize("name", ["Accuracy/samples.csv", "Accuracy/worst.md"])
def test_a_file_that_is_gone(levels: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    (levels / name).unlink()
    assert f"\n{name}: " in "\n" + found(levels, capsys)


def test_a_verdict_of_the_gate(levels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scores = levels / "Accuracy" / "rouge.json"
    scores.write_text(re.sub("FAIL|INCONCLUSIVE|NOT JUDGED", "PASS", scores.read_text()))
    checking.build_report(levels)
    assert "rouge.json: verdict: PASS" in found(levels, capsys)


def test_scores_that_cannot_be_made_again_are_said(levels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, other = levels / "Accuracy" / "rouge.json", {"built-in": "nltk punkt_tab", "nltk punkt_tab": "built-in"}
    change(path, r"(?<=splitter\": \")[^\"]+", lambda made: other[made[0]])
    report.check_run(levels)
    assert "not made again: the scores: made with" in capsys.readouterr().err


@pytest.mark.parametrize("lines", [0, 2])
def test_a_history_without_the_run_or_with_it_twice(
    folder: Path, capsys: pytest.CaptureFixture[str], lines: int
) -> None:
    path = folder.parent / "history.jsonl"
    kept = [line for line in path.read_text().splitlines(keepends=True) if folder.name not in line]
    mine = [line for line in path.read_text().splitlines(keepends=True) if folder.name in line]
    path.write_text("".join([*kept, *(lines * mine)]))
    assert f"history.jsonl: {'1.' if lines else '0.'}" in found(folder, capsys)


def test_an_interrupted_run_is_judged_by_what_ended(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    RunFolder(folder.parent, folder.name).set_status("interrupted")
    log = folder / "Performance" / "mlperf_log_detail.txt"
    log.write_text(log.read_text()[: len(log.read_text()) // 2])
    (folder.parent / "history.jsonl").write_text("")
    shutil.rmtree(folder / "Accuracy", ignore_errors=True)
    assert report.check_run(folder) == 1 and "no test finished" not in capsys.readouterr().out


PLAIN = [sys.executable, "-S", "-I", "util_logs.py"]  # without site-packages


def plain_check(folder: Path) -> tuple[int, list[str]]:
    done = subprocess.run([*PLAIN, folder, "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout.splitlines()


EDITS: list[tuple[str, str, str]] = [
    ("config.json", r'"mean_prompt_tokens": (\d)', '"mean_prompt_tokens": 9\\1'),
    ("Performance/user.conf", r"$", "\n*.Server.target_qps = 1\n"),
    ("Performance/requests.csv", r"\n(\d+),", "\\n1\\1,"),
    ("Performance/mlperf_log_detail.txt", r'"result_query_count", "value": ', "\\g<0>9"),
    ("Accuracy/requests.csv", r"\n(\d+),", "\\n1\\1,"),
    ("Accuracy/mlperf_log_detail.txt", r"loadgen_version", "loadgen_versjon"),
    ("Accuracy/mlperf_log_accuracy.json", r'"qsl_idx" : \d', '"qsl_idx" : 9'),
    ("Probes/1/requests.csv", r"(\d),client", "\\g<1>1,client"),
    ("summary.json", r'"total_new_tokens": ', "\\g<0>9"),
]


@pytest.mark.parametrize(("name", "pattern", "new"), EDITS, ids=[name for name, *_ in EDITS])
def test_every_edit_is_found_by_both_checks(
    levels: Path, name: str, pattern: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, lines = plain_check(levels)
    assert code == 0 and ", 0 differ, " in lines[-1] and not any(line.startswith("differs") for line in lines)
    path = levels / name
    text = path.read_text()
    edited = re.sub(pattern, new, text, count=1)
    assert edited != text
    path.write_text(edited)
    try:
        code, lines = plain_check(levels)
        assert code == 1 and any(line.startswith("differs") for line in lines)
    except AssertionError:  # a file that can no longer be read ends the check in a line
        assert subprocess.run([*PLAIN, levels, "--check"], cwd=ROOT, capture_output=True).returncode == 2
    assert report.check_run(levels) == 1


@pytest.mark.parametrize("lost", ["Accuracy/rouge.json", "Performance"])
def test_a_test_of_a_complete_run_that_is_gone_differs(levels: Path, lost: str) -> None:
    config = levels / "config.json"
    known = json.loads(config.read_text())
    del known["plan"]["config"]["quick"]  # as runs of before have none
    config.write_text(json.dumps(known))
    path = levels / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    checking.build_report(levels)
    assert any("missing" in str(claim) and claim.verdict == "differs" for claim in claims.verify_run(levels))


def test_a_folder_that_was_renamed_is_consistent(levels: Path) -> None:
    renamed = levels.rename(levels.with_name("renamed"))
    assert report.check_run(renamed) == 0 and plain_check(renamed)[0] == 0


def test_what_a_reader_of_bare_logs_should_know(folder: Path, tmp_path: Path) -> None:
    logs = tmp_path / "performance" / "run_1"
    logs.mkdir(parents=True)
    for name in ("mlperf_log_detail.txt", "mlperf_log_summary.txt"):
        shutil.copy(folder / "Performance" / name, logs)
    code, lines = plain_check(logs)
    assert code == 0 and lines[0].startswith("LoadGen ") and "Server, PerformanceOnly: " in lines[0]
    path = logs / "mlperf_log_detail.txt"
    text = path.read_text()
    values = dict(re.findall(r'"key": "(\w[^"]*)", "value": ([-\d.]+)', text))
    p50, p97 = (f"result_first_token_{share}.00_percentile_latency_ns" for share in (50, 97))
    rate = float(values["result_completed_samples_per_sec"])
    for key, value in {
        p97: values[p50],
        "effective_target_qps": rate,
        "result_completed_tokens_per_second": 129 * rate,
    }.items():
        text = re.sub(rf'("key": "{key}", "value": )[-\d.]+', rf"\g<1>{value}", text)
    path.write_text(text)
    notes = [line for line in plain_check(logs)[1] if line.startswith("note: ")]
    assert len(notes) == 3 and "configured rate" in notes[0] and "p50 = p97" in notes[1] and "129 tokens" in notes[2]


def test_a_performance_test_that_is_gone_differs_where_an_earlier_level_is_the_result(levels: Path) -> None:
    summary = json.loads((levels / "summary.json").read_text())
    settings = json.loads((levels / "config.json").read_text())["plan"]["config"]
    assert [*claims.missing_parts(levels, summary["run"], settings)] == []
    shutil.rmtree(levels / "Performance")
    assert TEST_FOLDERS["performance"] == claims.PERFORMANCE_FOLDER
    (claim,) = claims.missing_parts(levels, summary["run"], settings)
    assert claim.verdict == "differs" and "missing" in str(claim)


def test_a_folder_of_a_sweep_names_its_runs(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text("{}")
    for name in ("baseline/20260131-a", "b1/20260131-b"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "config.json").write_text("{}")
    done = called("report", "report.py", str(tmp_path), "--check")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert tells(done.stderr, str(tmp_path), "sweep", "2 runs", f"{tmp_path}/b1/20260131-b.")
