"""report.html, one file to send around, and the loads that its script moves.

It loads nothing, and works offline, on paper and without its script. Templates in templates/page/ make the body,
page.css and page.js are its only style and script; a Content-Security-Policy allows those two by their hashes, and
nothing else. Whatever a template shows of others is escaped. Nothing lies between two loads: no line joins them, and
the answer is one of the loads that were tested.
"""

import base64
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from math import isclose
from typing import Any, NamedTuple, Self

from harness.config import mlperf
from harness.config.patterns import Poisson, Sequential
from harness.core.document import (
    Block,
    Document,
    Line,
    Measured,
    Picture,
    block_text,
    jinja_environment,
    number,
    percent,
    sentence,
)
from harness.core.errors import plain
from harness.core.reading import ROOT, read_text
from harness.loadgen.folder import FOLDER
from harness.loadgen.outcome import Doubt, Outcome
from harness.loadgen.requests import Request
from harness.report import answer
from harness.report.charts import Panel, Point, Scale, Tick
from harness.results import metrics, telemetry
from harness.results.economics import ACCELERATORS, Published, Unit, as_marked, results_of
from harness.results.summary import CURVES, Summary

POINTS = ("p50", "p90", "p99")
WIDE = 20  # times the smallest: from here on an axis is logarithmic
SHARE = 0.9  # of the rate that a replica answers, which it is given in a peak
COMPUTED = {"money": "cost per million output tokens", "energy": "J per million output tokens"}
SHARES = {"idle": "GPU idle, %", "clock": "GPU clock lowered, %"}
Limits = Mapping[str, Measured]  # milliseconds at p99, by kind of latency; None: no limit


class LoadPoint(NamedTuple):
    """A test at one load, as a point. `mark`: its shape; `stands`: it may be an answer; `is_full`: it is no probe;
    `spent`: where the GPU's time went in it; `overruled`: by which test of the same load with another outcome."""

    test: Outcome
    name: str
    mark: str
    stands: bool
    is_full: bool
    spent: telemetry.GpuTime | None
    overruled: str = ""

    @property
    def gain(self) -> float:
        """What more of is better: the rate, or the output."""
        return self.test.load if self.test.unit == Poisson.unit else self.test.tokens_per_sec or 0.0

    @property
    def speed(self) -> str:
        rate = self.test.samples_per_sec
        speed = f"{f'{number(rate)} samples/s, ' if rate else ''}{number(self.test.tokens_per_sec)} output tokens/s"
        if not self.test.repeats or not self.test.speed_range:
            return speed
        ends = " to ".join(map(number, self.test.speed_range))
        return f"{speed} (mean of {len(self.test.repeats)} tests, {ends})"

    @property
    def standing(self) -> str:
        """The verdict, and what it does not say."""
        overruled = f", overruled by {self.overruled}" if self.overruled else ""
        return f"{self.test.verdict.word}{overruled}{', but the queue grew' * (self.mark == 'grew')}"

    @property
    def doubt(self) -> str:
        """That nobody can tell whether it keeps the limits; empty where its verdict does."""
        return self.test.verdict.word * (self.test.verdict.tone == "careful")

    def over(self, limits: Limits) -> list[str]:
        """The kinds of latency that break these limits at p99, or are not known."""
        found = [(kind, self.test.at(kind, "p99"), most) for kind, most in limits.items() if most is not None]
        return [kind.upper() for kind, value, most in found if value is None or value > most]

    @property
    def data(self) -> dict[str, Any]:
        """The same for the script; `figures` by the names of METRICS."""
        spent, lost = self.spent, {}
        if spent:
            lost["idle"] = spent.idle + (spent.idle_while_waiting or 0.0)
            lost["clock"] = spent.held_by_power + spent.held_by_heat
        names = ("name", "stands", "is_full", "gain", "speed", "standing", "doubt")
        figures = {m.name: value for m in metrics.METRICS if (value := m.figure(self.test).value) is not None}
        found = {name: getattr(self, name) for name in names}
        return found | {"load": self.test.load, "few": Doubt.FEW in self.test.doubts, "figures": figures | lost}


