"""Fixed concurrency: N requests in flight, measured by ourselves and held against LoadGen's own numbers."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import REQUEST_COLUMNS, Request, read_requests, write_requests
from harness.loadgen.steady_window import steady_window
from harness.results import advice
from harness.results.figures import Figures
from harness.results.outcome import Outcome
from harness.results.test_details import TestDetails
from tests.conftest import run
from tests.support import example_runs

ECHO = ("--backend", "echo", "--engine-arg", "first_token_s=0.02", "--engine-arg", "token_s=0.001")


def config(**flags: Any) -> RunConfig:
    return RunConfig(**{"model": "demo", "mode": "performance", **flags})


def test_it_is_a_scenario_of_its_own() -> None:
    asked = config(concurrency="1,4,16")
    assert (asked.scenario, asked.levels) == ("concurrency", (1, 4, 16))
    assert config(scenario="concurrency").concurrency == "auto"
    assert any(str(line).startswith("a fixed concurrency ") for line in resolve(asked, [], 0).deviations)


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


def requests(count: int, at_once: int, seconds: float = 1.0) -> list[Request]:
    """A test with `at_once` in flight, all of the same length."""
    return [
        example_runs.timed(
            n, 100.0, 1000 * seconds, output_tokens=10, issued_s=seconds * (n // at_once), clock="client"
        )
        for n in range(count)
    ]


def test_the_steady_part_has_no_ramps() -> None:
    found = requests(80, 8)
    part = steady_window(found, 8)
    assert part and (part.begin_s, part.end_s) == (1.0, 9.0)
    assert part.tokens_per_sec == pytest.approx(80)
    assert part.trend == pytest.approx(1)
    assert len(part.requests) == 64
    assert steady_window(found, 21) is None  # too few waves
    burst = [example_runs.timed(n, 100.0, 1000.0 + n / 1e3, output_tokens=10, issued_s=0.0) for n in range(100)]
    assert steady_window(burst, 8) is None  # all answers at once
    assert steady_window([*found, Request(0, 5, 9)], 8) is None  # a time is not known


TIMES = st.none() | st.floats(0, 1e6)


@given(
    st.lists(
        st.builds(
            Request,
            *(st.integers(0, 9), st.integers(0, 9), st.integers(0, 9), st.integers(1, 9)),
            *(TIMES, TIMES, TIMES, TIMES),
            st.sampled_from(("", "loadgen", "client")),
            st.text(st.characters(exclude_categories=("Cs", "Cc"))),
        )
    )
)
def test_requests_are_kept_as_they_were(tmp_path_factory: pytest.TempPathFactory, given_ones: list[Request]) -> None:
    folder = tmp_path_factory.mktemp("requests")
    write_requests(folder, given_ones)
    found = read_requests(folder)
    for request, kept in zip(given_ones, found, strict=True):
        for name in ("sample", "prompt_tokens", "output_tokens", "first_tokens", "clock", "failure"):
            assert getattr(kept, name) == getattr(request, name)
        for name in ("issued_s", "sent_ms", "ttft_ms", "latency_ms"):
            assert getattr(kept, name) == pytest.approx(getattr(request, name), abs=1e-6)
    assert [request.order for request in found] == list(range(len(found)))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ("1,2,3", ":2: .* 3 cells instead of 10"),
        ("1,2,x,1,0,,,5,loadgen,", ":2: .*'x'"),
        ("1,2,3,1,0,,,nan,loadgen,", ":2: .*nan"),
        ("1,2,3,1,0,,,-5,loadgen,", ":2: .*negative"),
        ("1,2,3,1,0,,,5,sundial,", ":2: .*'sundial'"),
    ],
)
def test_a_damaged_row_is_named(row: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "requests.csv").write_text(f"{','.join(REQUEST_COLUMNS)}\n{row}\n")
    with pytest.raises(UsageError, match=f"requests.csv{said}"):
        read_requests(tmp_path)


def test_a_large_test_is_a_small_file(tmp_path: Path) -> None:
    """450,000 requests of a long test, with every time that LoadGen takes."""
    rows = (
        example_runs.timed(
            n, 65.123456, 1234.567891, sample=n % 13368, issued_s=n / 500 + 1e-6, output_tokens=128, sent_ms=0.1
        )
        for n in range(450_000)
    )
    write_requests(tmp_path, rows)
    assert (tmp_path / "requests.csv").stat().st_size <= 70 * 450_000


@pytest.mark.parametrize(
    ("trend", "share_percent", "said"),
    [(1.05, 90, False), (0.8, 90, True), (2.0, 90, True), (1.18, 51, False), (2.0, None, False)],
)
def test_a_speed_that_changes_is_said_of_a_test_with_enough_waves(
    trend: float, share_percent: float | None, said: bool
) -> None:
    steady = Figures(share_percent=share_percent)
    test = Outcome(valid=True, trend=trend, details=TestDetails(steady=steady))
    assert bool(advice.drift_warnings(test)) == said


def measured(folder: Path, *flags: str) -> Path:
    short = ("--mode", "performance", "--min-duration", "4", "--total-sample-count", "48")
    done = run(folder, *ECHO, *short, *flags)
    assert done.code == 0, done.output
    return done.folder


@pytest.fixture(scope="module")
def curve(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measured(tmp_path_factory.mktemp("curve"), "--concurrency", "1,4")


def test_tpot_is_that_of_the_tokens_after_the_first_message() -> None:
    known = {"output_tokens": 9, "clock": "client"}
    found = [example_runs.timed(n, 1000.0, 2000.0, first_tokens=first, **known) for n, first in enumerate((1, 5, 9))]
    assert [request.tpot_ms for request in found] == [pytest.approx(125), pytest.approx(250), None]
    assert example_runs.timed(0, 1000.0, 2000.0, output_tokens=9, failure="429").tpot_ms is None


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
    assert [point["load"] for point in points] == [1, 4]
    slow, fast = (point["tokens_per_sec"] for point in points)
    assert 3 < fast / slow < 4.5
    assert (curve / "Probes" / "1" / "mlperf_log_detail.txt").exists()
    assert {each.clock for each in read_requests(curve / "Performance")} == {"client"}


@pytest.mark.slow
def test_answers_end_when_loadgen_hears_of_them(curve: Path) -> None:
    """LoadGen takes no times of each request here; its length of the test is until the last answer. It begins with the
    query, ours with the first request.
    """
    for folder in (curve / "Probes" / "1", curve / "Performance"):
        ours, theirs = read_requests(folder), loadgen_log.read(folder)
        last = max(request.done_s or 0.0 for request in ours)
        assert {request.clock for request in ours} == {"client"}
        assert 0 <= (theirs.duration_s or 0.0) - last < 0.2


@pytest.mark.slow
def test_one_in_flight_is_as_singlestream(curve: Path, tmp_path: Path) -> None:
    """By the fastest requests, which a machine that does other work as well slows down least."""
    single = measured(tmp_path, "--category", "edge", "--scenario", "singlestream")
    loadgens = json.loads((single / "summary.json").read_text())["run"]["performance"]
    ours = json.loads((curve / "summary.json").read_text())["run"]["search"][0]
    assert ours["ttft_ms"]["min"] == pytest.approx(loadgens["ttft_ms"]["min"], abs=1)
    assert ours["tpot_ms"]["min"] == pytest.approx(loadgens["tpot_ms"]["min"], abs=0.02)
    assert ours["latency_ms"]["min"] == pytest.approx(loadgens["latency_ms"]["min"], abs=2)
