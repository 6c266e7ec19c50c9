"""One HTML file to send around: it loads nothing, and works offline, on paper and without its script.

Templates in templates/page/ make the body, page.css and page.js are its only style and script; a Content-Security-
Policy allows those two by their hashes, and nothing else. Whatever a template shows of others is escaped.
"""

import base64
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

from harness.core.document import Block, Document, Picture, Section, block_text
from harness.core.errors import plain
from harness.core.markdown import Table, number, sentence
from harness.core.reading import ROOT, read_text
from harness.loadgen.requests import Request
from harness.report.charts import ROOM, steps
from harness.report.loads import LoadPicture
from harness.results.published import ACCELERATORS, Published, results_of

# A document as HTML; paths and users stay behind.
PLACE = re.compile(r"(?<![\w:/.)\]])(?:~|\.{1,2})?/(?:[^\s/'\"`|,;:()<>=]+/)+")  # all of a path but its last name
ADDRESS = re.compile(r"(\w+://)(?:[^\s/@'\"]*@)?([^\s?#'\"`|,)]*)(?:[?#][^\s'\"`|,)]*)?")


def without_places(text: str) -> str:
    """Of each path outside of the run its last name stays, of each address what remains without user and query."""
    return PLACE.sub("", ADDRESS.sub(r"\1\2", text))


class Fold(NamedTuple):
    """A section as a page shows it; `body` is HTML."""

    title: str
    outcome: str
    body: str
    is_open: bool


def fold(section: Section, instead: Mapping[str, str]) -> Fold:
    """`instead`: HTML in place of pictures and tables of these names."""
    body = "\n".join(block_html(block, instead) for block in section.blocks)
    return Fold(section.title.replace("`", ""), without_places(section.outcome), body, section.is_open)


def block_html(block: Block, instead: Mapping[str, str] = {}) -> str:
    if isinstance(block, Picture | Table) and block.name in instead:
        return instead[block.name]
    if isinstance(block, Picture):
        return str(environment().get_template("chart.html.j2").render(picture=block))
    return to_html(without_places(block_text(block)))


@cache
def renderer() -> Any:
    """Of Markdown: tables in a frame in which they scroll, no HTML and no pictures of others."""
    from markdown_it import MarkdownIt

    found = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    found.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    found.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return found


def to_html(markdown: str) -> str:
    return str(renderer().render(markdown))


def loads_table(picture: LoadPicture) -> str:
    return str(environment().get_template("parts.html.j2").module.loads_table(picture))


FOLDER = ROOT / "templates" / "page"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"


