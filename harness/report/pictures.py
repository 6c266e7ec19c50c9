"""The pictures of a run, from LoadGen's own logs. Each answers one question."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, cycle
from pathlib import Path

from harness.config.patterns import Poisson
from harness.core.document import Picture
from harness.core.formatting import number
from harness.core.progress import Stage
from harness.core.statements import Statement
from harness.loadgen.requests import Request
from harness.loadgen.test_run import Recording, TestRun
from harness.report import answer
from harness.report.charts import HOLLOW, RING, Bar, Bars, Lines, Panel, Part, Point, Scale, Series, save
from harness.report.page import LATENCIES, LoadPicture, LoadPoint
from harness.results.accuracy import Accuracy
from harness.results.gpu_time_shares import SHARES, GpuTime
from harness.results.kernel_profile import Profile
from harness.results.outcome import Doubt, Outcome
from harness.results.performance import Performance
from harness.results.summary import Summary
from harness.results.telemetry import BY_NAME, QUANTITIES

TITLES = {
    "scores": "Scores against their thresholds",
    "tokens_per_sec": "Completed tokens against time",
    "latency_cdf": "Latency, TTFT and TPOT: share of queries",
    "search": "Latency by load; output speed of all against one user",
    "machine": "What the engine and the machine did, second by second",
    "profile": "Share of each kind of work",
    "timeline": "Where the time went",
}


def draw_pictures(
    folder: Path, summary: Summary, test: TestRun | None, loads: LoadPicture | None
) -> dict[str, Picture]:
    """Draws what the run has data for into plots/, by name. `test`: the performance test."""
    run, measured, result = summary.run, summary.performance, summary.result
    drawn: dict[str, Sequence[Panel]] = {}
    if run.accuracy:
        drawn["scores"] = [scores(run.accuracy)]
    if measured and test and result:
        if measured.ttft_ms and test.is_timed:
            drawn["latency_cdf"] = latencies(test.counted, measured, result, summary.scenario.headline)
        elif not measured.ttft_ms:
            drawn["tokens_per_sec"] = completions(test.answered)
    if run.search and loads:
        drawn["search"] = curves({"": loads})
    if measured and test and test.recording.columns:
        part = measured.steady
        ends = (part.begin_s, part.begin_s + part.seconds) if part and part.begin_s is not None else None
        drawn["machine"] = machine(test.recording, measured.ran_out, measured.gpu_time, ends)
    if run.profile and run.profile.kinds:
        drawn["profile"] = [kinds(run.profile)]
    if summary.meta.stages:
        drawn["timeline"] = [stages(summary.meta.stages)]
    titled = {name: (TITLES[name], panels) for name, panels in drawn.items() if panels}
    return save(titled, folder / "plots", answer.footer(summary))


def scores(accuracy: Accuracy) -> Bars:
    """Each score as a share of the reference's, with its thresholds and, of a part of the samples, its interval."""
    rows = []
    for check in accuracy.checks:
        known = [check.score, check.low, *filter(None, [check.high])]
        share, *marks = (100 * value / check.reference for value in known)
        between = [100 * end / check.reference for end in check.interval or ()]
        dot = Part(share, share, "red" if check.verdict == "FAIL" else "blue")
        rows.append(Bar(check.name, number(check.score), (), between, marks, dot))
    span = Scale.around([100.0, *(value for row in rows for value in row.values)])
    lines = "; lines: 95 % intervals" if any(check.interval for check in accuracy.checks) else ""
    label = f"% of the reference score; red: thresholds{lines}"
    return Bars(f"Accuracy against its thresholds: {accuracy.verdict}", label, rows, [100.0], span)


def completions(requests: Sequence[Request]) -> list[Panel]:
    """Output tokens of the answers that had ended by each time. Nothing else is known in Offline: not when an answer
    began nor what the engine did meanwhile. Empty without times."""
    ended = sorted((request.done_s, request.output_tokens) for request in requests if request.done_s)
    if not ended:
        return []
    ends, sums = [0.0, *(end for end, _ in ended)], [0, *accumulate(count for _, count in ended)]
    mean = f"mean: {number(sums[-1] / ends[-1])} output tokens/s"
    series = [
        Series("answers that have ended", [*zip(ends, map(float, sums), strict=True)]),
        Series(mean, [(0.0, 0.0), (ends[-1], sums[-1])], "amber", line="--"),
    ]
    title = "Tokens of the answers that have ended, by the ends that LoadGen logged"
    return [Lines(title, "seconds", "output tokens", series, Scale.of(ends), Scale.of([float(sums[-1])]))]


