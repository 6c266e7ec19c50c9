"""A picture's SVG file as a part of a page: the page's colours in both themes, and nothing that its policy forbids."""

import re
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from harness.common import reading

PALETTE = {  # of matplotlib's pictures, by what the page calls it
    **{"blue": "#2f6db5", "amber": "#e07b39", "grey": "#8a8f98"},
    **{"red": "#c0392b", "green": "#3a8f5c", "purple": "#8e5ea2"},
}
COLORS = {color: f"var(--{name})" for name, color in PALETTE.items()}
COLORS |= {"#000000": "currentColor", "#ffffff": "var(--paper)", "#b0b0b0": "var(--grey)"}
SMALLEST_TEXT = 9.0  # points, 12 pixels
MARGIN = 0.04  # of the picture's width, on each side: a browser's letters may be wider than matplotlib's
LINK, NAMESPACE = "{http://www.w3.org/1999/xlink}href", re.compile(r"^\{.*\}")
LEFT_OUT = ("metadata", "style")
FRACTION = re.compile(r"(\d+\.\d)\d+")  # a tenth of a point is enough


def drawing(path: Path, words: str) -> str:
    """An SVG file that matplotlib wrote, as an element; `words` say what it shows."""
    svg = ElementTree.fromstring(reading.read_text(path))
    adapt(svg, path.stem)
    _, _, width, height = map(float, svg.attrib["viewBox"].split())
    wide = f"{width * (1 + 2 * MARGIN):g}"
    svg.attrib |= {"width": f"{wide}pt", "viewBox": f"{-width * MARGIN:g} 0 {wide} {height:g}"}
    svg.attrib |= {"role": "img", "aria-label": words}
    return ElementTree.tostring(svg, encoding="unicode")


def adapt(element: Element, name: str) -> None:
    """Styles as attributes, the page's colours, ids that begin with the picture's name."""
    element.tag = NAMESPACE.sub("", element.tag)
    styles = element.attrib.pop("style", "").split(";")
    values = element.attrib | {key.strip(): value.strip() for key, _, value in (one.partition(":") for one in styles)}
    values |= {"href": values.pop(LINK)} if LINK in values else {}
    values = {key: COLORS.get(value, value) for key, value in values.items() if key and key != "font-family"}
    if element.tag == "text":
        size = max(SMALLEST_TEXT, float(values.get("font-size", "10px").removesuffix("px")))
        values = {"fill": "currentColor", **values, "font-size": f"{size:g}px"}
    element.attrib = {key: own_names(key, value, name) for key, value in values.items()}
    for child in list(element):
        adapt(child, name)
        if child.tag in LEFT_OUT:
            element.remove(child)
    if not (element.text or "").strip():
        element.text = None
    element.tail = None


def own_names(key: str, value: str, name: str) -> str:
    """An attribute with its references to ids, and with shorter numbers."""
    if key in ("id", "href"):
        return f"{name}-{value}" if key == "id" else value.replace("#", f"#{name}-", 1)
    if key == "d":
        value = re.sub(r"\s*\n\s*|(?<=[A-Za-z]) ", "", value)
    shorter = FRACTION.sub(r"\1", value) if key in ("d", "x", "y", "transform", "points") else value
    return shorter.replace("url(#", f"url(#{name}-")
