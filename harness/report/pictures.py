"""The pictures of a run, from LoadGen's own logs. Each answers one question."""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path

from harness.core.document import Picture
from harness.core.formatting import number
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun
from harness.report import subject
from harness.report.charts import Bar, Bars, LinePanel, Panel, Point, Scale, Series, StackedPart, save_pictures
from harness.report.load_pictures import load_curves
from harness.report.load_view import LATENCIES, LoadPicture
from harness.report.machine_pictures import machine_panels, stage_bars
from harness.results.accuracy import Accuracy, ScoreCheck
from harness.results.kernel_profile import Profile
from harness.results.outcome import Outcome
from harness.results.summary import Summary

TITLES = {
    "scores": "Scores against their thresholds",
    "tokens_per_sec": "Completed tokens against time",
    "latency_cdf": "Latency, TTFT and TPOT: share of queries",
    "search": "Latency by load; output speed of all against one user",
    "machine": "What the engine and the machine did, second by second",
    "profile": "Share of each kind of work",
    "timeline": "Where the time went",
}
# A run's main picture is the first of these that it has.
MAIN_PICTURES = ("search", "tokens_per_sec", "latency_cdf", "scores", "timeline")


def main_picture(pictures: Mapping[str, Picture]) -> Picture | None:
    """Return the picture that shows a run's result best: the first of MAIN_PICTURES that the run has.

    None if it has none of them.
    """
    for name in MAIN_PICTURES:
        if name in pictures:
            return pictures[name]
    return None


def main_panel(pictures: Mapping[str, Picture]) -> Panel | None:
    """Return the first panel of the main picture; None if there is no such picture or it has no panels."""
    picture = main_picture(pictures)
    if picture is None or not picture.panels:
        return None
    panel = picture.panels[0]
    assert isinstance(panel, Bars | LinePanel)  # of the kinds that draw_pictures draws
    return panel


def panels_of_requests(test: TestRun, result: Outcome, headline: str) -> dict[str, Sequence[Panel]]:
    """Return the panels of a test's requests, by the name of their picture: their latencies, or the tokens over time.

    `headline` is the main metric of the scenario. Empty if latencies are known of the whole test alone.
    """
    has_first_tokens = result.details.whole.ttft_ms is not None
    if not has_first_tokens:
        # Only the ends of answers are known, as in Offline.
        return {"tokens_per_sec": completion_panels(test.answered_requests)}
    if not test.is_timed:
        return {}
    return {"latency_cdf": latency_panels(test.counted_requests, result, headline)}


def draw_pictures(
    folder: Path, summary: Summary, test: TestRun | None, loads: LoadPicture | None
) -> dict[str, Picture]:
    """Draw the pictures that the run has data for into plots/, and return them by name.

    `test` is the run's own test and `loads` are its tests by load; each is None if the run has none.
    """
    run, result = summary.run, summary.result
    drawn: dict[str, Sequence[Panel]] = {}
    if run.accuracy:
        drawn["scores"] = [score_bars(run.accuracy)]
    if test and result:
        drawn |= panels_of_requests(test, result, summary.scenario.headline)
    if run.search and loads:
        drawn["search"] = load_curves({"": loads})  # A single run needs no name in the picture.
    if test and result and test.recording.columns:
        details = result.details
        steady_ends = None
        if details.steady and details.steady.seconds:
            steady_ends = details.steady.ends_s
        drawn["machine"] = machine_panels(test.recording, details.ran_out, details.gpu_time, steady_ends)
    if run.profile and run.profile.kinds:
        drawn["profile"] = [kind_bars(run.profile)]
    if summary.meta.stages:
        drawn["timeline"] = [stage_bars(summary.meta.stages)]
    titled = {name: (TITLES[name], panels) for name, panels in drawn.items() if panels}
    return save_pictures(titled, folder / "plots", subject.footer(summary))


def score_bars(accuracy: Accuracy) -> Bars:
    """Return a panel of each score in percent of the reference score, with its thresholds.

    If only a part of the samples ran, the interval of each score is drawn, too.
    """
    rows = [score_bar(check) for check in accuracy.checks]
    values = chain.from_iterable(row.values for row in rows)
    span = Scale.around([100.0, *values])
    label = "% of the reference score; red: thresholds"
    if any(check.interval for check in accuracy.checks):
        label += "; lines: 95 % intervals"
    title = f"Accuracy against its thresholds: {accuracy.verdict}"
    return Bars(title, axis=label, rows=rows, lines=[100.0], span=span)  # a line across all bars at the reference


