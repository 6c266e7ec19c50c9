"""A run's report.html: its answer, verdicts and figures, the picture of its scenario, and its report in folds."""

import re
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from harness.common.markdown import Table, number
from harness.loadgen.test_run import TestRun
from harness.pages import bars, folds, loads, page, strip
from harness.pages.page import Chip, Fold
from harness.reporting import answer
from harness.results.gpu_time import SHARES
from harness.results.performance import Performance
from harness.results.summary import Summary

MAIN = {  # the picture of a run without a picture of loads: the first that was drawn
    "tokens_per_sec": "Speed over time",
    "latency_cdf": "Latency of the queries",
    "scores": "Scores against their thresholds",
    "timeline": "Where the time went",
}


def html(folder: Path, summary: Summary, test: TestRun | None, markdown: str) -> str:
    """The page; `markdown` is the run's report, whose sections are folded into it."""
    found = summary.run.performance
    drawn = loads.picture(summary.run.search or [], found) if found or summary.run.search else None
    name = None if drawn else next((name for name in MAIN if summary.plots.get(name)), None)
    sections = folds.sections(re.sub(rf"^!\[.*\]\(plots/{name}\.png\)$", "", markdown, flags=re.M), folder)
    usage = found.usage if found else {}
    watts = usage["gpu_power_w"].mean if "gpu_power_w" in usage else None
    ranked = among(summary)
    return page.html(
        "run.html.j2",
        data=loads.moved(drawn, f"{summary.meta.run}.csv", watts) if drawn else None,
        title=answer.title(summary),
        subject=f"{answer.subject(summary)}; {summary.meta.started[:10]}",
        label=summary.meta.label,
        chips=list(chips(summary, drawn["best"] if drawn else None)),
        following=folds.without_places(answer.next_command(summary)),
        test=found,
        summary=summary,
        level=drawn["loads"][drawn["own"]] if drawn else None,
        tails=answer.tails(found) if found else [],
        bound=found.ran_out[0].partition(": ") if found and found.ran_out else None,
        watts=watts,
        strip=ranked,
        drawn=drawn,
        main=(MAIN[name], folds.to_html(f"![{MAIN[name]}]({summary.plots[name]})", folder)) if name else None,
        spent=found.gpu_time[-1] if found and found.gpu_time else None,
        shares={key: label for key, (label, _) in SHARES.items()},
        bars=bars.bars(test.requests) if test else None,
        folds=[Fold(title, outcome(title, summary), body) for title, body in sections.items()] + published(ranked),
    )


def chips(summary: Summary, best: loads.Load | None) -> Iterator[Chip]:
    """The verdicts, of the lines that the last screen shows too; of levels, which keep the limits."""
    if answer.own_limits(summary) and (probes := answer.curve(summary)):
        over = [probe.text for probe in probes if probe.why]
        if best:
            yield Chip("good", "Within the limits", f"with {best.name}")
        if over:
            yield Chip("bad", "Over the limits", f"with {', '.join(over)}")
    yield from page.chips(answer.lines(summary, whole=True))


def among(summary: Summary) -> strip.Strip | None:
    """The published results of the scenario, where they are of this model and work, and its accelerators are known."""
    found = summary.run.performance
    if not (found and found.samples_per_sec and summary.gpus and answer.is_reference(summary)):
        return None
    score = summary.run.accuracy
    ranked = summary.meta.comparable and score is not None and score.verdict == "PASS"
    each = found.samples_per_sec / summary.gpus
    return strip.strip(answer.scenario(summary), summary.system.gpus[0], each, ranked)


def published(ranked: strip.Strip | None) -> list[Fold]:
    """The results of the strip with their sources."""
    if ranked is None:
        return []
    names = ("accelerator", "samples_per_sec", "accelerators", "submitter", "software", "weights", "round", "source")
    rows = Table.of(ranked.results, {name.replace("_per_sec", "/s each"): name for name in names})
    said = f"the {len(ranked.results)} results of the strip, with their sources"
    return [Fold("Published results", said, folds.to_html(str(rows), Path()))]


def outcome(title: str, summary: Summary) -> str:
    """What the closed line of a section says."""
    return OUTCOMES[title](summary) if title in OUTCOMES else ""


def of_test(say: Callable[[Summary, Performance], str]) -> Callable[[Summary], str]:
    return lambda summary: say(summary, summary.run.performance) if summary.run.performance else ""


def percentiles(_: Summary, test: Performance) -> str:
    kinds = {"TTFT": test.ttft_ms, "TPOT": test.tpot_ms, "whole answer": test.latency_ms}
    return ", ".join(f"{name} p50 {number(found.p50)} ms" for name, found in kinds.items() if found)


def lengths(_: Summary, test: Performance) -> str:
    kinds = {"input": test.input_lengths, "output": test.output_lengths}
    return ", ".join(f"{name} {number(found.mean)} tokens on average" for name, found in kinds.items() if found)


def machine_use(_: Summary, test: Performance) -> str:
    names = {"requests_running": "requests running", "requests_waiting": "waiting", "gpu_load_percent": "% GPU load"}
    return ", ".join(f"{number(test.usage[name].mean)} {said}" for name, said in names.items() if name in test.usage)


def took(summary: Summary) -> str:
    """The longest stages of the run."""
    stages = summary.meta.stages
    spans = sorted(((b.start_s - a.start_s, a.name) for a, b in pairwise(stages)), reverse=True)
    whole = f"{number(stages[-1].start_s)} s: " if stages else ""
    return whole + ", ".join(f"{name.partition(',')[0]} {number(seconds)} s" for seconds, name in spans[:3])


OUTCOMES: dict[str, Callable[[Summary], str]] = {
    "Measured with": lambda summary: summary.meta.weights or summary.meta.precision,
    "Verdict": lambda summary: "; ".join(
        f"{line.label} {line.text}" if line.tone == "unknown" else line.label for line in answer.verdicts(summary)
    ),
    "Tests at each load": lambda summary: loads.counts([loads.outcome(probe) for probe in summary.run.search or []]),
    "What bounds it, and what to try": of_test(
        lambda _, test: test.ran_out[0] if test.ran_out else answer.without_bound(test)
    ),
    "How `auto` was resolved": lambda summary: f"{len(summary.meta.notes)} settings",
    "Workload": lambda summary: summary.meta.workload,
    "Profile": lambda summary: (
        summary.run.profile.largest[0].name if summary.run.profile and summary.run.profile.largest else ""
    ),
    "Lengths": of_test(lengths),
    "Numbers": of_test(lambda _, test: f"{number(test.tokens_per_sec)} output tokens/s"),
    "Latency": of_test(percentiles),
    "Accuracy": lambda summary: answer.scores(summary) if summary.run.accuracy else "",
    "Compliance": lambda summary: "; ".join(each.headline for each in (summary.run.compliance or {}).values()),
    "Where the time went": took,
    "What the engine and the machine did": of_test(machine_use),
    "Machine": answer.machine,
    "Server": lambda summary: str(summary.meta.engine_args.get("server", "")),
    "Reproduce": lambda summary: f"one command, MLPerf v{summary.meta.mlperf_version} rules",
    "Files": lambda summary: f"{sum(map(len, summary.logs.files.values()))} logs in the run's folder",
}