def loads_of(summary: Summary) -> list[LoadPoint]:
    """The tests in the order of their loads; last the run's own, where it is none of them."""
    test, result, probes = summary.performance, summary.result, summary.tests
    spent = {time.folder or time.test: time for time in (test.gpu_time if test else [])}
    is_own = result and result not in probes and result.ttft_ms.p50 is not None
    own = result if is_own and (probes or (test and test.target_qps)) else None
    is_any_alone = any(Doubt.BUSY not in one.doubts for one in probes)
    last, found = {one.load: one for one in summary.curve}, list[LoadPoint]()
    for probe in probes:
        held = probe.has_held or probe.has_own_limits
        later = own if own and held and isclose(probe.load, own.load, rel_tol=1e-3) else last[probe.load]
        overruled = "" if later.has_kept == probe.has_kept else "the full test" if later is own else "a later test"
        is_doubted = Doubt.BUFFERED in probe.doubts or (Doubt.BUSY in probe.doubts and is_any_alone)
        stands = held and later is probe and not is_doubted
        is_level, is_attempt = probe.unit in CURVES, probe in (summary.run.attempts or [])
        name = probe.text if is_level else f"the {'full test' if is_attempt else 'probe'} at {probe.text}"
        mark = "held" if held else "grew" if probe.valid else "bad"
        found.append(LoadPoint(probe, name, mark, stands, is_level or is_attempt, spent.get(probe.folder), overruled))
    if own:
        stands, mark = own.valid and Doubt.BUFFERED not in own.doubts, "own" if own.valid else "bad"
        found.append(
            LoadPoint(own, f"the full test at {own.text}", mark, stands, True, spent.get(FOLDER["performance"]))
        )
    return found


def upright(values: Sequence[float]) -> Scale:
    """An axis of latencies: logarithmic where they lie far apart, else from zero."""
    return Scale.around(values, is_log=True) if max(values) > WIDE * min(values) else Scale.of(values)


LATENCIES = {
    "latency": "Latency of a query",
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
}


class LoadPicture(NamedTuple):
    """What the template draws and the script moves; `title_load`: the number of the load that the title is of."""

    loads: list[LoadPoint]
    unit: str
    limits: Limits
    axes: dict[str, Scale]
    across: Scale
    title_load: int
    points: dict[str, bool]
    summary: Summary

    @classmethod
    def of(cls, summary: Summary, most: mlperf.Limits | None) -> Self | None:
        """`most`: the limits of the run. None of a test that has no load to vary, or no latency."""
        loads = loads_of(summary)
        unit = loads[0].test.unit if loads else ""
        kinds = ("latency", "tpot") if unit == Sequential.unit else ("ttft", "tpot")
        limits = {kind: getattr(most, kind, None) for kind in kinds}
        values = {kind: [v for one in loads for p in POINTS if (v := one.test.at(kind, p))] for kind in kinds}
        axes = {kind: upright([*found, limits[kind] or found[0]]) for kind, found in values.items() if found}
        if not axes:
            return None
        own = next((n for n, one in enumerate(loads) if one.test == summary.result), len(loads) - 1)
        points = {p: any(one.test.at(kind, p) is not None for one in loads for kind in kinds) for p in POINTS}
        across = Scale.around([one.test.load for one in loads], is_log=unit != Poisson.unit)
        return cls(loads, unit, limits, axes, across, own, points, summary)

    def has_kept(self, one: LoadPoint) -> bool:
        """Whether a test may be an answer, and kept the limits."""
        # also where the limits of its run are not known
        return one.stands and not (one.test.has_own_limits and one.test.reasons) and not one.over(self.limits)

    @property
    def best(self) -> LoadPoint | None:
        """The run's result, or the load with the most gain, of those that kept the limits."""
        own = self.summary.result
        return max(filter(self.has_kept, self.loads), key=lambda one: (one.test == own, one.gain), default=None)

    @property
    def speeds(self) -> list[tuple[Point, LoadPoint]]:
        """Output tokens/s of one user, and of all on one of the GPUs, by the first: 1,000 / TPOT p50, at fixed
        concurrency / TPOT p90, as MLPerf Endpoints has it."""
        found = []
        for one in self.loads:
            each = one.test.at("tpot", "p90" if one.test.has_own_limits else "p50")
            if each and one.test.tokens_per_sec:
                found.append(((1000 / each, one.test.tokens_per_sec / max(1, self.summary.gpus)), one))
        return sorted(found, key=lambda point: point[0])

    @property
    def axis(self) -> str:
        """What a load is, beside its axis."""
        return {"in flight": "requests in flight"}.get(self.unit, self.unit)

    @property
    def columns(self) -> list[metrics.Metric]:
        """What a table of the loads shows of each."""
        return metrics.told(metrics.TABLES[self.unit], [one.test for one in self.loads])

    @property
    def cells(self) -> list[tuple[str, str]]:
        """The columns by name and label, and beside them what the script computes of a test."""
        head = [("load", self.unit), ("standing", "outcome")]
        return [*head, *((metric.name, metric.label) for metric in self.columns), *SHARES.items(), *COMPUTED.items()]

    @property
    def rate(self) -> Measured:
        """Requests/s that a replica answers within the limits; None where a query is of several samples."""
        return self.best.test.samples_per_sec if self.best and self.unit != Sequential.unit else None

    def data(self, file: str, watts: Measured) -> dict[str, Any]:
        """The same for the script; `file` is the name of its CSV."""
        return {
            "own": self.title_load,
            "unit": self.unit,
            "file": file,
            "watts": watts,
            "axes": {kind: axis._asdict() | {"limit": self.limits[kind]} for kind, axis in self.axes.items()},
            "tests": [one.data for one in self.loads],
            "share": SHARE,
            "columns": self.cells[: -len(COMPUTED)],
        }


