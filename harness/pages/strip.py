"""A run among the published results of its scenario, in samples/s per accelerator."""

import re
from dataclasses import dataclass

from harness.pages.loads import ROOM, steps
from harness.results.published import ACCELERATORS, Published, published

ROW, MIDDLE = 24, 12  # pixels
# Of a name, which is longer than a line of the picture has room for.
LEFT_OUT = re.compile(r"NVIDIA |\[\w+\] ?|MS-|Intel(\(R\))? |\(R\)| Blackwell| Server Edition| Turbo|-\d+GB$")


@dataclass(frozen=True)
class Strip:
    """Lines of the picture, fastest first: name, pixels from the top, the results with their places in percent; the
    run's own line has no results. `rate` is the run's samples/s per accelerator, `place` where it lies."""

    lines: list[tuple[str, int, list[tuple[float, Published]]]]
    ticks: list[tuple[float, float]]
    results: list[Published]
    rate: float
    place: float
    is_ranked: bool


def strip(scenario: str, accelerator: str, rate: float, is_ranked: bool) -> Strip | None:
    """The published results with the run below those on its own accelerator, by its driver's name; None without any."""
    every = [one for one in published() if one.scenario == scenario]
    results = sorted(every, key=lambda one: one.samples_per_sec, reverse=True)
    if not results:
        return None
    right = ROOM * max(rate, results[0].samples_per_sec) / 100
    ticks = steps(0.0, 100 * right)
    groups: dict[str, list[tuple[float, Published]]] = {}
    for one in results:
        groups.setdefault(LEFT_OUT.sub("", one.accelerator), []).append((one.samples_per_sec / right, one))
    names, own = list(groups), LEFT_OUT.sub("", ACCELERATORS.get(accelerator, accelerator))
    slower = sum(group[0][1].samples_per_sec >= rate for group in groups.values())
    names.insert(names.index(own) + 1 if own in names else slower, "this run")
    lines = [(name, ROW * n + MIDDLE, groups.get(name, [])) for n, name in enumerate(names)]
    return Strip(lines, [(tick / right, tick) for tick in ticks], results, rate, rate / right, is_ranked)
