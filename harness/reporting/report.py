"""A run folder -> summary.json, plots and report.md; the line of the history, the index, the table for the terminal.

All of it follows from the folder: config.json, LoadGen's logs, the scores.
"""

import tempfile
from collections.abc import Iterator
from datetime import datetime
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

from harness.common import files, reading
from harness.common.errors import UsageError
from harness.common.files import write_json, write_text
from harness.common.markdown import number, render
from harness.common.schema import SCHEMA
from harness.config import mlperf
from harness.config.deviations import CACHE_UNSEEN
from harness.config.workload import OFFICIAL
from harness.evaluation.compliance import RESULT
from harness.loadgen import agreement
from harness.loadgen import log as loadgen_log
from harness.loadgen.test_run import TestRun
from harness.profiling import traces
from harness.reporting import answer, index, plots, run_page, tables
from harness.results import metrics, telemetry
from harness.results.advice import client, findings
from harness.results.history import History
from harness.results.performance import Performance, performance
from harness.results.summary import Logs, Meta, Run, Summary
from harness.results.verdicts import SCORES_FILE, Audit, Compliance, ScoresFile
from harness.runs import folder as results
from harness.runs.folder import FOLDER
from harness.runs.probe import Probe
from harness.runs.records import RunFacts
from harness.terminal.progress import as_said

OF_WHOLE_TEST = (  # what a steady part has, too: at fixed concurrency that is the result
    *("tokens_per_sec", "input_tokens_per_sec", "total_tokens_per_sec", "samples_per_sec"),
    *("cost_per_million_output_tokens", "cost_per_million_tokens", "cost_per_thousand_requests"),
)

MADE = ("summary.json", "report.md", "report.html", "plots")  # of a run's logs

if TYPE_CHECKING:
    from rich.table import Table


def build(folder: Path) -> Summary:
    """Writes summary.json, plots/, report.md and report.html into a run folder; returns the summary.

    Raises UsageError, LogError where a file cannot be read or no test came to its end.
    """
    facts = results.facts_of(folder)
    check_format(folder, facts)
    ended = results.ended_early(folder, reported=bool(facts.stages))
    test = performance_test(folder, facts, whole=ended is None)
    summary = summarize(folder, facts, test, ended)
    if not summary.run.model_dump(exclude_none=True):
        status = results.status_of(folder)
        why = f" ({status.reason})" if status and status.reason else ""
        raise UsageError(f"{folder}: no test came to its end{why}; nothing to render.")
    summary = summary.model_copy(update={"plots": summary.plots | plots.draw_plots(folder, summary, test)})
    values = template_values(facts, summary)
    write_json(folder / "summary.json", summary.model_dump(mode="json"))
    write_text(folder / "report.md", render("report.md.j2", sent=False, **values))
    page = run_page.html(folder, summary, test, render("report.md.j2", sent=True, **values))
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
        numbers=metrics.rows(summary, "report"),
        of_whole_test=OF_WHOLE_TEST,
        headline=metrics.BY_NAME[summary.scenario.headline],
        quantities=telemetry.BY_NAME,
        **curve(summary.run),
        unexposed=telemetry.unexposed(summary.run.performance.usage if summary.run.performance else {}),
        screen=answer.last_screen(summary, whole=True),
        levels=tables.levels(answer.levels(summary)),
        setting=answer.setting(summary),
        intervals=tables.intervals(summary.run.performance),
        gpu_time=tables.gpu_time(summary.run.performance.gpu_time if summary.run.performance else []),
        findings=findings(summary, facts.plan.config.is_searched),
        late=client(summary.run.performance),
        **dict(summary),
    )


def curve(run: Run) -> dict[str, object]:
    """The table of the loads, and where the most tokens are made within the limits, at what cost."""
    test, search = run.performance, run.search or []
    price, best = test.cost.price_per_hour if test and test.cost else None, tables.best(search)
    return {
        "search_table": tables.probes(search, price) if search else None,
        "best": best,
        "best_cost": best.cost(price) if best and price else None,
    }


def differences(folder: Path) -> Iterator[str]:
    """What a run's files say that its logs do not: summary, report, page and history line are made again elsewhere.

    Raises UsageError for a folder that is none, or of another format.
    """
    facts = results.facts_of(folder)
    check_format(folder, facts)
    tested = [FOLDER["performance"], *(probe.folder for probe in (*facts.probes, *facts.attempts) if probe.folder)]
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / folder.resolve().name
        copy.mkdir()
        for path in folder.resolve().iterdir():
            if path.name not in MADE:
                (copy / path.name).symlink_to(path)
        try:
            for name in dict.fromkeys(tested):
                if (folder / name / loadgen_log.DETAIL).exists():
                    result = TestRun.read(folder / name, facts.plan).result
                    yield from agreement.disagreements(folder / name, loadgen_log.read(folder / name))
                    yield from out_of_time(folder, name, result.started, facts.started)
            for probe in facts.probes + facts.attempts:
                yield from of_probe(folder, probe, facts)
            summary = build(copy)
        except (loadgen_log.LogError, UsageError) as error:
            yield str(error)
            return
        yield from unlike_files(folder, copy, summary)


def out_of_time(folder: Path, name: str, tested: str | None, started: str) -> Iterator[str]:
    """Whether a test's log is of another time than the run's."""
    status = results.readable_status(folder)
    times = [datetime.fromisoformat(time) for time in (started, tested, status.time if status else None) if time]
    if tested and times != sorted(times):
        yield f"{name}: a test of {tested}, before or after this run, which began at {started}"


