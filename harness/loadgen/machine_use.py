"""The use of the machine during a test: its processors, its GPUs, and other programs on it."""

from typing import Annotated

from harness.core.formatting import Measured
from harness.core.schema import FrozenModel, stored_field


class MachineUse(FrozenModel):
    """machine.json: what a test took of the machine, and what other programs did meanwhile."""

    others_cpu_cores: Measured = None
    """CPU cores that other programs used during the test, on average."""
    background_load: Annotated[list[str], stored_field("others", "background_load")] = []
    """What other programs took of the machine, in words, where it may have cost speed."""
    gpu_joules: Measured = None
    """Energy of the GPUs during the test, by their counters; with --telemetry-url by their power, null over a gap."""
    server_gpus: list[str] = []
    """The models of a server's GPUs, by --telemetry-url."""
    waits_ms: dict[str, float] = {}
    """Milliseconds before a first token in the engine's queue and in its prefill, each the mean of the test by the
    engine's own histograms; empty where it has none, or statistics are off (no --extra-metrics)."""


class Usage(FrozenModel):
    """A quantity that was recorded once a second during a test."""

    mean: float
    max: float