FAR_LIMIT = 3  # times the largest value: a limit beyond is left out instead of squeezing the curve


def latencies(requests: Sequence[Request], test: Performance, found: Outcome, headline: str) -> list[Panel]:
    """The share of queries by latency, with the limit. `headline` names the metric that is the result."""
    each, panels = test.samples_per_query, list[Panel]()
    queries = [requests[first : first + each] for first in range(0, len(requests), each)]
    values = {
        "latency": [max(request.latency_ms or 0.0 for request in query) for query in queries],
        "ttft": [time for request in requests if (time := request.ttft_ms) is not None],
        "tpot": [time for request in requests if (time := request.tpot_ms) is not None],
    }
    for kind, times in values.items():
        if not times:
            continue
        count = len(times)
        series = [Series("", [(time, 100 * (n + 1) / count) for n, time in enumerate(sorted(times))])]
        point = "p90" if headline == f"{kind}_p90_ms" else "p99"
        if (value := found.at(kind, point)) is not None:
            is_slowest = point == "p99" and Doubt.FEW in found.doubts
            label = f"{'slowest' if is_slowest else point} {number(value)} ms"
            series.append(Series(label, [(value, 100.0 if is_slowest else float(point[1:]))], "amber", "o", ""))
        limit = getattr(test.limits_ms, kind, None)
        upright = {limit: f"limit {number(limit)} ms"} if limit and limit <= FAR_LIMIT * max(times) else {}
        across = Scale.of([*times, *upright])
        panels.append(Lines(LATENCIES[kind], "ms", "% of queries", series, across, Scale(0.0, 104.0), upright=upright))
    return panels


def kinds(profile: Profile) -> Bars:
    """What the engine's time went to."""
    rows = [Bar(name, f"{share:.1f} %", [Part(0.0, share)]) for name, share in profile.shares.items()]
    parts = "kernel time" if profile.device == "GPU" else "the operators' self time"
    return Bars("What the engine's time went to", f"% of {parts}", rows)


# How latency grows with load, and what the load costs who is served: a point a test, of one run or of several.
HEADROOM = 1.08  # times the largest: room for the label above it
SHAPES = {"held": "o", "grew": "D", "bad": "X", "own": "*"}  # of one run's tests
COLORS = ("blue", "amber", "green", "red", "grey")
MARKS = "os^Dv"
# Of several runs, distinct in grey: each colour with each mark before one comes again.
STYLES = [(color, MARKS[(n + turn) % len(MARKS)]) for turn in range(len(MARKS)) for n, color in enumerate(COLORS)]


Style = tuple[str, str, str] | None  # name, colour and shape
Styled = Sequence[tuple[LoadPicture, Style]]


def curves(found: Mapping[str, LoadPicture]) -> list[Panel]:
    """Latency by load, a panel for each kind, and throughput against interactivity; of several runs by name."""
    several = [(name, *style) for name, style in zip(found, cycle(STYLES), strict=False)]
    styled = [*zip(found.values(), several if len(found) > 1 else [None], strict=True)]
    kinds = dict.fromkeys(kind for picture in found.values() for kind in picture.axes)
    return [*(latency(kind, styled) for kind in kinds), speeds(styled)]


def marked(
    picture: LoadPicture, style: Style, points: Sequence[tuple[Point, LoadPoint]], named: bool = True
) -> Iterator[Series]:
    """The tests as marks: in the style of their run among several, else by their outcome; hollow on a busy machine, and
    grey where that leaves the verdict open."""
    looks: dict[tuple[str, str, str, bool], list[Point]] = {}
    for point, one in points:
        color = "amber" if one.mark == "own" else "grey" if one.doubt else "blue" if picture.has_kept(one) else "red"
        outcome = f"the full test, {one.standing}" if one.mark == "own" else one.standing
        look = style or (outcome * named, color, SHAPES[one.mark])
        looks.setdefault((*look, Doubt.BUSY in one.test.doubts), []).append(point)
    for (name, color, shape, is_busy), each in looks.items():
        yield Series(name, each, color, shape, "", is_busy, 14.0 if shape == "*" else 6.0)