# A document as HTML; paths and users stay behind.
PLACE = re.compile(r"(?<![\w:/.)\]])(?:~|\.{1,2})?/(?:[^\s/'\"`|,;:()<>=]+/)+")  # all of a path but its last name
ADDRESS = re.compile(r"(\w+://)(?:[^\s/@'\"]*@)?([^\s?#'\"`|,)]*)(?:[?#][^\s'\"`|,)]*)?")


def without_places(text: str) -> str:
    """Of each path outside of the run its last name stays, of each address what remains without user and query."""
    return PLACE.sub("", ADDRESS.sub(r"\1\2", text))


def block_html(block: Block) -> str:
    if isinstance(block, Picture):
        return chart(*block.panels, title=block.title)
    return WITHOUT_HEAD.sub("", str(renderer().render(without_places(block_text(block)))))


def chart(*panels: Panel, title: str = "") -> str:
    """Panels as the page draws them."""
    return str(environment().get_template("chart.html.j2").render(title=title, panels=panels))


@cache
def renderer() -> Any:
    """Of Markdown: tables in a frame in which they scroll, no HTML and no pictures of others."""
    from markdown_it import MarkdownIt

    found = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    found.add_render_rule("table_open", lambda *_: '<div class="wide" tabindex="0"><table>\n')
    found.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return found


WITHOUT_HEAD = re.compile(r"<thead>\n<tr>\n(<th></th>\n)+</tr>\n</thead>\n")  # which only Markdown must have


TEMPLATES = ROOT / "templates" / "page"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"


@cache
def environment() -> Any:
    """Of the templates in templates/page/."""
    found = jinja_environment(
        TEMPLATES, autoescape=True, finalize=lambda value: plain(value) if type(value) is str else value
    )
    found.filters |= {each.__name__: each for each in (number, percent, sentence, without_places, gravest, block_html)}
    found.filters["million"] = lambda value: value and 1e6 * value
    found.filters["kwh"] = lambda joules: joules and joules / 3.6  # a million joules are 1 / 3.6 kWh
    found.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    style, script = (read_text(TEMPLATES / name) for name in ("page.css", "page.js"))
    allowed = {"style-src": fingerprint(style), "script-src": fingerprint(script)}
    found.globals |= {"style": style, "script": script, "allowed": allowed}
    found.globals |= {"glossary": glossary(), "latencies": LATENCIES}
    return found


