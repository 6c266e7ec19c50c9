"""Pictures of latency by load, and of throughput against the speed of one user: a point for each test."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, cycle
from math import prod

from harness.config.patterns import Poisson
from harness.core.formatting import number
from harness.report.charts import HOLLOW_NOTE, RING_SIZE_POINTS, LinePanel, Panel, Point, Scale, Series
from harness.report.load_view import LATENCIES, LoadPicture, LoadPoint
from harness.results.outcome import Doubt, Outcome

LABEL_ROOM_FACTOR = 1.08  # the end of an axis, as a multiple of its largest value: room for the label above that value
MARK_SHAPES = {"held": "o", "grew": "D", "bad": "X", "full": "*"}  # shapes of one run's tests, by LoadPoint's `mark`
SERIES_COLORS = ("blue", "amber", "green", "red", "grey")
SERIES_MARKS = "os^Dv"


def series_styles() -> Iterator[tuple[str, str]]:
    """Yield each pair of a color and a mark once, to tell several runs apart.

    The colors are passed through again and again, each time with the marks shifted by one. So neighboring pairs differ
    in the mark, too, and are distinct in grey print.
    """
    for shift in range(len(SERIES_MARKS)):
        for place, color in enumerate(SERIES_COLORS):
            yield color, SERIES_MARKS[(place + shift) % len(SERIES_MARKS)]


SERIES_STYLES = list(series_styles())
Style = tuple[str, str, str] | None  # name, color and shape of a run among several; None for a single run
StyledPictures = Sequence[tuple[LoadPicture, Style]]  # the pictures of the runs that a panel shows


def load_curves(pictures: Mapping[str, LoadPicture]) -> list[Panel]:
    """Return a panel of latency by load for each kind of latency, and a panel of throughput against interactivity.

    `pictures` has the tests of one run or of several, by the name of the run. A style is a name, a color and a shape.
    """
    styled_pictures = list[tuple[LoadPicture, Style]]()
    # If there are more runs than styles, the styles begin again.
    for (name, picture), (color, shape) in zip(pictures.items(), cycle(SERIES_STYLES), strict=False):
        style = (name, color, shape) if len(pictures) > 1 else None  # A single run's tests are drawn by outcome.
        styled_pictures.append((picture, style))
    kinds = dict.fromkeys(chain.from_iterable(picture.axes for picture in pictures.values()))
    return [*(latency_panel(kind, styled_pictures) for kind in kinds), speed_panel(styled_pictures)]


def marked_series(
    picture: LoadPicture, style: Style, points: Sequence[tuple[Point, LoadPoint]], named: bool = True
) -> Iterator[Series]:
    """Yield the tests as marks: in the style of their run or, for a single run (`style` is None), by outcome.

    `points` has the place of each test in the panel. Unless `named`, the legend leaves out a single run.
    """
    looks: dict[tuple[str, str, str, bool], list[Point]] = {}
    for point, load_point in points:
        look = style or style_of(picture, load_point, named)
        is_busy = Doubt.BUSY in load_point.test.doubts  # drawn hollow
        looks.setdefault((*look, is_busy), []).append(point)
    for (name, color, shape, is_busy), points_of_look in looks.items():
        series = Series(name, points_of_look, color, shape, line="", is_hollow=is_busy)
        if shape == "*":  # the full test: a star of the usual size is hard to see
            series = series._replace(size=14.0)
        yield series


def style_of(picture: LoadPicture, load_point: LoadPoint, named: bool) -> tuple[str, str, str]:
    """Return the name in the legend, the color and the shape of one test, in the picture of a single run.

    The name tells the test's outcome (`standing`). It is empty unless `named`.
    """
    name = load_point.standing
    if load_point.mark == "full":
        name = f"the full test, {name}"
    if not named:
        name = ""
    return name, color_of(picture, load_point), MARK_SHAPES[load_point.mark]


def color_of(picture: LoadPicture, load_point: LoadPoint) -> str:
    """Return the color of a test: amber for the full test, grey if not judged, blue if it kept the limits, else red."""
    if load_point.mark == "full":
        return "amber"
    if load_point.doubt:
        return "grey"
    if picture.has_kept(load_point):
        return "blue"
    return "red"


def latency_panel(kind: str, styled_pictures: StyledPictures) -> LinePanel:
    """Return the panel of one kind of latency: an upright line for each test from its lowest percentile to its highest.

    No line joins loads, since nothing was measured between them.
    """
    series, limits = list[Series](), dict[float, str]()
    for picture, style in styled_pictures:
        lines = percentile_lines(picture, kind)
        series += [Series(name="", points=line, color="grey") for line, _load_point in lines]
        tops = [(line[-1], load_point) for line, load_point in lines]
        series += marked_series(picture, style, tops)
        limit = picture.limits.get(kind)
        if limit:
            limits[limit] = f"limit {number(limit)} ms"
    axis_texts = sorted({picture.axis for picture, _style in styled_pictures})
    units = {picture.unit for picture, _style in styled_pictures}
    if any(item.is_hollow for item in series):
        axis_texts.append(HOLLOW_NOTE)
    loads, heights = zip(*chain.from_iterable(item.points for item in series), strict=True)
    if units == {Poisson.unit}:  # The rates of a search are near each other.
        across, ticks = Scale.of(loads), []  # Without ticks of its own, a linear axis has round ones.
    else:  # Levels of concurrency are multiples of each other.
        across, ticks = Scale.around(loads, is_log=True), sorted({*loads})
    return LinePanel(
        f"{LATENCIES[kind]}, p50 to p99",
        x="; ".join(axis_texts),
        y="ms (logarithmic)",
        series=series,
        across=across,
        down=Scale.around([*heights, *limits], is_log=True),
        limits=limits,
        tick_values=ticks,
        inches=2.6,
    )


def percentile_lines(picture: LoadPicture, kind: str) -> list[tuple[list[Point], LoadPoint]]:
    """Return the upright line of each test that has percentiles of this latency, with the test's point."""
    lines = []
    for load_point in picture.loads:
        line = line_of_percentiles(load_point.test, kind, picture.points)
        if line:
            lines.append((line, load_point))
    return lines


