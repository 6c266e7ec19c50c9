"""A run folder -> summary.json, plots and report.md; the line of the history, the index, the table for the terminal.

All of it follows from the folder: config.json, LoadGen's logs, the scores.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from harness import beside, loadgen_log, metrics, plots, results, rules, traces, usage
from harness.compliance import RESULT
from harness.errors import UsageError
from harness.facts import SCHEMA, Cost, LimitsMs, MachineUse, RunFacts
from harness.pages import number, render
from harness.plan import Plan
from harness.results import FOLDER, write_json, write_text
from harness.summary import (
    SCORES_FILE,
    Audit,
    Compliance,
    History,
    Logs,
    Meta,
    Performance,
    Run,
    ScoresFile,
    Summary,
)

if TYPE_CHECKING:
    from rich.table import Table

TOKENS, PROMPT_TOKENS = "tokens.json", "prompt_tokens.json"


def build(folder: Path) -> Summary:
    """Writes summary.json, plots/ and report.md into a run folder; returns the summary.

    Raises UsageError, LogError where a file cannot be read or no test came to its end.
    """
    facts = results.facts_of(folder)
    summary = summarize(folder, facts)
    if not summary.run.model_dump():
        status = results.status_of(folder)
        why = f" ({status.reason})" if status and status.reason else ""
        raise UsageError(f"{folder}: no test came to its end{why}; nothing to render.")
    summary = summary.model_copy(update={"plots": summary.plots | plots.draw(folder, summary)})
    page = render(
        "report.md.j2",
        config=facts.plan.config,
        summary=summary,
        scenario=summary.scenario,
        numbers=metrics.rows(summary, "report"),
        headline=metrics.BY_NAME[summary.scenario.headline],
        compared=beside.compared(summary),
        cost=beside.cost(summary),
        quantities=usage.BY_NAME,
        **dict(summary),
    )
    write_json(folder / "summary.json", summary.model_dump(mode="json"))
    write_text(folder / "report.md", page)
    return summary


def summarize(folder: Path, facts: RunFacts) -> Summary:
    """The summary without its plots: what the folder's logs say. Raises LogError on a log that cannot be trusted."""
    run = tests(folder, facts)
    deviations = [*facts.deviations, *reservations(run, facts.plan.config.mode)]
    return Summary(
        schema_version=SCHEMA,
        meta=meta(folder, facts, deviations),
        system=facts.system,
        run=run,
        logs=logs(folder),
        plots={"tokens_per_sec": None, "latency_cdf": None},
    )


def tests(folder: Path, facts: RunFacts) -> Run:
    """What came of each test."""
    scores = folder / FOLDER["accuracy"] / SCORES_FILE
    audits: tuple[Audit, ...] = ("test04", "test06")
    judged: dict[Audit, Path] = {test: folder / FOLDER[test] / RESULT for test in audits}
    measured = (folder / FOLDER["performance"] / loadgen_log.DETAIL).exists()
    compliance = {test: results.read(path, Compliance) for test, path in judged.items() if path.exists()}
    return Run(
        accuracy=results.read(scores, ScoresFile) if scores.exists() else None,
        performance=performance(folder / FOLDER["performance"], facts.plan, facts.concurrency) if measured else None,
        search=facts.probes or None,
        compliance=compliance or None,
        profile=traces.kept(folder),
    )


