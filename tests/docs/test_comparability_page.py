"""docs/comparability.md has what each tool means by its figures, and what each comparison asks two runs to share."""

import re
from collections import defaultdict
from statistics import median

import pytest

from docs.generate import comparability as pages
from harness.config import comparability
from harness.config.comparability import Comparable
from harness.core.formatting import number
from tests.conftest import ROOT

CROSSCHECK = ROOT / "docs" / "evidence" / "crosscheck"


def test_the_sections_are_current() -> None:
    assert len(pages.SECTION.findall(pages.PAGE.read_text())) == 2
    assert pages.PAGE.read_text() == pages.page(), "run python -m docs.generate.comparability"


def test_each_aspect_is_explained_and_each_ignored_name_is_one() -> None:
    aspects = [*Comparable._fields]
    assert aspects == list(pages.MEANINGS)
    known = {*aspects, *(name for names in pages.NAMES.values() for name in names)}
    assert {name for ignored in pages.COMPARISONS.values() for name in ignored} <= known


def test_a_cell_says_what_is_ignored() -> None:
    assert pages.cell("machine", ("machine",)) == "any"
    assert pages.cell("machine", ("driver", "scenario")) == "the same but: driver"
    assert pages.cell("work", ("scenario",)) == "the same but: --scenario"
    assert pages.cell("validity", (comparability.INVALID,)) == "none but: INVALID by LoadGen"


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def kept_figures() -> dict[str, dict[str, list[float]]]:
    """Return the figures of the kept rounds, a number a round, by tool and by the name of the figure."""
    figures: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for path in sorted(CROSSCHECK.glob("figures-*.txt")):
        head, _rule, *rows = path.read_text().splitlines()
        for row in rows:
            name, *values = cells_of(row)
            for tool, value in zip(cells_of(head)[1:], values, strict=True):
                figures[tool][name].append(float(value.replace(",", "")))
    return figures


@pytest.mark.parametrize("tool", kept_figures())
def test_the_figures_of_the_tools_are_those_of_the_kept_rounds(tool: str) -> None:
    figures = kept_figures()[tool]
    assert len(figures["output tokens/s"]) == 3
    speeds = figures["output tokens/s"]
    (row,) = re.findall(rf"^\| {tool} \| (\d.*)$", pages.PAGE.read_text(), re.M)
    assert cells_of(row) == [
        f"{number(median(speeds))} ({number(min(speeds))} to {number(max(speeds))})",
        number(median(figures["TTFT p50, ms"])),
        number(median(figures["TPOT p50, ms"])),
        f"{median(figures['seconds from start to end']):.1f}",
        number(median(figures["lines on the screen"])),
    ]


@pytest.mark.parametrize("page", ["README.md", "README.ko.md"])
def test_the_readmes_have_the_kept_figures_rounded(page: str) -> None:
    text = (ROOT / page).read_text()
    rows = re.findall(r"^\| [^|]+ \| (\d+) \((\d+)\D+(\d+)\) \| (\d+) ms \| (\d+)\D+ \| (\d+) \|$", text, re.M)
    names = ("llama31-mlperf", "vllm bench serve", "guidellm", "aiperf")
    for name, row in zip(names, rows, strict=True):
        figures = kept_figures()[name]
        speeds = figures["output tokens/s"]
        others = [median(figures[key]) for key in ("TTFT p50, ms", "seconds from start to end", "lines on the screen")]
        expected = [median(speeds), min(speeds), max(speeds), *others]
        assert all(abs(int(cell) - value) <= 0.5 for cell, value in zip(row, expected, strict=True)), name