def line_of_percentiles(test: Outcome, kind: str, percentiles: Iterable[str]) -> list[Point]:
    """Return the ends of a test's upright line: at the lowest of its percentiles in ms, and at the highest.

    Empty if the test has none of them.
    """
    times_ms = [test.at(kind, percentile) for percentile in percentiles]
    known_times_ms = list(filter(None, times_ms))
    if not known_times_ms:
        return []
    return [(test.load, min(known_times_ms)), (test.load, max(known_times_ms))]


def speed_panel(styled_pictures: StyledPictures) -> LinePanel:
    """Return the panel of output tokens/s of a GPU, or of the whole machine, against output tokens/s of one user.

    For a single run, it also marks the best tests and names the best load.
    """
    series, points = list[Series](), list[Point]()
    for picture, style in styled_pictures:
        points += [point for point, _load_point in picture.speeds]
        # The panel of latency above has the legend of a single run's marks.
        series += marked_series(picture, style, picture.speeds, named=False)
        is_single_run = style is None
        if is_single_run:
            series += [*best_rings(picture), label_of_best_load(picture)]
    across = Scale.of([LABEL_ROOM_FACTOR * of_user for of_user, _of_machine in points])
    down = Scale.of([LABEL_ROOM_FACTOR * of_machine for _of_user, of_machine in points])
    machine = "GPU" if any(picture.summary.gpus for picture, _style in styled_pictures) else "machine"
    return LinePanel(
        "Throughput against interactivity",
        x="output tokens/s of one user",
        y=f"output tokens/s per {machine}",
        series=series,
        across=across,
        down=down,
        inches=2.6,
    )


def label_of_best_load(picture: LoadPicture) -> Series:
    """Return a series without marks that writes the best load beside its point.

    The series has no points if no load kept the limits.
    """
    text_by_point = {}
    for point, load_point in picture.speeds:
        if load_point == picture.best:
            text = number(load_point.test.load, 3)
            if picture.unit == Poisson.unit:  # The load is a rate.
                text += "/s"
            text_by_point[point] = text
    return Series(name="", points=[*text_by_point], line="", texts=[*text_by_point.values()])


def best_rings(picture: LoadPicture) -> Iterator[Series]:
    """Yield rings around the best of the tests that kept the limits; none if no test kept them.

    The knee is the test with the largest product of both speeds.
    """
    # A point is a pair of speeds in tokens/s: of one user, and of one GPU.
    tests = {point: load_point.test for point, load_point in picture.speeds if picture.has_kept(load_point)}
    if not tests:
        return
    yield ring("knee", max(tests, key=prod), color="amber", shape="o")
    price = picture.summary.price
    if price:
        # At one price, the most tokens/s of the machine are the cheapest.
        point = max(tests, key=speed_of_machine)
        name = f"cheapest: {number(tests[point].cost(price), 3)} per million tokens"
        yield ring(name, point, color="green", shape="s")
    energies = []
    for point, test in tests.items():
        if test.joules_per_output_token:
            energies.append((test.joules_per_output_token, point))
    if energies:
        joules, point = min(energies)
        yield ring(f"least energy: {number(joules, 3)} J per token", point, color="grey", shape="D")


def speed_of_machine(point: Point) -> float:
    _of_user, of_machine = point
    return of_machine


def ring(name: str, point: Point, color: str, shape: str) -> Series:
    return Series(name, [point], color, shape, line="", is_hollow=True, size=RING_SIZE_POINTS)
