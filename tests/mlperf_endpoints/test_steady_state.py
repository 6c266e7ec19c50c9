"""The steady state of a test at fixed concurrency, by the rule of MLPerf Endpoints."""

from collections.abc import Callable
from random import Random

import pytest

from harness.loadgen.requests import Request
from harness.mlperf_endpoints.steady_state import SteadyState, SuperPass, find, ramp, trend
from tests import made

SIZE, TOKENS, GAP_S, TPOT_MS, TTFT_MS = 200, 50, 0.1, 10.0, 80.0
Level = Callable[[float], float]  # of a share of the test, in multiples of the steady one


def run(passes: float, tpot: Level = lambda share: 1.0, ttft: Level = lambda share: 1.0) -> list[Request]:
    """A test of so many passes: requests at even distances, their times scattered by a tenth."""
    random, count = Random(1), int(passes * SIZE)
    samples = []
    for order in range(count):
        share = order / count
        first = TTFT_MS * ttft(share) * random.lognormvariate(0, 0.1)
        each = TPOT_MS * tpot(share) * random.lognormvariate(0, 0.1)
        samples.append(
            made.timed(
                order, first, first + each * (TOKENS - 1), issued_s=GAP_S * order, output_tokens=TOKENS, clock="client"
            )
        )
    return samples


def state_of(samples: list[Request], least: float = 100) -> SteadyState:
    return find(samples, SIZE, least)


def test_a_flat_test_is_steady_but_for_its_first_pass() -> None:
    state = state_of(run(10.5), least=150)
    assert (state.status, state.verdict, state.window) == ("windowable", "steady state", (1, 11))
    assert state.is_official and state.super_passes == 11
    assert state.seconds == pytest.approx((9.5 * SIZE - 1) * GAP_S)  # to the last issue inside
    assert state.tokens_per_sec == pytest.approx(TOKENS / GAP_S, rel=0.001)
    assert state.tpot_p50 == pytest.approx(TPOT_MS, rel=0.01)
    assert state.ttft_p90 == pytest.approx(TTFT_MS * 1.137, rel=0.02)  # of a scatter of 0.1
    assert state.drifts == {}


@pytest.mark.parametrize(
    ("tpot", "start"),
    [
        (lambda share: 0.5 if share < 0.2 else 1.0, 2),
        (lambda share: 0.93 if share < 0.2 else 1.0, 2),
        (lambda share: 0.97 if share < 0.2 else 1.0, 1),
        (lambda share: 1 + 1.5 * share, 5),
    ],
)
def test_the_ramp_is_what_is_off_by_a_twentieth_and_at_most_half(tpot: Level, start: int) -> None:
    samples = run(10, tpot)
    passes = [SuperPass.of(samples[n : n + SIZE]) for n in range(0, len(samples), SIZE)]
    assert ramp(passes) == start
    if start < 5:
        assert state_of(samples).window == (start, 10)


@pytest.mark.parametrize(
    ("passes", "least_s", "status"),
    [(0.9, 1, "partial_dataset"), (3.5, 1, "insufficient_passes"), (6, 600, "insufficient_duration")],
)
def test_a_short_test_has_no_official_window(passes: float, least_s: float, status: str) -> None:
    state = state_of(run(passes), least_s)
    assert state.status == status
    assert not state.is_official


def test_where_none_is_long_enough_the_longest_plateau_is_named() -> None:
    state = state_of(run(17, lambda share: 1.0 if share < 5 / 17 else 1.5), least=1000)
    assert (state.status, state.window) == ("insufficient_duration", (5, 17))


def test_requests_that_last_long_need_a_long_window() -> None:
    samples = run(10, ttft=lambda share: 1000.0)  # 80 s each: five times as long is 400 s
    assert state_of(samples, least=1).status == "insufficient_duration"


@pytest.mark.parametrize(("scatter", "window"), [(0.03, (1, 12)), (0.07, (6, 12)), (0.1, None)])
def test_a_plateau_scatters_by_at_most_8_percent(scatter: float, window: tuple[int, int] | None) -> None:
    samples = run(12, lambda share: 1 + scatter * (-1 if int(12 * share) % 2 else 1))
    assert state_of(samples).window == window


@pytest.mark.parametrize(
    ("slope", "verdict", "window"), [(0.12, "drifting up", (8, 21)), (-0.12, "drifting down", (10, 23))]
)
def test_a_drift_after_the_window_is_a_warning(slope: float, verdict: str, window: tuple[int, int]) -> None:
    state = state_of(run(30, lambda share: 1 + slope * share))
    assert (state.verdict, state.window, state.is_official) == (verdict, window, True)
    assert abs(state.drifts["tpot_p50"]) > 0.07 and "drifts: tpot p50 " in state.words


@pytest.mark.parametrize(("passes", "verdict"), [(40, "anomaly"), (20, "drifting up")])
def test_a_step_is_an_anomaly_where_pettitts_test_sees_it(passes: int, verdict: str) -> None:
    state = state_of(run(passes, lambda share: 1.0 if share < 0.8 else 1.6))
    assert (state.verdict, state.window, state.is_official) == (verdict, (1, round(0.8 * passes)), True)
    assert state.tpot_p50 == pytest.approx(TPOT_MS, rel=0.01)


def test_ttft_that_climbs_is_named_beside_a_steady_window() -> None:
    state = state_of(run(10, ttft=lambda share: 1 + share))
    assert state.verdict == "steady state" and state.is_official
    assert state.drifts["ttft_p50"] > 0.45


def test_answers_that_come_at_once_have_no_level_to_divide_by() -> None:
    state = state_of(run(10, tpot=lambda share: 0.0))
    assert (state.verdict, state.tpot_p50) == ("steady state", 0.0)


def test_a_small_set_asked_a_thousand_times_is_seen_in_larger_blocks() -> None:
    samples = run(20)
    state = find(samples, 4, 100)  # a thousand passes of four samples
    assert 32 <= state.super_passes <= 64
    assert state.verdict == "steady state" and state.is_official


def test_a_trend_is_one_beyond_chance() -> None:
    random = Random(2)
    noise = [[random.gauss(10, 1) for _ in range(12)] for _ in range(400)]
    assert sum(map(abs, map(trend, noise))) / len(noise) < 0.15  # the correction costs some of the 5 % of so few
    assert {trend([3.0] * 6), trend([1.0, 2.0, 3.0]), trend([1.0, 2.0, 3.0, 4.0])} == {0}  # four are too few to tell
    assert (trend([1.0, 1.1, 1.2, 1.4, 1.3, 1.5]), trend([6.0, 5.0, 4.0, 3.0, 2.5, 2.0, 1.0])) == (1, -1)


def test_a_trend_is_not_taken_away_before_its_autocorrelation_counts() -> None:
    """A long rise is autocorrelated: by the ranks as they are its variance is large, and a rise in a zigzag shows."""
    rise = [float(at) for at in range(30)]
    zigzag = [at + (3.0 if at % 2 else -3.0) for at in rise]
    assert (trend(rise), trend(zigzag), trend(zigzag[::-1])) == (1, 1, -1)
