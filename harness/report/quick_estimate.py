"""The report of a --quick estimate: the rates that should keep the limits, and what half a minute cannot see."""

from collections.abc import Iterator
from pathlib import Path

from harness.core.document import Code, Document, Line, Section, caution_line, to_markdown
from harness.core.files import write_text
from harness.core.formatting import Measured, number, plural
from harness.rates.quick import Estimate
from harness.report import run_summary, subject, test_tables
from harness.report.page import page
from harness.results.records import RunFacts
from harness.results.summary import Summary

UNSEEN = (
    "an estimate is never VALID: it is for half a minute's load, and heat, caches and other tenants that come later "
    "are not in it"
)


def write_report(folder: Path, facts: RunFacts, estimate: Estimate) -> Document:
    """Write report.md and report.html of an estimate into its run folder, and return the report."""
    summary = run_summary.summary_of(folder, facts, chosen=None, ended_reason=None)
    report = document(estimate, summary)
    write_text(folder / "report.md", to_markdown(report))
    write_text(folder / "report.html", page(report))
    return report


def document(estimate: Estimate, summary: Summary) -> Document:
    """Return the report of an estimate. `summary` is that of the run, which has no test."""
    lines = [Line("rates", rates_text(estimate, name)) for name in estimate.ranges]
    lines.append(Line("capacity", capacity_text(estimate)))
    lines.append(Line("one request", lone_request_text(estimate)))
    if estimate.full_at:
        lines.append(Line("full", f"beyond {plural(estimate.full_at, 'request')} in flight the server refuses others"))
    lines += [caution_line(text) for text in (UNSEEN, *estimate.background_load)]
    lines.append(Line("next", estimate.command, is_command=True))
    about, sections = subject.subject_of(summary), list(measurement_sections(summary))
    if not estimate.ranges:
        reasons = ", ".join(estimate.doubts) or "the measurements showed no rate"
        return Document(f"No estimate: {reasons}", about, lines, tone="bad", sections=sections)
    first, *other_lines = lines  # the rates within the first limits
    return Document(f"Estimate: {first.text}", about, other_lines, sections=sections)


def measurement_sections(summary: Summary) -> Iterator[Section]:
    """Yield the sections with the short tests that the estimate is from, and the command."""
    if summary.tests:
        yield Section("Short tests", plural(len(summary.tests), "test"), [test_tables.table_of_loads(summary)])
    yield Section("Reproduce", "one command", [Code(summary.meta.command)])


def rates_text(estimate: Estimate, name: str) -> str:
    """Return the rates within the limits of this name in words.

    If the time ended before all measurements were taken (`is_partial`), they are called the best so far.
    """
    low, high = estimate.ranges[name]
    if high == 0:  # 0 stands for limits that no rate keeps.
        return f"no rate is within {name}: a single request is over them"
    if estimate.is_partial:
        return f"best so far: {partial_range_text(low, high)} within {name}"
    return f"{final_range_text(low, high)} within {name}"


def final_range_text(low: float, high: Measured) -> str:
    """Return a range of rates in words. `high` is None if nothing showed a limit."""
    if high is None:
        return f"{number(low, 3)} queries/s or more"
    return f"about {number(low, 3)} to {number(high, 3)} queries/s"


def partial_range_text(low: float, high: Measured) -> str:
    """Return the best range of rates so far in words. `high` is None if nothing showed a limit."""
    if high is None:
        return f"at least {number(low, 2)} queries/s"
    return f"between {number(low, 2)} and {number(high, 2)} queries/s"


def capacity_text(estimate: Estimate) -> str:
    """Return the rate that the server completes, with its error, in words."""
    if not estimate.capacity:
        return "not reached"
    error = ""
    if estimate.capacity_error:
        error = f" \N{PLUS-MINUS SIGN} {number(estimate.capacity_error, 1)}"
    return f"{number(estimate.capacity, 3)}{error} queries/s"


def lone_request_text(estimate: Estimate) -> str:
    """Return TTFT and TPOT of a single request in words."""
    times = []
    for name, milliseconds in (("TTFT", estimate.ttft_alone_ms), ("TPOT", estimate.tpot_alone_ms)):
        time_text = "unknown"
        if milliseconds is not None:
            time_text = f"{number(milliseconds, 2)} ms"
        times.append(f"{name} {time_text}")
    return ", ".join(times)
