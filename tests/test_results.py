"""The results folder: runs, status, latest, history, retention, index."""

import io
import json
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from harness.benchmark import state, steps
from harness.common.errors import BAD_INPUT, UsageError
from harness.common.files import read_json, write_json, write_text
from harness.common.progress import Display, Stage
from harness.common.secrets import hide_word
from harness.config.plan import resolve
from harness.config.run import RunConfig
from harness.reporting import compare, compare_page
from harness.reporting.report import build, result_deviations, write_index
from harness.results.summary import Run
from harness.runs import folder as results
from harness.runs.folder import RunFolder, finish, history, open_run
from tests import made

LABEL = "datacenter-offline"
LINE: dict[str, Any] = {
    "started": "2026-01-31T10:15:00+0000",
    "mlperf_version": "5.1",
    "model": "demo",
    "category": "datacenter",
    "scenario": "offline",
    "mode": "both",
    "samples": 256,
    "comparable": False,
    "valid": True,
    "tokens_per_sec": 5309.4,
    "samples_per_sec": 41.5,
    "mean_new_tokens": 128.0,
    "verdict": "PASS",
    "precision": "bf16",
    "quantization": "none",
}
COUNTS = dict.fromkeys(("samples", "generated_tokens", "characters", "at_token_limit"), 1)
PASSED = COUNTS | {"verdict": "PASS", "approximate": [], "full_set": True, "high_accuracy": False}
PASSED |= {"splitter": "built-in", "checks": []}
RATES = dict.fromkeys(("duration_s", "samples", "tokens_per_sec", "samples_per_sec"), 1)
TESTED = RATES | {"scenario": "offline", "valid": True, "errors": []}
AUDIT = {"test": "any", "passed": True, "checks": {}, "facts": {}}


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def lines(results: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (results / "history.jsonl").read_text().splitlines()]


def test_a_new_run_is_named_by_time_and_label_and_is_running(tmp_path: Path):
    run = open_run(tmp_path / "a" / "results", LABEL)
    assert re.fullmatch(rf"\d{{8}}-\d{{6}}-{LABEL}(-\d+)?", run.name)
    assert run.path == tmp_path / "a" / "results" / run.name
    assert read_json(run.path / "status.json")["status"] == "running"


def test_runs_of_the_same_second_have_names_of_their_own(tmp_path: Path):
    with ThreadPoolExecutor(8) as pool:
        runs = list(pool.map(lambda _: open_run(tmp_path, LABEL), range(40)))
    assert len({run.name for run in runs}) == 40
    assert names(tmp_path) == {run.name for run in runs}


@pytest.mark.parametrize("below", ["", "results", "deep/results"])
def test_a_results_folder_that_cannot_be_written_is_named(tmp_path: Path, below: str):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=f"--results-dir {tmp_path}/file.*: cannot write there: ") as error:
        open_run(tmp_path / "file" / below, LABEL)
    assert error.value.exit_code == BAD_INPUT


def test_a_file_system_that_takes_no_folders_is_named():
    with pytest.raises(UsageError, match="--results-dir /proc/results: cannot write there"):
        open_run(Path("/proc/results"), LABEL)


def test_finish_completes_the_run_and_adds_one_line(tmp_path: Path):
    first, second = open_run(tmp_path, LABEL), open_run(tmp_path, LABEL)
    finish(first, {"samples": 1})
    finish(second, {"samples": 2})
    assert lines(tmp_path) == [{"run": first.name, "samples": 1}, {"run": second.name, "samples": 2}]
    assert read_json(first.path / "status.json")["status"] == "complete"


def test_latest_is_the_last_finished_run(tmp_path: Path):
    first = open_run(tmp_path, LABEL)
    assert not (tmp_path / "latest").exists()
    finish(first, LINE)
    failed = open_run(tmp_path, LABEL)
    failed.set_status("failed", "no GPU")
    open_run(tmp_path, LABEL)
    assert (tmp_path / "latest").readlink() == Path(first.name)


def test_latest_always_points_to_a_finished_run(tmp_path: Path):
    finish(open_run(tmp_path, LABEL), LINE)
    stop = threading.Event()
    seen: list[str] = []

    def look() -> None:
        while not stop.is_set():
            seen.append(read_json(tmp_path / "latest" / "status.json").get("status", "missing"))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(100):
        finish(open_run(tmp_path, LABEL), LINE)
    stop.set()
    reader.join()
    assert set(seen) == {"complete"}
    assert not [name for name in names(tmp_path) if name.startswith(".")]


def test_latest_replaces_a_stale_link(tmp_path: Path):
    (tmp_path / "latest").symlink_to("gone")
    run = open_run(tmp_path, LABEL)
    finish(run, LINE)
    assert (tmp_path / "latest").resolve() == run.path


