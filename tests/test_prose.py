"""Phrases that a reader reads twice are in no docstring, comment, message, template or page of the documentation."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
FORBIDDEN = re.compile(
    r"\b(?:of (?:its|their|one's|your) own|comes to|came to|come to its end|what there is|told|said)\b", re.I
)
CODE = re.compile(r"^```.*?^```|`[^`]*`", re.M | re.S)
JINJA = re.compile(r"{{.*?}}|{%.*?%}", re.S)


def of_module(source: str) -> Iterator[str]:
    """Comments, docstrings and other texts, without words in backticks and without names, such as keys of JSON."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.string
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and not node.value.isidentifier():
            yield node.value


def texts() -> Iterator[tuple[Path, str]]:
    for path in sorted((ROOT / "harness").rglob("*.py")):
        yield from ((path, text) for text in of_module(path.read_text()))
    for path in sorted((ROOT / "templates").rglob("*.*")):
        yield path, JINJA.sub("", path.read_text())
    for path in [*ROOT.glob("README*.md"), ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        yield path, path.read_text()


def found_in(text: str) -> list[str]:
    """The forbidden phrases of a text, each with what stands around it."""
    words = " ".join(CODE.sub("", text).split())
    return [words[max(0, hit.start() - 40) : hit.end() + 30] for hit in FORBIDDEN.finditer(words)]


def test_no_text_has_a_forbidden_phrase() -> None:
    assert [f"{path.relative_to(ROOT)}: {hit}" for path, text in texts() for hit in found_in(text)] == []


def test_what_is_forbidden() -> None:
    assert found_in("A test of its own came to its end; what there is was said.") != []
    assert found_in("`said` is its own word") == []
