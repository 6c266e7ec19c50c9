"""From a measured curve to machines: what is measured, counted up, and nothing in between."""

import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.commands import plan as command
from harness.common.errors import UsageError
from harness.reporting import report as rendering
from harness.results import replicas
from harness.results.replicas import CurvePoint
from harness.runs.folder import RunFolder
from harness.runs.probe import Probe
from tests import made
from tests.conftest import ROOT, called, ended

CURVE = [
    CurvePoint("5", 5.0, 100.0, 20.0, True),
    CurvePoint("10", 10.0, 300.0, 40.0, True),
    CurvePoint("20", 19.0, 9000.0, 90.0, False),
]


def test_the_highest_load_within_the_limits_is_planned_with() -> None:
    found = replicas.fleet(CURVE, [95.0] * 60 + [8.0] * 60, 0.0, 2.0)
    assert found.best.load == "10" and [hour.replicas for hour in found.hours] == [10, 1]
    assert found.month == pytest.approx(2.0 * 11 / 2 * 730)
    assert found.at_peak is CURVE[1] and found.without_one is None  # 95 / 9 is more than 10


def test_headroom_takes_the_loss_of_one() -> None:
    found = replicas.fleet(CURVE, [90.0], 0.1, None)
    assert found.most == 10 and found.month is None
    assert found.without_one is CURVE[1]


@given(peak=st.floats(0.01, 1e4), headroom=st.floats(0, 0.9))
def test_no_replica_gets_more_than_it_answers(peak: float, headroom: float) -> None:
    (hour,) = replicas.fleet(CURVE, [peak], headroom, None).hours
    assert peak / hour.replicas <= 10 * (1 - headroom) * (1 + 1e-6)
    assert hour.replicas == 1 or peak / (hour.replicas - 1) > 10 * (1 - headroom) * (1 - 1e-6)


def test_no_load_within_the_limits_is_said() -> None:
    with pytest.raises(UsageError, match=r"no load .*limits"):
        replicas.fleet(CURVE[2:], [1.0], 0.0, None)


def test_what_lacks_queries_alone_is_not_called_too_slow(tmp_path: Path) -> None:
    short = Probe(20.0, False, 20.0, 2.0, samples_per_sec=20.0, more=300, why="300 more queries needed")
    folder = made.run(tmp_path / "run", scenario="server", server_target_qps=8.5)
    probes = [short, replace(short, qps=40.0, samples_per_sec=40.0, why="TTFT p99 9 of 5 ms; 300 more queries needed")]
    made.note(RunFolder(tmp_path, "run"), probes=[asdict(probe) for probe in probes])
    curve = replicas.points(rendering.build(folder))
    assert {point.load: command.judgement(point) for point in curve} == {
        "the run's own test": "yes",
        "20 queries/s": "not judged: too few queries",
        "40 queries/s": "no",
    }
    few = replace(probes[0], queries=60, concurrency=20, qps=None, more=None, why="")
    made.note(RunFolder(tmp_path, "run"), probes=[asdict(few)])
    page = command.page(
        curve := replicas.points(rendering.build(folder)), replicas.fleet(curve, [15.0], 0.0, None), "kept"
    )
    assert "| 20 in flight | 20 | – | – | yes |" in page and "its p99 is not known (20 in flight)" in page


def test_a_multistream_run_is_planned_with_by_its_batches(tmp_path: Path) -> None:
    """Two smaller batches, and its own test of eight samples in 20 ms."""
    folder = made.run(tmp_path / "run", category="edge", scenario="multistream", samples_per_query="2,4,8")
    batch = Probe(None, True, 20.0, 2.0, samples_per_sec=120.0, samples_per_query=2, queries=270)
    batches = [batch, replace(batch, valid=False, samples_per_sec=160.0, samples_per_query=4)]
    made.note(RunFolder(tmp_path, "run"), probes=[asdict(each) for each in batches])
    found = replicas.points(rendering.build(folder))
    assert [(point.load, point.rate, point.kept, point.ttft_p99) for point in found] == [
        ("2 samples per query", 120.0, True, 20.0),
        ("4 samples per query", 160.0, False, 20.0),
        ("the run's own test", pytest.approx(400.0), True, None),  # of 64 queries: their p99 is the slowest
    ]
    done = called("plan", "plan", str(folder), "--peak", "1000", "--headroom", "0.5")
    assert done.returncode == 0 and "| 0 | 1,000 | 5 |" in done.stdout
    assert [line.split(" | ")[1] for line in done.stdout.splitlines()[2:5]] == ["120", "160", "400"]


def plan(*words: str) -> tuple[int, str, str]:
    done = ended("-m", "harness", "plan", str(ROOT / "docs" / "runs" / "h200-server"), *words)
    return done.returncode, done.stdout, done.stderr


def test_a_rate_that_fell_in_the_whole_test_is_none(tmp_path: Path) -> None:
    """62 queries/s were VALID for 30 s, and INVALID for 11 minutes."""
    code, page, _ = plan("--peak", "500", "--price-per-hour", "3")
    assert code == 0 and "| 62 queries/s | 58.2 | 360.4 | 58.53 | no |" in page
    rate = 54.9885
    assert f"| 0 | 500 | {math.ceil(500 / (0.9 * rate))} |" in page


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("minute,requests\n0,600\n1,nonsense\n", "line 3: the last column"),
        ("minute,requests\n", "1 minute to 366 days"),
        ("0,-5\n", "line 1"),
    ],
)
def test_damaged_traffic_is_a_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(text)
    code, _, errors = plan("--traffic", str(tmp_path / "t.csv"))
    assert code == 2 and said in errors and errors.count("\n") == 1


def test_a_day_by_minute(tmp_path: Path) -> None:
    rows = "".join(f"{n},{60 * (200 if n >= 60 else 20)}\n" for n in range(120))
    (tmp_path / "t.csv").write_text("minute,requests\n" + rows)
    code, page, _ = plan("--traffic", str(tmp_path / "t.csv"), "--headroom", "0")
    assert code == 0 and "| 0 | 20 | 1 |" in page and "| 1 | 200 | 4 |" in page


def test_each_load_has_its_unit() -> None:
    rate = Probe(4.0, True, None, None)
    batch, level = replace(rate, qps=None, samples_per_query=4), replace(rate, qps=None, concurrency=4)
    assert [probe.unit for probe in (rate, batch, level)] == ["queries/s", "samples per query", "in flight"]
