"""Answers of one token, which have no time per output token; and empty ones, of which nothing can be timed."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.config.mlperf import LatencyLimits
from harness.core.statistics import fewest_queries
from harness.loadgen.log import read
from harness.loadgen.test_run import corrected_result
from harness.report import report as rendering
from harness.results import test_outcome
from harness.results.outcome import Outcome
from harness.results.performance_view import outcome_fields, performance_view
from harness.results.summary import Summary
from tests.conftest import Finished, run, tells
from tests.support import example_runs
from tests.support.fake_servers import Fake, serving

LOAD = {
    "offline": ("--offline-expected-qps", "50"),
    "server": ("--server-target-qps", "100"),
    "interactive": ("--server-target-qps", "100"),
    "singlestream": ("--category", "edge"),
    "multistream": ("--samples-per-query", "4"),
}


def measured(tmp_path: Path, fake: Fake, scenario: str, *flags: str) -> Finished:
    """A performance test of requests of the user's own, unless `flags` say what else is asked."""
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"prompt": f"Is {n} even?", "max_tokens": 4}) + "\n" for n in range(16)))
    work = flags or ("--workload", str(path))
    with serving(fake):
        least = ("--mode", "performance", "--min-duration", "5" if "100" in LOAD[scenario] else "1")
        load = ("--scenario", scenario, *LOAD[scenario])
        return run(tmp_path / "results", "--endpoint", fake.address, *least, *load, *work)


SIGNED = ("growth", "drift", "clock_fall")  # changes, which may be below zero


def numbers(data: Any) -> Iterator[float]:
    """Every number in a file's content that is no change."""
    if isinstance(data, dict):
        yield from numbers([value for name, value in data.items() if name not in SIGNED])
    elif isinstance(data, list):
        for item in data:
            yield from numbers(item)
    elif type(data) in (int, float):
        yield data


def check_numbers(done: Finished) -> Any:
    """No number in any file is negative, or beyond the test's length; the performance part of the summary."""
    history = [json.loads(line) for line in (done.results / "history.jsonl").read_text().splitlines()]
    for data in (done.summary["run"], history, json.loads((done.folder / "config.json").read_text()).get("probes", [])):
        assert all(number >= 0 and math.isfinite(number) for number in numbers(data))
    test = done.summary["run"]["performance"]
    assert test["latency_ms"]["max"] < 1000 * done.seconds
    assert " | -" not in (done.folder / "report.md").read_text().replace("--", "")
    return test


@pytest.mark.slow
@pytest.mark.parametrize("scenario", LOAD)
def test_every_answer_is_one_token(scenario: str, tmp_path: Path) -> None:
    done = measured(tmp_path, Fake(fault="one"), scenario)
    assert done.code == 0, done.output
    test = check_numbers(done)
    assert test["errors"] == [] and test["tpot_ms"] is None
    assert test["total_new_tokens"] == test["samples"]
    assert test["tokens_per_sec"] == pytest.approx(test["samples"] / test["duration_s"], rel=0.1)
    if scenario != "offline":
        assert test["single_token"] == test["samples"] and test["ttft_ms"]["min"] > 0
        assert (
            f"Answers of one token: {test['samples']:,} of {test['samples']:,}**: "
            in (done.folder / "report.md").read_text()
        )
    if "100" in LOAD[scenario]:
        assert not test["tpot_judged"] and test["slo_attainment"] is not None


@pytest.mark.slow
@pytest.mark.parametrize("official", [False, True])
def test_one_answer_in_a_hundred_is_one_token(official: bool, tmp_path: Path) -> None:
    work = ("--total-sample-count", "16") if official else ()
    done = measured(tmp_path, Fake(fault="one", every=100, pause_s=0.02), "server", *work)
    test = check_numbers(done)
    assert test["valid"] and test["tpot_judged"]
    assert 0 < test["single_token"] <= test["samples"] / 80
    assert test["tpot_ms"]["min"] > 0
    assert [error[:16] for error in test["errors"]] == (["Number of tokens"] if official else [])
    if official:
        assert "LoadGen logged errors" in [each["what"] for each in done.summary["meta"]["deviations"]]


@pytest.mark.slow
@pytest.mark.parametrize("scenario", ["offline", "server"])
def test_empty_answers_end_a_run(scenario: str, tmp_path: Path) -> None:
    done = measured(tmp_path, Fake(fault="empty", after=30, usage=False), scenario)
    assert done.code == 3, done.output
    assert "without a single token" in done.status["reason"]
    assert "Traceback" not in done.output


