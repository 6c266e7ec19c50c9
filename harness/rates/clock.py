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

    `until_s` is when the last query was sent. 0 if the fall is within chance, None with too few readings.
    """
    clocks = [mean_clock(recording, row) for row in range(len(recording.seconds))]
    readings = zip(recording.seconds, clocks, strict=True)
    steady = [clock for second, clock in readings if RAMP_S <= second <= until_s and clock is not None]
    half = len(steady) // 2
    if half < FEWEST_READINGS:
        return None
    return fall_between(steady[:half], steady[half:])


def mean_clock(recording: Recording, row: int) -> float | None:
    """Return the mean clock of the GPUs in MHz, in a row of the recording; None if a GPU did not report its clock, or
    if there is no GPU.
    """
    clocks = []
    for gpu in recording.gpus:
        clock = recording.column(f"{gpu}_clock_mhz")[row]
        if clock is None:
            return None
        clocks.append(clock)
    return fmean(clocks) if clocks else None


def fall_between(before: Sequence[float], after: Sequence[float]) -> float:
    """Return the share by which the mean of `after` is below that of `before`, which has as many readings.

    Returns 0 if the mean rose, or if its fall is within chance.
    """
    fall = fmean(before) - fmean(after)
    error = hypot(stdev(before), stdev(after)) / len(before) ** 0.5  # the standard error of the fall
    if fall <= SURE * error:
        return 0.0
    return fall / fmean(before)


def heat_margin(fall: float | None) -> float:
    """Return the share of a rate to take off for heat, given `fall`, the share by which the clock fell in a probe.

    A minute's probe shows only the beginning of the fall that a full test will have. So the margin is a multiple of
    `fall`, up to MOST_MARGIN. It is 0 if the fall is not known (None).
    """
    return min(STILL_TO_COME_RATIO * (fall or 0.0), MOST_MARGIN)
