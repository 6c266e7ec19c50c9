"""A run folder -> summary.json, plots and report.md; the line of the history, the index, the table for the terminal.

All of it follows from the folder: config.json, LoadGen's logs, the scores.
"""

from collections.abc import Iterator
from pathlib import Path

from harness.common import files
from harness.common.errors import UsageError
from harness.common.files import write_json, write_text
from harness.common.markdown import Finished, code, literal, number, render
from harness.common.schema import SCHEMA
from harness.config import mlperf
from harness.config.deviations import CACHE_UNSEEN
from harness.evaluation.compliance import RESULT
from harness.loadgen import log as loadgen_log
from harness.loadgen.test_run import TestRun
from harness.pages.loads import LoadPicture
from harness.profiling import traces
from harness.reporting import answer, plots, run_page, tables
from harness.results import metrics, telemetry
from harness.results.advice import client, findings
from harness.results.history import History
from harness.results.performance import Performance, performance
from harness.results.summary import Logs, Meta, Run, Summary
from harness.results.verdicts import SCORES_FILE, Compliance, ScoresFile
from harness.runs import folder as results
from harness.runs.folder import FOLDER
from harness.runs.records import RunFacts

MADE = ("summary.json", "report.md", "report.html", "plots")  # of a run's logs


def build(folder: Path) -> Summary:
    """Writes summary.json, plots/, report.md and report.html into a run folder; returns the summary.

    Raises UsageError, LogError where a file cannot be read or no test finished.
    """
    facts = results.facts_of(folder)
    check_format(folder, facts)
    ended = results.ended_early(folder, reported=bool(facts.stages))
    test = performance_test(folder, facts, whole=ended is None)
    summary = summarize(folder, facts, test, ended)
    if not summary.run.model_dump(exclude_none=True):
        status = results.status_of(folder)
        why = f" ({status.reason})" if status and status.reason else ""
        raise UsageError(f"{folder}: no test finished{why}; nothing to render.")
    summary = summary.model_copy(update={"plots": summary.plots | plots.draw_plots(folder, summary, test)})
    picture = LoadPicture.of(summary.run.search or [], summary.run.performance, facts.plan.limits)
    values = template_values(facts, summary) | {"drawn": picture}
    write_json(folder / "summary.json", summary.model_dump(mode="json"))
    write_text(folder / "report.md", f"{render('report.md.j2', sent=False, **values)}\n")
    page = run_page.html(folder, summary, test, picture, render("report.md.j2", sent=True, **values))
    write_text(folder / "report.html", page)
    return summary


def template_values(facts: RunFacts, summary: Summary) -> dict[str, object]:
    """What the report's template shows of a run, by the names that it uses."""
    return dict(
        few=mlperf.FEWEST_BOOTSTRAPPED,
        config=facts.plan.config,
        request_set=facts.plan.request_set,
        summary=summary,
        scenario=summary.scenario,
        numbers=metrics.rows(summary),
        headline=metrics.BY_NAME[summary.scenario.headline],
        quantities=telemetry.BY_NAME,
        **curve(summary.run),
        unexposed=telemetry.missing_counters(summary.run.performance.usage if summary.run.performance else {}),
        screen=answer.last_screen(summary, whole=True),
        levels=tables.levels(answer.levels(summary)),
        setting=setting(summary),
        latencies=tables.latencies(summary.run.performance),
        intervals=tables.intervals(summary.run.performance),
        gpu_time=tables.gpu_time(summary.run.performance.gpu_time if summary.run.performance else []),
        findings=findings(summary, "max" in (facts.plan.config.server_target_qps, facts.plan.config.concurrency)),
        late=client(summary.run.performance),
        **dict(summary),
    )


def setting(summary: Summary) -> list[tuple[str, str]]:
    meta, loadgen = summary.meta, summary.system.packages.get("mlcommons-loadgen")
    found = [
        ("label", literal(meta.label)),
        ("model", f"{answer.model(summary)}, {answer.scenario(summary)} ({meta.category})"),
        ("GPU" if summary.gpus else "machine", answer.machine(summary)),
        ("precision", meta.weights or f"{meta.precision}, quantization {meta.quantization}"),
        ("KV cache", "" if meta.endpoints else meta.kv_cache_dtype),
        ("engine", f"{answer.engine(summary)}{f', LoadGen {loadgen}' if loadgen else ''}"),
        ("kernels", ", ".join(f"{name} {kernel}" for name, kernel in meta.kernels.items())),
        ("date", meta.started[:10]),
        ("command", Finished(f"`{code(meta.command)}`")),
    ]
    return [(label, text) for label, text in found if text]


def curve(run: Run) -> dict[str, object]:
    """The table of the loads, and where the most tokens are made within the limits, at what cost."""
    test, search = run.performance, run.search or []
    price, best = test.cost.price_per_hour if test and test.cost else None, tables.best(search)
    return {
        "search_table": tables.probes(search, price) if search else None,
        "best": best,
        "best_cost": best.cost(price) if best and price else None,
    }


