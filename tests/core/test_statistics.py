"""The statistics behind verdicts: scipy's values, and the share of simulated intervals that hold the truth."""

import math
import random
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from harness.core import statistics
from harness.core.statistics import bootstrap_intervals, paired_changes, student_quantile, welch, wilson

COVERED = (0.93, 0.97)  # of 95 % claimed
Draw = Callable[[np.random.Generator, int], np.ndarray]


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 2.5, 3, 7.9, 30, 31, 100, 1e3, 1e6])
def test_student_is_scipys(freedom: float) -> None:
    assert student_quantile(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), rel=1e-5)


@pytest.mark.parametrize(("hits", "n"), [(0, 4), (4, 4), (7, 10), (1, 1000)])
def test_wilson_is_scipys(hits: int, n: int) -> None:
    expected = stats.binomtest(hits, n).proportion_ci(method="wilson")
    assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-12)


@pytest.mark.parametrize("sides", [([1.0, 2.0, 4.0], [3.0, 3.5]), ([1.0, 1.1], [5.0, 9.0, 2.0, 7.0])])
def test_welch_is_scipys(sides: tuple[list[float], list[float]]) -> None:
    before, after = sides
    expected = stats.ttest_ind(after, before, equal_var=False).confidence_interval()
    middle, half = welch(before, after)
    assert (middle - half, middle + half) == pytest.approx((expected.low, expected.high), abs=1e-4)


def test_one_value_scatters_as_the_other_side_does() -> None:
    assert welch([1.0], [2.0]) == (1.0, 0.0)
    assert welch([1.0, 1.0], [2.0, 2.0]) == (1.0, 0.0)
    middle, half = welch([1.0, 2.0, 3.0], [4.0])
    assert (middle, half) == pytest.approx((2.0, stats.t.ppf(0.975, 2) * math.sqrt(4 / 3)), rel=1e-5)


def covered(held: list[bool]) -> float:
    return sum(held) / len(held)


@pytest.mark.parametrize(
    ("sizes", "scatter"), [((3, 3), 3), ((5, 5), 1), ((5, 5), 8), ((3, 6), 8), ((6, 3), 8), ((1, 4), 1), ((4, 1), 1)]
)
def test_the_change_between_two_sides_is_covered(sizes: tuple[int, int], scatter: float) -> None:
    rng = np.random.default_rng(1)
    held = []
    for _ in range(1500):
        middle, half = welch(rng.normal(0, 1, sizes[0]).tolist(), rng.normal(0, scatter, sizes[1]).tolist())
        held.append(abs(middle) <= half)
    assert COVERED[0] <= covered(held) <= COVERED[1]


@pytest.mark.parametrize(("hits", "n"), [(0.3, 60), (0.7, 400), (0.55, 114)])
def test_a_share_is_covered(hits: float, n: int) -> None:
    found = [wilson(int(k), n) for k in np.random.default_rng(1).binomial(n, hits, 2000)]
    assert COVERED[0] <= covered([low <= hits <= high for low, high in found]) <= COVERED[1]


@pytest.mark.parametrize("count", [30, 100])
def test_the_mean_of_scores_is_covered(count: int) -> None:
    rng = np.random.default_rng(1)
    scores = rng.beta(4, 6, (count, 1000))  # of 1,000 tests at once: a column each
    low, high = bootstrap_intervals(scores).T
    assert COVERED[0] <= float(np.mean((low <= 0.4) & (high >= 0.4))) <= COVERED[1]


@pytest.mark.parametrize(
    ("count", "share", "change"),
    [(30, 0.7, -2.0), (100, 0.3, -2.0), (300, 0.1, -2.0), (400, 0.05, 0.0), (400, 0.5, -8.0)],
)
def test_the_paired_change_is_covered_wherever_it_decides(count: int, share: float, change: float) -> None:
    """Of the share of answers that differ, each by its own change."""
    rng = np.random.default_rng(1)
    before = np.full((count, 1000), 40.0)
    after = before + rng.normal(change, 10, before.shape) * (rng.random(before.shape) < share)
    found = [one for one in paired_changes(before, after) if not one.few]
    assert len(found) > 900
    assert COVERED[0] <= covered([one.low <= share * change <= one.high for one in found]) <= COVERED[1]


def test_with_few_that_differ_only_what_was_not_seen_counts() -> None:
    before = np.full((1000, 1), 80.0)
    (same,) = paired_changes(before, before)
    assert (same.few, same.change) == (True, 0.0)
    assert (same.low, same.high) == pytest.approx((-0.24, 0.24))  # 3 / 1,000 of the largest score
    after = before.copy()
    after[:9] = 0.0
    (nine,) = paired_changes(before, after)
    assert nine.few and nine.low < -0.72 - 0.24
    after[9] = 0.0
    assert not paired_changes(before, after)[0].few
    assert paired_changes(before[:29], before[:29] + np.arange(29)[:, None])[0].few


def queue_times(count: int, load: float, seed: int) -> list[float]:
    """How long requests take in a simulated queue (M/M/1) at a share of its capacity, after it has settled."""
    chance, waited, found = random.Random(seed), 0.0, []
    for _ in range(count + 2000):
        service = chance.expovariate(1.0)
        found.append(waited + service)
        waited = max(0.0, waited + service - chance.expovariate(load))
    return found[2000:]


@pytest.mark.parametrize("load", [0.5, 0.7, 0.8, 0.9])
@pytest.mark.parametrize("requests", [600, 2000])
@pytest.mark.parametrize("share", [0.5, 0.9])
def test_an_interval_of_a_quantile_holds_also_on_a_short_busy_test(requests: int, load: float, share: float) -> None:
    """The time in an M/M/1 queue is exponential with the rate 1 - load."""
    truth = -math.log(1 - share) / (1 - load)
    found = [statistics.quantile_interval(queue_times(requests, load, seed), share) for seed in range(300)]
    held = [low <= truth <= (math.inf if high is None else high) for low, high in filter(None, found)]
    assert len(held) == 300 and sum(held) >= 0.93 * 300


def test_an_interval_of_few_alike_requests_has_an_upper_end_only_where_it_is_known() -> None:
    both = [statistics.quantile_interval(queue_times(2000, load, 1), 0.5) for load in (0.5, 0.9)]
    assert all(interval and interval[1] for interval in both)
    narrow, wide = (interval[1] - interval[0] for interval in both if interval and interval[1])
    assert wide > 5 * narrow
    interval = statistics.quantile_interval(queue_times(600, 0.9, 1), 0.9)
    assert interval is None or interval[1] is None


def test_too_few_requests_have_no_interval() -> None:
    assert statistics.quantile_interval([1.0] * 19, 0.5) is None
    low, high = statistics.quantile_interval([float(n % 7) for n in range(200)], 0.99) or (0.0, 0.0)
    assert low > 0 and high is None  # 200 requests have no upper order statistic of a p99


@given(st.permutations(range(60)), st.sampled_from([0.5, 0.9]), st.floats(0.01, 0.3))
def test_the_ends_of_an_interval_are_order_statistics(values: list[int], share: float, reach: float) -> None:
    """As many values are below each end as the share of them that the interval reaches to."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(statistics, "half_width_of_share", lambda *_: reach / statistics.QUEUE_WIDENING)
        low, high = statistics.quantile_interval([float(value) for value in values], share) or (math.nan, None)
    assert sum(value < low for value in values) == max(0, math.floor(60 * (share - reach)))
    below = math.ceil(60 * (share + reach))
    assert (high is None) == (below >= 60)
    assert high is None or sum(value < high for value in values) == below