def score_bar(check: ScoreCheck) -> Bar:
    """Return the row of a score: a dot, which is red if the score failed, its thresholds and its interval.

    All are in percent of the reference score. Only some scores have an upper threshold and an interval.
    """

    def percent_of_reference(value: float) -> float:
        return 100 * value / check.reference

    thresholds = [percent_of_reference(check.low)]
    if check.high:
        thresholds.append(percent_of_reference(check.high))
    interval = [percent_of_reference(end) for end in check.interval or ()]
    color = "red" if check.verdict == "FAIL" else "blue"
    score_percent = percent_of_reference(check.score)
    dot = StackedPart(begin=score_percent, end=score_percent, color=color)
    return Bar(check.name, number(check.score), interval=interval, marks=thresholds, dot=dot)


def completion_panels(requests: Sequence[Request]) -> list[Panel]:
    """Return a panel of the output tokens of all answers that had ended by each time, and of their mean speed.

    No panel if no end is known.
    """
    ended = sorted((request.done_s, request.output_tokens) for request in requests if request.done_s)
    if not ended:
        return []
    points, total = [(0.0, 0.0)], 0
    for end_s, tokens in ended:
        total += tokens
        points.append((end_s, float(total)))
    last_s = points[-1][0]
    mean = f"mean: {number(total / last_s)} output tokens/s"
    series = [
        Series("finished answers", points),
        Series(mean, [(0.0, 0.0), (last_s, total)], "amber", line="--"),
    ]
    title = "Output tokens of finished answers, by LoadGen's completion times"
    across, down = Scale.of([end_s for end_s, _tokens in points]), Scale.of([float(total)])
    return [LinePanel(title, x="seconds", y="output tokens", series=series, across=across, down=down)]


FAR_LIMIT_RATIO = 3  # a limit beyond so many times the largest value is left out, as it would squeeze the curve


def latency_panels(requests: Sequence[Request], result: Outcome, headline: str) -> list[Panel]:
    """Return a panel for each latency that is known (of whole queries, TTFT, TPOT): its cumulative distribution.

    The panel marks the p99, or the p90 if that is `headline`, the metric by which the run is judged.
    """
    values = {
        "latency": latencies_of_queries(requests, result.details.samples_per_query),
        "ttft": [request.ttft_ms for request in requests if request.ttft_ms is not None],
        "tpot": [request.tpot_ms for request in requests if request.tpot_ms is not None],
    }
    panels = list[Panel]()
    for kind, times in values.items():
        if times:
            percentile = "p90" if headline == f"{kind}_p90_ms" else "p99"
            panels.append(distribution(kind, times, result, percentile))
    return panels


def latencies_of_queries(requests: Sequence[Request], samples_per_query: int) -> list[float]:
    """Return the latency of each query, which is the latency of its slowest sample. `requests` are samples, query after
    query.
    """
    latencies = []
    for first in range(0, len(requests), samples_per_query):
        query = requests[first : first + samples_per_query]
        latencies.append(max(request.latency_ms or 0.0 for request in query))
    return latencies


def distribution(kind: str, times: Sequence[float], result: Outcome, percentile: str) -> Panel:
    """Return the panel of the share of queries whose latency is at most each value, with one percentile and the limit.

    `times` are the latencies of this kind in ms. `percentile` is the marked one, such as "p99".
    """
    count = len(times)
    steps = list[Point]()
    for place, time in enumerate(sorted(times), start=1):
        steps.append((time, 100 * place / count))
    series = [Series(name="", points=steps)]
    value = result.at(kind, percentile)
    if value is not None:
        name, percent = percentile, float(percentile[1:])  # p99 is at 99 % of the queries.
        if percentile == "p99" and result.is_few:
            name, percent = "slowest", 100.0  # The p99 of few requests is the slowest of them.
        series.append(Series(f"{name} {number(value)} ms", [(value, percent)], "amber", mark="o", line=""))
    upright_limits = {}
    limit = getattr(result.details.limits_ms, kind, None)
    if limit and limit <= FAR_LIMIT_RATIO * max(times):
        upright_limits[limit] = f"limit {number(limit)} ms"
    across, down = Scale.of([*times, *upright_limits]), Scale(0.0, 104.0)  # Beyond 100 %, so a line there is not cut.
    return LinePanel(
        LATENCIES[kind],
        x="ms",
        y="% of queries",
        series=series,
        across=across,
        down=down,
        upright_limits=upright_limits,
    )


def kind_bars(profile: Profile) -> Bars:
    """Return a bar for each kind of kernel or, on a CPU, of operator, with its percentage of the profiled time."""
    rows = []
    for name, share in profile.shares.items():
        rows.append(Bar(name, f"{share:.1f} %", [StackedPart(0.0, share)]))
    time_of = "the operators' self time"
    if profile.device == "GPU":
        time_of = "kernel time"
    return Bars("What the engine's time went to", f"% of {time_of}", rows)
