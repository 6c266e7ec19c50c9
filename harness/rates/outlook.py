"""What a run is going to do, in words: its parts, how long each takes, and the sum of their times."""

from dataclasses import dataclass, replace
from typing import Literal

from harness.config.plan import Plan, minutes


@dataclass(frozen=True)
class Part:
    """A part of a run, in words, and about how many seconds it takes, or `bound`; None: as long as the answers do."""

    name: str
    text: str
    seconds: float | None
    bound: Literal["", "at least ", "at most "] = ""


def parts(plan: Plan, before: Part | None = None) -> list[Part]:
    """The tests of a run, and what comes `before` its performance test, as far as it is known."""
    found, last = list[Part](), at_most(plan)
    length = plan.pattern.length(last.load)
    if plan.config.mode != "performance":
        seconds = plan.samples * length[1] / length[0] if length else None
        found.append(Part("accuracy test", f"{plan.samples:,} samples, as long as they take", seconds))
    if plan.config.mode != "accuracy":
        found += [before] if before else []
        least = Part("performance test", f"at least {minutes(plan.min_duration_s)}", plan.min_duration_s, "at least ")
        found.append(replace(least, text=last.length or least.text, seconds=length[1], bound="") if length else least)
    return found


def total(plan: Plan, before: Part | None = None, start: str = "from here on") -> str:
    """The parts of a run in one line, with the sum of their times."""
    found = parts(plan, before)
    timed = [part for part in found if part.seconds is not None]
    said = [f"{part.name} {part.bound}{minutes(part.seconds or 0.0)}" for part in timed]
    said += [f"{part.name} as long as it takes" for part in found if part.seconds is None]
    is_least = len(timed) < len(found) or any(part.bound == "at least " for part in found)
    summed = sum(part.seconds or 0.0 for part in timed if not (is_least and part.bound == "at most "))
    return f"{'at least' if is_least else 'about'} {minutes(summed)} {start}: {', '.join(said)}"


def at_most(plan: Plan, level: int = 0) -> Plan:
    """The plan at a level of concurrency, the highest unless it is given, with the rate that a trial at another one
    makes expect there; as it is without levels."""
    if not (level := level or plan.config.highest_level):
        return plan
    each = (plan.target_qps or 0.0) / (plan.concurrency or 1)
    return replace(plan, concurrency=level, target_qps=level * each or None)
