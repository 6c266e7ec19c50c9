"""A run folder -> summary.json, plots and report.md; the line of the history, the index, the table for the terminal.
Whether what is there says what the logs say: all that is made of them is made again elsewhere, and compared.

All of it follows from the folder: config.json, LoadGen's logs, the scores.
"""

from collections.abc import Iterator
from pathlib import Path

from harness.config import comparability, mlperf_deviations, patterns
from harness.core.document import Document, Line, to_markdown
from harness.core.errors import UsageError
from harness.core.files import read_if_any, write_json, write_text
from harness.core.formatting import number
from harness.core.schema import RENDERED, SCHEMA
from harness.core.statements import Statement, StatementKind
from harness.loadgen.test_run import TestRun
from harness.report import answer, load_view, page, published_strip, request_bars
from harness.report.charts import Bar, Bars, StackedPart, overview
from harness.report.machine_pictures import gpu_times
from harness.report.pictures import draw_pictures
from harness.report.sections import SECTIONS, RunReport
from harness.results import accuracy, benchmark_run, claims, kernel_profile, metrics, result_test, test06_verdict
from harness.results.history_line import History
from harness.results.outcome import Outcome
from harness.results.records import RunFacts
from harness.results.result_test import ResultTest
from harness.results.summary import Logs, Meta, Run, Summary
from harness.results.test_outcome import own_outcome_of
from harness.runs import history, own_files, run_folder
from harness.runs.run_folder import TEST_FOLDERS


def html(report: RunReport, document: Document, test: TestRun | None) -> str:
    """The page: its answer, verdicts and figures, the picture of its scenario, and its report in folds."""
    summary, picture = report.summary, report.loads
    found = summary.result
    # Of a run without a picture of loads the first of these.
    names = ("tokens_per_sec", "latency_cdf", "scores", "timeline")
    main = None if picture else next((report.pictures[name] for name in names if name in report.pictures), None)
    shown = "loads" if picture else main.name if main else "search"
    watts = found.details.usage["gpu_power_w"].mean if found and "gpu_power_w" in found.details.usage else None
    return page.page(
        document._replace(lines=[*level_lines(picture), *document.lines]),
        ("environment", "search", "overview", shown),
        "run.html.j2",
        data=picture.data(f"{summary.meta.run}.csv", watts) if picture else None,
        test=found,
        summary=summary,
        tails=page.chart(limit_bars(found)) if found and found.tails else "",
        watts=watts,
        strips=list(published_strip.strips(summary)),
        drawn=picture,
        main=main,
        shares=page.chart(gpu_times(found.details.gpu_time[-1:])) if found and found.details.gpu_time else "",
        bars=request_bars.bars(test.requests) if test else None,
    )


def level_lines(picture: load_view.LoadPicture | None) -> Iterator[Line]:
    """Which levels keep one's own limits."""
    if picture and picture.unit == patterns.ClosedLoop.unit:
        if best := picture.best:
            yield Line(best.doubt or "within the limits", f"with {best.name}", best.test.verdict.tone)
        if over := dict.fromkeys(one.name for one in picture.loads if one.test.reasons and not one.overruled):
            yield Line("over the limits", f"with {', '.join(over)}", "bad")


def limit_bars(test: Outcome) -> Bars:
    """Each latency against its limit, which is at 100 %."""
    rows = []
    for name, (_, value, limit) in answer.tails(test).items():
        part = StackedPart(0.0, 100 * value / limit, "green" if value <= limit else "red")
        rows.append(Bar(name, f"{number(value)} of {number(limit)} ms", [part], marks=[100.0]))
    return Bars("", "The upright line is the limit.", rows)


def build(folder: Path) -> Summary:
    """Writes summary.json, plots/, report.md and report.html into a run folder; returns the summary.

    Raises UsageError, LogError where a file cannot be read or no test finished.
    """
    facts = benchmark_run.facts_of(folder)
    check_format(folder, facts, RENDERED, "renders")
    ended = run_folder.ended_early(folder, reported=bool(facts.stages))
    chosen = result_test.choose(folder, facts, is_complete=ended is None)
    summary = summarize(folder, facts, chosen, ended)
    test = chosen.test if chosen else None
    if not summary.run.model_dump(exclude_none=True):
        status = run_folder.status_of(folder)
        why = f" ({status.reason})" if status and status.reason else ""
        raise UsageError(f"{folder}: no test finished{why}; nothing to render.")
    own_files.replace_links(folder)
    loads = load_view.LoadPicture.of(summary, facts.plan.limits)
    pictures = draw_pictures(folder, summary, test, loads)
    paths = {name: picture.path for name, picture in pictures.items()}
    summary = summary.model_copy(update={"plots": summary.plots | paths})
    document = answer.document(summary, whole=True)
    pictures |= {"overview": overview(document, folder / "plots" / "overview.png")}
    report = RunReport(summary, facts, pictures, loads)
    document = document._replace(sections=[section for part in SECTIONS for section in part(report)])
    write_json(folder / "summary.json", summary.model_dump(mode="json"))
    write_text(folder / "report.md", to_markdown(document))
    write_text(folder / "report.html", html(report, document, test))
    return summary


