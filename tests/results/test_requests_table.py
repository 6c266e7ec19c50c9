"""Each request of a performance test as a line of request_times.csv."""

import csv
import json
from pathlib import Path

import pytest

from harness.common import files
from harness.loadgen.trace import TRACE
from harness.results import requests_table


def event(number: int, sample: int, ts: float, ms: float) -> str:
    about = {"sample_seq": number, "sample_idx": sample, "issue_start_ns": 0, "complete_ns": round(1e6 * ms)}
    return json.dumps({"name": "Sample", "ph": "b", "ts": ts, "args": about}, separators=(",", ":"))


@pytest.mark.parametrize("counted", [True, False])
def test_a_line_for_each_request(counted: bool, tmp_path: Path) -> None:
    first = json.dumps({"name": "Token", "ph": "b", "ts": 1000, "args": {"sample_seq": 0, "complete_ns": 20_000_000}})
    first = first.replace(" ", "")
    events = [first, event(0, 7, 1000.0, 120.0), event(1, 3, 501000.0, 40.0)]
    (tmp_path / TRACE).write_text(",\n".join(["[", *events, '{"name":"LastTrace"}]']))
    if counted:
        files.write_json(tmp_path / "tokens.json", [11, 1])
        files.write_json(tmp_path / "prompt_tokens.json", [500, 600])
    requests_table.write(tmp_path)
    with (tmp_path / requests_table.TABLE).open() as file:
        rows = list(csv.DictReader(file))
    assert [row["sample"] for row in rows] == ["7", "3"]
    assert [float(row["arrival_s"]) for row in rows] == [0.0, 0.5]
    assert [row["ttft_ms"] for row in rows] == ["20", ""]
    assert [row["tpot_ms"] for row in rows] == (["10", ""] if counted else ["", ""])
    assert [row["output_tokens"] for row in rows] == (["11", "1"] if counted else ["", ""])
    assert [row["latency_ms"] for row in rows] == ["120", "40"]


def test_no_trace_no_table(tmp_path: Path) -> None:
    requests_table.write(tmp_path)
    assert list(tmp_path.iterdir()) == []
