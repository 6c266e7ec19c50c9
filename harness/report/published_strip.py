"""A run among the published results of its scenario, by the rate of an accelerator."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.core.formatting import Measured
from harness.report import subject
from harness.report.charts import Scale, Tick
from harness.results.published import ACCELERATORS, Published, Unit, maker_spelling, results_of
from harness.results.summary import Summary

MOST_FIRST_VERDICTS = 3  # verdicts on a page's first screen
ROW_PX, MIDDLE_PX = 24, 12  # pixels of a line, and from its top to its middle
# Parts of a device's name that are left out, as a longer name has no room in a line of the picture.
LEFT_OUT_OF_NAMES = re.compile(r"NVIDIA |\[\w+\] ?|MS-|Intel(\(R\))? |\(R\)| Blackwell| Server Edition| Turbo|-\d+GB$")


PlacedResult = tuple[float, Published]  # a result with its place on the scale in percent


# The columns of the table of published results: the title of each and the field of `Published`. `{machine}` stands for
# what the rates are of, and the number of accelerators is left out for CPUs.
RESULT_COLUMNS = {
    "device": "device",
    "samples/s per {machine}": "samples_per_sec",
    "tokens/s per {machine}": "tokens_per_sec",
    "accelerators": "accelerators",
    "submitter": "submitter",
    "software": "software",
    "weights": "weights",
    "round": "round",
    "source": "source",
}


class Strip(NamedTuple):
    """The picture of a run among published results: a line for each kind of device, and the run's own."""

    # The name of each line, its pixels from the top, and its results. The run's own line has no results.
    lines: list[tuple[str, int, list[PlacedResult]]]
    ticks: list[Tick]
    results: list[Published]
    unit: Unit
    rate: float  # the run's per accelerator, or of its machine if that has none; 0 if the run has no place among them
    place: float  # the place of `rate` in percent
    alone: list[Published]  # results of systems with a single accelerator of the run's kind, if the run used one


def published_strips(summary: Summary) -> Iterator[Strip]:
    """Yield a picture of the run among the published results of its scenario, one for each unit.

    Nothing is yielded without a performance test, or for an endpoint, since the machine behind it is not known.
    """
    test = summary.result
    if test is None or not summary.is_in_process:
        return
    gpu_count = summary.gpus
    device = summary.system.cpu
    if gpu_count:
        device = summary.system.gpus[0]
    rates: dict[Unit, Measured] = {"samples/s": test.samples_per_sec, "tokens/s": test.tokens_per_sec}
    for unit, rate in rates.items():
        if not rate:  # The run's rate in this unit is not known.
            continue
        # A rate of 0 means that the run has no place among the results: it is of another model or other work.
        placed_rate = rate if subject.is_reference(summary) else 0.0
        strip = strip_of(subject.scenario_name(summary), device, gpu_count, placed_rate, unit)
        if strip:
            yield strip


def machine_of_rates(summary: Summary) -> str:
    """Return what a published rate is of: an accelerator or, for a run without one, a system of CPUs alone."""
    return "accelerator" if summary.gpus else "system"


def result_columns(summary: Summary) -> dict[str, str]:
    """Return the columns of the table of published results beside the run, by their titles."""
    columns = {title.format(machine=machine_of_rates(summary)): field for title, field in RESULT_COLUMNS.items()}
    if not summary.gpus:
        del columns["accelerators"]
    return columns


def short_name(device: str) -> str:
    """Return a device's name without its parts that have no room in a line of the picture."""
    return LEFT_OUT_OF_NAMES.sub("", device)


def placed_results(results: Iterable[Published], scale: Scale, unit: Unit) -> dict[str, list[PlacedResult]]:
    """Return the results of each device by its short name, with their places. The order of the results is kept."""
    results_by_device: dict[str, list[PlacedResult]] = {}
    for result in results:
        placed = scale.place(result.rate(unit)), result
        results_by_device.setdefault(short_name(result.device), []).append(placed)
    return results_by_device


def count_as_fast(devices: Iterable[Sequence[PlacedResult]], rate: float, unit: Unit) -> int:
    """Return the number of devices whose fastest result, which is their first, is at least as fast as `rate`."""
    count = 0
    for (_place, fastest), *_slower in devices:
        if fastest.rate(unit) >= rate:
            count += 1
    return count


def line_of_run(
    results_by_device: Mapping[str, Sequence[PlacedResult]], own_device: str, rate: float, unit: Unit
) -> int:
    """Return which line of the picture is the run's, counted from 0.

    It is the one below the line of the run's device. If that device has no results, the run's line is among the others
    in the order of the rates.
    """
    names = list(results_by_device)
    if own_device in names:
        return names.index(own_device) + 1
    return count_as_fast(results_by_device.values(), rate, unit)


def strip_of(scenario: str, device: str, count: int, rate: float, unit: Unit) -> Strip | None:
    """Return the layout of a chart of the published results in one unit, None if there are no results.

    `device` is the accelerator as its driver names it, `count` the number of accelerators, 0 for CPUs. `rate` is that
    of all accelerators, or 0 if the run gets no line.
    """
    results = results_of(scenario, unit, on_cpu=not count)  # the fastest first
    if not results:
        return None
    rate /= max(1, count)  # The published rates are of one accelerator.
    fastest_of_all = results[0]
    scale = Scale.of([rate, fastest_of_all.rate(unit)])
    results_by_device = placed_results(results, scale, unit)
    own_device = short_name(maker_spelling(ACCELERATORS.get(device, device)))
    names = list(results_by_device)
    if rate:
        names.insert(line_of_run(results_by_device, own_device, rate, unit), "this run")
    lines = []
    for line, name in enumerate(names):
        lines.append((name, ROW_PX * line + MIDDLE_PX, results_by_device.get(name, [])))
    alone = []  # results of systems that, as this run, used a single accelerator
    if count == 1:
        alone = [result for _place, result in results_by_device.get(own_device, []) if result.accelerators == 1]
    place_of_run = scale.place(rate)
    return Strip(lines, ticks=scale.ticks(), results=results, unit=unit, rate=rate, place=place_of_run, alone=alone)
