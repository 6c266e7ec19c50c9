"""A report's Markdown as one HTML file to send around: pictures inside, nothing fetched, readable in the dark and on
paper."""

import base64
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from harness.common import reading
from harness.common.paths import ROOT

STYLE = ROOT / "templates" / "report.css"
SVG = re.compile(r"<svg.*</svg>", re.DOTALL)
PAPER, INK = re.compile("#ffffff", re.I), re.compile("#000000", re.I)


def page(markdown: str, folder: Path) -> str:
    """The page; `folder` is what the paths of its pictures are relative to. A picture that is not there keeps its name.

    A picture with a drawing (.svg) beside it is shown as that, with what it says under the pointer.
    """
    from markdown_it import MarkdownIt

    renderer = MarkdownIt("commonmark", {"html": False}).enable("table")
    renderer.add_render_rule("image", lambda _, tokens, at, options, env: picture(folder, tokens, at))
    body = renderer.render(markdown)
    title = re.search(r"^# (.+)$", markdown, re.M)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title[1] if title else folder.name)}</title>\n<style>\n{STYLE.read_text()}</style>\n</head>\n"
        f"<body>\n<main>\n{body}</main>\n</body>\n</html>\n"
    )


def picture(folder: Path, tokens: Sequence[Any], at: int) -> str:
    """A picture of the folder, as part of the page."""
    path, words = folder / str(tokens[at].attrs.get("src", "")), escape(tokens[at].content)
    if path.resolve().parent.parent != folder.resolve() or not path.is_file():
        return f"<em>{words}</em>"
    if path.with_suffix(".svg").is_file():
        return f'<span class="figure" role="img" aria-label="{words}">{drawing(path.with_suffix(".svg"))}</span>'
    data = base64.b64encode(reading.read_bytes(path)).decode()
    return f'<span class="figure"><img alt="{words}" src="data:image/png;base64,{data}"></span>'


def drawing(path: Path) -> str:
    """An SVG file as an element: black and white become the page's own ink and paper."""
    found = SVG.search(reading.read_text(path))
    return INK.sub("currentColor", PAPER.sub("none", found[0])) if found else ""
