"""The clock of the GPUs in a probe: what heat will still take of it in ten minutes."""

from collections.abc import Sequence
from math import hypot
from statistics import fmean, stdev

from harness.loadgen.test_run import Recording
from harness.results.outcome import SURE

# In these first seconds the number of running requests rises, and the clock falls with it, not with heat (an H200,
# Server).
RAMP_S = 20.0
FEWEST_READINGS = 8  # the fewest readings, one a second, for each half of a probe after its ramp
# Heat comes on over minutes: several times what a minute shows is still to come ("hotter by 4 % in minutes").
STILL_TO_COME_RATIO = 3.0
MOST_MARGIN = 0.04  # the largest share of a rate that is taken off for heat


def clock_fall(recording: Recording, until_s: float) -> float | None:
    """Return the share by which the GPU clock fell from the first to the second half of a probe.

    The halves are of the time after the ramp and before `until_s`. Returns 0 if the fall is within chance, None if too
    little was recorded.
    """
    clocks = [mean_clock(recording, row) for row in range(len(recording.seconds))]
    readings = zip(recording.seconds, clocks, strict=True)
    steady = [clock for second, clock in readings if RAMP_S <= second <= until_s and clock is not None]
    half = len(steady) // 2
    if half < FEWEST_READINGS:
        return None
    return fall_between(steady[:half], steady[half:])


def mean_clock(recording: Recording, row: int) -> float | None:
    """Return the mean clock of the GPUs in a reading; None if a GPU did not report its clock."""
    clocks = []
    for gpu in recording.gpus:
        clock = recording.column(f"{gpu}_clock_mhz")[row]
        if clock is None:
            return None
        clocks.append(clock)
    return fmean(clocks) if clocks else None


def fall_between(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the share by which the second readings are lower than the first; 0 if chance explains it."""
    fall = fmean(before) - fmean(after)
    error = hypot(stdev(before), stdev(after)) / len(before) ** 0.5
    if fall <= SURE * error:
        return 0.0
    return fall / fmean(before)


def heat_margin(fall: float | None) -> float:
    """Return the share of a rate to take off for heat, given the share by which the clock fell in a probe."""
    return min(STILL_TO_COME_RATIO * (fall or 0.0), MOST_MARGIN)
