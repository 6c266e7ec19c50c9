"""The report of a --quick estimate: its title, its lines, and its pages."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from rich.console import Console

from harness.core import files, processes
from harness.core.document import Document, Line
from harness.rates import quick
from harness.report import quick_estimate
from harness.report.quick_estimate import document
from harness.results.benchmark_run import facts_of
from harness.results.summary import Summary
from harness.runner import steps
from harness.runs.run_folder import RunFolder
from tests.conftest import ROOT, run, tells
from tests.support import example_runs
from tests.support.fake_servers import Fake, serving

ESTIMATE = quick.Estimate(
    ttft_alone_ms=16.6,
    tpot_alone_ms=3.22,
    capacity=61.3,
    capacity_error=2.1,
    ranges={"Server's limits": (57.2, 62.1), "Interactive's limits": (46.0, 50.1)},
    rate=59.5,
    most_running=700,
    doubts=(),
    command="python run.py --server-target-qps max",
)


def report(**changes: Any) -> Document:
    summary = files.read(ROOT / "docs" / "runs" / "demo" / "summary.json", Summary)
    return document(ESTIMATE.model_copy(update=changes), summary)


def texts(lines: Document, label: str) -> list[str]:
    return [line.text for line in lines.lines if line.label == label]


def test_the_rates_of_the_first_limits_are_the_title_and_the_others_a_line() -> None:
    shown = report()
    assert tells(shown.title, "about 57.2 to 62.1 queries/s", "within Server's limits")
    assert [tells(text, "46 to 50.1", "Interactive's limits") for text in texts(shown, "rates")] == [True]
    assert tells(*texts(shown, "capacity"), "61.3 \N{PLUS-MINUS SIGN} 2")
    assert tells(*texts(shown, "one request"), "TTFT 17 ms, TPOT 3.2 ms")
    assert [line for line in shown.lines if line.is_command] == [
        Line("next", "python run.py --server-target-qps max", is_command=True)
    ]


@pytest.mark.parametrize(
    ("changes", "title"),
    [
        ({"ranges": {}, "doubts": ("it completes in waves",)}, ("No estimate", "it completes in waves")),
        (
            {"ranges": {"your limits": (40.0, None)}},
            (
                "Estimate",
                "40 queries/s or more within your limits",
            ),
        ),
        ({"ranges": {"your limits": (0.0, 0.0)}}, ("Estimate", "no rate", "a single request")),
        (
            {"is_partial": True, "ranges": {"your limits": (3.4, 6.8)}},
            ("Estimate", "best so far", "3.4 and 6.8"),
        ),
        ({"is_partial": True, "ranges": {"your limits": (3.4, None)}}, ("best so far", "at least 3.4")),
    ],
)
def test_a_title_says_what_is_known(changes: dict[str, Any], title: tuple[str, ...]) -> None:
    shown = report(**changes)
    assert tells(shown.title, *title)
    assert (shown.tone == "bad") == (not changes["ranges"])
    assert len(texts(shown, "rates")) == 0


@pytest.mark.parametrize("changes", [{}, {"ranges": {}}, {"is_partial": True}, {"capacity": None}])
def test_it_always_says_what_half_a_minute_cannot_see(changes: dict[str, Any]) -> None:
    cautions = [line.text for line in report(**changes).lines if line.is_caution]
    assert tells(cautions[0], "half a minute", "heat, caches and other tenants")
    assert tells(cautions[0], "never VALID")


def test_what_was_not_measured_is_not_a_number() -> None:
    assert texts(report(capacity=None, full_at=8), "capacity") == ["not reached"]
    assert tells(*texts(report(capacity=None, full_at=8), "full"), "8 requests in flight")
    busy = report(background_load=("other programs used 0.6 of 2 CPU cores during the test",))
    assert "other programs used 0.6 of 2 CPU cores during the test" in texts(busy, "caution")


def test_both_pages_say_the_same(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "20260131-000000-x", scenario="server")
    written = quick_estimate.write_report(folder, facts_of(folder), ESTIMATE)
    for name in ("report.md", "report.html"):
        assert written.title.split(" to ")[0] in (folder / name).read_text()


@pytest.mark.parametrize(("changes", "code"), [({}, 0), ({"ranges": {}, "doubts": ("it is slow",)}, 1)])
def test_without_a_rate_the_exit_code_says_so(changes: dict[str, Any], code: int, tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "20260131-000000-x", scenario="server")
    (folder / quick.FILE).write_text(json.dumps(ESTIMATE.model_copy(update=changes).model_dump()))
    benchmark_run = MagicMock(folder=RunFolder(tmp_path, folder.name), facts=facts_of(folder))
    benchmark_run.display.console = Console(quiet=True)
    handlers = processes.signal_handlers()
    try:
        assert steps.report_estimate(benchmark_run) == code
    finally:
        processes.set_signal_handlers(handlers)
    assert json.loads((folder / "status.json").read_text())["status"] == "complete"


@pytest.mark.slow
def test_a_run_ends_with_a_report(tmp_path: Path) -> None:
    flags = ["--scenario", "server", "--quick", "--total-sample-count", "16", "--minutes", "0.2"]
    with serving(Fake(delay_s=0.5, in_one_piece=True)) as fake:
        done = run(tmp_path, "--endpoint", fake.address, *flags)
    estimate = files.read(done.folder / quick.FILE, quick.Estimate)
    assert done.code == (0 if estimate.ranges else 1), done.output
    assert estimate.tpot_alone_ms is None
    assert "TPOT unknown" in done.output, done.output
    assert (done.folder / "report.html").exists() and (done.folder / "report.md").exists()
