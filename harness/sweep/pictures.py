"""The pictures of a sweep: speed against the baseline, speed against accuracy."""

from collections.abc import Sequence
from pathlib import Path

from harness.config.mlperf import SCORES
from harness.core.document import Picture
from harness.core.formatting import joined
from harness.report.charts import HOLLOW, RING, Bar, Bars, LinePanel, Panel, Point, Scale, Series, StackedPart, save
from harness.results.change import Change
from harness.sweep.experiment_result import SCORE_METRIC, Results
from harness.sweep.file import BASELINE
from harness.sweep.findings import SweepReport

# The pictures of a sweep: speed against the baseline, speed against accuracy.
MOST_LABELLED = 10  # points that can all have their names beside them


def draw(report: SweepReport, folder: Path) -> dict[str, Picture]:
    """Draws the pictures that have data, by name."""
    drawn = dict[str, tuple[str, list[Panel]]]()
    if len(bars := [result for result in report.rows if result.gain or result is report.baseline]) > 1:
        drawn["speedups"] = "Speed of each experiment", [speedups(bars)]
    points = [r for r in report.rows if r.speed and r.score is not None and not r.experiment.has_fixed_rate]
    if len(points) > 1:
        drawn["pareto"] = "Speed against accuracy", [trade_off(points)]
    return save(drawn, folder)


def speedups(found: Results) -> Bars:
    """Speed of each experiment relative to the baseline's; what is not conclusive is hollow."""
    rows = []
    for result in found:
        gain = result.gain or Change(1.0, 1.0, 1.0)  # the baseline has no gain
        is_clear = result.is_usable and not result.doubt and result.effect != "unclear"
        part = StackedPart(0.0, gain.mean, "blue" if result.is_usable else "red", not is_clear)
        ends = (gain.low, gain.high) if gain.high > gain.low else ()
        rows.append(Bar(result.name, f"{gain.mean:.2f}", [part], ends))
    note = "red: not usable" * any(not result.is_usable for result in found)
    return Bars("Speed against the baseline", joined("; ", "speed, baseline = 1", note), rows, [1.0])


def trade_off(found: Results) -> LinePanel:
    """Accuracy against speed. What other programs slowed down is on no front."""
    points = {result.name: (result.speed or 0.0, result.score or 0.0) for result in found}
    front = pareto([points[result.name] for result in found if result.is_usable and not result.background_load])
    series = [Series("Pareto front", front, "amber", "o", is_hollow=True, size=RING)] if front else []
    for result in found:
        point, mark = points[result.name], "o" if result.is_usable else "X"
        is_named = len(found) <= MOST_LABELLED or mark == "X" or result.name == BASELINE or point in front
        color, texts = "blue" if result.is_usable else "red", [result.name] if is_named else []
        series.append(Series("", [point], color, mark, "", bool(result.background_load), texts=texts))
    crosses = "crosses: not usable" * any(not result.is_usable for result in found)
    hollow = HOLLOW * any(result.background_load for result in found)
    across, down = map(Scale.around, zip(*points.values(), strict=True))
    return LinePanel(
        joined("; ", "Speed against accuracy", crosses, hollow),
        "output tokens/s",
        SCORES[SCORE_METRIC],
        series,
        across,
        down,
        inches=4.0,
    )


def pareto(points: Sequence[Point]) -> list[Point]:
    """The points that no other one beats in both coordinates, by the first."""
    front = list[Point]()
    for point in sorted(points, reverse=True):
        if not front or point[1] > front[-1][1]:
            front.append(point)
    return front[::-1]