def check_format(folder: Path, facts: RunFacts, oldest: int, verb: str) -> None:
    """Raises UsageError for a folder of an older format than this."""
    if facts.schema_version < oldest:
        raise UsageError(
            f"{folder}: of format {facts.schema_version}, from an older version of this program; this version "
            f"{verb} format {oldest} and later."
        )


def summarize(folder: Path, facts: RunFacts, chosen: ResultTest | None, ended: str | None) -> Summary:
    """The summary without its plots: what the folder's logs say. Raises LogError on a log that cannot be trusted."""
    judged = read_if_any(folder / TEST_FOLDERS["test06"] / test06_verdict.TEST06_FILE, test06_verdict.Compliance)
    run = Run(
        accuracy=read_if_any(folder / TEST_FOLDERS["accuracy"] / accuracy.SCORES_FILE, accuracy.ScoresFile),
        performance=own_outcome_of(chosen.test, chosen.facts, folder) if chosen else None,
        search=facts.probes or None,
        attempts=facts.attempts or None,
        compliance={"test06": judged} if judged else None,
        profile=read_if_any(
            folder / kernel_profile.PROFILE_FOLDER / kernel_profile.PROFILE_FILE, kernel_profile.Profile
        ),
    )
    counted = facts.plan.engine_state.cache_counted
    deviations = [*facts.deviations, *result_deviations(run, facts.config.mode, counted, ended)]
    return Summary(
        schema_version=SCHEMA,
        meta=meta(folder, facts, deviations, ended),
        system=facts.system,
        run=run,
        logs=Logs.of(folder),
        plots={"tokens_per_sec": None, "latency_cdf": None},
        digests=claims.digests(folder),
    )


def meta(folder: Path, facts: RunFacts, deviations: list[Statement], ended: str | None) -> Meta:
    plan, config, engine_state = facts.plan, facts.config, facts.plan.engine_state
    values = dict(facts) | vars(config) | vars(plan) | vars(engine_state)  # by the names of the fields
    values |= {
        "run": folder.resolve().name,
        "mlperf_version": config.round,
        "workload": config.workload_name,
        "endpoints": list(config.endpoint),
        "precision": engine_state.precision or config.precision,
        "max_new_tokens": plan.max_new_tokens,
        "setup": plan.setup,
        "work": plan.work,
        "comparable": not deviations,
        "ended": ended,
        "deviations": deviations,
        "notes": [*plan.notes, *facts.unread],
    }
    return Meta(**{name: values[name] for name in Meta.model_fields})


def result_deviations(run: Run, mode: str, counted: bool = False, ended: str | None = None) -> Iterator[Statement]:
    """Why what came out cannot stand beside MLPerf's, whatever the settings were; `counted`: the server had
    reported before what comes from its cache.
    """
    score, test = run.accuracy, run.performance
    unseen = (
        test is not None and test.details.server is not None and test.details.server.cached_percent is None and counted
    )
    failed = number(test.details.failed_requests) if test and test.details.failed_requests else ""
    found = {
        "the run did not finish": ended,
        "accuracy was not checked": test and not score,
        comparability.GATE_FAILED: score and score.verdict == "FAIL",
        f"approximate {' and '.join(score.approximate if score else ())}": score and score.approximate,
        "performance was not measured": mode != "accuracy" and not test,
        comparability.INVALID: test and not test.valid,
        **dict.fromkeys(test.disagreements if test else (), True),
        mlperf_deviations.CACHE_UNSEEN: unseen,
        f"{failed} requests failed, which LoadGen's verdict counts as answered": failed,
        "LoadGen logged errors": test and test.details.errors,
        **{f"{name.upper()} failed": not audit.passed for name, audit in (run.compliance or {}).items()},
    }
    yield from (Statement(text, kind=StatementKind.DEVIATION) for text, holds in found.items() if holds)


def history_line(summary: Summary) -> dict[str, object]:
    """What results/history.jsonl keeps of a run."""
    line = History.of(summary, metrics.values(summary, "index") | metrics.values(summary, "report"))
    return line.model_dump(mode="json", exclude={"run"})


def write_index(results_dir: Path) -> None:
    history.write_index(results_dir, "index.md.j2", History, metrics=metrics.metrics_of("index"))
