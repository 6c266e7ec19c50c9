"""The pictures of a sweep: speed against the baseline, speed against accuracy."""

from collections.abc import Sequence
from itertools import chain
from math import inf
from pathlib import Path

from harness.config.mlperf import SCORES
from harness.core.document import Picture
from harness.report.charts import (
    HOLLOW_NOTE,
    RING_SIZE_POINTS,
    Bar,
    Bars,
    LinePanel,
    Panel,
    Point,
    Scale,
    Series,
    StackedPart,
    save_pictures,
    text_shifts,
)
from harness.results.change import Change
from harness.sweep.experiment_result import SCORE_METRIC, ExperimentResult, Results
from harness.sweep.findings import SweepReport

FEWEST_CURVE_POINTS = 3  # values of a setting that make a curve
LOG_SETTING_RATIO = 8  # the axis of a setting is logarithmic if its largest value is more than this times its smallest


def draw_pictures(report: SweepReport, folder: Path) -> dict[str, Picture]:
    """Draw the pictures of a sweep that have enough data into a folder, and return them by name.

    They are the speed of each experiment, the speed by a changed setting, and speed against accuracy.
    """
    drawn = dict[str, tuple[str, list[Panel]]]()
    compared_results = [result for result in report.rows if result.gain or result is report.baseline]
    if len(compared_results) > 1:
        drawn["speedups"] = "Speed of each experiment", [speedup_bars(compared_results)]
    curve = setting_curve(report.rows)
    if curve:
        drawn["setting"] = "Speed by the setting that changes", [curve]
    scored_results = [result for result in report.rows if has_trade_off(result)]
    if len(scored_results) > 1:
        drawn["pareto"] = "Speed against accuracy", [trade_off(scored_results)]
    return save_pictures(drawn, folder)


def has_trade_off(result: ExperimentResult) -> bool:
    """Tell whether a result has both a score and a speed.

    A speed that follows from a configured rate does not count.
    """
    return bool(result.speed) and result.score is not None and not result.experiment.has_fixed_rate


def speedup_bars(results: Results) -> Bars:
    """Return a bar for each experiment's speed relative to the baseline, with its interval if it has one.

    A bar is red if the speed does not count, and hollow if the result is not conclusive for any reason.
    """
    rows = []
    for result in results:
        gain = result.gain or Change(mean=1.0, low=1.0, high=1.0)  # The baseline has no gain, so it gets one of 1.
        is_clear = result.is_usable and not result.doubt and result.effect != "unclear"
        part = StackedPart(begin=0.0, end=gain.mean, color=color_of(result), is_hollow=not is_clear)
        bar = Bar(result.name, f"{gain.mean:.2f}", [part])
        if gain.has_interval and gain.high > gain.low:  # The interval of the baseline has no length.
            bar = bar._replace(interval=(gain.low, gain.high))
        rows.append(bar)
    label = "speed, baseline = 1"
    if has_unusable(results):
        label += "; red: does not count"
    return Bars("Speed against the baseline", label, rows, lines=[1.0])


def setting_curve(results: Results) -> LinePanel | None:
    """Return a panel of speed by the one setting in which the experiments differ.

    None if they differ in several settings or in one that is no number, or if fewer than FEWEST_CURVE_POINTS have a
    speed and a value.
    """
    measured = [result for result in results if result.speed]
    name = changed_number(measured)
    if name is None:
        return None
    points, marks = list[Point](), list[Series]()
    for result in measured:
        value = number_setting(result, name)
        if value is None:  # The experiment leaves the setting to the engine, so its value is not known.
            continue
        assert result.speed  # `measured` has only results with a speed.
        point = (value, result.speed)
        points.append(point)
        is_doubtful = bool(result.doubt)
        mark = Series("", [point], color=color_of(result), mark=mark_of(result), line="", is_hollow=is_doubtful)
        marks.append(mark)
    if len(points) < FEWEST_CURVE_POINTS:
        return None
    points.sort()
    line = Series(name="", points=points, color="grey")  # It joins the points of all experiments.
    is_any_doubtful = any(result.doubt for result in measured)
    title = title_with_key(f"Output tokens/s by {name}", measured, has_hollow=is_any_doubtful)
    values, speeds = zip(*points, strict=True)
    # Values that differ by large ratios, such as 8 and 512, would lie on each other on a linear axis.
    is_log = min(values) > 0 and max(values) > LOG_SETTING_RATIO * min(values)
    across = Scale.around(values, is_log=is_log)
    down = Scale.of(speeds)  # from 0 on
    ticks = sorted(set(values))
    return LinePanel(
        title, x=name, y="output tokens/s", series=[line, *marks], across=across, down=down, tick_values=ticks
    )


