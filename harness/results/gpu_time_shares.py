"""The shares of the GPUs' time in the tests of a run, from machine.csv."""

from collections.abc import Iterator, Mapping

from harness.core.formatting import Measured
from harness.loadgen.test_run import RECORDING, Recording, TestRun
from harness.results.gpu_time import GpuTime
from harness.results.records import RunFacts
from harness.runs.run_folder import TEST_FOLDERS

# The five shares of the GPUs' time in the tests of a run, from machine.csv.
SHARES = {  # shares of a GPU's time, in words
    "idle": "idle, empty queue",
    "idle_while_waiting": "idle while requests waited",
    "held_by_power": "clock lowered by power",
    "held_by_heat": "clock lowered by heat",
    "busy": "busy, counted at the maximum clock",
}


def gpu_times(test: TestRun, facts: RunFacts) -> list[GpuTime]:
    """Return the shares of each probe, each attempt and, last, the test itself, as far as its GPUs reported load and
    clock.
    """
    names = {
        probe.folder: f"{kind} at {probe.text}"
        for kind, probes in (("probe", facts.probes), ("attempt", facts.attempts))
        for probe in probes
        if probe.folder
    }
    names[TEST_FOLDERS["performance"]] = "performance test"
    root = next(place for place in test.folder.parents if (place / "config.json").exists())
    own_folder = str(test.folder.relative_to(root))
    recordings = {name: Recording.read(root / name / RECORDING) for name in names if name != own_folder} | {
        own_folder: test.recording
    }
    return [time.model_copy(update={"test": names[time.folder]}) for time in shares_of(recordings)]


def shares_of(recordings: Mapping[str, Recording]) -> Iterator[GpuTime]:
    """The shares of each, by the highest clock that NVML allows or any of them recorded."""
    allowed, recorded = (
        max((recording_of_test.highest(name) for recording_of_test in recordings.values()), default=0.0)
        for name in ("max_clock_mhz", "clock_mhz")
    )
    for name, recording in recordings.items():
        spent = seconds_of(recording, allowed or recorded)
        if whole := sum(spent.values()):
            shares: dict[str, Measured] = {share: 100 * spent[share] / whole for share in SHARES}
            if "requests_waiting" not in recording.columns:
                shares["idle_while_waiting"] = None
            clock = {"max_clock_mhz": allowed or recorded, "is_clock_of_nvml": bool(allowed)}
            yield GpuTime.model_validate({"test": name, "folder": name, **shares, **clock})


def seconds_of(recording: Recording, clock: float) -> dict[str, float]:
    """Seconds of all GPUs by what became of them; none of a GPU that does not tell its load and clock."""
    spent = dict.fromkeys(SHARES, 0.0)
    waiting = recording.column("requests_waiting")
    for gpu in recording.gpus:
        names = ("load_percent", "clock_mhz", "too_hot_percent", "power_capped_percent")
        readings = zip(
            recording.durations, *(recording.column(f"{gpu}_{name}") for name in names), waiting, strict=True
        )
        for seconds, load, mhz, hot, capped, waits in readings:
            if load is None or mhz is None:
                continue
            ran = seconds * load / 100
            held = ran * max(0.0, 1 - mhz / clock) if clock and (hot or capped) else 0.0
            spent["idle_while_waiting" if waits else "idle"] += seconds - ran
            spent["held_by_heat" if hot else "held_by_power"] += held
            spent["busy"] += ran - held
    return spent
