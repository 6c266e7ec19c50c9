"""A run's report.html: its answer, verdicts and figures, the picture of its scenario, and its report in folds."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harness.common.markdown import Column, Table
from harness.config.patterns import ClosedLoop
from harness.loadgen.test_run import TestRun
from harness.pages import folds, page
from harness.pages.bars import bars, split
from harness.pages.loads import Load, LoadPicture
from harness.pages.strip import Strip, strip
from harness.reporting import answer
from harness.results.gpu_time import SHARES, GpuTime
from harness.results.summary import Summary
from harness.terminal.last_screen import Line

MAIN = {  # the picture of a run without a picture of loads: the first that was drawn
    "tokens_per_sec": "Speed over time",
    "latency_cdf": "Latency of the queries",
    "scores": "Scores against their thresholds",
    "timeline": "Where the time went",
}
SOURCES: Mapping[str, Column] = {
    **{"accelerator": "accelerator", "samples/s each": "samples_per_sec", "accelerators": "accelerators"},
    **{name: name for name in ("submitter", "software", "weights", "round", "source")},
}
TRACK = 80.0  # percent of a bar's length at which its limit stands


def html(folder: Path, summary: Summary, test: TestRun | None, picture: LoadPicture | None, markdown: str) -> str:
    """The page; `picture` is of its loads, `markdown` is its report, whose sections are folded into the page."""
    found = summary.run.performance
    name = None if picture else next((name for name in MAIN if summary.plots.get(name)), None)
    parts = folds.sections(re.sub(rf"^!\[.*\]\(plots/{name}\.png\)$", "", markdown, flags=re.M), folder)
    watts = found.usage["gpu_power_w"].mean if found and "gpu_power_w" in found.usage else None
    ranked = among(summary)
    level = picture.loads[picture.title_load] if picture else None
    return page.html(
        "run.html.j2",
        data=picture.data(f"{summary.meta.run}.csv", watts) if picture else None,
        title=answer.title(summary),
        subject=f"{answer.subject(summary)}; {summary.meta.started[:10]}",
        label=summary.meta.label,
        lines=[*of_levels(picture), *answer.lines(summary, whole=True)],
        test=found,
        summary=summary,
        level=level,
        tracks=list(tracks(summary, level)),
        bound=found.ran_out[0].partition(": ") if found and found.ran_out else None,
        watts=watts,
        strip=ranked,
        drawn=picture,
        main=(MAIN[name], folds.to_html(f"![{MAIN[name]}]({summary.plots[name]})", folder)) if name else None,
        spent=found.gpu_time[-1] if found and found.gpu_time else None,
        shares=list(shares(found.gpu_time[-1])) if found and found.gpu_time else [],
        bars=bars(test.requests) if test else None,
        split=split(found.waits_ms) if found else [],
        folds=parts,
        published=folds.to_html(str(Table.of(ranked.results, SOURCES)), folder) if ranked else "",
    )


def of_levels(picture: LoadPicture | None) -> Iterator[Line]:
    """Which levels keep one's own limits."""
    if picture and picture.unit == ClosedLoop.unit:
        over = dict.fromkeys(one.name for one in picture.loads if one.probe.why and not one.overruled)
        if picture.best:
            yield Line("within the limits", f"with {picture.best.name}", "good")
        if over:
            yield Line("over the limits", f"with {', '.join(over)}", "bad")


def tracks(summary: Summary, level: Load | None) -> Iterator[dict[str, Any]]:
    """Each latency against its limit, as a bar: its place and the limit's in percent."""
    test = summary.run.performance
    for name, (kind, value, limit) in (answer.tails(test) if test else {}).items():
        shown = (level.at(kind.lower(), "p99") if level else None) or value
        full = max(100 * limit / TRACK, 1.05 * shown)
        places = {"fill": 100 * shown / full, "edge": 100 * limit / full, "share": 100 * shown / limit}
        yield {"name": name, "kind": kind.lower(), "value": shown, "limit": limit, **places}


def shares(spent: GpuTime) -> Iterator[dict[str, Any]]:
    """Where the GPU's time went: parts with their places, and percentages of one digit that add up to 100."""
    values = {name: getattr(spent, name) or 0.0 for name in reversed(SHARES)}
    tenths = {name: int(10 * value) for name, value in values.items()}
    for name in sorted(values, key=lambda name: 10 * values[name] % 1, reverse=True)[: 1000 - sum(tenths.values())]:
        tenths[name] += 1
    begin = 0.0
    for name, value in values.items():
        said = "\N{EN DASH}" if getattr(spent, name) is None else f"{tenths[name] / 10:.1f} %"
        yield {"name": name, "label": SHARES[name][0], "said": said, "begin": begin, "width": value}
        begin += value


def among(summary: Summary) -> Strip | None:
    """The published results of the scenario, where they are of this model and work, and its accelerators are known."""
    found, score = summary.run.performance, summary.run.accuracy
    if not (found and found.samples_per_sec and summary.gpus and answer.is_reference(summary)):
        return None
    ranked = summary.meta.comparable and score is not None and score.verdict == "PASS"
    return strip(answer.scenario(summary), summary.system.gpus[0], found.samples_per_sec / summary.gpus, ranked)
