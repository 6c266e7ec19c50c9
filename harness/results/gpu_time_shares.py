"""The shares of the GPUs' time in the tests of a run, from machine.csv."""

from collections.abc import Iterator, Mapping

from harness.core.formatting import Measured
from harness.loadgen.test_run import RECORDING, Recording, TestRun
from harness.results.gpu_time import GpuTime
from harness.results.records import RunFacts
from harness.runs.run_folder import TEST_FOLDERS

SHARES = {  # shares of a GPU's time, in words
    "idle": "idle, empty queue",
    "idle_while_waiting": "idle while requests waited",
    "held_by_power": "clock lowered by power",
    "held_by_heat": "clock lowered by heat",
    "busy": "busy, counted at the maximum clock",
}


def gpu_times(test: TestRun, facts: RunFacts) -> list[GpuTime]:
    """Return the shares of GPU time (busy, idle, lost to a low clock) in each probe, each attempt and, last, `test`.

    Tests whose GPUs reported no load or clock are left out.
    """
    names_by_folder = names_of_tests(facts)
    run_folder = next(parent for parent in test.folder.parents if (parent / "config.json").exists())
    folder_of_test = str(test.folder.relative_to(run_folder))
    recordings = {}
    for folder in names_by_folder:
        if folder != folder_of_test:
            recordings[folder] = Recording.read(run_folder / folder / RECORDING)
    recordings[folder_of_test] = test.recording  # It is the last one, so `shares_of` yields it last.
    times = []
    for time in shares_of(recordings):
        times.append(time.model_copy(update={"test": names_by_folder[time.folder]}))
    return times


def names_of_tests(facts: RunFacts) -> dict[str, str]:
    """Return the name of each test of a run by its folder in the run, the performance test last.

    A probe without a folder of its own left no recording and is left out.
    """
    names = {}
    for kind, tests in (("probe", facts.probes), ("attempt", facts.attempts)):
        for test in tests:
            if test.folder:
                names[test.folder] = f"{kind} at {test.text}"
    names[TEST_FOLDERS["performance"]] = "performance test"
    return names


def shares_of(recordings: Mapping[str, Recording]) -> Iterator[GpuTime]:
    """Yield the shares of GPU time of each recording in percent. `recordings` are by the folder of the test.

    A recording without a reading is left out.
    """
    # NVML's limit of the clock is used or, if it is not known, the highest clock in any recording.
    nvml_clock = highest_of_all(recordings, "max_clock_mhz")
    max_clock = nvml_clock or highest_of_all(recordings, "clock_mhz")
    for folder, recording in recordings.items():
        seconds = seconds_by_use(recording, max_clock)
        total = sum(seconds.values())
        if not total:
            continue
        shares: dict[str, Measured] = {share: 100 * seconds[share] / total for share in SHARES}
        if "requests_waiting" not in recording.columns:  # It was not recorded whether requests waited.
            shares["idle_while_waiting"] = None
        clock = {"max_clock_mhz": max_clock, "is_clock_of_nvml": bool(nvml_clock)}
        # The name of the test is not known here, so the folder stands for it.
        yield GpuTime.model_validate({"test": folder, "folder": folder, **shares, **clock})


def highest_of_all(recordings: Mapping[str, Recording], name: str) -> float:
    """Return the highest reading of a GPU quantity in several recordings; 0 if none has a reading."""
    return max((recording.highest(name) for recording in recordings.values()), default=0.0)


def seconds_by_use(recording: Recording, max_clock: float) -> dict[str, float]:
    """Return the seconds of all GPUs together by their use, with the keys of SHARES.

    Times without a reading of load and clock are left out.
    """
    spent = dict.fromkeys(SHARES, 0.0)
    waiting = recording.column("requests_waiting")
    for gpu in recording.gpus:
        readings = zip(
            recording.durations,
            recording.column(f"{gpu}_load_percent"),
            recording.column(f"{gpu}_clock_mhz"),
            recording.column(f"{gpu}_too_hot_percent"),
            recording.column(f"{gpu}_power_capped_percent"),
            waiting,
            strict=True,
        )
        for seconds, load_percent, mhz, hot_percent, capped_percent, waiting_requests in readings:
            if load_percent is None or mhz is None:
                continue
            busy_s = seconds * load_percent / 100
            lost_s = 0.0  # by a lower clock: at the maximum clock, the work would have taken less time
            if max_clock and (hot_percent or capped_percent):
                lost_s = busy_s * max(0.0, 1 - mhz / max_clock)
            # A GPU without requests may be idle. One that is idle while requests wait loses time.
            idle_share = "idle_while_waiting" if waiting_requests else "idle"
            lost_share = "held_by_heat" if hot_percent else "held_by_power"
            spent[idle_share] += seconds - busy_s
            spent[lost_share] += lost_s
            spent["busy"] += busy_s - lost_s
    return spent
