"""Pictures of latency by load, and of what the load costs who is served: a point for each test."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, cycle
from math import prod
from operator import itemgetter

from harness.config.patterns import Poisson
from harness.core.formatting import number
from harness.report.charts import HOLLOW, RING, LinePanel, Panel, Point, Scale, Series
from harness.report.load_view import LATENCIES, LoadPicture, LoadPoint
from harness.results.outcome import Doubt

# How latency grows with load, and what the load costs who is served: a point a test, of one run or of several.
HEADROOM = 1.08  # times the largest: room for the label above it
MARK_SHAPES = {"held": "o", "grew": "D", "bad": "X", "own": "*"}  # marks of one run's tests
SERIES_COLORS = ("blue", "amber", "green", "red", "grey")
MARKS = "os^Dv"
# Several runs are distinct in grey: each colour comes with each mark before one comes again.
SERIES_STYLES = [
    (color, MARKS[(n + turn) % len(MARKS)]) for turn in range(len(MARKS)) for n, color in enumerate(SERIES_COLORS)
]
Style = tuple[str, str, str] | None  # name, colour and shape
Styled = Sequence[tuple[LoadPicture, Style]]


def load_curves(pictures: Mapping[str, LoadPicture]) -> list[Panel]:
    """Return a panel of latency by load for each kind of latency, and a panel of throughput against interactivity."""
    styled = list[tuple[LoadPicture, Style]]()
    for (name, picture), look in zip(pictures.items(), cycle(SERIES_STYLES), strict=False):
        if len(pictures) > 1:
            styled.append((picture, (name, *look)))
        else:
            styled.append((picture, None))
    kinds = dict.fromkeys(chain.from_iterable(picture.axes for picture in pictures.values()))
    return [*(latency_panel(kind, styled) for kind in kinds), speed_panel(styled)]


def marked_series(
    picture: LoadPicture, style: Style, points: Sequence[tuple[Point, LoadPoint]], named: bool = True
) -> Iterator[Series]:
    """Yield the tests as marks, in the style of their run if there are several runs, else by outcome.

    Tests on a busy machine are hollow, and gray if that leaves their verdict open.
    """
    looks: dict[tuple[str, str, str, bool], list[Point]] = {}
    for point, load_point in points:
        look = style or style_of(picture, load_point, named)
        is_busy = Doubt.BUSY in load_point.test.doubts
        looks.setdefault((*look, is_busy), []).append(point)
    for (name, color, shape, is_busy), points_of_look in looks.items():
        series = Series(name, points_of_look, color, shape, "", is_busy)
        if shape == "*":
            series = series._replace(size=14.0)
        yield series


def style_of(picture: LoadPicture, load_point: LoadPoint, named: bool) -> tuple[str, str, str]:
    """Return the name, the colour and the shape of a test of a single run, by its outcome."""
    name = load_point.standing
    if load_point.mark == "own":
        name = f"the full test, {name}"
    if not named:
        name = ""
    return name, color_of(picture, load_point), MARK_SHAPES[load_point.mark]


def color_of(picture: LoadPicture, load_point: LoadPoint) -> str:
    if load_point.mark == "own":
        return "amber"
    if load_point.doubt:
        return "grey"
    if picture.has_kept(load_point):
        return "blue"
    return "red"


def latency_panel(kind: str, styled: Styled) -> LinePanel:
    """Return a bar for each test from its median to its slowest percentile, which is marked.

    Nothing is drawn between loads.
    """
    series, limits = list[Series](), dict[float, str]()
    for picture, style in styled:
        tops = []
        for load_point in picture.loads:
            percentiles = [load_point.test.at(kind, point) for point in picture.points]
            values = list(filter(None, percentiles))
            if values:
                load = load_point.test.load
                series.append(Series("", [(load, min(values)), (load, max(values))], "grey"))
                tops.append(((load, max(values)), load_point))
        series += marked_series(picture, style, tops)
        limit = picture.limits.get(kind)
        if limit:
            limits[limit] = f"limit {number(limit)} ms"
    units = sorted({picture.axis for picture, _ in styled})
    axis_text = "; ".join(units)
    if any(item.is_hollow for item in series):
        axis_text = "; ".join([*units, HOLLOW])
    loads, heights = zip(*chain.from_iterable(item.points for item in series), strict=True)
    across, ticks = Scale.around(loads, is_log=True), sorted({*loads})
    if units == [Poisson.unit]:
        across, ticks = Scale.of(loads), []
    return LinePanel(
        f"{LATENCIES[kind]}, p50 to p99",
        axis_text,
        "ms (logarithmic)",
        series,
        across,
        down=Scale.around([*heights, *limits], is_log=True),
        limits=limits,
        marked=ticks,
        inches=2.6,
    )


def speed_panel(styled: Styled) -> LinePanel:
    """Return the panel of output tokens/s of a GPU against tokens/s of one user."""
    series, points = list[Series](), list[Point]()
    for picture, style in styled:
        points += [point for point, _ in picture.speeds]
        series += marked_series(picture, style, picture.speeds, named=False)
        if style is None:
            series += [*best_rings(picture), answer_of(picture)]
    across = Scale.of([HEADROOM * of_user for of_user, _ in points])
    down = Scale.of([HEADROOM * of_machine for _, of_machine in points])
    machine = "GPU" if any(picture.summary.gpus for picture, _ in styled) else "machine"
    return LinePanel(
        "Throughput against interactivity",
        "output tokens/s of one user",
        f"output tokens/s per {machine}",
        series,
        across,
        down,
        inches=2.6,
    )


def answer_of(picture: LoadPicture) -> Series:
    """Return the load of the answer as a text beside its point."""
    texts = {}
    for point, load_point in picture.speeds:
        if load_point == picture.best:
            texts[point] = number(load_point.test.load, 3)
            if picture.unit == Poisson.unit:
                texts[point] += "/s"
    return Series("", [*texts], line="", texts=[*texts.values()])


def best_rings(picture: LoadPicture) -> Iterator[Series]:
    """Yield rings around the best of the tests that kept the limits.

    They are the knee, with the largest product of both speeds, the cheapest test, and the test with the least energy.
    """
    tests = {point: load_point.test for point, load_point in picture.speeds if picture.has_kept(load_point)}
    if not tests:
        return
    yield ring("knee", max(tests, key=prod), "amber", "o")
    price = picture.summary.price
    if price:
        point = max(tests, key=itemgetter(1))
        yield ring(f"cheapest: {number(tests[point].cost(price), 3)} per million tokens", point, "green", "s")
    energies = []
    for point, test in tests.items():
        if test.joules_per_output_token:
            energies.append((test.joules_per_output_token, point))
    if energies:
        joules, point = min(energies)
        yield ring(f"least energy: {number(joules, 3)} J per token", point, "grey", "D")


def ring(name: str, point: Point, color: str, shape: str) -> Series:
    return Series(name, [point], color, shape, "", True, RING)