def changed_number(results: Results) -> str | None:
    """Return the name of the only setting in which experiments differ, if its values are numbers.

    An experiment may lack the setting. None if they differ in no setting or in several, or if a value is no number.
    """
    names = set(chain.from_iterable(map(settings_of, results)))
    changed = []
    for name in names:
        distinct_values = {repr(settings_of(result).get(name)) for result in results}
        if len(distinct_values) > 1:
            changed.append(name)
    if len(changed) != 1:
        return None
    only_name = changed[0]
    values = [settings_of(result).get(only_name) for result in results]
    # To Python, True and False are numbers as well. None stands for an experiment that lacks the setting.
    if any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in values):
        return None
    return only_name


def settings_of(result: ExperimentResult) -> dict[str, object]:
    """Return what an experiment sets: run.py's flags, the arguments of the engine one by
    one, and environment variables.
    """
    flags = {name: value for name, value in result.experiment.settings.items() if name != "engine_arg"}
    return flags | result.experiment.engine | result.experiment.env


def number_setting(result: ExperimentResult, name: str) -> float | None:
    """Return the value of a setting; None if the experiment does not set it to a number."""
    value = settings_of(result).get(name)
    return float(value) if isinstance(value, int | float) else None


def color_of(result: ExperimentResult) -> str:
    """Return the color of a result: red if its speed does not count."""
    if result.is_usable:
        return "blue"
    return "red"


def mark_of(result: ExperimentResult) -> str:
    """Return the shape of a result's point: a cross if its speed does not count."""
    if result.is_usable:
        return "o"
    return "X"


def has_unusable(results: Results) -> bool:
    return not all(result.is_usable for result in results)


def title_with_key(title: str, results: Results, has_hollow: bool) -> str:
    """Return the title of a panel with what crosses mean, if it has any, and hollow marks, if `has_hollow` says so."""
    if has_unusable(results):
        title += "; crosses: do not count"
    if has_hollow:
        title += f"; {HOLLOW_NOTE}"
    return title


def trade_off(results: Results) -> LinePanel:
    """Return a panel of accuracy against speed, with the Pareto front: the results that no other result beats in both.

    Each point has a number, since names would lie on each other; the panel has the name of each number.
    """
    points = {result.name: (result.speed or 0.0, result.score or 0.0) for result in results}
    candidates = [result for result in results if result.is_usable and not result.background_load]
    front = pareto_front([points[result.name] for result in candidates])
    series = []
    if front:
        rings = Series("Pareto front", front, color="amber", mark="o", is_hollow=True, size=RING_SIZE_POINTS)
        series.append(rings)
    across, down = map(Scale.around, zip(*points.values(), strict=True))
    shifts = text_shifts([*points.values()], across, down)
    for order, (result, shift) in enumerate(zip(results, shifts, strict=True), 1):
        marks = Series(
            name="",
            points=[points[result.name]],
            color=color_of(result),
            mark=mark_of(result),
            line="",
            is_hollow=bool(result.background_load),
            texts=[str(order)],
            text_shift=shift,
        )
        series.append(marks)
    was_any_busy = any(result.background_load for result in results)
    return LinePanel(
        title_with_key("Speed against accuracy", results, has_hollow=was_any_busy),
        x="output tokens/s",
        y=SCORES[SCORE_METRIC],
        series=series,
        across=across,
        down=down,
        names_of_points=[result.name for result in results],
        inches=4.0,
    )


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both coordinates (speed and score), sorted by speed."""
    front = list[Point]()
    highest_score = -inf
    for speed, score in sorted(points, reverse=True):
        if score > highest_score:  # All faster points came before, and each has a lower score.
            front.append((speed, score))
            highest_score = score
    return front[::-1]
