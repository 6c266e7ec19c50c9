"""The experiment that a sweep makes from its own results: the baseline with every single change that helped."""

from collections.abc import Sequence
from typing import Any

from harness.sweep.file import BASELINE, Change, Experiment, Part, Parts, differences, experiment, merge_parts
from harness.sweep.rows import ExperimentResult, gain

NAME = "best-combined"


def best(found: Sequence[ExperimentResult]) -> Experiment | None:
    """The baseline with the changes of all isolated experiments that helped and count; None with fewer than two.

    Of changes to the same setting, that of the faster experiment is taken whole.
    """
    base = next((parts(result.experiment) for result in found if result.name == BASELINE), None)
    helped = [result for result in found if result.effect == "helped" and result.usable]
    if base is None:
        return None
    taken: dict[tuple[Part, str], Any] = {}
    names: list[str] = []
    for result in sorted(helped, key=gain, reverse=True):
        change = differences(parts(result.experiment), base)
        if result.experiment.kind == "isolation" and not change.keys() & taken.keys():
            taken |= change
            names.append(result.name)
    together = Change(name=NAME, about=f"all that helped together: {', '.join(names)}")
    for (part, key), value in taken.items():
        getattr(together, part)[key] = value
    return experiment(together, "combined", merge_parts(base, together), base) if len(names) > 1 else None


def parts(item: Experiment) -> Parts:
    """Its settings as a sweep file has them."""
    given = {key: value for key, value in item.settings.items() if key != "engine_arg"}
    return {"set": given, "engine": dict(item.engine), "env": dict(item.env)}
