"""machine.csv -> what the engine and the machine did during a test: means, maxima, and what ran out first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness import results
from harness.errors import UsageError
from harness.facts import Usage

FULL = 98.0  # percent: as full as blocks of tokens, and a sampling once a second, let it look
BUSY = 95.0
OFTEN = 50.0  # percent of the time
QUEUED = 1.0  # requests that wait on average


@dataclass(frozen=True)
class Quantity:
    """What the columns of machine.csv called `column`, or gpuN_`column` where `gpu`, tell in one number a second."""

    name: str
    column: str
    label: str
    unit: str
    gpu: bool = False
    total: bool = False  # over the GPUs, else their mean
    digits: int = 3

    @property
    def text(self) -> str:
        """The label with its unit."""
        return f"{self.label}, {self.unit}" if self.unit else self.label

    def of(self, columns: Mapping[str, Sequence[float | None]]) -> list[float | None]:
        """The values, a second each; None where it was not told."""
        wanted = [values for name, values in columns.items() if self.mine(name)]
        rows = [[value for value in row if value is not None] for row in zip(*wanted, strict=True)]
        return [sum(row) / (1 if self.total else len(row)) if row else None for row in rows]

    def mine(self, name: str) -> bool:
        head, _, rest = name.partition("_")
        return (head.startswith("gpu") and rest == self.column) if self.gpu else name == self.column


def gpu(column: str, label: str, unit: str, total: bool = False) -> Quantity:
    return Quantity(f"gpu_{column}", column, label, unit, gpu=True, total=total)


QUANTITIES = (
    Quantity("requests_running", "requests_running", "requests running", ""),
    Quantity("requests_waiting", "requests_waiting", "requests waiting", ""),
    Quantity("kv_cache_percent", "kv_cache_percent", "KV cache in use", "%"),
    Quantity("prefix_hit_percent", "prefix_hit_percent", "prompt tokens from the prefix cache", "%"),
    Quantity("preemptions", "preemptions", "preemptions a second", ""),
    Quantity("prompt_tokens_per_sec", "prompt_tokens_per_sec", "prompt tokens/s", "", digits=5),
    Quantity("generation_tokens_per_sec", "generation_tokens_per_sec", "generated tokens/s", "", digits=5),
    gpu("load_percent", "GPU load", "%"),
    gpu("memory_gib", "GPU memory", "GiB", total=True),
    gpu("power_w", "GPU power", "W", total=True),
    gpu("clock_mhz", "GPU clock", "MHz"),
    gpu("temperature_c", "GPU temperature", "\N{DEGREE SIGN}C"),
    gpu("power_capped_percent", "GPU clock held down by the power limit", "% of the time"),
    gpu("too_hot_percent", "GPU clock held down by heat", "% of the time"),
    Quantity("cpu_percent", "cpu_percent", "CPU load", "%"),
    Quantity("memory_gib", "memory_gib", "main memory", "GiB"),
)
BY_NAME = {quantity.name: quantity for quantity in QUANTITIES}


def of(path: Path) -> dict[str, Usage]:
    """Mean and maximum of each quantity in a machine.csv, by name; none of what was not recorded.

    Raises UsageError for a damaged one.
    """
    if not path.exists():
        return {}
    seconds, columns = recorded(path)
    # A busy machine comes to some lines late: each counts for the time since the one before.
    lasted = [now - before for before, now in pairwise([0.0, *seconds])]
    found = {}
    for quantity in QUANTITIES:
        values = zip(quantity.of(columns), lasted, strict=False)  # none of what was not recorded
        known = [(value, time) for value, time in values if value is not None]
        if whole := sum(time for _, time in known):
            mean = sum(value * time for value, time in known) / whole
            found[quantity.name] = Usage(mean=mean, max=max(value for value, _ in known))
    return found


def recorded(path: Path) -> tuple[list[float], dict[str, list[float | None]]]:
    """machine.csv: the seconds, and the columns of numbers beside them. Raises UsageError for a damaged one."""
    columns = results.read_columns(path)
    seconds = columns.pop("seconds", [])
    if None in seconds or (columns and not seconds):
        raise UsageError(f"{path}: a line without its seconds.")
    return [second for second in seconds if second is not None], columns


Used = Mapping[str, Usage]


def mean(used: Used, name: str) -> float:
    return used[name].mean if name in used else 0.0


def most(used: Used, name: str) -> float:
    return used[name].max if name in used else 0.0


def kv_cache(used: Used) -> str | None:
    if most(used, "kv_cache_percent") < FULL or not (
        mean(used, "requests_waiting") >= QUEUED or most(used, "preemptions")
    ):
        return None
    waited, lost = mean(used, "requests_waiting"), most(used, "preemptions")
    preempted = ", and requests were preempted" if lost else ""
    return (
        f"the KV cache was full while {waited:,.0f} requests waited on average{preempted}: --kv-cache-dtype fp8, a "
        "smaller model or more GPU memory makes room"
    )


def slots(used: Used, concurrency: int | None) -> str | None:
    if not concurrency or most(used, "requests_running") < concurrency or mean(used, "requests_waiting") < QUEUED:
        return None
    return (
        f"all {concurrency:,} places for requests were taken while {mean(used, 'requests_waiting'):,.0f} waited on "
        f"average, with {100 - most(used, 'kv_cache_percent'):.0f} % of the KV cache free: a higher --max-num-seqs "
        "computes more at once"
    )


@dataclass(frozen=True)
class Held:
    """What a quantity whose mean is above 0 and at least `least` says; {} is the mean."""

    quantity: str
    least: float
    words: str

    def said(self, used: Used) -> str | None:
        value = mean(used, self.quantity)
        return self.words.format(f"{value:.3g}") if 0 < value >= self.least else None


HELD = (
    Held("gpu_too_hot_percent", 0.0, "heat held the GPU's clock down {} % of the time: see to its cooling"),
    Held("gpu_power_capped_percent", OFTEN, "the power limit held the GPU's clock down {} % of the time"),
    Held("gpu_load_percent", BUSY, "the GPU was busy {} % of the time"),
    Held("cpu_percent", BUSY, "the CPU was busy {} % of the time"),
)


def ran_out(used: Used, concurrency: int | None) -> Iterator[str]:
    """What was used up, in words, what waiting requests needed first; nothing where there was enough of all."""
    yield from filter(None, (kv_cache(used), slots(used, concurrency), *(row.said(used) for row in HELD)))
