"""Where the GPUs' time went in the tests of a run: five shares of it, from machine.csv."""

from collections.abc import Iterator, Mapping

from harness.common.schema import Model
from harness.loadgen.test_run import TestRun
from harness.monitoring.recorder import FILE, Recording
from harness.runs.records import RunFacts

SHARES = {  # field: in words, the character of its bar
    "idle": ("idle, nothing waited", "."),
    "idle_while_waiting": ("idle while requests waited", "w"),
    "held_by_power": ("clock held down by power", "p"),
    "held_by_heat": ("clock held down by heat", "h"),
    "busy": ("busy as if at full clock", "█"),
}
BAR = 25  # characters


class GpuTime(Model):
    """Percent of the seconds of a test, over its GPUs; the shares add up to 100. The clock was held down for load x
    (1 - clock / maximum) of each second."""

    test: str
    idle: float
    """No kernel ran and no request waited; or no kernel ran, where the engine does not tell what waits."""
    idle_while_waiting: float | None
    """No kernel ran while requests waited; null where that is not known."""
    held_by_power: float
    held_by_heat: float
    busy: float
    """As if at full clock."""
    max_clock_mhz: float
    is_clock_of_nvml: bool
    """Whether the maximum is NVML's; else it is the highest that the run recorded."""

    @property
    def bar(self) -> str:
        """The shares as characters."""
        text, total = "", 0.0
        for name, (_, character) in SHARES.items():
            total += getattr(self, name) or 0.0
            text += character * (round(BAR * total / 100) - len(text))
        return text


def gpu_times(test: TestRun, facts: RunFacts) -> list[GpuTime]:
    """Of each probe, each attempt and, last, the performance test, as far as its GPUs reported their load and clock."""
    earlier = [("probe", probe) for probe in facts.probes] + [("attempt", probe) for probe in facts.attempts]
    recordings = {
        f"{kind} at {probe.text}": Recording.read(test.folder.parent / probe.folder / FILE)
        for kind, probe in earlier
        if probe.folder and probe.folder != test.folder.name
    }
    return list(shares_of(recordings | {"performance test": test.recording}))


def shares_of(recordings: Mapping[str, Recording]) -> Iterator[GpuTime]:
    """The shares of each, by the highest clock that NVML allows or any of them recorded."""
    allowed, recorded = (
        max((one.highest(name) for one in recordings.values()), default=0.0) for name in ("max_clock_mhz", "clock_mhz")
    )
    for name, recording in recordings.items():
        spent = seconds_of(recording, allowed or recorded)
        if whole := sum(spent.values()):
            shares: dict[str, float | None] = {share: 100 * spent[share] / whole for share in SHARES}
            if "requests_waiting" not in recording.columns:
                shares["idle_while_waiting"] = None
            clock = {"max_clock_mhz": allowed or recorded, "is_clock_of_nvml": bool(allowed)}
            yield GpuTime.model_validate({"test": name, **shares, **clock})


def seconds_of(recording: Recording, clock: float) -> dict[str, float]:
    """Seconds of all GPUs by what became of them; none of a GPU that does not tell its load and clock."""
    spent = dict.fromkeys(SHARES, 0.0)
    waiting = recording.column("requests_waiting")
    for gpu in recording.gpus:
        names = ("load_percent", "clock_mhz", "too_hot_percent", "power_capped_percent")
        told = zip(recording.durations, *(recording.column(f"{gpu}_{name}") for name in names), waiting, strict=True)
        for seconds, load, mhz, hot, capped, waits in told:
            if load is None or mhz is None:
                continue
            ran = seconds * load / 100
            held = ran * max(0.0, 1 - mhz / clock) if hot or capped else 0.0
            spent["idle_while_waiting" if waits else "idle"] += seconds - ran
            spent["held_by_heat" if hot else "held_by_power"] += held
            spent["busy"] += ran - held
    return spent
