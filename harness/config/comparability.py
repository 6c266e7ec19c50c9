"""What two runs must share for their numbers to be compared, decided in one way for all.

Each comparison says which aspects, or which names within them, it ignores; docs/evidence/regression.md has them as
one table.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from harness.common.coerce import as_flag
from harness.common.schema import gpu_names
from harness.common.system import System

SAME_RATE = 0.01  # of a rate: latencies at other rates say nothing of each other
FLAWS = ("busyness", "validity")  # aspects that neither run may have anything in; of the others both have the same
INVALID, OVER_LIMIT = "INVALID by LoadGen", "INVALID, since a latency is over its limit"
GATE_FAILED, CONFIGURED = "the accuracy gate failed", "the speed follows from the configured rate"
NOT_COUNTED = (INVALID, OVER_LIMIT, GATE_FAILED)
Values = Mapping[str, object]  # by name; a flaw is named in words


@dataclass(frozen=True)
class Comparable:
    """A run by all that another may differ in, aspect by aspect."""

    work: Values = field(default_factory=dict)
    settings: Values = field(default_factory=dict)
    machine: Values = field(default_factory=dict)
    software: Values = field(default_factory=dict)
    busyness: Values = field(default_factory=dict)
    validity: Values = field(default_factory=dict)
    rate: Values = field(default_factory=dict)

    @classmethod
    def on(cls, system: System, engine: str | None = None, **aspects: Values) -> Self:
        """With what is recorded of a machine, and the name and version of the engine."""
        machine = {"gpus": gpu_names(system.gpus), "driver": system.driver, "cpu": system.cpu, "cores": system.cores}
        software = {"engine": engine, "python": system.python, **system.packages, "variables": system.variables}
        return cls(machine=machine, software=software, **aspects)

    @classmethod
    def of_line(cls, line: Mapping[str, Any]) -> Self:
        """A run by its line of a history, as far as that tells."""
        work, setup = (found if isinstance(found := line.get(key), dict) else {} for key in ("work", "setup"))
        columns = {name: line.get(name) or None for name in ("category", "batch_size")}
        flaws = {} if line.get("valid") is True else {INVALID: True}
        busy = dict.fromkeys(line.get("others") or (), True)
        return cls(work, setup | columns, {"gpus": line.get("gpus")}, busyness=busy, validity=flaws)


@dataclass(frozen=True)
class Difference:
    """What two runs, A and B, do not share."""

    aspect: str
    name: str
    a: object
    b: object


def differences(a: Comparable, b: Comparable, ignore: Collection[str] = ()) -> list[Difference]:
    """What keeps the numbers of two runs from being compared, but for the aspects and names to ignore;
    empty where nothing does."""
    return [
        Difference(aspect, name, mine.get(name), theirs.get(name))
        for aspect in (each.name for each in fields(Comparable) if each.name not in ignore)
        for mine, theirs in [(getattr(a, aspect), getattr(b, aspect))]
        for name in dict.fromkeys([*mine, *theirs])
        if name not in ignore and (aspect in FLAWS or not is_same(mine.get(name), theirs.get(name), aspect))
    ]


def is_same(mine: object, theirs: object, aspect: str) -> bool:
    if aspect == "rate" and isinstance(mine, float) and isinstance(theirs, float):
        return max(mine, theirs) <= (1 + SAME_RATE) * min(mine, theirs)
    return mine == theirs


def reason(found: Sequence[Difference], names: Sequence[str] = ("A", "B")) -> str:
    """The first aspect in which two runs of these names differ, in words; empty where they do not."""
    first = [each for each in found if each.aspect == found[0].aspect]
    if first and first[0].aspect == "busyness":
        busy = [name for n, name in enumerate(names) if any((each.a, each.b)[n] for each in first)]
        return "both machines were busy" if len(busy) > 1 else f"the machine was busy in {busy[0]}"
    if first and first[0].aspect in FLAWS:
        having = [[name for name, has in zip(names, (each.a, each.b), strict=True) if has] for each in first]
        return "; ".join(f"{' and '.join(those)}: {each.name}" for those, each in zip(having, first, strict=True))
    flags = sorted(as_flag(each.name) if each.aspect == "work" else each.name for each in first)
    return f"other {first[0].aspect} ({', '.join(flags)})" if first else ""