def of_probe(folder: Path, probe: Probe, facts: RunFacts) -> Iterator[str]:
    """Where a probe's logs say something else than config.json keeps of it."""
    if not (folder / probe.folder / loadgen_log.DETAIL).exists() or not probe.folder or probe.concurrency:
        return
    result = TestRun.read(folder / probe.folder, facts.plan).result
    found: dict[str, object] = {"valid": result.valid, "tokens_per_sec": result.tokens_per_sec}
    found |= {"ttft_p99": result.ttft_ms and result.ttft_ms.p99, "tpot_p99": result.tpot_ms and result.tpot_ms.p99}
    for name, value in found.items():
        if getattr(probe, name) != value:
            yield f"config.json: {name} of {probe.folder} is {getattr(probe, name)}; its log gives {value}"


def unlike_files(folder: Path, copy: Path, summary: Summary) -> Iterator[str]:
    """Where summary.json, report.md, report.html and the history are not as they were made again."""
    kept, made = (dict(leaves(files.read_json(place / "summary.json"))) for place in (folder, copy))
    lines = [line for line in results.history(folder.resolve().parent) if line["run"] == copy.name]
    now = dict(leaves(history_line(summary)))
    for name, before, after in (
        ("summary.json", kept, made),
        *(("history.jsonl", dict(leaves(line)), now | {"run": copy.name}) for line in lines[-1:]),
    ):
        for key in before | after:
            if before.get(key) != after.get(key):
                yield f"{name}: {key} is {before.get(key)}; the logs give {after.get(key)}"
    for name in ("report.md", "report.html"):
        pairs = zip_longest(*(reading.read_text(place / name).splitlines() for place in (folder, copy)))
        wrong = [number for number, (before, after) in enumerate(pairs, start=1) if before != after]
        if wrong:
            yield f"{name}: {len(wrong):,} lines are not what the logs give, the first is line {wrong[0]:,}"


def leaves(data: object, name: str = "") -> Iterator[tuple[str, object]]:
    """Every value in nested data, with the path to it."""
    if isinstance(data, dict | list) and data:
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, f"{name}.{key}".lstrip("."))
    else:
        yield name, data


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
    deviations = [*facts.deviations, *(["the run did not come to its end"] if ended else [])]
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
    """What came of each test that came to its end."""
    scores = folder / FOLDER["accuracy"] / SCORES_FILE
    audits: tuple[Audit, ...] = ("test04", "test06")
    judged: dict[Audit, Path] = {test: folder / FOLDER[test] / RESULT for test in audits}
    compliance = {test: files.read(path, Compliance) for test, path in judged.items() if path.exists()}
    return Run(
        accuracy=files.read(scores, ScoresFile) if scores.exists() else None,
        performance=measured,
        search=facts.probes or None,
        attempts=facts.attempts or None,
        compliance=compliance or None,
        profile=traces.read_profile(folder),
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
    """The files of each test that was begun."""
    folders = {test: folder / name for test, name in FOLDER.items() if (folder / name).is_dir()}
    return Logs.of(
        {
            test: sorted(str(path.relative_to(folder)) for path in found.glob("*") if path.is_file())
            for test, found in folders.items()
        }
    )


def result_deviations(run: Run, mode: str, counted: bool = False) -> Iterator[str]:
    """Why what came out cannot stand beside MLPerf's, whatever the settings were; `counted`: the server had said
    before what comes from its cache."""
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
    """Renders results/index.md, newest run first."""
    index.write_index(results_dir, "index.md.j2", History, metrics=metrics.metrics_of("index"))


def table(summary: Summary) -> "Table":
    """The result as one table for the terminal."""
    from rich.table import Table

    work = "" if summary.meta.workload == OFFICIAL else f"  {summary.meta.workload}"
    meta, score, test = summary.meta, summary.run.accuracy, summary.run.performance
    title = as_said(f"{f'{meta.label}: ' if meta.label else ''}{meta.model}  {meta.category} {meta.scenario}{work}")
    page = Table(title=title, show_header=False, title_style="bold")
    for said in test.disagreements if test else []:
        page.add_row("DISPUTED", as_said(said), style="yellow")
    if score:
        page.add_row("accuracy", score.verdict, style={"PASS": "green", "FAIL": "red"}.get(score.verdict, ""))
        for check in score.checks:
            most = f", at most {number(check.high, 6)}" if check.high else ""
            name = f"{check.name}{' (approximate)' if check.name in score.approximate else ''}"
            page.add_row(f"  {name}", f"{number(check.score, 6)}  (at least {number(check.low, 6)}{most})")
    if test:
        page.add_row("performance", "VALID" if test.valid else "INVALID", style="green" if test.valid else "red")
        for reason in [*test.invalid_reasons, *(f"LoadGen error: {error}" for error in test.errors)]:
            page.add_row("", as_said(reason))
    for metric, value in metrics.rows(summary, "terminal"):
        page.add_row(f"  {metric.label}", number(value))
    for name, audit in (summary.run.compliance or {}).items():
        page.add_row(name.upper(), "PASS" if audit.passed else "FAIL", style="green" if audit.passed else "red")
    for said in test.ran_out[:1] if test else []:
        page.add_row("bound by", as_said(said))
    if meta.deviations:
        page.add_row("note", "not comparable with MLPerf results")
    return page
