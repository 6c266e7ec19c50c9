"""The time of a test's GPUs, in five shares."""

from harness.core.formatting import Measured
from harness.core.schema import FrozenModel


class GpuTime(FrozenModel):
    """Percent of the seconds of a test, over its GPUs; the shares add up to 100. A lowered clock costs load x
    (1 - clock / maximum) of each second.
    """

    test: str
    folder: str = ""
    """The test's folder in the run's; empty in summaries of older versions."""
    idle: float
    """No kernel ran and no request waited; or no kernel ran, where the engine does not tell what waits."""
    idle_while_waiting: Measured
    """No kernel ran while requests waited; null where that is not known."""
    held_by_power: float
    held_by_heat: float
    busy: float
    """The work that was done, as the time that it takes at the maximum clock."""
    max_clock_mhz: float
    is_clock_of_nvml: bool
    """Whether the maximum is NVML's; else it is the highest that the run recorded."""
