"""The sections of a report's Markdown as HTML, each with its pictures as drawings; paths and users stay behind."""

import re
from dataclasses import dataclass
from html import escape, unescape
from pathlib import Path
from typing import Any

from harness.pages.drawing import drawing

PLACE = re.compile(r"(?<![\w:/.)\]])(?:~|\.{1,2})?/(?:[^\s/'\"`|,;:()<>=]+/)+")  # all of a path but its last name
ADDRESS = re.compile(r"(\w+://)(?:[^\s/@'\"]*@)?([^\s?#'\"`|,)]*)(?:[?#][^\s'\"`|,)]*)?")


@dataclass(frozen=True)
class Fold:
    """A folded part: its closed line has the outcome; `body` is HTML."""

    title: str
    outcome: str
    body: str


def sections(markdown: str, folder: Path) -> list[Fold]:
    """The parts of a report, whose headings end with their outcome after "::"; `folder` is what the paths of pictures
    are relative to. Of each path outside of the run its last name stays, of each address what remains without user and
    query."""
    parts = re.split(r"^## (.+?)(?: :: (.*))?\n", without_places(markdown), flags=re.M)
    found = zip(parts[1::3], parts[2::3], parts[3::3], strict=True)
    return [Fold(title.replace("`", ""), unescape(said or ""), to_html(body, folder)) for title, said, body in found]


def without_places(text: str) -> str:
    return PLACE.sub("", ADDRESS.sub(r"\1\2", text))


def to_html(markdown: str, folder: Path) -> str:
    """Markdown as HTML: tables in a frame in which they scroll, no HTML of others."""
    from markdown_it import MarkdownIt

    renderer = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"])
    renderer.add_render_rule("image", lambda _, tokens, at, *__: picture(folder, tokens[at]))
    renderer.add_render_rule("table_open", lambda *_: '<div class="wide"><table>\n')
    renderer.add_render_rule("table_close", lambda *_: "</table></div>\n")
    return str(renderer.render(markdown))


def picture(folder: Path, token: Any) -> str:
    """The drawing beside a picture of the folder; one that is not there keeps its name."""
    path, words = (folder / str(token.attrs.get("src", ""))).with_suffix(".svg"), str(token.content)
    if path.resolve().parent.parent != folder.resolve() or not path.is_file():
        return f"<em>{escape(words)}</em>"
    return f'<span class="figure">{drawing(path, words)}</span>'