def latency(kind: str, styled: Styled) -> Lines:
    """A bar for each test from its middle to its slowest, which is marked; nothing is drawn for loads between them."""
    series, limits = list[Series](), dict[float, str]()
    for picture, style in styled:
        tops = []
        for one in picture.loads:
            if values := [value for point in picture.points if (value := one.test.at(kind, point))]:
                series.append(Series("", [(one.test.load, end(values)) for end in (min, max)], "grey"))
                tops.append((series[-1].points[-1], one))
        series += marked(picture, style, tops)
        if limit := picture.limits.get(kind):
            limits[limit] = f"limit {number(limit)} ms"
    units = sorted({picture.axis for picture, _ in styled})
    loads, heights = zip(*(point for one in series for point in one.points), strict=True)
    across = Scale.around(loads, is_log=True) if units != [Poisson.unit] else Scale.of(loads)
    down = Scale.around([*heights, *limits], is_log=True)
    return Lines(
        f"{LATENCIES[kind]}, p50 to p99",
        "; ".join([*units, *[HOLLOW] * any(one.is_hollow for one in series)]),
        "ms (logarithmic)",
        series,
        across,
        down,
        limits,
        marked=sorted({*loads}) * across.is_log,
        inches=2.6,
    )


def speeds(styled: Styled) -> Lines:
    """Output tokens/s of a GPU against tokens/s of one user: what load costs who is served."""
    points = [point for picture, _ in styled for point, _ in picture.speeds]
    across, down = (Scale.of([HEADROOM * point[n] for point in points]) for n in (0, 1))
    series = list[Series]()
    for picture, style in styled:
        series += marked(picture, style, picture.speeds, named=False)
        if style is None:
            answer = {
                point: f"{number(one.test.load, 3)}{'/s' * (picture.unit == Poisson.unit)}"
                for point, one in picture.speeds
                if one == picture.best
            }
            series += [*best(picture), Series("", [*answer], line="", texts=[*answer.values()])]
    label = f"output tokens/s per {'GPU' if any(picture.summary.gpus for picture, _ in styled) else 'machine'}"
    return Lines(
        "Throughput against interactivity", "output tokens/s of one user", label, series, across, down, inches=2.6
    )


def best(picture: LoadPicture) -> Iterator[Series]:
    """Rings around what is best of the tests that kept the limits: the knee, with the largest product of both speeds;
    the cheapest, by price; and the one of least energy."""
    kept = [(point, one.test) for point, one in picture.speeds if picture.has_kept(one)]
    if not kept:
        return
    point, _ = max(kept, key=lambda each: each[0][0] * each[0][1])
    yield Series("knee", [point], "amber", "o", "", True, RING)
    if price := picture.summary.price:
        point, test = max(kept, key=lambda each: each[0][1])
        yield Series(
            f"cheapest: {number(test.cost(price), 3)} per million tokens", [point], "green", "s", "", True, RING
        )
    if counted := [(joules, point) for point, test in kept if (joules := test.joules_per_output_token)]:
        joules, point = min(counted)
        yield Series(f"least energy: {number(joules, 3)} J per token", [point], "grey", "D", "", True, RING)


# The pictures with a clock: what the engine and the machine did during a test, and the stages of a run.
SHARE_COLORS = ("grey", "red", "amber", "purple", "blue")  # of telemetry's SHARES
SEEN = 0.5  # percent of a bar that can be seen
PERCENT = Scale(0.0, 105.0)


def machine(
    recording: Recording, ran_out: Sequence[Statement], times: Sequence[GpuTime], steady: Point | None = None
) -> list[Panel]:
    """What engine and machine did, a panel for each kind of quantity that was recorded, below a bar for each test of
    the run: where its GPUs' time went. The title is what bound the test, first of `ran_out`. `steady`: begin and
    end of the steady part in seconds; what lies before and after is shaded."""
    seconds = recording.seconds
    across = Scale.around(seconds, 0.0)
    shaded = [(across.low, steady[0]), (steady[1], max(across.high, steady[1]))] if steady else []
    panels = [*[gpu_times(times)] * bool(times), *load_strip(recording)]
    panels += recorded(recording, across, shaded)
    if not panels:
        return []
    title = f"Bound by: {ran_out[0].what}" if ran_out else "Nothing ran out"
    note = "; shaded: ramps, which the steady part leaves out" if steady else ""
    panels[-1] = panels[-1]._replace(x=f"seconds{note}") if isinstance(panels[-1], Lines) else panels[-1]
    return [panels[0]._replace(title=title), *panels[1:]]


