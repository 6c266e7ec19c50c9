"""A run among the published results of its scenario, in samples/s per accelerator."""

import re
from dataclasses import dataclass

from harness.pages.loads import nice
from harness.results.published import ACCELERATORS, Published, published

ROW = 24  # pixels
LEFT_OUT = re.compile(r"NVIDIA |MS-|Intel(\(R\))? |\(R\)| Blackwell| Server Edition| Turbo|-\d+GB$")  # of a name


@dataclass(frozen=True)
class Row:
    """The results of one kind of accelerator, with their places in percent; the run's own has none of others."""

    name: str
    points: list[tuple[float, Published]]
    own: float | None = None


@dataclass(frozen=True)
class Strip:
    """The rows, fastest first, and the axis below them; `rate` is the run's samples/s per accelerator."""

    rows: list[Row]
    ticks: list[tuple[float, float]]
    rate: float
    is_ranked: bool
    row: int = ROW

    @property
    def results(self) -> list[Published]:
        return sorted((one for row in self.rows for _, one in row.points), key=lambda one: -one.samples_per_sec)


def strip(scenario: str, accelerator: str, rate: float, is_ranked: bool) -> Strip | None:
    """The published results with the run below those on its own accelerator, by its driver's name; None without any."""
    every = [one for one in published() if one.scenario == scenario]
    if not every:
        return None
    groups: dict[str, list[Published]] = {}
    for one in sorted(every, key=lambda one: -one.samples_per_sec):
        groups.setdefault(one.accelerator, []).append(one)
    most = max(rate, *(one.samples_per_sec for one in every))
    step = nice(most / 4)
    right = step * -(-most // step)
    rows = [
        Row(LEFT_OUT.sub("", name), [(100 * one.samples_per_sec / right, one) for one in group])
        for name, group in groups.items()
    ]
    same = LEFT_OUT.sub("", ACCELERATORS.get(accelerator, accelerator))
    slower = next((n for n, row in enumerate(rows) if row.points[0][1].samples_per_sec < rate), len(rows))
    at = next((n + 1 for n, row in enumerate(rows) if row.name == same), slower)
    rows.insert(at, Row(f"this run, {LEFT_OUT.sub('', accelerator)}", [], own=100 * rate / right))
    ticks = [(100 * n * step / right, n * step) for n in range(int(right / step) + 1)]
    return Strip(rows, ticks, rate, is_ranked)
