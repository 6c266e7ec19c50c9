"""A metric of several machines by batch, in one table with ratios."""

import csv
from pathlib import Path

import pytest

from harness.core.errors import UsageError
from harness.report import report as rendering
from harness.report.cross_table import CrossTable
from harness.report.matrix import Matrix
from harness.results.summary import Summary
from tests.conftest import called
from tests.support import example_runs

MEAN_MS = {"NVIDIA L40S": {1: 80.0, 4: 160.0, 16: 400.0}, "NVIDIA H200": {1: 40.0, 4: 50.0, 64: 300.0}}


def curve(place: Path, gpu: str) -> Path:
    """A run of a GPU at several numbers of requests in flight; labelled by the GPU's last word."""
    folder = place / gpu.rpartition(" ")[2]
    example_runs.run(folder, concurrency="1,4", system=example_runs.SYSTEM | {"gpus": [gpu]}, label=folder.name.lower())
    probes = []
    for level, mean_ms in MEAN_MS[gpu].items():
        probe = example_runs.probe(
            None,
            True,
            tokens_per_sec=10.0,
            concurrency=level,
            latency_mean=mean_ms,
            ttft_mean=20.0,
            tpot_mean=5.0,
            input_tokens_per_sec=5000.0,
            samples_per_sec=10.0,
            queries=500,
        )
        probes.append(probe)
    example_runs.levels(folder, probes)
    rendering.build_report(folder)
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    return [curve(tmp_path, gpu) for gpu in MEAN_MS]


def cross_table(folders: list[Path], metric: str, reference: str = "") -> CrossTable:
    summaries = [Summary.model_validate_json((folder / "summary.json").read_text()) for folder in folders]
    axes = ["gpu", "batch"]
    return CrossTable.of(Matrix.of(summaries, axes, reference), axes, metric)


def test_gpus_are_rows_and_batches_columns_the_reference_first(folders: list[Path]) -> None:
    table = cross_table(folders, "latency_mean_ms", "l40s").table()
    assert [*table.columns] == [
        "latency mean, ms by batch",
        "1 in flight",
        "4 in flight",
        "16 in flight",
        "64 in flight",
    ]
    assert [list(row) for row in table.rows] == [
        ["NVIDIA L40S", "80", "160", "400", "–"],
        ["NVIDIA H200", "40", "50", "–", "300"],
        ["NVIDIA H200 to NVIDIA L40S", "0.5×", "0.312×", "–", "–"],
    ]
    other = cross_table(folders, "latency_mean_ms", "h200").table()
    assert [row[0] for row in other.rows] == ["NVIDIA H200", "NVIDIA L40S", "NVIDIA L40S to NVIDIA H200"]


def test_prefill_and_decode_are_metrics_by_batch(folders: list[Path]) -> None:
    prefill = cross_table(folders, "prefill_tokens_per_sec").figures[("NVIDIA H200", "4 in flight")]
    decode = cross_table(folders, "decode_tokens_per_sec").figures[("NVIDIA H200", "4 in flight")]
    assert (prefill.value, decode.value) == (500 / 0.020, 4 / 0.005)


def test_several_runs_of_a_place_are_their_mean(folders: list[Path]) -> None:
    table = cross_table([*folders, folders[0]], "latency_mean_ms")
    assert table.figures[("NVIDIA L40S", "4 in flight")].value == 160


def test_a_file_has_the_ratios_and_a_picture_every_place(folders: list[Path], tmp_path: Path) -> None:
    out, picture = tmp_path / "table.csv", tmp_path / "table.png"
    words = ("--matrix", "gpu,batch", "--of", "latency_mean_ms", *folders, "--csv", out, "--plot", picture)
    done = called("report", "report.py", *map(str, words), "--reference", "l40s")
    assert done.returncode == 0 and "0.5×" in done.stdout, done.stderr
    head, first, _, ratio = csv.reader(out.open())
    assert head[:3] == ["gpu", "figure", "1 in flight"] and first[:3] == ["NVIDIA L40S", "latency_mean_ms", "80.0"]
    assert ratio[:4] == ["NVIDIA H200", "ratio to NVIDIA L40S", "0.5", "0.3125"]
    assert picture.stat().st_size > 1000
    assert len(cross_table(folders, "latency_mean_ms").picture().rows) == 6


@pytest.mark.parametrize(
    ("axes", "metric", "message"),
    [("gpu", "latency_mean_ms", "two axes"), ("gpu,batch", "latency_men_ms", "latency_mean_ms")],
)
def test_what_makes_no_cross_table_is_refused(folders: list[Path], axes: str, metric: str, message: str) -> None:
    done = called("report", "report.py", "--matrix", axes, "--of", metric, *map(str, folders))
    assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def test_a_metric_that_no_run_has_is_refused(folders: list[Path]) -> None:
    with pytest.raises(UsageError, match="no run has it"):
        cross_table(folders, "cost_per_million_output_tokens")


def test_a_metric_needs_a_matrix(folders: list[Path]) -> None:
    done = called("report", "report.py", "--of", "latency_mean_ms", *map(str, folders))
    assert done.returncode == 2 and "--matrix" in done.stderr
