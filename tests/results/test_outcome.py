"""Which test of a load counts, which load is the best, and how few queries a percentile may be of."""

from pathlib import Path

import pytest

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.loadgen.test_run import TestRun
from harness.results.benchmark_run import facts_of
from harness.results.outcome import Doubt, best_load, deciding_tests
from harness.results.test_outcome import outcome_of, own_outcome_of
from tests.support import example_runs
from tests.support.example_runs import probe


def test_of_several_tests_of_a_load_the_last_decides() -> None:
    tests = [
        probe(qps=2.0, tokens_per_sec=20.0),
        probe(qps=1.0, tokens_per_sec=10.0),
        probe(qps=2.0, tokens_per_sec=21.0),
        probe(qps=1.0, tokens_per_sec=11.0),
        probe(qps=2.0, tokens_per_sec=22.0),
    ]
    assert [(test.load, test.tokens_per_sec) for test in deciding_tests(tests)] == [(1.0, 11.0), (2.0, 22.0)]


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (2, 0, 3, 1)])
def test_the_best_is_the_highest_of_those_that_kept_whatever_their_order(order: tuple[int, ...]) -> None:
    tests = [
        probe(qps=1.0, tokens_per_sec=10.0),
        probe(qps=2.0, tokens_per_sec=30.0),
        probe(qps=3.0, tokens_per_sec=25.0),  # kept at a higher load, with less output
        probe(qps=4.0, tokens_per_sec=40.0, valid=False, why="TTFT p99 3,000 of 2,000 ms"),
    ]
    found = best_load([tests[n] for n in order])
    assert found and found.load == 2.0


def test_a_test_on_a_busy_machine_is_the_best_only_alone() -> None:
    quiet = probe(qps=1.0, tokens_per_sec=10.0)
    busy = probe(qps=2.0, tokens_per_sec=20.0, busy="other programs used 2 of 2 CPU cores")
    assert best_load([quiet, busy]) == quiet and best_load([busy]) == busy


@pytest.mark.parametrize(("batch", "samples", "queries"), [(4, 64, 16), (4, 480, 120), (1, 120, 120)])
def test_a_percentile_is_of_queries_not_of_their_samples(
    batch: int, samples: int, queries: int, tmp_path: Path
) -> None:
    plan = resolve(RunConfig(model="demo", scenario="multistream", samples_per_query=batch, mode="performance"), [], 0)
    logged = example_runs.log(plan, generated_samples_per_query=batch, result_query_count=queries)
    (tmp_path / "mlperf_log_detail.txt").write_text(logged)
    example_runs.requests(tmp_path, *(example_runs.timed(n, 10.0, 20.0, output_tokens=8) for n in range(samples)))
    found = outcome_of(TestRun.read(tmp_path, plan), plan, tmp_path)
    assert found.queries == queries
    assert (Doubt.FEW in found.doubts) == (queries < 100)


@pytest.mark.parametrize(("samples", "is_few"), [(64, True), (480, False)])
def test_a_run_s_own_test_counts_its_queries_too(samples: int, is_few: bool, tmp_path: Path) -> None:
    run = example_runs.run(tmp_path / "run", scenario="multistream", samples_per_query="4")
    facts = facts_of(run)
    logged = example_runs.log(facts.plan, generated_samples_per_query=4, result_query_count=samples // 4)
    (run / "Performance" / "mlperf_log_detail.txt").write_text(logged)
    requests = (example_runs.timed(n, 10.0, 20.0, output_tokens=8) for n in range(samples))
    example_runs.requests(run / "Performance", *requests)
    found = own_outcome_of(TestRun.read(run / "Performance", facts.plan), facts, run)
    assert found.queries == samples // 4 and (Doubt.FEW in found.doubts) == is_few