def test_an_index_of_a_run_whose_name_no_folder_can_have(tmp_path: Path):
    for name in ("x" * 300, "a\0b"):
        finish(open_run(tmp_path, LABEL), LINE)
        with (tmp_path / "history.jsonl").open("a") as file:
            file.write(json.dumps({**LINE, "run": name}) + "\n")
    write_index(tmp_path)
    assert "x" * 300 in (tmp_path / "index.md").read_text()


def test_a_history_that_cannot_be_written_takes_nothing_from_the_run(tmp_path: Path):
    (tmp_path / "history.jsonl").mkdir()
    run, said = open_run(tmp_path, LABEL), []
    finish(run, LINE, say=said.append)
    assert said == [f"{tmp_path / 'history.jsonl'} could not be written: Is a directory"]
    assert (tmp_path / "latest").resolve() == run.path


def test_a_link_that_cannot_move_takes_nothing_from_the_run(tmp_path: Path):
    (tmp_path / "latest").mkdir()
    run, said = open_run(tmp_path, LABEL), []
    finish(run, LINE, say=said.append)
    assert "latest could not be moved" in said[0]
    assert not list(tmp_path.glob(".latest*"))
    assert read_json(run.path / "status.json")["status"] == "complete"
    assert [line["run"] for line in history(tmp_path)] == [run.name]


def test_keep_all_0_deletes_only_older_runs_that_ended(tmp_path: Path):
    ended: list[RunFolder] = []
    for status in ("complete", "failed", "interrupted"):
        ended.append(open_run(tmp_path, LABEL))
        ended[-1].set_status(status)
        ended[-1].sub("Performance").joinpath("mlperf_log_detail.txt").write_text("log")
    running = open_run(tmp_path, LABEL)
    for folder in ("sweeps/a/run", "mmlu/run"):
        (tmp_path / folder).mkdir(parents=True)
        write_json(tmp_path / folder / "status.json", {"status": "complete"})
    (tmp_path / "mine").mkdir()
    (tmp_path / ".gitkeep").touch()
    last = open_run(tmp_path, LABEL)
    finish(last, LINE, keep_all=False)
    kept = {running.name, last.name, "sweeps", "mmlu", "mine", "latest", "history.jsonl", ".gitkeep"}
    assert names(tmp_path) == kept
    assert (tmp_path / "sweeps/a/run/status.json").exists() and (tmp_path / "mmlu/run/status.json").exists()


def test_keep_all_0_leaves_linked_folders_alone(tmp_path: Path):
    elsewhere = open_run(tmp_path / "elsewhere", LABEL)
    elsewhere.set_status("complete")
    results = tmp_path / "results"
    results.mkdir()
    (results / "link").symlink_to(elsewhere.path)
    finish(open_run(results, LABEL), LINE, keep_all=False)
    assert elsewhere.path.exists() and (results / "link").exists()


def test_runs_are_kept_unless_asked(tmp_path: Path):
    first, second = open_run(tmp_path, LABEL), open_run(tmp_path, LABEL)
    finish(first, LINE)
    finish(second, LINE)
    assert first.path.exists() and second.path.exists()


def test_history_outlives_its_runs(tmp_path: Path):
    runs = [open_run(tmp_path, LABEL) for _ in range(3)]
    for run in runs:
        finish(run, LINE, keep_all=False)
    assert [line["run"] for line in history(tmp_path)] == [run.name for run in runs]


def test_there_is_no_history_before_the_first_run(tmp_path: Path):
    assert list(history(tmp_path)) == []


@pytest.mark.parametrize(
    "broken", [b'{"run": "a", "samp', b"", b"[1]", b"5", b"\xff\xfe\x00", b"null"], ids=lambda text: repr(text)
)
def test_history_skips_lines_that_are_not_whole(tmp_path: Path, broken: bytes):
    (tmp_path / "history.jsonl").write_bytes(b'{"run": "a"}\n' + broken + b'\n{"run": "b"}\n')
    assert list(history(tmp_path)) == [{"run": "a"}, {"run": "b"}]


def test_a_line_cut_short_does_not_spoil_the_next(tmp_path: Path):
    (tmp_path / "history.jsonl").write_text('{"run": "a"}\n{"run": "b", "samp')
    run = open_run(tmp_path, LABEL)
    finish(run, LINE)
    assert [line["run"] for line in history(tmp_path)] == ["a", run.name]