def test_the_time_per_token_is_taken_from_the_other_answers(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps=8.0) / "Performance"
    requests = [
        example_runs.timed(n, first, last, output_tokens=count)
        for n, (first, last, count) in enumerate([(10, 15, 1), (10, 50, 3), (20, 60, 5)])
    ]
    detail = (folder / "mlperf_log_detail.txt").read_text()
    added = {"requested_use_token_latencies": True, "result_time_to_output_token_min": -5e6}
    text = "".join(f":::MLLOG {json.dumps({'key': k, 'value': v, 'metadata': {}})}\n" for k, v in added.items())
    lines = [line for line in detail.splitlines(keepends=True) if '"result_time_to_output_token_min"' not in line]
    (folder / "mlperf_log_detail.txt").write_text("".join(lines) + text)
    found = corrected_result(read(folder), requests, LatencyLimits(2000, 15), may_have_single_tokens=True)
    assert found.tpot_ms and (found.tpot_ms.min, found.tpot_ms.mean, found.tpot_ms.max) == (10, 15, 20)
    assert (found.valid, found.failed, found.single_token) == (False, ("latency",), 1)
    assert tells(found.invalid_reasons[0], "TPOT p99 of the 2 answers", " 20 ms, over")
    assert found.tokens_per_sec == pytest.approx(1024 * 9 / 8)
    kept = corrected_result(read(folder), requests, LatencyLimits(2000, 25), may_have_single_tokens=True)
    assert kept.valid and not kept.tpot_judged


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tpot_ms": {"max": 30.0}}, ("longest TPOT ", " 30 ms", "beyond 20 ms")),
        ({"ttft_ms": {"max": 30.0}}, ("longest TTFT ", " 30 ms", "beyond 20 ms")),
        ({"latency_ms": {"max": 1e10}}, ("longest latency ", " 10,000,000,000 ms", "beyond 8,008 ms")),
        ({"requests_in_flight": -1.0}, ("requests_in_flight is -1",)),
        ({"usage": {"cpu_percent": {"mean": -2.0, "max": 1.0}}}, ("usage.cpu_percent.mean is -2",)),
    ],
)
def test_numbers_that_no_test_can_have(change: dict[str, Any], words: tuple[str, ...], tmp_path: Path) -> None:
    summary: Summary = example_runs.rendered(tmp_path / "run", scenario="server", server_target_qps=8.0)
    assert summary.run.performance
    page = performance_view(summary.run.performance)
    for key, value in change.items():
        page[key] = page[key] | value if isinstance(value, dict) else value
    details = Outcome.model_validate(outcome_fields(page)).details
    assert tells(next(test_outcome.impossible_values(details, most_ms=8000.0)), *words)


def with_longest(tmp_path: Path, logged_ms: float, found_ms: float) -> Summary:
    """A Server test of some 8 s by LoadGen's duration, its longest latency by LoadGen and by its requests."""
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps=8.0)
    log = folder / "Performance" / "mlperf_log_detail.txt"
    log.write_text(log.read_text().replace('"result_max_latency_ns", "value": 20000000.0', '"x", "value": 0'))
    line = json.dumps({"key": "result_max_latency_ns", "value": 1e6 * logged_ms, "metadata": {}})
    log.write_text(f"{log.read_text()}:::MLLOG {line}\n")
    times = [found_ms, *[20.0] * 63]
    example_runs.requests(
        folder / "Performance", *(example_runs.timed(n, 10, t, output_tokens=128) for n, t in enumerate(times))
    )
    return rendering.build_report(folder)


def test_a_log_with_impossible_numbers_is_disputed(tmp_path: Path) -> None:
    """It marks the result, and loses no run: the report is made all the same."""
    summary = with_longest(tmp_path, 1e12, 20)
    (disputed,) = summary.run.performance.disagreements if summary.run.performance else []
    assert tells(disputed, "longest latency", "beyond 20", "contradicts itself")
    assert "DISPUTED" in (tmp_path / "run" / "report.md").read_text().splitlines()[0]


def test_a_request_of_a_server_may_outlast_loadgens_duration(tmp_path: Path) -> None:
    """Which ends with the last query that was issued."""
    test = with_longest(tmp_path, 20_000, 20_000).run.performance
    assert test and test.disagreements == () and test.latency_ms.max == 20_000


def test_the_queries_that_early_stopping_asks_for() -> None:
    assert [fewest_queries(0.99, over) for over in range(4)] == [459, 662, 838, 1001]  # as LoadGen logs them
    assert fewest_queries(0.9, over=1) == 64
