"""What other programs cost a test, by how the speed followed their load from second to second."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, pstdev

from harness.core.formatting import Measured, number
from harness.core.schema import FrozenModel
from harness.core.statistics import lag_correlation, student_quantile
from harness.loadgen.test_run import Recording, TestRun

LOAD_COLUMN, SPEED_COLUMN = "others_cpu_percent", "generation_tokens_per_sec"
# Means over so many readings, one a second, are compared, since the tokens of a single second depend on its steps.
BLOCK_READINGS = 5
FEWEST_BLOCKS = 12
NEGLIGIBLE_PERCENT = 3.0  # as much as the speeds of two equal runs differ
LEAST_VARIATION = 5.0  # percent of the CPU; a load that varies less shows no effect on the speed
# The confidence of the interval. At 98 % it held the true effect in at least 95 % of the tests of every kind that
# benchmarks.load_effect simulates; the readings of neighbouring seconds are not independent.
CONFIDENCE = 0.98


class LoadEffect(FrozenModel):
    """The share of its speed that a test lost to other programs, in percent, with its interval."""

    lost_percent: float
    low_percent: float
    high_percent: float

    @property
    def is_clear(self) -> bool:
        """Tell whether the speed fell when other programs took more: even the low end of the loss is above 0."""
        return self.low_percent > 0

    @property
    def is_negligible(self) -> bool:
        """Tell whether the interval of the lost speed includes 0 and ends below NEGLIGIBLE_PERCENT."""
        return self.low_percent <= 0 and self.high_percent < NEGLIGIBLE_PERCENT

    def __str__(self) -> str:
        """Return in words what the other programs cost. The sentence follows one that names them."""
        if self.is_clear:
            interval = f"{number(self.low_percent, 2)} to {number(self.high_percent, 2)} %"
            return f"the speed followed their load: they cost {number(self.lost_percent, 2)} % of it ({interval})"
        most = max(0.0, self.high_percent)
        return f"the speed did not follow their load: they cost at most {number(most, 2)} % of it"


def effect_of_load(test: TestRun) -> LoadEffect | None:
    """Return what other programs cost a test in its steady part. None if that is not recorded, or cannot be told.

    A load that hardly varies leaves no trace in the course of the speed, although it may cost much of it.
    """
    if test.steady is None:
        return None
    begin_s, end_s = test.steady.begin_s, test.steady.begin_s + test.steady.seconds
    loads, speeds = blocks_of(test.recording, begin_s, end_s)
    return fitted_effect(loads, speeds)


def blocks_of(recording: Recording, begin_s: float, end_s: float) -> tuple[list[float], list[float]]:
    """Return the mean load of other programs in each block of readings between two times, and the mean speed in each.

    A block has BLOCK_READINGS readings. Readings without both values are left out, and so is a last block with fewer.
    """
    pairs = list[tuple[float, float]]()
    columns = zip(recording.seconds, recording.column(LOAD_COLUMN), recording.column(SPEED_COLUMN), strict=True)
    for second, load, speed in columns:
        if begin_s <= second <= end_s and load is not None and speed is not None:
            pairs.append((load, speed))
    loads, speeds = list[float](), list[float]()
    for first in range(0, len(pairs) - BLOCK_READINGS + 1, BLOCK_READINGS):
        block = pairs[first : first + BLOCK_READINGS]
        loads.append(fmean(load for load, _speed in block))
        speeds.append(fmean(speed for _load, speed in block))
    return loads, speeds


def half_width_of_slope(slope: float, load_offsets: Sequence[float], speed_offsets: Sequence[float]) -> float:
    """Return half the width of the interval of a slope that was fitted to the offsets.

    The offsets are what is left of loads and speeds without means and trends. Blocks of time resemble their neighbours,
    which widens the interval (Bartlett 1935).
    """
    residuals = [speed - slope * load for load, speed in zip(load_offsets, speed_offsets, strict=True)]
    correlation = lag_correlation(residuals) * lag_correlation(load_offsets)  # Neither factor is negative.
    inflation = (1 + correlation) / (1 - correlation)
    fitted_numbers = 3  # those of the speed: its mean, its trend over time, and the slope
    remaining = len(residuals) - fitted_numbers
    variance = sum(residual**2 for residual in residuals) / remaining
    standard_error = sqrt(inflation * variance / sum(offset**2 for offset in load_offsets))
    freedom = max(2.0, remaining / inflation)
    # The degrees of freedom are rounded, so that the quantiles of earlier calls serve again: one takes long to compute.
    return student_quantile(round(freedom, 1), CONFIDENCE) * standard_error


def fitted_effect(loads: Sequence[float], speeds: Sequence[float]) -> LoadEffect | None:
    """Return the effect of other programs' load on the speed, by the straight line that fits both best.

    `loads` and `speeds` are those of consecutive blocks. A trend over time is first taken out of both. None if the
    blocks do not show the effect.
    """
    if len(loads) < FEWEST_BLOCKS or pstdev(loads) < LEAST_VARIATION:
        return None
    load_offsets, speed_offsets = without_trend(loads), without_trend(speeds)
    squares = sum(offset**2 for offset in load_offsets)
    if not squares:  # The load is a trend over time, so that its effect cannot be told from that of time.
        return None
    products = sum(load * speed for load, speed in zip(load_offsets, speed_offsets, strict=True))
    slope = products / squares  # tokens/s for each percent of the CPU
    half_width = half_width_of_slope(slope, load_offsets, speed_offsets)
    mean_load, mean_speed = fmean(loads), fmean(speeds)
    # The higher the slope, the less of the speed was lost.
    low = lost_percent(slope + half_width, mean_load, mean_speed)
    middle = lost_percent(slope, mean_load, mean_speed)
    high = lost_percent(slope - half_width, mean_load, mean_speed)
    # The line puts the speed without load at 0 or below.
    if low is None or middle is None or high is None:
        return None
    return LoadEffect(lost_percent=middle, low_percent=low, high_percent=high)


def lost_percent(slope: float, mean_load: float, mean_speed: float) -> Measured:
    """Return the share of the speed without load that the mean load costs, in percent; None if there is no such speed.

    `slope` is the change of the speed with each percent of load, so it is negative if the load costs speed.
    """
    speed_without_load = mean_speed - slope * mean_load
    if speed_without_load <= 0:
        return None
    return 100 * (1 - mean_speed / speed_without_load)


def without_trend(values: Sequence[float]) -> list[float]:
    """Return the distance of each value from the straight line over time that fits the values best."""
    mean = fmean(values)
    middle = (len(values) - 1) / 2
    times = [place - middle for place in range(len(values))]  # counted from the middle, so that their sum is 0
    squares = sum(time**2 for time in times)
    slope = sum(time * (value - mean) for time, value in zip(times, values, strict=True)) / squares
    return [value - mean - slope * time for time, value in zip(times, values, strict=True)]
