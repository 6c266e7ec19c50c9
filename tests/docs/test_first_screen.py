"""The first screen of both READMEs is the last screen of the demo's run that docs/runs keeps."""

from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from harness.core import files
from harness.core.last_screen import show
from harness.core.locations import ROOT
from harness.report import answer
from harness.report.report import history_line
from harness.results import metrics
from harness.results.history_line import range_in_earlier_runs
from harness.results.summary import Summary
from tests.docs.test_readme import blocks

DEMO = ROOT / "docs" / "runs" / "demo"
COLUMNS = 80


@pytest.mark.parametrize("page", ["README.md", "README.ko.md"])
def test_the_first_screen_is_that_of_the_kept_run(page: str) -> None:
    summary = files.read(DEMO / "summary.json", Summary)
    headline = summary.scenario.headline
    doubt = range_in_earlier_runs(history_line(summary), headline, metrics.METRIC_BY_NAME[headline].label, [])
    console = Console(file=StringIO(), width=COLUMNS, highlight=False)
    show(console, answer.document(summary, earlier_runs=doubt), Path("results/latest/report.html"))
    assert isinstance(console.file, StringIO)
    printed = [line.rstrip() for line in console.file.getvalue().strip().splitlines()]
    (shown,) = [block for block in blocks((ROOT / page).read_text()) if "accuracy PASS\n" in block]
    assert shown.strip().splitlines() == printed
