"""Whole runs of the edge category: Offline in fixed batches from a datasets folder, and a failed gate."""

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT, run
from tests.runs.test_whole_runs import check

pytestmark = pytest.mark.engine


def test_edge_offline_from_a_datasets_folder_in_batches(tmp_path: Path) -> None:
    from datasets import Dataset

    records = json.loads((ROOT / "demo" / "cnn_eval.json").read_text())
    columns = {"article": [r["input"] for r in records], "highlights": [r["output"] for r in records]}
    Dataset.from_dict(columns).save_to_disk(tmp_path / "cnn")
    flags = ("--category", "edge", "--batch-size", "16", "--sort-by-length", "--dataset-path", str(tmp_path / "cnn"))
    done = run(tmp_path / "results", *flags)
    check(done, "offline")
    assert done.summary["run"]["accuracy"]["samples"] == 100
    assert "fixed batches of 16" in (done.folder / "report.md").read_text()


def test_a_failed_gate_ends_the_run_with_1_and_no_performance(tmp_path: Path) -> None:
    done = run(tmp_path, "--category", "edge", "--max-new-tokens", "64", "--offline-expected-qps", "4")
    assert done.code == 1, done.output
    assert done.summary["run"]["accuracy"]["verdict"] == "FAIL"
    assert not (done.folder / "Performance").exists()
    assert "| speed | not measured: the gate failed first" in (done.folder / "report.md").read_text()
