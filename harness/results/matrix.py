"""Finished runs in one table by what tells them apart, such as the kind of GPU and the workload, or the batch."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from harness.common.errors import UsageError
from harness.common.markdown import Table
from harness.common.schema import gpu_names
from harness.results import metrics
from harness.results.summary import Summary
from harness.runs.probe import Probe, deciding

BATCH = "batch"  # an axis of the levels within a run
AXES: dict[str, Callable[[Summary], object]] = {
    "gpu": lambda run: run.system.cpu if run.gpu_models == [] else gpu_names(run.gpu_models),
    "driver": lambda run: run.system.driver,
    "workload": lambda run: run.meta.workload,
    "label": lambda run: run.meta.label,
    BATCH: lambda run: "its own test",
}
HARDWARE = ("gpu", "driver")  # axes that the cheapest is chosen over
COST = "cost_per_million_output_tokens"
LEVEL = {"tokens_per_sec": "tokens_per_sec"} | {
    f"{name}_ms": name for name in ("latency_p50", "latency_p99", "ttft_p99", "tpot_p99")
}  # metrics of a level, and where it has them
SHOWN = (*LEVEL, "requests_waiting_mean", "kv_cache_percent_mean", "prefix_hit_percent_mean", COST)


@dataclass(frozen=True)
class Cell:
    """A run, or a level of it, where it stands on each axis: its metrics, and why its cost does not count, in words."""

    axes: tuple[str, ...]
    run: str
    values: dict[str, float | None]
    flaw: str


def matrix(summaries: Sequence[Summary], axes: Sequence[str]) -> Table:
    """The table, a line for each run, or for each level where one axis is the batch. For each place beside the hardware
    the cheapest within the limits is marked. Raises UsageError for an axis that a run does not have."""
    if len(set(axes)) < len(axes):
        raise UsageError(f"--matrix {','.join(axes)}: an axis is named twice.")
    cells = sorted((cell for one in summaries for cell in cells_of(one, axes)), key=in_order)
    counted = [cell for cell in cells if cell.values[COST] and not cell.flaw]
    cheapest = {
        rivals_of(cell, axes): cell for cell in sorted(counted, key=lambda cell: -(cell.values[COST] or math.inf))
    }
    shown = [name for name in SHOWN if any(cell.values[name] is not None for cell in cells)]
    rows = [
        [*cell.axes, cell.run, *(metrics.BY_NAME[name].text(cell.values[name]) for name in shown), said]
        for cell in cells
        for said in [cell.flaw or "cheapest within the limits" * (cheapest.get(rivals_of(cell, axes)) is cell)]
    ]
    return Table([*axes, "run", *(metrics.BY_NAME[name].label for name in shown), ""], rows)


def in_order(cell: Cell) -> list[tuple[str, float]]:
    """By the last axis first; what begins with a number by its unit, then by the number."""
    parts = [(text, re.match(r"[\d.]+", text)) for text in reversed(cell.axes)]
    return [(text[found.end() :], float(found[0])) if found else (text, 0.0) for text, found in parts]


def rivals_of(cell: Cell, axes: Sequence[str]) -> tuple[str, ...]:
    return tuple(place for place, axis in zip(cell.axes, axes, strict=True) if axis not in HARDWARE)


def cells_of(summary: Summary, axes: Sequence[str]) -> Iterator[Cell]:
    test, score = summary.run.performance, summary.run.accuracy
    gate = "the accuracy gate failed" if score and score.verdict == "FAIL" else ""
    price = test.cost.price_per_hour if test and test.cost else None
    if BATCH in axes and summary.run.search:
        for probe in deciding(summary.run.search):
            values = dict.fromkeys(SHOWN) | {name: probe.shown(field) for name, field in LEVEL.items()}
            values[COST] = probe.cost(price) if price else None
            flaw = "; ".join(filter(None, (gate, probe.busy, probe.why)))
            yield Cell(places(summary, axes, probe), summary.meta.run, values, flaw)
    elif test is None or not test.tokens_per_sec:
        flaw = "; ".join(filter(None, (gate, "no speed was measured")))
        yield Cell(places(summary, axes), summary.meta.run, dict.fromkeys(SHOWN), flaw)
    else:
        over = "over the limits" if any(tail.is_over for tail in test.tails) else ""
        flaws = [gate, *test.background_load, "" if test.valid else "INVALID", over]
        values = {name: metrics.BY_NAME[name].of(summary) for name in SHOWN}
        yield Cell(places(summary, axes), summary.meta.run, values, "; ".join(filter(None, flaws)))


def places(summary: Summary, axes: Sequence[str], probe: Probe | None = None) -> tuple[str, ...]:
    """Where a run stands on each axis: a column of AXES, or a setting. Raises UsageError for any other."""
    settings = dict(summary.meta) | summary.meta.work | summary.meta.setup
    if unknown := [axis for axis in axes if axis not in (*AXES, *settings)]:
        raise UsageError(f"--matrix {unknown[0]}: not one of {', '.join(AXES)}, nor a setting such as max_num_seqs.")
    found = {axis: AXES[axis](summary) if axis in AXES else settings[axis] for axis in axes}
    found |= {BATCH: f"{probe.load:g} {probe.unit}"} if probe else {}
    return tuple("unknown" if value in (None, "") else str(value) for value in found.values())
