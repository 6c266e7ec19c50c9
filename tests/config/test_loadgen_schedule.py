"""LoadGen's arrivals follow from the seed of its schedule."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import mlperf
from harness.config.loadgen_schedule import arrival_times, highest_rate_of, queries_of_test, queries_until
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.loadgen.requests import read_requests
from harness.rates.bench import at_rate
from harness.rates.goal import Goal
from tests.conftest import run

SEED = 18209322760996052031  # of the schedule, in v5.1

# Of a probe at 51.6105 queries/s on an H200, by LoadGen's trace: the first queries, and every thousandth.
RECORDED = {0: 0.0, 1: 0.035509, 2: 0.070273, 3: 0.091559, 4: 0.098207, 11: 0.170671}


def test_they_are_those_that_loadgen_recorded() -> None:
    times = arrival_times(SEED, 12) / 51.610504753850684
    assert {order: round(float(times[order]), 6) for order in RECORDED} == RECORDED


def test_a_longer_test_begins_as_a_shorter_one() -> None:
    assert (arrival_times(SEED, 50)[:20] == arrival_times(SEED, 20)).all()


def test_random_gaps_add_up_to_a_rate_of_their_own() -> None:
    """40,104 queries at 56.52 were sent at 57.14 a second."""
    mean_rate = (40_104 - 1) / arrival_times(SEED, 40_104)[-1]
    assert 56.51913922151169 * mean_rate == pytest.approx(57.1392, rel=1e-4)


# Probes of 60 s on an H200 with the seeds of v6.1: the rate, the samples, and the queries that LoadGen sent.
SEED_OF_6_1 = mlperf.SEEDS_BY_ROUND["6.1"].schedule
SENT = [(96.50037952080113, 5791, 5791), (56.75375264774285, 3406, 6812), (45.09054272570221, 2706, 5412)]


@pytest.mark.parametrize(("rate", "samples", "sent"), SENT)
def test_a_pass_that_ends_too_early_is_followed_by_another(rate: float, samples: int, sent: int) -> None:
    """LoadGen sent twice as many queries, in 120 s, where the first pass took less than 60 s."""
    assert queries_of_test(SEED_OF_6_1, rate, 60.0, samples, samples) == sent


def test_a_probe_has_the_queries_of_its_time_and_no_second_pass() -> None:
    plan = resolve(RunConfig(scenario="interactive", server_target_qps="max"), [], 0)
    for rate in (45.09054272570221, 56.75375264774285, 200.0, 400.0):
        probe = at_rate(plan, rate, 60.0)
        assert probe.planned_samples and 60 <= probe.planned_samples / rate < 63


@given(st.floats(0.01, 500), st.floats(0.5, 900), st.integers(1, 20_000))
def test_a_test_is_as_short_as_its_schedule_allows(rate: float, least_s: float, pass_queries: int) -> None:
    """The last query comes at the least time or later, and without the last pass it would come earlier."""
    queries = queries_of_test(SEED, rate, least_s, 1, pass_queries)
    assert queries % pass_queries == 0
    assert arrival_times(SEED, queries)[-1] >= rate * least_s or queries == 1
    if queries > pass_queries:
        assert arrival_times(SEED, queries - pass_queries)[-1] < rate * least_s


def test_a_rate_that_is_slightly_too_high_for_its_queries_takes_another_pass() -> None:
    highest = highest_rate_of(SEED, 26_736, 600.0)
    assert queries_of_test(SEED, highest, 600.0, 13_368, 13_368) == 26_736
    assert queries_of_test(SEED, 1.001 * highest, 600.0, 13_368, 13_368) == 40_104


def test_without_a_seed_the_mean_rate_counts() -> None:
    assert queries_until(None, 10.0, 60.0) == 600
    assert highest_rate_of(None, 600, 60.0) == 10.0


def test_a_goal_knows_the_full_test() -> None:
    goal = Goal.of(resolve(RunConfig(round="5.1", scenario="interactive", server_target_qps="max"), [], 0))
    assert (goal.full_queries(56.5), goal.seed, goal.simulated_seed) == (40_104, SEED, SEED)
    assert goal.full_s(10.0) == pytest.approx(1336.8)
    assert goal._replace(holds_for_any_arrivals=True).simulated_seed is None


@pytest.mark.slow
def test_the_real_loadgen_of_this_environment_sends_them(tmp_path: Path) -> None:
    """Also at the highest rate for these queries, where a time that is cut to nanoseconds could bring another pass."""
    rate = highest_rate_of(SEED_OF_6_1, queries=128, least_s=3.0)
    flags = ("--backend", "echo", "--mode", "performance", "--scenario", "server", "--server-target-qps", repr(rate))
    done = run(tmp_path, *flags, "--min-duration", "3", "--total-sample-count", "64")
    assert done.code == 0, done.output
    seed = json.loads((done.folder / "config.json").read_text())["plan"]["seeds"]["schedule"]
    issued = [request.begin_s for request in read_requests(done.folder / "Performance")]
    expected = (arrival_times(seed, len(issued)) / rate).tolist()
    assert seed == SEED_OF_6_1
    assert len(issued) == 128 and sorted(issued) == pytest.approx(expected, abs=1e-4)
