"""report.html of a run: its answer, verdicts and figures, the picture of its scenario, and its report in folds."""

from collections.abc import Iterator

from harness.config import patterns
from harness.core.document import Document, Line
from harness.core.formatting import Measured, number
from harness.loadgen.test_run import TestRun
from harness.report import answer, page, published_strip, request_bars
from harness.report.charts import Bar, Bars, StackedPart
from harness.report.load_view import LoadPicture
from harness.report.machine_pictures import gpu_time_bars
from harness.report.pictures import main_picture
from harness.report.run_report import RunReport
from harness.results.outcome import Outcome

LIMIT_MARK = 100.0  # Each latency is drawn as percent of its limit.


def run_page(report: RunReport, document: Document, test: TestRun | None) -> str:
    """Return the page of a run as one HTML file. `test` is the run's own test, None if the run has none.

    On top it has the picture and the table of the run's loads or, without loads, the run's main picture.
    """
    summary, loads, result = report.summary, report.loads, report.summary.result
    main = None if loads else main_picture(report.pictures)
    left_out = ["environment", "search", "overview"]  # tables and pictures that no section of the page has
    if loads:
        left_out.append("loads")  # the table of the loads, which is on top
    if main:
        left_out.append(main.name)
    watts = mean_watts(result)
    lines = [*level_lines(loads), *document.lines]
    return page.page(
        document._replace(lines=lines),
        without=left_out,
        template="run.html.j2",
        data=loads.data(f"{summary.meta.run}.csv", watts) if loads else None,
        test=result,
        summary=summary,
        tails=page.chart_html(limit_bars(result)) if result and result.tails else "",
        watts=watts,
        strips=list(published_strip.published_strips(summary)),
        result_columns=published_strip.result_columns(summary),
        per=published_strip.machine_of_rates(summary),
        drawn=loads,
        main=main,
        shares=gpu_time_chart(result),
        bars=request_bars.bars(test.requests) if test else None,
    )


def mean_watts(result: Outcome | None) -> Measured:
    """Return the mean power of the GPUs during the result's test, in W.

    None without a result or if it was not recorded.
    """
    if result is None or "gpu_power_w" not in result.details.usage:
        return None
    return result.details.usage["gpu_power_w"].mean


def gpu_time_chart(result: Outcome | None) -> str:
    """Return the shares of GPU time in the result's test, which is the last of the recorded tests, as HTML.

    Empty if they are not known.
    """
    if result is None or not result.details.gpu_time:
        return ""
    return page.chart_html(gpu_time_bars(result.details.gpu_time[-1:]))


def level_lines(loads: LoadPicture | None) -> Iterator[Line]:
    """Yield the best level of a curve that keeps the user's own limits, and the levels that are over them.

    Nothing if the loads are not numbers of requests in flight.
    """
    if not loads or loads.unit != patterns.ClosedLoop.unit:
        return
    best = loads.best
    if best:
        yield Line(best.doubt or "within the limits", f"with {best.name}", best.test.verdict.tone)
    # A level that was tested again may have another outcome, which then counts.
    names_over = [point.name for point in loads.loads if point.test.reasons and not point.overruled]
    if names_over:
        yield Line("over the limits", f"with {', '.join(dict.fromkeys(names_over))}", "bad")


def limit_bars(test: Outcome) -> Bars:
    """Return a panel with a bar for the p99 of TTFT and TPOT in percent of its limit. It is red if over the limit."""
    rows = []
    for name, tail in answer.tails(test).items():
        color = "red" if tail.is_over else "green"
        part = StackedPart(0.0, 100 * tail.share, color)
        rows.append(Bar(name, f"{number(tail.p99)} of {number(tail.limit)} ms", [part], marks=[LIMIT_MARK]))
    return Bars(title="", axis="The vertical line is the limit.", rows=rows)
