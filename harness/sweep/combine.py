"""The experiment that a sweep makes from its own results: the baseline with every single change that helped."""

from collections.abc import Iterator, Sequence
from typing import Any

from harness.sweep.file import BASELINE, Experiment, Part, Parts, experiment
from harness.sweep.rows import ExperimentResult

NAME = "best-combined"
Change = dict[tuple[Part, str], Any]  # None: the setting is taken away


def best(found: Sequence[ExperimentResult]) -> Experiment | None:
    """The baseline with the changes of all isolated experiments that helped and count; None with fewer than two.

    Of changes to the same setting, that of the faster experiment is taken whole.
    """
    base = next((result.experiment for result in found if result.name == BASELINE), None)
    helped = [
        result
        for result in found
        if result.experiment.kind == "isolation" and result.effect == "helped" and result.usable
    ]
    if base is None:
        return None
    taken: Change = {}
    names: list[str] = []
    for result in sorted(helped, key=lambda result: result.ratio.mean if result.ratio else 0.0, reverse=True):
        change = dict(changes(result.experiment, base))
        if not change.keys() & taken.keys():
            taken |= change
            names.append(result.name)
    return apply_change(taken, names, base) if len(names) > 1 else None


def parts(item: Experiment) -> Parts:
    """Its settings as a sweep file has them."""
    given = {key: value for key, value in item.settings.items() if key != "engine_arg"}
    return {"set": given, "engine": dict(item.engine), "env": dict(item.env)}


def changes(item: Experiment, base: Experiment) -> Iterator[tuple[tuple[Part, str], Any]]:
    mine, theirs = parts(item), parts(base)
    for part in mine:
        for key in {**theirs[part], **mine[part]}:
            if mine[part].get(key) != theirs[part].get(key):
                yield (part, key), mine[part].get(key)


def apply_change(taken: Change, names: Sequence[str], base: Experiment) -> Experiment:
    start, settings = parts(base), parts(base)
    for (part, key), value in taken.items():
        settings[part][key] = value
    kept: Parts = {part: {k: v for k, v in values.items() if v is not None} for part, values in settings.items()}
    return experiment(NAME, f"all that helped together: {', '.join(names)}", "combined", kept, start)
