"""The index of a results folder: its runs, newest first, and what each came to."""

import io
import json
from pathlib import Path

from rich.console import Console

from harness.core.progress import Display
from harness.report.report import write_index
from harness.results import benchmark_run
from harness.runner import steps
from harness.runs.history import finish
from harness.runs.run_folder import RunFolder, open_run
from tests.conftest import tells
from tests.runs.test_folder import LABEL, LINE
from tests.support import example_runs


def test_an_index_of_a_run_whose_name_no_folder_can_have(tmp_path: Path):
    for name in ("x" * 300, "a\0b"):
        finish(open_run(tmp_path, LABEL), LINE)
        with (tmp_path / "history.jsonl").open("a") as file:
            file.write(json.dumps({**LINE, "run": name}) + "\n")
    write_index(tmp_path)
    assert "x" * 300 in (tmp_path / "index.md").read_text()


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
            f"[{second.name}]({second.name}/report.html)",
            *("demo", "datacenter server", "unknown", "bf16", "FAIL", "INVALID"),
            *("5,309", "41.5", "5.5", "3,200", "431", "31.5", "no"),
        ],
        [
            f"[{first.name}]({first.name}/report.html)",
            *("demo", "datacenter offline", "2x NVIDIA H200", "bf16, fp8", "PASS", "VALID"),
            *("5,309", "41.5", "–", "–", "–", "–", "yes"),
        ],
    ]


def test_the_index_reads_lines_of_the_first_format(tmp_path: Path):
    old = {name.replace("_sec", "_s"): value for name, value in LINE.items()}
    finish(open_run(tmp_path, LABEL), old)
    assert "tokens_per_s" in old and index(tmp_path)[0][7:9] == ["5,309", "41.5"]


def test_the_index_names_deleted_runs_without_a_link(tmp_path: Path):
    first, second = open_run(tmp_path, LABEL), open_run(tmp_path, LABEL)
    finish(first, LINE)
    finish(second, LINE, keep_all=False)
    assert [row[0] for row in index(tmp_path)] == [f"[{second.name}]({second.name}/report.html)", first.name]


def test_the_index_marks_what_a_run_does_not_have(tmp_path: Path):
    run = open_run(tmp_path, LABEL)
    finish(run, LINE | {"valid": None, "verdict": None, "tokens_per_sec": None, "samples_per_sec": None})
    assert index(tmp_path)[0][5:9] == ["–"] * 4


def test_the_index_passes_over_lines_of_other_programs(tmp_path: Path):
    (tmp_path / "history.jsonl").write_text('{"some": "thing"}\n')
    run = open_run(tmp_path, LABEL)
    finish(run, LINE)
    assert len(index(tmp_path)) == 1


def test_an_index_that_cannot_be_written_takes_nothing_from_a_run(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", results_dir=tmp_path)
    (tmp_path / "index.md").mkdir()
    screen = Console(file=io.StringIO(), width=200)
    display = Display(screen)
    display.stage("performance test")
    run = benchmark_run.BenchmarkRun(RunFolder(tmp_path, "run"), display, benchmark_run.facts_of(folder))
    assert steps.report_run(run).run.performance
    assert tells(screen.file.getvalue(), "index.md ", "Is a directory")  # type: ignore[attr-defined]
