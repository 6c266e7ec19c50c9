"""MultiStream: N samples at once, the next N when all are answered; latency by batch size."""

from pathlib import Path
from typing import Any

import pytest

from harness.config.patterns import SURE_P90_QUERIES
from harness.config.plan import Plan
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from harness.loadgen import loadgen_test
from harness.loadgen import log as loadgen_log
from harness.loadgen.senders import Batches
from harness.loadgen.sending import trial_sender, trial_size
from harness.rates.trials import Trial
from harness.runner.trial_rate import LatencyTrial
from tests.conftest import run, tells
from tests.support import example_runs


def config(**flags: Any) -> RunConfig:
    return RunConfig(**{"model": "demo", "scenario": "multistream", "mode": "performance", **flags})


def plan(**flags: Any) -> Plan:
    return resolve(config(**flags), [], 0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"samples_per_query": "1,x"}, "--samples-per-query takes .*commas"),
        ({"samples_per_query": "0"}, "--samples-per-query takes a whole number above 0"),
        ({"samples_per_query": "1,-2"}, "--samples-per-query takes a whole number above 0"),
        ({"samples_per_query": "1.5"}, "--samples-per-query takes a whole number"),
        ({"samples_per_query": "1,2", "scenario": "server"}, "implies --scenario multistream"),
        ({"samples_per_query": 4, "scenario": "server"}, "implies --scenario multistream"),
        ({"samples_per_query": "1,2", "mode": "accuracy"}, "--samples-per-query .*--mode accuracy"),
        ({"compliance": "test06"}, "--compliance test06 .*MultiStream"),
        ({"sort_by_length": True}, "implies --scenario offline"),
    ],
)
def test_what_is_refused(flags: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        config(**flags)


def test_a_query_holds_no_sample_twice() -> None:
    with pytest.raises(UsageError, match=r"--samples-per-query 32: .* 16 samples"):
        plan(samples_per_query="1,32", total_sample_count=16)


def test_the_run_itself_has_the_most_samples_per_query() -> None:
    found = plan(samples_per_query="4,16,1")
    assert (found.samples_per_query, found.config.batches) == (16, (4, 16, 1))
    assert any(str(line).startswith("MultiStream ") for line in found.deviations)
    assert plan(samples_per_query=3).samples_per_query == 3
    assert plan(scenario="server").samples_per_query == 1


def test_loadgen_is_told_the_batch_and_the_percentile() -> None:
    lines = loadgen_test.user_conf(plan(samples_per_query=4, total_sample_count=64)).splitlines()
    settings = dict(line.removeprefix("llama3_1-8b.MultiStream.").split(" = ") for line in lines)
    assert settings["samples_per_query"] == "4"
    assert settings["target_latency_percentile"] == "90"
    assert settings["min_query_count"] == str(SURE_P90_QUERIES)


def test_the_expected_latency_is_that_of_a_query() -> None:
    target = plan(samples_per_query=4)
    assert (trial_size(target, 64), trial_sender(target, 64)) == (40, Batches(4))
    found = LatencyTrial().plan_after(target, Trial(samples=40, seconds=2.0))
    assert found.expected_latency_ms == pytest.approx(300)
    assert tells(found.notes[-1], "300 ms (1.5 x 200 ms, ", " 10 queries of 4 samples)")


def test_the_log_of_whole_queries(tmp_path: Path) -> None:
    target = plan(samples_per_query=4)
    query = {f"result_{name}_query_latency_ns": 30e6 for name in ("min", "mean", "max")}
    query |= {f"result_{share}_percentile_per_query_latency_ns": 30e6 for share in example_runs.PERCENTILES}
    text = example_runs.log(target, generated_samples_per_query=4, result_query_count=100, **query)
    (tmp_path / "mlperf_log_detail.txt").write_text(text)
    found = loadgen_log.read(tmp_path)
    assert (found.queries, found.samples, found.duration_s) == (100, 400, pytest.approx(3.0))
    assert found.samples_per_sec == pytest.approx(400 / 3)
    assert found.latency_ms and found.ttft_ms and (found.latency_ms.p90, found.ttft_ms.p90) == (30, 20)


def test_a_trial_that_ended_within_its_first_query_tells_the_latency() -> None:
    found = LatencyTrial().plan_after(plan(samples_per_query=4), Trial(samples=3, seconds=60.0))
    assert found.expected_latency_ms == pytest.approx(1.5 * 80_000)


@pytest.mark.engine
def test_latency_by_batch_on_the_demo(tmp_path: Path) -> None:
    flags = (
        "--samples-per-query",
        "1,4",
        "--total-sample-count",
        "16",
        "--min-duration",
        "1",
        "--max-new-tokens",
        "16",
    )
    ended = run(tmp_path, "--scenario", "multistream", "--mode", "performance", *flags)
    assert ended.code == 0, ended.output
    one, four = ended.summary["run"]["search"]
    assert (one["load"], four["load"]) == (1, 4)
    assert one["valid"] and four["valid"] and one["unit"] == "samples per query"
    assert 0 < one["latency_ms"]["p50"] <= one["latency_ms"]["p90"]
    assert {folder.name for folder in (ended.folder / "Probes").iterdir()} == {"1"}
    for size, folder, probe in ((1, "Probes/1", one), (4, "Performance", four)):  # the largest is the run's own test
        log = loadgen_log.read(ended.folder / folder, "MultiStream")
        assert (log.effective["samples_per_query"], log.valid, probe["folder"]) == (size, True, folder)
        assert log.latency_ms and log.latency_ms.p90 == probe["latency_ms"]["p90"]
    test = ended.summary["run"]["performance"]
    own = next(row for row in (one, four) if row["folder"] == test["folder"])  # the one with more output tokens/s
    assert (test["valid"], test["samples_per_query"]) == (True, own["load"])
    assert 0.7 * own["load"] < test["requests_in_flight"] <= own["load"]  # the first that are done wait for the others
    page = (ended.folder / "report.md").read_text()
    assert "| 4 | VALID |" in page
    assert (ended.folder / "plots" / "search.png").exists()