@cache
def environment() -> Any:
    """Of the templates in templates/page/."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    found = Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    found.filters |= {each.__name__: each for each in (number, sentence, without_places)}
    found.filters["million"] = lambda value: value and 1e6 * value
    found.filters["kwh"] = lambda joules: joules and joules / 3.6  # a million joules are 1 / 3.6 kWh
    found.globals["glossary"] = glossary()
    return found


def page(
    document: Document,
    instead: Mapping[str, str] = {},
    template: str = "screen.html.j2",
    data: dict[str, Any] | None = None,
    **values: Any,
) -> str:
    """The page of a document, whose template is one of templates/page/; `data` is what its script moves."""
    from markupsafe import Markup

    folds = [fold(section, instead) for section in document.sections]
    body = environment().get_template(template).render(document=document, folds=folds, **values)
    terms = {name: said for name, said in glossary().items() if f'popovertarget="t-{name}"' in body}
    style, script = (read_text(FOLDER / name) for name in ("page.css", "page.js"))
    embedded = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False) if data else ""
    return str(
        environment()
        .get_template("page.html.j2")
        .render(
            title=document.title,
            body=Markup(body),
            terms=terms,
            style=Markup(style),
            script=Markup(script),
            allowed={"style-src": fingerprint(style), "script-src": fingerprint(script)},
            data=Markup(
                embedded.replace("<", "\\u003c")
            ),  # which may stand in a script element, whatever its texts hold
        )
    )


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


# A run among the published results of its scenario, in samples/s per accelerator.
ROW, MIDDLE = 24, 12  # pixels
# Of a name, which is longer than a line of the picture has room for.
SHORTENED = re.compile(r"NVIDIA |\[\w+\] ?|MS-|Intel(\(R\))? |\(R\)| Blackwell| Server Edition| Turbo|-\d+GB$")


class Strip(NamedTuple):
    """Lines of the picture, fastest first: name, pixels from the top, the results with their places in percent; the
    run's own line has no results. `rate` is the run's samples/s per accelerator, `place` where it lies."""

    lines: list[tuple[str, int, list[tuple[float, Published]]]]
    ticks: list[tuple[float, float]]
    results: list[Published]
    rate: float
    place: float
    is_ranked: bool


def strip(scenario: str, accelerator: str, rate: float, is_ranked: bool) -> Strip | None:
    """The published results with the run below those on its own accelerator, by its driver's name; None without any."""
    results = results_of(scenario)
    if not results:
        return None
    right = ROOM * max(rate, results[0].samples_per_sec) / 100
    ticks = steps(0.0, 100 * right)
    groups: dict[str, list[tuple[float, Published]]] = {}
    for one in results:
        groups.setdefault(SHORTENED.sub("", one.accelerator), []).append((one.samples_per_sec / right, one))
    names, own = list(groups), SHORTENED.sub("", ACCELERATORS.get(accelerator, accelerator))
    slower = sum(group[0][1].samples_per_sec >= rate for group in groups.values())
    names.insert(names.index(own) + 1 if own in names else slower, "this run")
    lines = [(name, ROW * n + MIDDLE, groups.get(name, [])) for n, name in enumerate(names)]
    return Strip(lines, [(tick / right, tick) for tick in ticks], results, rate, rate / right, is_ranked)


# Requests of a test as bars: what is known of each, side by side in the order of issue.
SHOWN, SLOWEST = 200, 20  # requests in the picture; of them the slowest of the test, the others evenly from all
HEIGHT, CAP = 220, 4  # pixels of the axis, and of the cap above a slow request's bar
TIMES = 5  # that are named below the axis
Part = tuple[str, float, float, float]


class Bars(NamedTuple):
    """For each request its parts (name, ms, pixels from the top, height); ticks (pixels from the top, ms) and times
    (percent, seconds of the test); the number of all requests; `names` of the parts."""

    bars: list[tuple[Request, list[Part]]]
    ticks: list[tuple[float, float]]
    times: list[tuple[float, float]]
    requests: int
    names: list[str]


def bars(requests: Sequence[Request]) -> Bars | None:
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
    scale = HEIGHT / (ranked[-1].latency_ms or 1.0)
    found = [(each, list(parts(each, scale, each.order in slow))) for each in picked]
    ticks = [(HEIGHT - scale * tick, tick) for tick in steps(0.0, HEIGHT / scale)]
    places = [n * len(picked) // TIMES for n in range(TIMES)] if timed[0].issued_s != timed[-1].issued_s else []
    times = [(100 * place / len(picked), picked[place].issued_s or 0.0) for place in places]
    names = list(dict.fromkeys(name for _, each in found for name, *_ in each if name != "slow"))
    return Bars(found, ticks, times, len(requests), names)


def segments(request: Request) -> Iterator[tuple[str, float]]:
    """Each part that is known with its end, in milliseconds since the request was issued."""
    whole = request.latency_ms or 0.0
    first = whole if request.ttft_ms is None else min(request.ttft_ms, whole)
    if request.sent_ms is not None:
        yield "client delay", min(request.sent_ms, first)
    if request.ttft_ms is None:
        yield "until its answer", whole
    else:
        yield "wait for the first token", first
        yield "decode", whole


def parts(request: Request, scale: float, is_slow: bool) -> Iterator[Part]:
    begin = 0.0
    for name, end in segments(request):
        yield name, end - begin, round(HEIGHT - scale * end, 1), round(scale * (end - begin), 1)
        begin = end
    if is_slow:
        yield "slow", 0.0, round(HEIGHT - scale * begin - 1.5 * CAP, 1), CAP
