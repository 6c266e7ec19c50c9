"""What the clock of a GPU in a probe tells of ten minutes."""

import random

import pytest

from harness.loadgen.test_run import Recording
from harness.rates.clock import MOST_MARGIN, STILL_TO_COME_RATIO, clock_fall, heat_margin


def recording(clocks: list[float], gpus: int = 1) -> Recording:
    seconds = [float(n + 1) for n in range(len(clocks))]
    return Recording(seconds, {f"gpu{n}_clock_mhz": list(clocks) for n in range(gpus)})


def test_a_clock_that_falls_after_the_ramp_is_learned_from() -> None:
    falling = [1980.0] * 19 + [1600 - n for n in range(42)]
    fall = clock_fall(recording(falling), 60.0)
    assert fall == pytest.approx(20 / 1590, rel=0.1)
    assert heat_margin(fall) == pytest.approx(STILL_TO_COME_RATIO * fall)
    assert heat_margin(0.5) == MOST_MARGIN


def test_a_clock_that_wanders_is_not() -> None:
    """An H200 in a saturated probe of 90 s: 1,484 to 1,491 MHz on average, 30 more or less in each reading."""
    chance = random.Random(1)
    wandering = [1488 + chance.choice((-30, -15, 0, 15, 30)) for _ in range(60)]
    assert clock_fall(recording([float(clock) for clock in wandering]), 60.0) == 0.0
    assert heat_margin(0.0) == 0.0


def test_what_was_not_recorded_is_not_known() -> None:
    assert clock_fall(Recording([], {}), 60.0) is None
    assert clock_fall(recording([1500.0] * 25), 25.0) is None
    assert heat_margin(None) == 0.0
    gap = recording([1500.0] * 60)
    gap.columns["gpu0_clock_mhz"] = [None] * 60
    assert clock_fall(gap, 60.0) is None
