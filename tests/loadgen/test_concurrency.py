"""Fixed concurrency: N requests in flight, measured by ourselves and held against LoadGen's own numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.common.errors import UsageError
from harness.config.plan import resolve
from harness.config.run import RunConfig
from harness.loadgen import log as loadgen_log
from harness.loadgen import request_times, trace
from harness.loadgen.trace import Sample, read_trace
from harness.results import advice
from harness.results.summary import Performance, Steady
from tests.conftest import run

ECHO = ("--backend", "echo", "--engine-arg", "first_token_s=0.02", "--engine-arg", "token_s=0.001")


TRACE = """{"traceEvents": [
{"name":"Sample","ph":"b","ts":1,"args":{"sample_seq":0,"sample_idx":7,"issue_start_ns":0,"complete_ns":5000000}},
{"name":"LastTrace"}]}
"""


def config(**flags: Any) -> RunConfig:
    return RunConfig(**{"model": "demo", "mode": "performance", **flags})


def test_it_is_a_scenario_of_its_own() -> None:
    asked = config(concurrency="1,4,16")
    assert (asked.scenario, asked.levels) == ("concurrency", (1, 4, 16))
    assert config(scenario="concurrency").concurrency == "auto"
    assert any(line.startswith("a fixed concurrency ") for line in resolve(asked, [], 0).deviations)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"concurrency": 4, "scenario": "server"}, "--concurrency .*--scenario server"),
        ({"concurrency": 0}, "--concurrency takes"),
        ({"concurrency": 5000, "endpoint": ("http://h/v1",)}, "take 1,024 at once; raise --max-in-flight"),
        ({"concurrency": 4, "compliance": "test06"}, "--compliance test06 .*a fixed concurrency"),
        ({"concurrency": 4, "batch_size": 8}, "--batch-size .*--scenario offline"),
    ],
    ids=str,
)
def test_what_does_not_go_with_it(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config(**flags)


def requests(count: int, at_once: int, seconds: float = 1.0) -> list[Sample]:
    """A test with `at_once` in flight, all of the same length."""
    return [Sample(n, n, 1000 * seconds * (n // at_once), 100.0, 1000 * seconds) for n in range(count)]


def test_the_steady_part_has_no_ramps() -> None:
    found = requests(80, 8)
    part = request_times.steady(found, [10] * 80, 8)
    assert part and (part.begin_s, part.end_s) == (1.0, 9.0)
    assert part.tokens_per_sec == pytest.approx(80)
    assert part.trend == pytest.approx(1)
    assert request_times.steady(found, [10] * 80, 21) is None  # too few waves
    assert request_times.steady(found, [10] * 79, 8) is None  # counts of another test
    chosen, counts = request_times.within(found, [10] * 80, part)
    assert len(chosen) == len(counts) == 64


def test_a_trace_of_another_test_is_found(tmp_path: Path) -> None:
    (tmp_path / trace.TRACE).write_text(TRACE)
    (tmp_path / request_times.ISSUED).write_text("[7]")
    assert [sample.index for sample in request_times.samples(tmp_path)] == [7]
    (tmp_path / request_times.ISSUED).write_text("[8]")
    with pytest.raises(loadgen_log.LogError, match="are of different tests"):
        request_times.samples(tmp_path)


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.floats(0, 1e4), st.floats(0, 1e3), st.floats(0, 1e3)), min_size=1, max_size=20
    )
)
def test_times_are_kept_as_they_were(tmp_path_factory: pytest.TempPathFactory, rows: list[Any]) -> None:
    folder = tmp_path_factory.mktemp("times")
    request_times.write(folder, [(i, 5, 3, sent, sent + first, sent + first + rest) for i, sent, first, rest in rows])
    found = request_times.own(folder)
    assert [sample.index for sample in found] == [row[0] for row in rows]
    for sample, (_, _, first, rest) in zip(found, rows, strict=True):
        assert sample.ttft_ms == pytest.approx(1e3 * first, abs=0.01)
        assert sample.latency_ms == pytest.approx(1e3 * (first + rest), abs=0.01)


@pytest.mark.parametrize(("trend", "said"), [(1.05, False), (0.8, True), (2.0, True)])
def test_a_speed_that_changes_is_said(trend: float, said: bool) -> None:
    part = Steady(seconds=5, share_percent=60, tokens_per_sec=9, trend=trend)
    test = Performance(
        scenario="concurrency", valid=True, duration_s=9, samples=9, tokens_per_sec=9, samples_per_sec=1, steady=part
    )
    assert bool(advice.unsteady(test)) == said


def measured(folder: Path, *flags: str) -> Path:
    short = ("--mode", "performance", "--min-duration", "4", "--total-sample-count", "48")
    done = run(folder, *ECHO, *short, *flags)
    assert done.code == 0, done.output
    return done.folder


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("curve"), "--concurrency", "1,4")


def test_tpot_is_that_of_the_tokens_after_the_first_message(tmp_path: Path) -> None:
    rows: list[Any] = [(n, 5, 9, 0.0, 1.0, 2.0) for n in range(3)]
    request_times.write(tmp_path, rows, first={1: 5, 2: 9})
    found = request_times.own(tmp_path)
    assert [sample.tpot_ms(9) for sample in found] == [pytest.approx(125), pytest.approx(250), None]
    assert request_times.per_token(found, [9, 9, 9]) == [pytest.approx(125), pytest.approx(250)]
    header, *lines = (tmp_path / request_times.REQUESTS).read_text().splitlines()
    old = [line.rpartition(",")[0] for line in (header, *lines)]  # as tests of older versions wrote it
    (tmp_path / request_times.REQUESTS).write_text("\n".join(old) + "\n")
    assert [sample.first_tokens for sample in request_times.own(tmp_path)] == [1, 1, 1]


@pytest.mark.slow
def test_a_test_ends_by_its_time(tmp_path: Path) -> None:
    """LoadGen issues three times as many queries as the trial makes it expect."""
    flags = ("--mode", "performance", "--concurrency", "4", "--min-duration", "2")
    done = run(tmp_path, *ECHO, *flags, "--input-len", "16", "--output-len", "9")
    assert done.code == 0, done.output
    test = done.summary["run"]["performance"]
    assert test["valid"] and 2 <= test["duration_s"] < 2.5 and "attempts" not in done.summary["run"]
    lines = (done.folder / "Performance" / "requests.csv").read_text().splitlines()
    assert test["samples"] == len(lines) - 1 == test["total_new_tokens"] / 9
    assert test["tokens_per_sec"] == pytest.approx(test["total_new_tokens"] / test["duration_s"], rel=0.02)
    assert test["samples_per_sec"] == pytest.approx(test["samples"] / test["duration_s"], rel=0.02)


@pytest.mark.slow
def test_each_level_is_a_point_of_the_curve(curve: Path) -> None:
    summary = json.loads((curve / "summary.json").read_text())
    points = summary["run"]["search"]
    assert [point["concurrency"] for point in points] == [1, 4]
    slow, fast = (point["tokens_per_sec"] for point in points)
    assert 3 < fast / slow < 4.5
    assert (curve / "Probes" / "1" / "mlperf_log_detail.txt").exists()
    assert "Times are this program's own" in (curve / "report.md").read_text()


@pytest.mark.slow
def test_answers_end_when_loadgen_hears_of_them(curve: Path) -> None:
    """LoadGen's times begin with the query, ours with the first request: they differ by a constant."""
    for folder in (curve / "Probes" / "1", curve / "Performance"):
        ours = request_times.own(folder)
        theirs = read_trace(folder)[: len(ours)]  # the rest was not sent: the time was over
        gaps = sorted(b.latency_ms - a.scheduled_ms - a.latency_ms for a, b in zip(ours, theirs, strict=True))
        assert [sample.index for sample in ours] == [sample.index for sample in theirs]
        assert gaps[int(0.9 * len(gaps))] - gaps[0] < 2


@pytest.mark.slow
def test_one_in_flight_is_as_singlestream(curve: Path, tmp_path: Path) -> None:
    single = measured(tmp_path, "--category", "edge", "--scenario", "singlestream")
    loadgens = json.loads((single / "summary.json").read_text())["run"]["performance"]
    ours = json.loads((curve / "summary.json").read_text())["run"]["search"][0]
    assert ours["ttft_p50"] == pytest.approx(loadgens["ttft_ms"]["p50"], abs=1)
    assert ours["tpot_p50"] == pytest.approx(loadgens["tpot_ms"]["p50"], abs=0.02)
    assert ours["latency_p50"] == pytest.approx(loadgens["latency_ms"]["p50"], abs=2)