# The load of the GPUs as a strip of cells, a second each: a quantity, and what of it is all, None for the most of it.
CELLS = {
    "SM": ("gpu_load_percent", 100.0),
    "memory": ("gpu_memory_load_percent", 100.0),
    "power": ("gpu_power_w", None),
}
SHADES = {
    "grey": "under 20 %",
    "blue": "20 to 40 %",
    "green": "40 to 60 %",
    "amber": "60 to 80 %",
    "red": "80 % or more",
}


def load_strip(recording: Recording) -> list[Panel]:
    """What of the GPUs was in use, second by second: cells of one shade beside each other are one."""
    rows = []
    for name, (quantity, whole) in CELLS.items():
        values = BY_NAME[quantity].of(recording.columns)
        most = whole or max((value for value in values if value is not None), default=0.0)
        parts = list[Part]()
        for begin, end, value in zip([0.0, *recording.seconds], recording.seconds, values, strict=False):
            shade = None if value is None or not most else [*SHADES][min(4, int(5 * value / most))]
            if shade and parts and parts[-1].color == shade and parts[-1].end == begin:
                parts[-1] = parts[-1]._replace(end=end)
            elif shade:
                parts.append(Part(begin, end, shade, name=SHADES[shade]))
        rows += [Bar(name, "", parts)] if parts else []
    span = Scale(0.0, max(recording.seconds, default=0.0))
    made = Bars("", "seconds; power in % of the most of this test", rows, span=span, order=[*SHADES], is_aligned=True)
    return [made] * bool(rows)


def gpu_times(times: Sequence[GpuTime]) -> Bars:
    """A bar for each test: where its GPUs' time went, without what cannot be seen; of a single one with the
    percentages."""
    rows = []
    for time in times:
        begin, parts = 0.0, list[Part]()
        for (name, label), color in zip(SHARES.items(), SHARE_COLORS, strict=True):
            value = getattr(time, name) or 0.0
            if value >= SEEN:
                said = f"{label}, {value:.1f} %" if len(times) == 1 else label
                parts.append(Part(begin, begin + value, color, name=said))
            begin += value
        rows.append(Bar(time.test, "", parts))
    return Bars("", "% of the GPU's time", rows, span=Scale(0.0, 100.0))


def recorded(recording: Recording, across: Scale, shaded: Sequence[Point]) -> Iterator[Lines]:
    """A panel for each kind of quantity that something was recorded for, with gaps where nothing was."""
    there = [name for name, values in recording.columns.items() if any(value is not None for value in values)]
    for label in dict.fromkeys(one.panel for one in QUANTITIES if one.panel):
        shown = [one for one in QUANTITIES if one.panel == label]
        found = [(name, one.label) for one in shown for name in there if one.is_mine(name)]
        series = []
        for (name, text), color in zip(found, cycle(COLORS)):
            heights = (math.nan if value is None else value for value in recording.columns[name])
            gpu = name.partition("_")[0].removeprefix("gpu")
            points = [*zip(recording.seconds, heights, strict=True)]
            series.append(Series(text.replace("GPU", f"GPU {gpu}"), points, color))
        if series:
            whole = Scale.of([height for one in series for _, height in one.points])
            down = PERCENT if label.endswith("%") else whole
            yield Lines("", "", label, series, across, down, shaded=shaded)


def stages(times: Sequence[Stage]) -> Bars:
    """The time line of a run: its stages with their starts; the last ends it."""
    ends = [stage.start_s for stage in times[1:]]
    rows = [
        Bar(name, f"{number(round(end - start))} s", [Part(start, end, "grey" if kind == "other" else "blue")])
        for (name, start, kind), end in zip(times, ends, strict=False)
    ]
    label = "seconds since the command began"
    return Bars("Blue: the engine was busy; grey: idle", label, rows, span=Scale.of([0.0, *ends]))
