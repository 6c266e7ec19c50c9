"""The pictures of a run, from LoadGen's own logs. Each answers one question."""

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from harness.core.document import Picture
from harness.core.formatting import number
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun
from harness.report import answer
from harness.report.charts import Bar, Bars, LinePanel, Panel, Scale, Series, StackedPart, save
from harness.report.load_pictures import curves
from harness.report.load_view import LATENCIES, LoadPicture
from harness.report.machine_pictures import machine, stages
from harness.results.accuracy import Accuracy
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


def draw_pictures(
    folder: Path, summary: Summary, test: TestRun | None, loads: LoadPicture | None
) -> dict[str, Picture]:
    """Draws what the run has data for into plots/, by name. `test`: the performance test."""
    run, result = summary.run, summary.result
    drawn: dict[str, Sequence[Panel]] = {}
    if run.accuracy:
        drawn["scores"] = [scores(run.accuracy)]
    if test and result:
        has_first_tokens = result.details.whole.ttft_ms is not None
        if has_first_tokens and test.is_timed:
            drawn["latency_cdf"] = latencies(test.counted, result, summary.scenario.headline)
        elif not has_first_tokens:
            drawn["tokens_per_sec"] = completions(test.answered)
    if run.search and loads:
        drawn["search"] = curves({"": loads})
    if test and result and test.recording.columns:
        details = result.details
        part = details.steady
        ends = (
            (part.begin_s, part.begin_s + part.seconds) if part and part.begin_s is not None and part.seconds else None
        )
        drawn["machine"] = machine(test.recording, details.ran_out, details.gpu_time, ends)
    if run.profile and run.profile.kinds:
        drawn["profile"] = [kinds(run.profile)]
    if summary.meta.stages:
        drawn["timeline"] = [stages(summary.meta.stages)]
    titled = {name: (TITLES[name], panels) for name, panels in drawn.items() if panels}
    return save(titled, folder / "plots", answer.footer(summary))


def scores(accuracy: Accuracy) -> Bars:
    """Each score as a share of the reference's, with its thresholds and, of a part of the samples, its interval."""
    rows = []
    for check in accuracy.checks:
        known = [check.score, check.low, *filter(None, [check.high])]
        share, *marks = (100 * value / check.reference for value in known)
        between = [100 * end / check.reference for end in check.interval or ()]
        dot = StackedPart(share, share, "red" if check.verdict == "FAIL" else "blue")
        rows.append(Bar(check.name, number(check.score), (), between, marks, dot))
    span = Scale.around([100.0, *(value for row in rows for value in row.values)])
    lines = "; lines: 95 % intervals" if any(check.interval for check in accuracy.checks) else ""
    label = f"% of the reference score; red: thresholds{lines}"
    return Bars(f"Accuracy against its thresholds: {accuracy.verdict}", label, rows, [100.0], span)


def completions(requests: Sequence[Request]) -> list[Panel]:
    """Output tokens of the answers that had ended by each time. Nothing else is known in Offline: not when an answer
    began nor what the engine did meanwhile. Empty without times.
    """
    ended = sorted((request.done_s, request.output_tokens) for request in requests if request.done_s)
    if not ended:
        return []
    ends, sums = [0.0, *(end for end, _ in ended)], [0, *accumulate(count for _, count in ended)]
    mean = f"mean: {number(sums[-1] / ends[-1])} output tokens/s"
    series = [
        Series("answers that have ended", [*zip(ends, map(float, sums), strict=True)]),
        Series(mean, [(0.0, 0.0), (ends[-1], sums[-1])], "amber", line="--"),
    ]
    title = "Tokens of the answers that have ended, by the ends that LoadGen logged"
    return [LinePanel(title, "seconds", "output tokens", series, Scale.of(ends), Scale.of([float(sums[-1])]))]


FAR_LIMIT = 3  # times the largest value: a limit beyond is left out instead of squeezing the curve


def latencies(requests: Sequence[Request], result: Outcome, headline: str) -> list[Panel]:
    """The share of queries by latency, with the limit. `headline` names the metric that is the result."""
    each, panels = result.details.samples_per_query, list[Panel]()
    queries = [requests[first : first + each] for first in range(0, len(requests), each)]
    values = {
        "latency": [max(request.latency_ms or 0.0 for request in query) for query in queries],
        "ttft": [time for request in requests if (time := request.ttft_ms) is not None],
        "tpot": [time for request in requests if (time := request.tpot_ms) is not None],
    }
    for kind, times in values.items():
        if not times:
            continue
        count = len(times)
        series = [Series("", [(time, 100 * (n + 1) / count) for n, time in enumerate(sorted(times))])]
        point = "p90" if headline == f"{kind}_p90_ms" else "p99"
        if (value := result.at(kind, point)) is not None:
            is_slowest = point == "p99" and result.is_few
            label = f"{'slowest' if is_slowest else point} {number(value)} ms"
            series.append(Series(label, [(value, 100.0 if is_slowest else float(point[1:]))], "amber", "o", ""))
        limit = getattr(result.details.limits_ms, kind, None)
        upright = {limit: f"limit {number(limit)} ms"} if limit and limit <= FAR_LIMIT * max(times) else {}
        across = Scale.of([*times, *upright])
        panels.append(
            LinePanel(LATENCIES[kind], "ms", "% of queries", series, across, Scale(0.0, 104.0), upright=upright)
        )
    return panels


def kinds(profile: Profile) -> Bars:
    """What the engine's time went to."""
    rows = [Bar(name, f"{share:.1f} %", [StackedPart(0.0, share)]) for name, share in profile.shares.items()]
    parts = "kernel time" if profile.device == "GPU" else "the operators' self time"
    return Bars("What the engine's time went to", f"% of {parts}", rows)
