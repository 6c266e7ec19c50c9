"""One HTML file to send around: it loads nothing, and works offline, on paper and without its script.

Templates in templates/page/ make the body, page.css and page.js are its only style and script; a Content-Security-
Policy allows those two by their hashes, and nothing else. Whatever a template shows of others is escaped.
"""

import base64
import hashlib
import json
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness.common import reading
from harness.common.errors import plain
from harness.common.markdown import number, sentence
from harness.common.paths import ROOT
from harness.pages.folds import sections, to_html, without_places
from harness.terminal.last_screen import LastScreen

FOLDER = ROOT / "templates" / "page"
GLOSSARY = ROOT / "docs" / "reference" / "glossary.md"


def of_screen(screen: LastScreen, folder: Path, markdown: str, pictures: Mapping[str, str]) -> str:
    """The page of a finding: a last screen, pictures of a folder by their titles, sections of a report."""
    drawn = {title: to_html(f"![{title}]({path})", folder) for title, path in pictures.items()}
    about: dict[str, Any] = {"title": screen.title, "subject": screen.subject, "lines": screen.lines}
    return html("screen.html.j2", **about, pictures=drawn, folds=sections(markdown, folder))


def html(template: str, data: dict[str, Any] | None = None, **values: Any) -> str:
    """The page that a template of templates/page/ makes; `data` is what its script moves."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: plain(value) if type(value) is str else value,
    )
    environment.filters |= {each.__name__: each for each in (number, sentence, without_places)}
    environment.filters["million"] = lambda value: value and 1e6 * value
    environment.filters["kwh"] = lambda joules: joules and joules / 3.6  # a million joules are 1 / 3.6 kWh
    environment.globals["glossary"] = glossary()
    body = environment.get_template(template).render(**values)
    terms = {name: said for name, said in glossary().items() if f'popovertarget="t-{name}"' in body}
    style, script = (reading.read_text(FOLDER / name) for name in ("page.css", "page.js"))
    embedded = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False) if data else ""
    return environment.get_template("page.html.j2").render(
        title=values["title"],
        body=Markup(body),
        terms=terms,
        style=Markup(style),
        script=Markup(script),
        allowed={"style-src": fingerprint(style), "script-src": fingerprint(script)},
        data=Markup(embedded.replace("<", "\\u003c")),  # which may stand in a script element, whatever its texts hold
    )


def fingerprint(source: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()}'"


@cache
def glossary() -> dict[str, str]:
    """Meanings by term, in small letters with dashes, from GLOSSARY; empty where the docs are not installed."""
    if not GLOSSARY.is_file():
        return {}
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", reading.read_text(GLOSSARY), re.M)
    found = {name: said.replace("`", "") for names, said in rows for name in names.split(", ")}
    return {re.sub(r"\W+", "-", name.lower()).strip("-"): f"{name}: {said}" for name, said in found.items()}
