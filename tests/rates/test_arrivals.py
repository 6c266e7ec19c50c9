"""LoadGen's arrivals follow from the seed of its schedule."""

import json
from pathlib import Path

import pytest

from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.loadgen.requests import read_requests
from harness.rates.arrivals import arrival_times, sent_share
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
    assert 56.51913922151169 * sent_share(SEED, 40_104) == pytest.approx(57.1392, rel=1e-4)


def test_a_goal_knows_the_full_test() -> None:
    goal = Goal.of(resolve(RunConfig(round="5.1", scenario="interactive", server_target_qps="max"), [], 0))
    assert (goal.full_queries(56.5), goal.seed, goal.known_seed) == (40_104, SEED, SEED)
    assert goal.full_s(10.0) == pytest.approx(1336.8)
    assert goal._replace(has_any_arrivals=True).known_seed is None


@pytest.mark.slow
def test_the_real_loadgen_of_this_environment_sends_them(tmp_path: Path) -> None:
    flags = ("--backend", "echo", "--mode", "performance", "--scenario", "server", "--server-target-qps", "40")
    done = run(tmp_path, *flags, "--min-duration", "3", "--total-sample-count", "64")
    assert done.code == 0, done.output
    seed = json.loads((done.folder / "config.json").read_text())["plan"]["seeds"]["schedule"]
    issued = [request.begin_s for request in read_requests(done.folder / "Performance")]
    expected = (arrival_times(seed, len(issued)) / 40).tolist()
    assert len(issued) > 100 and sorted(issued) == pytest.approx(expected, abs=1e-4)
