"""Pictures of latency by load, and of what the load costs who is served: a point for each test."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle

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


def curves(found: Mapping[str, LoadPicture]) -> list[Panel]:
    """Latency by load, a panel for each kind, and throughput against interactivity; of several runs by name."""
    several = [(name, *style) for name, style in zip(found, cycle(SERIES_STYLES), strict=False)]
    styled = [*zip(found.values(), several if len(found) > 1 else [None], strict=True)]
    kinds = dict.fromkeys(kind for picture in found.values() for kind in picture.axes)
    return [*(latency(kind, styled) for kind in kinds), speeds(styled)]


def marked(
    picture: LoadPicture, style: Style, points: Sequence[tuple[Point, LoadPoint]], named: bool = True
) -> Iterator[Series]:
    """The tests as marks: in the style of their run among several, else by their outcome; hollow on a busy machine, and
    grey where that leaves the verdict open.
    """
    looks: dict[tuple[str, str, str, bool], list[Point]] = {}
    for point, load_point in points:
        color = (
            "amber"
            if load_point.mark == "own"
            else "grey"
            if load_point.doubt
            else "blue"
            if picture.has_kept(load_point)
            else "red"
        )
        outcome = f"the full test, {load_point.standing}" if load_point.mark == "own" else load_point.standing
        look = style or (outcome * named, color, MARK_SHAPES[load_point.mark])
        looks.setdefault((*look, Doubt.BUSY in load_point.test.doubts), []).append(point)
    for (name, color, shape, is_busy), points_of_look in looks.items():
        yield Series(name, points_of_look, color, shape, "", is_busy, 14.0 if shape == "*" else 6.0)


def latency(kind: str, styled: Styled) -> LinePanel:
    """A bar for each test from its middle to its slowest, which is marked; nothing is drawn for loads between them."""
    series, limits = list[Series](), dict[float, str]()
    for picture, style in styled:
        tops = []
        for load_point in picture.loads:
            if values := [value for point in picture.points if (value := load_point.test.at(kind, point))]:
                series.append(Series("", [(load_point.test.load, end(values)) for end in (min, max)], "grey"))
                tops.append((series[-1].points[-1], load_point))
        series += marked(picture, style, tops)
        if limit := picture.limits.get(kind):
            limits[limit] = f"limit {number(limit)} ms"
    units = sorted({picture.axis for picture, _ in styled})
    loads, heights = zip(*(point for load_point in series for point in load_point.points), strict=True)
    across = Scale.around(loads, is_log=True) if units != [Poisson.unit] else Scale.of(loads)
    down = Scale.around([*heights, *limits], is_log=True)
    return LinePanel(
        f"{LATENCIES[kind]}, p50 to p99",
        "; ".join([*units, *[HOLLOW] * any(load_point.is_hollow for load_point in series)]),
        "ms (logarithmic)",
        series,
        across,
        down,
        limits,
        marked=sorted({*loads}) * across.is_log,
        inches=2.6,
    )


def speeds(styled: Styled) -> LinePanel:
    """Output tokens/s of a GPU against tokens/s of one user: what load costs who is served."""
    points = [point for picture, _ in styled for point, _ in picture.speeds]
    across, down = (Scale.of([HEADROOM * point[n] for point in points]) for n in (0, 1))
    series = list[Series]()
    for picture, style in styled:
        series += marked(picture, style, picture.speeds, named=False)
        if style is None:
            answer = {
                point: f"{number(load_point.test.load, 3)}{'/s' * (picture.unit == Poisson.unit)}"
                for point, load_point in picture.speeds
                if load_point == picture.best
            }
            series += [*best(picture), Series("", [*answer], line="", texts=[*answer.values()])]
    label = f"output tokens/s per {'GPU' if any(picture.summary.gpus for picture, _ in styled) else 'machine'}"
    return LinePanel(
        "Throughput against interactivity", "output tokens/s of one user", label, series, across, down, inches=2.6
    )


def best(picture: LoadPicture) -> Iterator[Series]:
    """Rings around what is best of the tests that kept the limits: the knee, with the largest product of both speeds;
    the cheapest, by price; and the one of least energy.
    """
    candidates = [(point, load_point.test) for point, load_point in picture.speeds if picture.has_kept(load_point)]
    if not candidates:
        return
    point, _ = max(candidates, key=lambda each: each[0][0] * each[0][1])
    yield Series("knee", [point], "amber", "o", "", True, RING)
    if price := picture.summary.price:
        point, test = max(candidates, key=lambda each: each[0][1])
        yield Series(
            f"cheapest: {number(test.cost(price), 3)} per million tokens", [point], "green", "s", "", True, RING
        )
    if counted := [(joules, point) for point, test in candidates if (joules := test.joules_per_output_token)]:
        joules, point = min(counted)
        yield Series(f"least energy: {number(joules, 3)} J per token", [point], "grey", "D", "", True, RING)
