"""Which levels of fixed concurrency are tested, and the highest that keeps its limits."""

import random

from hypothesis import given
from hypothesis import strategies as st

from harness.rates.law import Goal
from harness.results.outcome import Outcome
from harness.runner import rate as levels
from tests.support import example_runs

LIMITS = Goal(600, 1, 1000, 100)


def test_levels_of_auto_end_with_what_the_engine_computes_at_once() -> None:
    assert levels.levels_of((), 256) == [1, 4, 16, 64, 256]
    assert levels.levels_of((), 100) == [1, 4, 16, 64, 100]
    assert levels.levels_of((), 1) == [1]
    assert levels.levels_of((3, 5), 100) == [3, 5]


def searched(truth: int, wrong: float, seed: int, most: int = 4096) -> tuple[int | None, int]:
    """What the search finds where `truth` is the highest level that holds and probes near it are wrong with some
    chance; and how many it took.
    """
    chance, count = random.Random(seed), 0

    def probe(level: int) -> Outcome:
        nonlocal count
        count += 1
        share = 0.999 * level / truth if truth else 9.0
        held = (level <= truth) != (1 / levels.CLEAR < share < levels.CLEAR and chance.random() < wrong)
        return example_runs.probe(
            *(None, True, 1000 * share, 50.0), concurrency=level, why="" if held else "TTFT p99 over its limit"
        )

    return levels.highest(probe, LIMITS, 64, most), count


@given(truth=st.integers(1, 4096), seed=st.integers(0, 999))
def test_the_search_finds_the_highest_level(truth: int, seed: int) -> None:
    found, probes = searched(truth, 0.0, seed)
    assert found is not None and truth / levels.FINAL_RATIO - 1 <= found <= truth
    assert probes <= 3 * levels.MOST_LEVEL_PROBES


def test_a_single_request_that_is_too_slow_ends_the_search() -> None:
    assert searched(0, 0.0, 0)[0] is None


def test_one_wrong_probe_does_not_fool_the_search() -> None:
    found = [searched(300, 0.1, seed)[0] or 0 for seed in range(200)]
    assert sum(300 / 1.2 <= level <= 300 for level in found) >= 165


def test_a_level_far_from_its_limit_is_tested_once() -> None:
    """Four levels too many (64, 7, 2, 1): each is five times over its limit or more, and none is tested again."""
    found, probes = searched(0, 0.0, 0)
    assert found is None and probes == 4
    found, probes = searched(9, 0.0, 0)
    assert found == 9 and probes <= 10