@settings(max_examples=30, deadline=None)
@given(text=st.text())
def test_any_line_survives_the_history(tmp_path_factory: pytest.TempPathFactory, text: str):
    results = tmp_path_factory.mktemp("results")
    finish(open_run(results, LABEL), {"model": text})
    assert [line["model"] for line in history(results)] == [text]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("hf_token=hf_abcDEF1234567890", "hf_token=***"),
        ("HF_TOKEN=xyz", "HF_TOKEN=***"),
        ("password=a", "password=***"),
        ("api_key=a", "api_key=***"),
        ("apikey=a", "apikey=***"),
        ("client_secret=a", "client_secret=***"),
        ("--engine-arg=hf_token=a", "--engine-arg=hf_token=***"),
        ("AWS_SECRET_ACCESS_KEY=abc", "AWS_SECRET_ACCESS_KEY=***"),
        ("--engine-arg=tokenizer=/m/tok", "--engine-arg=tokenizer=/m/tok"),
        ("hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567", "***"),
        ("http://user:pw@host/x", "http://user:***@host/x"),
        ("https://user:hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567@host", "https://user:***@host"),
    ],
)
def test_secrets_are_hidden(word: str, shown: str):
    assert hide_word(word) == shown


@pytest.mark.parametrize(
    "word",
    [
        "--max-new-tokens",
        "max_num_batched_tokens=8192",
        "tokenizer=demo/model",
        "enable_prefix_caching=false",
        "hf_overrides={}",
        "hf_config_path=/models",
        "models/hf_llama_8b_instruct",
    ],
)
def test_what_is_no_secret_stays(word: str):
    assert hide_word(word) == word


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path):
    (tmp_path / "taken").mkdir()
    with pytest.raises(OSError):
        write_text(tmp_path / "taken", "text")
    (tmp_path / "old").write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(tmp_path / "old", "new \ud800")
    with pytest.raises(TypeError):
        write_json(tmp_path / "old", {"key": object()})
    assert names(tmp_path) == {"taken", "old"}
    assert (tmp_path / "old").read_text() == "old"


def test_a_reader_never_meets_half_a_file(tmp_path: Path):
    path = tmp_path / "data.json"
    write_json(path, [0] * 10_000)
    stop = threading.Event()
    lengths = set()

    def look() -> None:
        while not stop.is_set():
            lengths.add(len(json.loads(path.read_text())))

    reader = threading.Thread(target=look)
    reader.start()
    for _ in range(50):
        write_json(path, [1] * 10_000)
    stop.set()
    reader.join()
    assert lengths == {10_000}


def test_written_files_may_be_read_by_others(tmp_path: Path):
    write_text(tmp_path / "report.md", "text")
    assert (tmp_path / "report.md").stat().st_mode & 0o777 == 0o644


def index(results: Path) -> list[list[str]]:
    """The cells of each run in index.md."""
    write_index(results)
    rows = [line for line in (results / "index.md").read_text().splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows[2:]]


def test_the_index_lists_runs_newest_first_and_tells_them_apart(tmp_path: Path):
    first, second = open_run(tmp_path, LABEL), open_run(tmp_path, LABEL)
    latencies = {"latency_p99_ms": 3200.0, "ttft_p99_ms": 431.0, "tpot_p99_ms": 31.5}
    flawed = {"verdict": "FAIL", "valid": False, "scenario": "server", "target_qps": 5.5, **latencies}
    finish(first, LINE | {"comparable": True, "gpus": ["NVIDIA H200"] * 2, "quantization": "fp8"})
    finish(second, LINE | {"comparable": False, **flawed})
    assert index(tmp_path) == [
        [
            f"[{second.name}]({second.name}/report.md)",
            *("demo", "datacenter server", "none", "bf16", "none", "FAIL", "INVALID"),
            *("5,309", "41.5", "5.5", "3,200", "431", "31.5", "no"),
        ],
        [
            f"[{first.name}]({first.name}/report.md)",
            *("demo", "datacenter offline", "2x NVIDIA H200", "bf16", "fp8", "PASS", "VALID"),
            *("5,309", "41.5", "–", "–", "–", "–", "yes"),
        ],
    ]


def test_the_index_reads_lines_of_the_first_format(tmp_path: Path):
    old = {name.replace("_sec", "_s"): value for name, value in LINE.items()}
    finish(open_run(tmp_path, LABEL), old)
    assert "tokens_per_s" in old and index(tmp_path)[0][8:10] == ["5,309", "41.5"]


def test_the_index_names_deleted_runs_without_a_link(tmp_path: Path):
    first, second = open_run(tmp_path, LABEL), open_run(tmp_path, LABEL)
    finish(first, LINE)
    finish(second, LINE, keep_all=False)
    assert [row[0] for row in index(tmp_path)] == [f"[{second.name}]({second.name}/report.md)", first.name]


