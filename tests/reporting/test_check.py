"""`report.py --check`: whatever was changed in a run's folder by hand is found; what was not is consistent."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.commands import report
from tests.conftest import run

pytestmark = pytest.mark.slow
ECHO = ("--backend", "echo", "--engine-arg", "first_token_s=0.002", "--engine-arg", "token_s=0.0001")
FLAGS = (*ECHO, "--mode", "performance", "--scenario", "server", "--min-duration", "2", "--total-sample-count", "32")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of one setting by real LoadGen, the first with probes."""
    place = tmp_path_factory.mktemp("results")
    run(place, *FLAGS, "--server-target-qps", "40,60", "--probe-queries", "60")
    run(place, *FLAGS, "--server-target-qps", "60")
    return place


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
    assert "summary.json: run.performance.tokens_per_sec is" in found(folder, capsys)


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
    assert "mlperf_log_summary.txt of Performance says" in found(folder, capsys)


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
    assert name.split("/")[-1] in found(folder, capsys)


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
    assert "history.jsonl: tokens_per_sec" in found(folder, capsys)


def test_the_logs_of_another_run(folder: Path, results: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of the same setting, and with the report made again from them."""
    shutil.rmtree(folder / "Performance")
    shutil.copytree(max(results.glob("2*")) / "Performance", folder / "Performance")
    assert "summary.json: run.performance" in found(folder, capsys)
    report.render_folder(folder)
    assert "Performance: a test of" in found(folder, capsys)


def test_the_probes_of_another_load(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one, other = sorted((folder / "Probes").iterdir())
    one.rename(folder / "kept")
    other.rename(one)
    (folder / "kept").rename(other)
    assert f"config.json of Probes/{one.name}: ttft_p99 is" in found(folder, capsys)