def gravest(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """The verdicts that a page begins with, and the others: what is bad comes first, unknowns last; a caution is always
    among the first."""
    told = [line for line in lines if line.tone and line.text]
    ranked = sorted(told, key=lambda line: (line.tone != "bad", line.tone == "unknown"))
    caution = next((line for line in ranked if line.label == "careful"), None)
    others = [line for line in ranked if line is not caution]
    first = [*others[: CHIPS - 1], caution] if caution else others[:CHIPS]
    return first, [line for line in ranked if line not in first]


def page(
    document: Document,
    without: Collection[str] = (),
    template: str = "screen.html.j2",
    data: dict[str, Any] | None = None,
    **values: Any,
) -> str:
    """The page of a document, whose template is one of templates/page/, `without` pictures and tables of these names;
    `data` is what its script moves."""
    values |= {"document": document, "without": without, "data": data}
    return str(environment().get_template(template).render(values))


def fingerprint(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


@cache
def glossary() -> dict[str, str]:
    """Meanings by term, in small letters with dashes, from GLOSSARY; empty where the docs are not installed."""
    if not GLOSSARY.is_file():
        return {}
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", read_text(GLOSSARY), re.M)
    found = {name: said.replace("`", "") for names, said in rows for name in names.split(", ")}
    return {re.sub(r"\W+", "-", name.lower()).strip("-"): f"{name}: {said}" for name, said in found.items()}


# A run among the published results of its scenario, by the rate of an accelerator.
CHIPS = 3  # verdicts on a page's first screen
ROW, MIDDLE = 24, 12  # pixels
# Of a name, which is longer than a line of the picture has room for.
SHORTENED = re.compile(r"NVIDIA |\[\w+\] ?|MS-|Intel(\(R\))? |\(R\)| Blackwell| Server Edition| Turbo|-\d+GB$")


class Strip(NamedTuple):
    """Lines of the picture, fastest first: name, pixels from the top, the results with their places in percent; the
    run's own line has no results. `rate` is the run's per accelerator, or of a machine without any, `place` where it
    lies; `alone`: results of a system with the run's one accelerator."""

    lines: list[tuple[str, int, list[tuple[float, Published]]]]
    ticks: list[Tick]
    results: list[Published]
    unit: Unit
    rate: float
    place: float
    alone: list[Published]


def strips(summary: Summary) -> Iterator[Strip]:
    """The published results of the scenario in either unit, for a run on a known machine; one of another model or work
    has no rate among them."""
    test, count = summary.performance, summary.gpus
    if test and summary.is_in_process:
        device = summary.system.gpus[0] if count else summary.system.cpu
        rates: dict[Unit, Measured] = {"samples/s": test.samples_per_sec, "tokens/s": test.tokens_per_sec}
        for unit, rate in rates.items():
            own = answer.is_reference(summary) * (rate or 0.0)
            if rate and (made := strip(answer.scenario(summary), device, count, own, unit)):
                yield made


def strip(scenario: str, device: str, count: int, rate: float, unit: Unit) -> Strip | None:
    """The published results with the run below those on its own device, by its driver's name; None without any.
    `count`: the run's accelerators; without any it stands beside processors. A run of another model, which has no place
    among them, has the rate 0."""
    results = results_of(scenario, unit, on_cpu=not count)
    if not results:
        return None
    rate /= max(1, count)
    scale = Scale.of([rate, results[0].rate(unit)])
    groups: dict[str, list[tuple[float, Published]]] = {}
    for one in results:
        groups.setdefault(SHORTENED.sub("", one.device), []).append((scale.place(one.rate(unit)), one))
    names, own = list(groups), SHORTENED.sub("", as_marked(ACCELERATORS.get(device, device)))
    slower = sum(group[0][1].rate(unit) >= rate for group in groups.values())
    if rate:
        names.insert(names.index(own) + 1 if own in names else slower, "this run")
    lines = [(name, ROW * n + MIDDLE, groups.get(name, [])) for n, name in enumerate(names)]
    alone = [one for _, one in groups.get(own, []) if one.accelerators == count == 1]
    return Strip(lines, scale.ticks(), results, unit, rate, scale.place(rate), alone)


# Requests of a test as bars: what is known of each, side by side in the order of issue.
SHOWN, SLOWEST = 200, 20  # requests in the picture; of them the slowest of the test, the others evenly from all
BAR_HEIGHT, CAP = 220, 4  # pixels of the axis, and of the cap above a slow request's bar
TIMES = 5  # that are named below the axis
Part = tuple[str, float, float, float]


class RequestBars(NamedTuple):
    """For each request its parts (name, ms, pixels from the top, height); ticks in pixels from the top, and times
    (percent, seconds of the test); the number of all requests; `names` of the parts."""

    bars: list[tuple[Request, list[Part]]]
    ticks: list[Tick]
    times: list[tuple[float, float]]
    requests: int
    names: list[str]


def bars(requests: Sequence[Request]) -> RequestBars | None:
    """Those picked by a rule: the slowest of all, and others evenly over the order of issue. None without times."""
    timed = [request for request in requests if request.latency_ms and request.issued_s is not None]
    if not timed:
        return None
    ranked = sorted(timed, key=lambda request: request.latency_ms or 0.0)
    slow = {request.order for request in ranked[-SLOWEST:]}
    rest = [request for request in timed if request.order not in slow]
    count = SHOWN - SLOWEST
    even = {rest[n * len(rest) // count].order for n in range(count)} if rest else set()
    picked = [request for request in timed if request.order in slow | even]
    scale = Scale(0.0, ranked[-1].latency_ms or 1.0)
    found = [(each, list(parts(each, scale, each.order in slow))) for each in picked]
    places = [n * len(picked) // TIMES for n in range(TIMES)] if timed[0].issued_s != timed[-1].issued_s else []
    times = [(100 * place / len(picked), picked[place].begin_s) for place in places]
    names = list(dict.fromkeys(name for _, each in found for name, *_ in each if name != "slow"))
    return RequestBars(found, scale.levels(BAR_HEIGHT), times, len(requests), names)


def parts(request: Request, scale: Scale, is_slow: bool) -> Iterator[Part]:
    """What is known of the milliseconds since a request was issued, part by part, and the cap of a slow one."""
    whole = request.latency_ms or 0.0
    first = whole if request.ttft_ms is None else min(request.ttft_ms, whole)
    ends = {} if request.sent_ms is None else {"client delay": min(request.sent_ms, first)}
    told = {"wait for the first token": first, "decode": whole}
    begin, bottom = 0.0, float(BAR_HEIGHT)
    for name, end in (ends | ({"until its answer": whole} if request.ttft_ms is None else told)).items():
        top = scale.top(end, BAR_HEIGHT)
        yield name, end - begin, top, round(bottom - top, 1)
        begin, bottom = end, top
    if is_slow:
        yield "slow", 0.0, bottom - 1.5 * CAP, CAP
