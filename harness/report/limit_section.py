"""The section of a report with the limits of the run's card: computed, measured, their ratio."""

from collections.abc import Iterator

from harness.core.document import Block, Section
from harness.core.formatting import number
from harness.report.run_report import RunReport
from harness.results import limit_comparison

SOURCE_NOTE = "The limits follow from the card's data sheet and the model's shape (computed, not measured)."


def card_limits(report: RunReport) -> Iterator[Section]:
    """Yield the section on what the GPU's data sheet allows, for a run that computed on GPUs of its machine.

    The section compares the limits with what was measured.
    """
    test, limits = report.summary.result, report.facts.card_limits
    if test is None or limits is None:
        return
    rows = limit_comparison.comparisons(report.facts, test)
    blocks: list[Block] = []
    outcome = "not computed"
    if rows:
        headline = rows[0]
        outcome = f"{number(headline.percent, 2)} % of {number(headline.limit, 3)} {headline.quantity}"
        blocks += [limit_comparison.comparison_table(rows), SOURCE_NOTE]
    blocks += [f"Not computed: {fact}." for fact in limits.missing]
    kernels = limit_comparison.gap_kernels(report.summary.run.profile)
    if kernels:
        blocks.append(kernels)
    if blocks:
        yield Section("Limits of the card", outcome, blocks)
