"""The steady state of a test at fixed concurrency, by the rule of MLPerf Endpoints."""

from collections.abc import Callable
from random import Random

import pytest

from harness.endpoints.steady_state import found, trending
from harness.loadgen.trace import Sample

SIZE, TOKENS, GAP_S, TPOT_MS, TTFT_MS = 200, 50, 0.1, 10.0, 80.0
Level = Callable[[float], float]  # of a share of the test, in multiples of the steady one


def run(passes: float, tpot: Level = lambda share: 1.0, ttft: Level = lambda share: 1.0) -> list[Sample]:
    """A test of so many passes: requests at even distances, their times scattered by a tenth."""
    random, count = Random(1), int(passes * SIZE)
    samples = []
    for order in range(count):
        share = order / count
        first = TTFT_MS * ttft(share) * random.lognormvariate(0, 0.1)
        each = TPOT_MS * tpot(share) * random.lognormvariate(0, 0.1)
        samples.append(Sample(order, order % SIZE, 1e3 * GAP_S * order, first, first + each * (TOKENS - 1)))
    return samples


def test_a_flat_test_is_steady_as_a_whole() -> None:
    state = found(samples := run(10.5), [TOKENS] * len(samples), SIZE, least=150)
    assert (state.status, state.verdict, state.window, state.super_passes) == (
        "windowable",
        "steady state",
        (0, 10),
        10,
    )
    assert state.official
    assert state.seconds == pytest.approx(10 * SIZE * GAP_S)
    assert state.tokens_per_sec == pytest.approx(TOKENS / GAP_S)
    assert state.tpot_p50 == pytest.approx(TPOT_MS, rel=0.01)
    assert state.ttft_p90 == pytest.approx(TTFT_MS * 1.137, rel=0.02)  # of a scatter of 0.1
    assert state.drifts == {}


def test_the_ramp_is_left_out() -> None:
    state = found(samples := run(10, lambda share: 0.5 if share < 0.2 else 1.0), [TOKENS] * len(samples), SIZE, 100)
    assert (state.verdict, state.window) == ("steady state", (2, 10))
    assert state.tpot_p50 == pytest.approx(TPOT_MS, rel=0.01)


@pytest.mark.parametrize(
    ("passes", "least_s", "status"),
    [(0.9, 1, "partial_dataset"), (3.5, 1, "insufficient_passes"), (6, 600, "insufficient_duration")],
)
def test_a_short_test_has_no_official_window(passes: float, least_s: float, status: str) -> None:
    state = found(samples := run(passes), [TOKENS] * len(samples), SIZE, least_s)
    assert state.status == status
    assert not state.official


@pytest.mark.parametrize(("slope", "verdict"), [(1.5, "drifting up"), (-0.6, "drifting down")])
def test_drift_is_named_and_never_official(slope: float, verdict: str) -> None:
    state = found(samples := run(12, lambda share: 1 + slope * share), [TOKENS] * len(samples), SIZE, 10)
    assert state.verdict == verdict
    assert not state.official
    assert state.drifts and abs(state.drifts["tpot_p50"]) > 0.3


def test_a_step_is_an_anomaly_and_the_first_level_counts() -> None:
    state = found(samples := run(20, lambda share: 1.0 if share < 0.8 else 1.6), [TOKENS] * len(samples), SIZE, 100)
    assert (state.verdict, state.window) == ("anomaly", (0, 16))
    assert state.tpot_p50 == pytest.approx(TPOT_MS, rel=0.01)


def test_ttft_that_climbs_is_named_beside_a_steady_window() -> None:
    state = found(samples := run(10, ttft=lambda share: 1 + share), [TOKENS] * len(samples), SIZE, 100)
    assert state.verdict == "steady state"
    assert state.drifts and state.drifts["ttft_p50"] > 0.5


def test_a_small_set_asked_a_thousand_times_is_seen_in_larger_blocks() -> None:
    samples = run(20)
    state = found(samples, [TOKENS] * len(samples), 4, 100)  # a thousand passes of four samples
    assert 32 <= state.super_passes <= 64
    assert state.verdict == "steady state" and state.official


def test_counts_of_other_requests_tell_nothing() -> None:
    assert found(run(10), [TOKENS], SIZE, 100).status == "partial_dataset"


def test_a_trend_is_one_beyond_chance() -> None:
    random = Random(2)
    noise = [[random.gauss(10, 1) for _ in range(12)] for _ in range(400)]
    assert sum(map(trending, noise)) / len(noise) < 0.15  # the correction costs some of the 5 % of so short a series
    assert all(trending([value + at for at, value in enumerate(series)]) for series in noise[:50])
    assert not trending([3.0, 3.0, 3.0, 3.0])
