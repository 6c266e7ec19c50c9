"""report.html, one file to send around.

It loads nothing, and works offline, on paper and without its script. Templates in templates/page/ make the body,
page.css and page.js are its only style and script; a Content-Security-Policy allows those two by their hashes, and
nothing else. Text from outside this program is escaped. In the picture of loads no line joins two loads, and the
answer is one of the loads that were tested.
"""

import base64
import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from harness.core.document import Block, Document, DrawnPanel, Line, Picture, block_text
from harness.core.formatting import Measured, number, percent, plural, sentence
from harness.core.locations import ROOT
from harness.core.message_text import printable_text
from harness.core.reading import read_text
from harness.core.templates import jinja_environment
from harness.report.load_view import LATENCIES
from harness.report.published_strip import MOST_FIRST_VERDICTS

if TYPE_CHECKING:
    from jinja2 import Environment
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

# The page is passed on, so it must not show paths of this machine, nor users and queries of addresses.
PATH_BEFORE_NAME = re.compile(r"(?<![\w:/.)\]])(?:~|\.{1,2})?/(?:[^\s/'\"`|,;:()<>=]+/)+")  # a path up to its last name
ADDRESS_PARTS = re.compile(r"(\w+://)(?:[^\s/@'\"]*@)?([^\s?#'\"`|,)]*)(?:[?#][^\s'\"`|,)]*)?")  # the groups are kept


def without_private_paths(text: str) -> str:
    """Return a text with paths cut to their last names, and addresses without user and query,
    so that it may be passed on.

    Paths relative to the run, which do not begin with /, ~ or dots, stay.
    """
    return PATH_BEFORE_NAME.sub("", ADDRESS_PARTS.sub(r"\1\2", text))


def block_html(block: Block) -> str:
    """Return a block of a document as HTML: a picture drawn from its panels, anything else by way of Markdown."""
    if isinstance(block, Picture):
        return chart_html(*block.panels, title=block.title)
    markdown = markdown_parser()
    tokens = without_empty_heads(markdown.parse(without_private_paths(block_text(block))))
    return str(markdown.renderer.render(tokens, markdown.options, {}))


def chart_html(*panels: DrawnPanel, title: str = "") -> str:
    """Return the HTML of the panels."""
    return str(environment().get_template("chart.html.j2").render(title=title, panels=panels))


@cache
def markdown_parser() -> "MarkdownIt":
    """Return the parser of Markdown, which also renders it as HTML. Tables scroll in a frame.

    Text may come from outside this program, so HTML and pictures in it are not rendered.
    """
    from markdown_it import MarkdownIt

    markdown = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")
    markdown.add_render_rule("table_open", table_begin)
    markdown.add_render_rule("table_close", table_end)
    return markdown


def table_begin(*_: object) -> str:
    """Return the tag of a table in a box that scrolls on a narrow screen. The Markdown renderer calls this."""
    return '<div class="wide" tabindex="0"><table>\n'


def table_end(*_: object) -> str:
    return "</table></div>\n"


def without_empty_heads(tokens: Iterable["Token"]) -> list["Token"]:
    """Return the tokens of Markdown without heads of tables that have no text.

    Markdown needs a head above every table, HTML does not.
    """
    rendered = list["Token"]()
    head = list["Token"]()  # the tokens of the head that is being read
    for token in tokens:
        is_outside_heads = token.type != "thead_open" and not head
        if is_outside_heads:
            rendered.append(token)
            continue
        head.append(token)
        if token.type == "thead_close":
            if any(part.content for part in head):
                rendered += head
            head = []
    return rendered


TEMPLATES = ROOT / "templates" / "page"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"


@cache
def environment() -> "Environment":
    """Return the environment of the templates in templates/page/, with their filters, style, script and glossary.

    `allowed` has the hashes of style and script for the page's Content-Security-Policy, which allows nothing else.
    """
    jinja = jinja_environment(TEMPLATES, autoescape=True, finalize=plain_text)
    for text_filter in (number, plural, percent, sentence, without_private_paths, gravest, block_html, million, kwh):
        jinja.filters[text_filter.__name__] = text_filter
    jinja.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "separators": (",", ":"), "allow_nan": False}
    style, script = read_text(TEMPLATES / "page.css"), read_text(TEMPLATES / "page.js")
    allowed = {"style-src": fingerprint(style), "script-src": fingerprint(script)}
    jinja.globals |= {"style": style, "script": script, "allowed": allowed}
    jinja.globals |= {"glossary": glossary(), "latencies": LATENCIES}
    return jinja


def plain_text(value: object) -> object:
    """Return a text without control characters.

    Anything else, also text that is marked as safe HTML, stays as it is.
    """
    if type(value) is str:
        return printable_text(value)
    return value


def million(value: Measured) -> Measured:
    """Return a million times a value; None if it is not known."""
    return value and 1e6 * value


def kwh(joules: Measured) -> Measured:
    """Return how many kWh a million units take, each of which takes `joules`: a kWh is 3.6 million J.

    None if unknown.
    """
    return joules and joules / 3.6


def gravest(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """Split the lines that have a verdict: return those that a page begins with, and the others.

    Bad verdicts come first and unknown ones last. If there are cautions, the page always begins with one of them, too.
    """
    graded = [line for line in lines if line.tone and line.text]
    ranked = sorted(graded, key=rank_of)
    first = ranked[:MOST_FIRST_VERDICTS]
    cautions = [line for line in ranked if line.is_caution]
    if cautions:
        caution = cautions[0]
        # The caution takes the last of the first places, even if graver lines would fill them all.
        without_caution = [line for line in ranked if line is not caution]
        first = [*without_caution[: MOST_FIRST_VERDICTS - 1], caution]
    return first, [line for line in ranked if line not in first]


def rank_of(line: Line) -> tuple[bool, bool]:
    """Return the sort key of a line by its tone: bad verdicts first, unknown ones last."""
    return line.tone != "bad", line.tone == "unknown"


def page(
    document: Document,
    without: Collection[str] = (),
    template: str = "screen.html.j2",
    data: dict[str, Any] | None = None,
    **values: Any,
) -> str:
    """Return the HTML page of a document. The template is one of templates/page/.

    Pictures and tables named in `without` are left out. `data` is for the page's script, None if it needs none;
    `values` are for the template.
    """
    values |= {"document": document, "without": without, "data": data}
    return str(environment().get_template(template).render(values))


def fingerprint(source: str) -> str:
    """Return the hash of a style or a script as a Content-Security-Policy names it."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


@cache
def glossary() -> dict[str, str]:
    """Return the meanings in the table of GLOSSARY by term, with which a page explains its words.

    A term is in lowercase with dashes. Empty if the docs are not installed.
    """
    if not GLOSSARY.is_file():
        return {}
    meanings = {}
    for names, meaning in re.findall(r"^\| (.+?) \| (.+) \|$", read_text(GLOSSARY), re.M):
        for name in names.split(", "):
            term = re.sub(r"\W+", "-", name.lower()).strip("-")
            meanings[term] = f"{name}: {meaning.replace('`', '')}"
    return meanings
