"""A fact about a result is decided where it is made: what others read of it, and where columns and words may stand."""

import ast
import re
from pathlib import Path

from harness.results.metrics import METRICS
from tests.conftest import ROOT

HARNESS = ROOT / "harness"
MADE_IN = ("results", "loadgen")  # packages where doubts are made
DOUBTS, MOST_READ = ("is_few", "busy", "endpoints"), 10
NAMES = {metric.name for metric in METRICS}
FEWEST = 3  # names of metrics that make a list of columns
PARSED = re.compile(r"""partition\(": "\)|\bin (?:\w+\.)?why\b|"(?:TTFT|TPOT)" in \w""")


def sources(*without: str) -> list[Path]:
    return [path for path in sorted(HARNESS.rglob("*.py")) if path.relative_to(HARNESS).parts[0] not in without]


def test_doubts_are_read_in_few_places() -> None:
    read = [
        f"{path.relative_to(HARNESS)}:{node.lineno}"
        for path in sources(*MADE_IN)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in DOUBTS
    ]
    assert len(read) <= MOST_READ, read


def columns(text: str) -> list[list[str]]:
    """The lists of three names of metrics or more in a source."""
    found = []
    for node in ast.walk(ast.parse(text)):
        items = node.keys if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        names = [item.value for item in items if isinstance(item, ast.Constant) and item.value in NAMES]
        found += [names] if len(names) >= FEWEST else []
    return found


def test_no_list_of_a_load_s_columns_stands_outside_metrics() -> None:
    assert columns('ROW = ("tokens_per_sec", "ttft_p99_ms", "tpot_p99_ms")') != []
    assert {path.name: found for path in sources("results") if (found := columns(path.read_text()))} == {}
    script = (ROOT / "templates" / "page" / "page.js").read_text()
    assert [name for name in NAMES if f'"{name}"' in script] == []


def test_no_text_of_ours_is_read_for_its_words() -> None:
    assert PARSED.search('what, _, remedy = reason.partition(": ")') and PARSED.search('"TTFT" in self.why')
    assert [str(path.relative_to(HARNESS)) for path in sources() if PARSED.search(path.read_text())] == []
