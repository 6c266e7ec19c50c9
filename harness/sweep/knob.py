"""Whether a sweep turns one knob that is a number, so that its picture has an x-axis."""

from dataclasses import dataclass

from harness.sweep.file import Sweep


@dataclass(frozen=True)
class Knob:
    """The setting that alone differs between the experiments, and its value in each that has one."""

    name: str
    values: dict[str, float]  # by experiment


def knob(sweep: Sweep) -> Knob | None:
    """The knob of a sweep with two numbers or more of one setting; else None."""
    baseline, *changes = sweep.experiments
    changed = [
        {key for key in {*baseline.settings, *item.settings} if item.settings.get(key) != baseline.settings.get(key)}
        for item in changes
    ]
    if not changed or any(keys != changed[0] or len(keys) != 1 for keys in changed):
        return None
    if any(item.env != baseline.env for item in changes):
        return None
    (name,) = changed[0]
    values = {item.name: item.settings.get(name) for item in sweep.experiments}
    numbers = {
        item: float(value)
        for item, value in values.items()
        if isinstance(value, int | float) and type(value) is not bool
    }
    every = all(item.name in numbers for item in changes)
    return Knob(name, numbers) if every and len(numbers) > 1 else None
