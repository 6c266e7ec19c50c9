"""changes.csv: each metric of each experiment, with its change against the baseline where it is judged."""

import csv
import json
from pathlib import Path

import pytest

from harness.core.formatting import Measured
from harness.sweep import report as sweep_report
from harness.sweep.change_table import CHANGES_FILE, ChangeRow, change_rows
from harness.sweep.experiment import ExperimentRecord
from harness.sweep.experiment_result import experiment_rows
from harness.sweep.file import BASELINE
from harness.sweep.findings import SweepReport
from tests.support.example_sweeps import kept, ran, state


def rows_of(*records: ExperimentRecord) -> dict[tuple[str, str], ChangeRow]:
    given = state(*records)
    report = SweepReport(given, experiment_rows(given))
    return {(row.experiment, row.metric): row for row in change_rows(report)}


def test_a_change_has_its_interval_and_its_basis() -> None:
    records = [ran(name, speed + turn, turn) for turn in range(4) for name, speed in ((BASELINE, 100), ("fast", 150))]
    rows = rows_of(*records, ran("wrong", 300, valid=False))
    base, fast, wrong = (rows[name, "tokens_per_sec"] for name in (BASELINE, "fast", "wrong"))
    assert (base.value, base.baseline, base.change_percent, base.note) == (101.5, 101.5, None, "")
    assert (fast.tests, fast.value, fast.baseline) == (4, 151.5, 101.5)
    assert fast.change_percent == pytest.approx(49.3, abs=0.2)
    assert between(fast.low_percent, fast.change_percent, fast.high_percent)
    assert wrong.change_percent is wrong.low_percent is None and wrong.note


def between(low: Measured, middle: Measured, high: Measured) -> bool:
    return low is not None and middle is not None and high is not None and low < middle < high


def test_the_change_of_a_score_is_one_of_its_value() -> None:
    rows = rows_of(ran(BASELINE, 100, rouge1=40.0), ran("a", 100, rouge1=38.0))
    assert rows["a", "rouge1"].change_percent == pytest.approx(-5.0)
    assert rows["a", "rouge1"].low_percent is None


def test_the_file_has_an_empty_cell_for_what_is_not_known(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps(kept(state(ran(BASELINE, 100), ran("a", 110, valid=False)))))
    sweep_report.build_report(tmp_path)
    with (tmp_path / CHANGES_FILE).open() as file:
        lines = {(line["experiment"], line["metric"]): line for line in csv.DictReader(file)}
    assert lines["a", "tokens_per_sec"]["value"] == "110.0" and lines["a", "tokens_per_sec"]["change_percent"] == ""
    assert tuple(lines["a", "tokens_per_sec"]) == ChangeRow._fields
    assert not any(value in ("None", "nan", "inf") for line in lines.values() for value in line.values())