def meta(folder: Path, facts: RunFacts, deviations: list[str]) -> Meta:
    plan, config, running = facts.plan, facts.plan.config, facts.plan.running
    return Meta(
        run=folder.resolve().name,
        started=facts.started,
        command=facts.command,
        mlperf_version=config.version,
        model=config.model,
        category=config.category,
        scenario=config.scenario,
        mode=config.mode,
        samples=plan.samples,
        comparable=not deviations,
        deviations=deviations,
        notes=list(plan.notes),
        precision=running.precision or config.precision,
        quantization=running.quantization,
        kv_cache_dtype=running.kv_cache_dtype,
        checkpoint=facts.checkpoint,
        load_format=config.load_format,
        tensor_parallel_size=plan.tensor_parallel_size,
        data_parallel_size=plan.data_parallel_size,
        max_model_len=plan.max_model_len,
        max_new_tokens=config.max_new_tokens,
        batch_size=config.batch_size,
        prefix_caching=running.prefix_caching,
        data=facts.data,
        mean_prompt_tokens=facts.mean_prompt_tokens,
        engine_start_s=facts.engine_start_s,
        stages=facts.stages,
        engine_args=facts.engine_args,
        setup=plan.setup,
        endpoints=list(config.endpoint),
        in_process=facts.in_process,
    )


def logs(folder: Path) -> Logs:
    """The files of each test that was begun."""
    folders = {test: folder / name for test, name in FOLDER.items() if (folder / name).is_dir()}
    return Logs.of(
        {
            test: sorted(str(path.relative_to(folder)) for path in found.glob("*") if path.is_file())
            for test, found in folders.items()
        }
    )


def reservations(run: Run, mode: str) -> Iterator[str]:
    """Why what came out cannot stand beside MLPerf's, whatever the settings were."""
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
    if test and test.errors:
        yield "LoadGen logged errors"
    yield from (f"{name.upper()} failed" for name, found in (run.compliance or {}).items() if not found.passed)


def performance(folder: Path, plan: Plan, concurrency: int | None = None) -> Performance:
    """The performance part of the summary: LoadGen's numbers, and the token counts that were reported to it.

    Raises LogError for the log of another run.
    """
    scenario = rules.SCENARIO[plan.config.scenario]
    log = loadgen_log.read(folder, rules.SCENARIO[plan.config.scenario].loadgen, "PerformanceOnly")
    for name, found, planned in (
        ("seeds", log.seeds, asdict(plan.seeds)),
        ("minimum duration, ms", log.effective.get("min_duration_ms"), round(1000 * plan.min_duration_s)),
    ):
        if found != planned:
            raise loadgen_log.LogError(f"{folder}: a log of another run: its {name}: {found}, not {planned}.")
    limits = plan.limits
    used = results.read(folder / "machine.json", MachineUse) if (folder / "machine.json").exists() else MachineUse()
    recorded = usage.of(folder / "machine.csv")
    peak = recorded.get("gpu_memory_gib") or recorded.get("memory_gib")
    new, prompts = counts(folder / TOKENS), counts(folder / PROMPT_TOKENS)
    read_in = sum(prompts) / log.duration_s if prompts and log.duration_s else None
    total = read_in + log.tokens_per_sec if read_in and log.tokens_per_sec else None
    return Performance(
        scenario=plan.config.scenario,
        valid=bool(log.valid),
        invalid_reasons=log.invalid_reasons,
        duration_s=log.duration_s,
        samples=log.samples,
        samples_per_query=plan.samples_per_query,
        total_new_tokens=sum(new) if new else None,
        total_input_tokens=sum(prompts) if prompts else None,
        tokens_per_sec=log.tokens_per_sec,
        input_tokens_per_sec=read_in,
        total_tokens_per_sec=total,
        samples_per_sec=log.samples_per_sec,
        target_qps=log.target_qps if scenario.planned_by_rate else None,
        achieved_qps=log.samples_per_sec,
        latency_ms=log.latency_ms,
        ttft_ms=log.ttft_ms,
        tpot_ms=log.tpot_ms,
        limits_ms=LimitsMs(ttft=limits.ttft_ms, tpot=limits.tpot_ms) if limits else None,
        early_stopping=log.early_stopping,
        peak_memory_gib=peak.max if peak else None,
        usage=recorded,
        ran_out=list(usage.ran_out(recorded, concurrency)),
        **used.model_dump(),
        goodput=goodput(folder, new, limits),
        requests_in_flight=log.samples_per_sec * log.latency_ms.mean / 1000
        if scenario.streaming and log.samples_per_sec and log.latency_ms
        else None,
        joules_per_output_token=used.gpu_joules / sum(new) if used.gpu_joules and sum(new) else None,
        cost=cost(plan.config.price_per_hour, log.tokens_per_sec, total, log.samples_per_sec),
        seeds=log.seeds,
        loadgen_version=log.loadgen_version,
        errors=counted(log.errors),
        warnings=counted(log.warnings),
    )


