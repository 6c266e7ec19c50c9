"""The pictures of a sweep: speed against the baseline, speed against accuracy."""

from collections.abc import Sequence
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
)
from harness.results.change import Change
from harness.sweep.experiment_result import SCORE_METRIC, ExperimentResult, Results
from harness.sweep.file import BASELINE
from harness.sweep.findings import SweepReport

FEWEST_CURVE_POINTS = 3  # values of a setting that make a curve
WIDE_RANGE = 8  # times the smallest value, from which on the axis of a setting is logarithmic
MOST_LABELLED = 10  # points that can all have their names beside them


def draw_pictures(report: SweepReport, folder: Path) -> dict[str, Picture]:
    """Draw the pictures that have data, by name."""
    drawn = dict[str, tuple[str, list[Panel]]]()
    bars = [result for result in report.rows if result.gain or result is report.baseline]
    if len(bars) > 1:
        drawn["speedups"] = "Speed of each experiment", [speedup_bars(bars)]
    curve = setting_curve(report.rows)
    if curve:
        drawn["setting"] = "Speed by the setting that changes", [curve]
    points = [result for result in report.rows if has_trade_off(result)]
    if len(points) > 1:
        drawn["pareto"] = "Speed against accuracy", [trade_off(points)]
    return save_pictures(drawn, folder)


def has_trade_off(result: ExperimentResult) -> bool:
    """Tell whether a result has a speed of its own and a score."""
    return bool(result.speed) and result.score is not None and not result.experiment.has_fixed_rate


def speedup_bars(results: Results) -> Bars:
    """Return bars of each experiment's speed relative to the baseline.

    A bar is hollow if its result is not conclusive.
    """
    rows = []
    for result in results:
        gain = result.gain or Change(1.0, 1.0, 1.0)  # the baseline has no gain
        is_clear = result.is_usable and not result.doubt and result.effect != "unclear"
        part = StackedPart(0.0, gain.mean, color_of(result), not is_clear)
        bar = Bar(result.name, f"{gain.mean:.2f}", [part])
        if gain.has_interval and gain.high > gain.low:
            bar = bar._replace(interval=(gain.low, gain.high))
        rows.append(bar)
    label = "speed, baseline = 1"
    if has_unusable(results):
        label += "; red: not usable"
    return Bars("Speed against the baseline", label, rows, [1.0])


def setting_curve(results: Results) -> LinePanel | None:
    """Return a panel of speed by the one number in which the experiments differ; None if they differ otherwise.

    The baseline is left out if it leaves this setting to the engine.
    """
    measured = [result for result in results if result.speed]
    name = changed_number(measured)
    if name is None:
        return None
    points = [(number_setting(result, name), result) for result in measured]
    placed = sorted((value, result.speed or 0.0) for value, result in points if value is not None)
    if len(placed) < FEWEST_CURVE_POINTS:
        return None
    series = [Series("", placed, "grey")]
    for value, result in points:
        if value is not None:
            point, mark = (value, result.speed or 0.0), "o" if result.is_usable else "X"
            series.append(Series("", [point], color_of(result), mark, "", bool(result.doubt)))
    title = f"Output tokens/s by {name}"
    if has_unusable(measured):
        title += "; crosses: not usable"
    if any(result.doubt for result in measured):
        title += f"; {HOLLOW_NOTE}"
    values, speeds = zip(*placed, strict=True)
    is_log = min(values) > 0 and max(values) > WIDE_RANGE * min(values)
    across = Scale.around(values, is_log=is_log)
    return LinePanel(title, name, "output tokens/s", series, across, Scale.of(speeds), marked=sorted(set(values)))


def changed_number(results: Results) -> str | None:
    """Return the setting in which experiments differ, if they differ in one and all its values are numbers."""
    names = {name for result in results for name in settings_of(result)}
    changed = [name for name in names if len({repr(settings_of(result).get(name)) for result in results}) > 1]
    if len(changed) != 1:
        return None
    values = [settings_of(result).get(changed[0]) for result in results]
    if any(isinstance(value, bool) or not isinstance(value, int | float | None) for value in values):
        return None
    return changed[0]


def settings_of(result: ExperimentResult) -> dict[str, object]:
    """Return what an experiment sets: run.py's flags, and the arguments of the engine one by one."""
    flags = {name: value for name, value in result.experiment.settings.items() if name != "engine_arg"}
    return flags | result.experiment.engine | result.experiment.env


def number_setting(result: ExperimentResult, name: str) -> float | None:
    value = settings_of(result).get(name)
    return float(value) if isinstance(value, int | float) else None


def color_of(result: ExperimentResult) -> str:
    if result.is_usable:
        return "blue"
    return "red"


def has_unusable(results: Results) -> bool:
    return not all(result.is_usable for result in results)


def trade_off(results: Results) -> LinePanel:
    """Return a panel of accuracy against speed. Results on a busy machine are not part of the Pareto front."""
    points = {result.name: (result.speed or 0.0, result.score or 0.0) for result in results}
    sound = [result for result in results if result.is_usable and not result.background_load]
    front = pareto_front([points[result.name] for result in sound])
    series = []
    if front:
        series.append(Series("Pareto front", front, "amber", "o", is_hollow=True, size=RING_SIZE_POINTS))
    for result in results:
        point, texts = points[result.name], list[str]()
        is_notable = not result.is_usable or result.name == BASELINE or point in front
        if is_notable or len(results) <= MOST_LABELLED:
            texts.append(result.name)
        mark = "o" if result.is_usable else "X"
        series.append(Series("", [point], color_of(result), mark, "", bool(result.background_load), texts=texts))
    title = "Speed against accuracy"
    if has_unusable(results):
        title += "; crosses: not usable"
    if any(result.background_load for result in results):
        title += f"; {HOLLOW_NOTE}"
    across, down = map(Scale.around, zip(*points.values(), strict=True))
    return LinePanel(title, "output tokens/s", SCORES[SCORE_METRIC], series, across, down, inches=4.0)


def pareto_front(points: Sequence[Point]) -> list[Point]:
    """Return the points that no other point beats in both coordinates, sorted by the first coordinate."""
    front = list[Point]()
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]