def check_format(folder: Path, facts: RunFacts) -> None:
    """Raises UsageError for a folder whose tests are kept in an older form."""
    if facts.schema_version < SCHEMA:
        raise UsageError(
            f"{folder}: of format {facts.schema_version}, from an older version of this program: its summary.json and "
            f"report.md stay as they are; this version renders format {SCHEMA}."
        )


def summarize(folder: Path, facts: RunFacts, test: TestRun | None, ended: str | None) -> Summary:
    """The summary without its plots: what the folder's logs say. Raises LogError on a log that cannot be trusted."""
    run = tests(folder, facts, performance(test, facts) if test else None)
    deviations = [*facts.deviations, *(["the run did not finish"] if ended else [])]
    deviations += result_deviations(run, facts.plan.config.mode, facts.plan.engine_state.cache_counted)
    return Summary(
        schema_version=SCHEMA,
        meta=meta(folder, facts, deviations, ended),
        system=facts.system,
        run=run,
        logs=logs(folder),
        plots={"tokens_per_sec": None, "latency_cdf": None},
    )


def tests(folder: Path, facts: RunFacts, measured: Performance | None) -> Run:
    scores = folder / FOLDER["accuracy"] / SCORES_FILE
    judged = folder / FOLDER["test06"] / RESULT
    profile = folder / traces.FOLDER / traces.RESULT
    return Run(
        accuracy=files.read(scores, ScoresFile) if scores.exists() else None,
        performance=measured,
        search=facts.probes or None,
        attempts=facts.attempts or None,
        compliance={"test06": files.read(judged, Compliance)} if judged.exists() else None,
        profile=files.read(profile, traces.Profile) if profile.exists() else None,
    )


def performance_test(folder: Path, facts: RunFacts, whole: bool) -> TestRun | None:
    """The performance test, read once; None where there was none, or the run, which is not whole, ended in it."""
    logs = folder / FOLDER["performance"]
    if not (logs / loadgen_log.DETAIL).exists():
        return None
    try:
        return TestRun.read(logs, facts.plan)
    except (loadgen_log.LogError, UsageError):
        if whole:
            raise
        return None


def meta(folder: Path, facts: RunFacts, deviations: list[str], ended: str | None) -> Meta:
    plan, config, engine_state = facts.plan, facts.plan.config, facts.plan.engine_state
    values = dict(facts) | vars(config) | vars(plan) | vars(engine_state)  # by the names of the fields
    values |= {"engine": facts.engine, "precision": engine_state.precision or config.precision}
    values |= {"run": folder.resolve().name, "mlperf_version": config.round, "workload": config.workload_name}
    values |= {"comparable": not deviations, "ended": ended, "deviations": deviations, "notes": list(plan.notes)}
    values |= {"max_new_tokens": plan.max_new_tokens, "setup": plan.setup, "work": plan.work}
    values |= {"endpoints": list(config.endpoint)}
    return Meta(**{name: values[name] for name in Meta.model_fields})


def logs(folder: Path) -> Logs:
    folders = {test: folder / name for test, name in FOLDER.items() if (folder / name).is_dir()}
    return Logs.of(
        {
            test: sorted(str(path.relative_to(folder)) for path in found.glob("*") if path.is_file())
            for test, found in folders.items()
        }
    )


def result_deviations(run: Run, mode: str, counted: bool = False) -> Iterator[str]:
    """Why what came out cannot stand beside MLPerf's, whatever the settings were; `counted`: the server had
    reported before what comes from its cache."""
    score, test = run.accuracy, run.performance
    if test and not score:
        yield "accuracy was not checked"
    if score and score.verdict == "FAIL":
        yield "the accuracy gate failed"
    if score and score.approximate:
        yield f"approximate {' and '.join(score.approximate)}"
    if mode != "accuracy" and not test:
        yield "performance was not measured"
    if test and not test.valid:
        yield "INVALID by LoadGen"
    yield from test.disagreements if test else []
    if test and test.server and test.server.cached_percent is None and counted:
        yield CACHE_UNSEEN
    if test and test.failed_requests:
        yield f"{number(test.failed_requests)} requests failed, which LoadGen's verdict counts as answered"
    if test and test.errors:
        yield "LoadGen logged errors"
    yield from (f"{name.upper()} failed" for name, found in (run.compliance or {}).items() if not found.passed)


def history_line(summary: Summary) -> dict[str, object]:
    """What results/history.jsonl keeps of a run."""
    line = History.of(summary, metrics.values(summary, "index") | metrics.values(summary, "report"))
    return line.model_dump(mode="json", exclude={"run"})


def write_index(results_dir: Path) -> None:
    results.write_index(results_dir, "index.md.j2", History, metrics=metrics.metrics_of("index"))