def goodput(folder: Path, tokens: Sequence[int], limits: rules.Limits | None) -> float | None:
    """Percent of the requests that kept both limits; an answer of one token has no time per output token to keep.

    None where there are no limits, or LoadGen left no trace.
    """
    if limits is None or not (folder / loadgen_log.TRACE).exists():
        return None
    samples = loadgen_log.read_trace(folder)
    if not samples or len(samples) != len(tokens):
        return None
    kept = 0
    for sample, count in zip(samples, tokens, strict=True):
        if sample.ttft_ms is None:
            return None
        tpot = (sample.latency_ms - sample.ttft_ms) / (count - 1) if count > 1 else 0.0
        kept += sample.ttft_ms <= limits.ttft_ms and tpot <= limits.tpot_ms
    return 100 * kept / len(samples)


def cost(price_per_hour: float | None, output: float | None, total: float | None, rate: float | None) -> Cost | None:
    """What a machine at this price an hour asks for its tokens and requests; rates are per second."""
    if price_per_hour is None:
        return None
    second = price_per_hour / 3600
    return Cost(
        price_per_hour=price_per_hour,
        per_million_output_tokens=1e6 * second / output if output else None,
        per_million_tokens=1e6 * second / total if total else None,
        per_thousand_requests=1e3 * second / rate if rate else None,
    )


def counts(path: Path) -> list[int]:
    """Token counts in the order of issue; none where they were not recorded. Raises UsageError."""
    return results.read(path, list[int]) if path.exists() else []


def counted(texts: Sequence[str]) -> list[str]:
    """Each text once, with how often it was said."""
    return [f"{text} ({times:,} times)" if times > 1 else text for text, times in Counter(texts).items()]


def history_line(summary: Summary) -> dict[str, object]:
    """What results/history.jsonl keeps of a run."""
    line = History.of(summary, metrics.values(summary, "index") | metrics.values(summary, "report"))
    return line.model_dump(mode="json", exclude={"run"})


def write_index(results_dir: Path) -> None:
    """Renders results/index.md, newest run first."""
    results.write_index(results_dir, "index.md.j2", History, metrics=metrics.shown("index"))


def table(summary: Summary) -> "Table":
    """The result as one table for the terminal."""
    from rich.table import Table

    meta, score, test = summary.meta, summary.run.accuracy, summary.run.performance
    page = Table(title=f"{meta.model}  {meta.category} {meta.scenario}", show_header=False, title_style="bold")
    if score:
        page.add_row("accuracy", score.verdict, style={"PASS": "green", "FAIL": "red"}.get(score.verdict, ""))
        for check in score.checks:
            most = f", at most {number(check.high, 6)}" if check.high else ""
            name = f"{check.name}{' (approximate)' if check.name in score.approximate else ''}"
            page.add_row(f"  {name}", f"{number(check.score, 6)}  (at least {number(check.low, 6)}{most})")
    if test:
        page.add_row("performance", "VALID" if test.valid else "INVALID", style="green" if test.valid else "red")
        for reason in [*test.invalid_reasons, *(f"LoadGen error: {error}" for error in test.errors)]:
            page.add_row("", reason)
    for metric, value in metrics.rows(summary, "terminal"):
        page.add_row(f"  {metric.label}", number(value))
    for name, audit in (summary.run.compliance or {}).items():
        page.add_row(name.upper(), "PASS" if audit.passed else "FAIL", style="green" if audit.passed else "red")
    if meta.deviations:
        page.add_row("note", "not comparable with MLPerf results")
    return page
