"""The rules of comparison: what two runs must share for their numbers to be compared, decided in one way for all.

Each comparison says which aspects, or which names within them, it ignores; docs/comparability.md has them as one
table.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import NamedTuple, Self

from harness.core.formatting import gpu_names
from harness.core.given_values import flag_name
from harness.core.json_values import dict_or_empty, list_or_empty
from harness.core.system import System

COMPARABLE_RATE_SHARE = 0.01  # if rates differ by more, their latencies cannot be compared
FLAWS = ("busyness", "validity")  # aspects that must be empty in both runs; all other aspects must be the same in both
INVALID, OVER_LIMIT = "INVALID by LoadGen", "a latency is over its limit"
GATE_FAILED, CONFIGURED_RATE = "the accuracy gate failed", "the speed follows from the configured rate"
DISQUALIFYING_FLAWS = (INVALID, OVER_LIMIT, GATE_FAILED)
NamedValues = Mapping[str, object]  # values by name; a flaw is named in words
NO_VALUES: NamedValues = {}


class Comparable(NamedTuple):
    """The named values of a run that are compared with those of another, aspect by aspect."""

    work: NamedValues = NO_VALUES
    settings: NamedValues = NO_VALUES
    machine: NamedValues = NO_VALUES
    software: NamedValues = NO_VALUES
    busyness: NamedValues = NO_VALUES
    validity: NamedValues = NO_VALUES
    rate: NamedValues = NO_VALUES

    @classmethod
    def of_machine(cls, system: System, engine: str | None = None, **aspects: NamedValues) -> Self:
        """Return the comparable values of a run whose machine and software are recorded in `system`.

        `engine` is the engine's name and version. `aspects` are the values of the other aspects, such as `work`.
        """
        machine = {"gpus": gpu_names(system.gpus), "driver": system.driver, "cpu": system.cpu, "cores": system.cores}
        machine |= system.gpu_settings
        software = {"engine": engine, "python": system.python, **system.packages, "variables": system.variables}
        return cls(machine=machine, software=software, **aspects)

    @classmethod
    def from_history(cls, line: Mapping[str, object]) -> Self:
        """Return the comparable values of a run from its line of history.jsonl. Aspects without a value are empty."""
        settings = dict(dict_or_empty(line, "setup"))
        for name in ("category", "batch_size", "concurrency"):
            settings[name] = line.get(name) or None  # A missing key, 0 and an empty text all mean that it was not set.
        # Each aspect below has values by name. A flaw or a load by others is only a name, so its value is True.
        flaws = dict.fromkeys(map(str, list_or_empty(line, "flaws")), True)
        # A run without a valid test has a flaw, even if its line names none, as in older versions.
        if not flaws and line.get("valid") is not True:
            flaws = {INVALID: True}
        loads_by_others = list_or_empty(line, "others")  # what other programs took of the machine, in words
        return cls(
            work=dict_or_empty(line, "work"),
            settings=settings,
            machine={"gpus": line.get("gpus")},
            busyness=dict.fromkeys(map(str, loads_by_others), True),
            validity=flaws,
        )


class Difference(NamedTuple):
    """Something that two runs, A and B, do not share."""

    aspect: str
    name: str
    a: object
    b: object


def differences(a: Comparable, b: Comparable, ignore: Collection[str] = ()) -> list[Difference]:
    """Return the differences that forbid comparing the numbers of two runs, and the flaws of either run.

    `ignore` has aspects to leave out, such as "machine", and names to leave out in every aspect.
    """
    all_differences = []
    for aspect, values_a, values_b in zip(Comparable._fields, a, b, strict=True):
        if aspect in ignore:
            continue
        for name in dict.fromkeys([*values_a, *values_b]):  # each name once, in the order of the values
            if name not in ignore and is_obstacle(aspect, name, values_a, values_b):
                all_differences.append(Difference(aspect, name, values_a.get(name), values_b.get(name)))
    return all_differences


def is_obstacle(aspect: str, name: str, values_a: NamedValues, values_b: NamedValues) -> bool:
    """Return whether a name within an aspect, such as "cpu" within "machine", forbids comparing two runs' numbers."""
    if aspect in FLAWS:  # even if both runs have the flaw
        return True
    is_in_both = name in values_a and name in values_b
    if aspect == "machine" and not is_in_both:  # The machines may still be the same.
        return False
    return not is_same(values_a.get(name), values_b.get(name), aspect)


def is_same(a: object, b: object, aspect: str) -> bool:
    """Return whether two values are equal. Rates are also the same if they differ by COMPARABLE_RATE_SHARE at most."""
    if aspect == "rate" and isinstance(a, float) and isinstance(b, float):
        return max(a, b) <= (1 + COMPARABLE_RATE_SHARE) * min(a, b)
    return a == b


def reason(all_differences: Sequence[Difference], names: Sequence[str]) -> str:
    """Return in words why two runs cannot be compared. Empty if there are no differences.

    Only the differences in the aspect of the first one are named. `names` are the names of the two runs, A and B.
    """
    if not all_differences:
        return ""
    aspect = all_differences[0].aspect
    in_aspect = [difference for difference in all_differences if difference.aspect == aspect]
    if aspect == "busyness":  # The values tell whether the machine was busy in run A and in run B.
        is_busy_a = any(difference.a for difference in in_aspect)
        is_busy_b = any(difference.b for difference in in_aspect)
        return f"the machine was busy in {runs_text(names, is_busy_a, is_busy_b)}"
    if aspect in FLAWS:
        return "; ".join(flaw_text(difference, names) for difference in in_aspect)
    differing_names = [difference.name for difference in in_aspect]
    if aspect == "work":  # The names of this aspect are settings, which users know as flags.
        differing_names = list(map(flag_name, differing_names))
    return f"different {aspect} ({', '.join(sorted(differing_names))})"


def flaw_text(flaw: Difference, names: Sequence[str]) -> str:
    """Return a flaw of run A, of run B or of both, after the names of the runs that have it."""
    return f"{runs_text(names, flaw.a, flaw.b)}: {flaw.name}"


def runs_text(names: Sequence[str], is_a: object, is_b: object) -> str:
    """Return the name of run A if `is_a`, of run B if `is_b`, or both, joined by "and"."""
    return " and ".join(compress(names, (is_a, is_b)))