def test_the_index_marks_what_a_run_does_not_have(tmp_path: Path):
    run = open_run(tmp_path, LABEL)
    finish(run, LINE | {"valid": None, "verdict": None, "tokens_per_sec": None, "samples_per_sec": None})
    assert index(tmp_path)[0][6:10] == ["–"] * 4


def test_the_index_passes_over_lines_of_other_programs(tmp_path: Path):
    (tmp_path / "history.jsonl").write_text('{"some": "thing"}\n')
    run = open_run(tmp_path, LABEL)
    finish(run, LINE)
    assert len(index(tmp_path)) == 1


def test_a_fact_noted_later_leaves_the_plan_as_it_is(tmp_path: Path):
    run = open_run(tmp_path, LABEL)
    plan = resolve(RunConfig(), [], 0)
    made.record(run, plan.noted("a lower rate", target_qps=5.0))
    kept = results.facts_of(run.path)
    kept.stages = [Stage("calibrating", 1.5, "load")]
    results.record_facts(run, kept)
    facts = read_json(run.path / "config.json")
    assert (facts["plan"]["target_qps"], facts["plan"]["notes"][-1]) == (5.0, "a lower rate")
    assert facts["stages"] == [["calibrating", 1.5, "load"]]


def test_a_run_without_a_finished_test_has_no_report(tmp_path: Path) -> None:
    run = open_run(tmp_path, LABEL)
    made.record(run, resolve(RunConfig(model="demo"), [], 0), command="c", started="s", system={})
    run.set_status("failed", "too few samples")
    with pytest.raises(UsageError, match=r"no test came to its end \(too few samples\)"):
        build(run.path)
    assert not (run.path / "report.md").exists()


@pytest.mark.parametrize(
    ("mode", "run", "why"),
    [
        ("both", {"accuracy": PASSED, "performance": TESTED}, []),
        ("accuracy", {"accuracy": PASSED}, []),
        ("both", {"accuracy": PASSED}, ["performance was not measured"]),
        ("performance", {"performance": TESTED}, ["accuracy was not checked"]),
        ("accuracy", {"accuracy": PASSED | {"verdict": "FAIL"}}, ["the accuracy gate failed"]),
        ("accuracy", {"accuracy": PASSED | {"approximate": ["rougeLsum"]}}, ["approximate rougeLsum"]),
        ("both", {"performance": TESTED | {"valid": False}}, ["accuracy was not checked", "INVALID by LoadGen"]),
        ("both", {"accuracy": PASSED, "performance": TESTED | {"errors": ["!"]}}, ["LoadGen logged errors"]),
        ("accuracy", {"compliance": {"test06": AUDIT | {"passed": False}, "test04": AUDIT}}, ["TEST06 failed"]),
    ],
)
def test_what_came_out_counts_as_much_as_the_settings(mode: str, run: dict[str, Any], why: list[str]) -> None:
    assert list(result_deviations(Run(**run), mode)) == why


def test_a_full_disk_does_not_leave_a_run_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    run = open_run(tmp_path, LABEL)
    size = (run.path / "status.json").stat().st_size
    monkeypatch.setattr(results, "write_text", full)
    run.fail("failed", "the disk is full: é " * 100)
    kept = results.status_of(run.path)
    assert kept is not None and kept.status == "failed" and kept.reason.startswith("the disk is full")
    assert (run.path / "status.json").stat().st_size == size


def test_a_pipe_is_written_into_and_not_replaced(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)  # waits for nobody, should it be replaced
    write_text(pipe, "a,b\n")
    assert os.read(reader, 100) == b"a,b\n"
    os.close(reader)
    assert pipe.is_fifo()


def test_an_index_that_cannot_be_written_takes_nothing_from_a_run(tmp_path: Path) -> None:
    folder = made.run(tmp_path / "run", results_dir=tmp_path)
    (tmp_path / "index.md").mkdir()
    screen = Console(file=io.StringIO(), width=200)
    display = Display(screen)
    display.stage("performance test")
    run = state.BenchmarkRun(RunFolder(tmp_path, "run"), display, results.facts_of(folder))
    assert steps.report(run).run.performance
    assert "index.md could not be written: Is a directory" in screen.file.getvalue()  # type: ignore[attr-defined]


def test_a_comparison_says_which_run_ended_early(tmp_path: Path) -> None:
    for name in ("a", "b"):
        made.run(tmp_path / name)
    RunFolder(tmp_path, "b").set_status("interrupted")
    for name in ("a", "b"):
        build(tmp_path / name)
    page = compare_page.page(compare.load([tmp_path / "a", tmp_path / "b"])[0])
    assert "| ended early | \u2013 | interrupted at 2" in page
