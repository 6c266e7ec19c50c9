"""The way of one run: plan, data, engine, rate, tests, report."""

import gc
from dataclasses import asdict, replace
from typing import Any

from harness import engines
from harness.common import processes, system
from harness.common.errors import DONE, NOT_ACCEPTED
from harness.common.progress import Display
from harness.common.secrets import hide_settings
from harness.config import checkpoint as model
from harness.config.plan import Plan, resolve
from harness.config.run import RunConfig
from harness.evaluation import accuracy, compliance
from harness.evaluation.accuracy import Evaluation
from harness.loadgen import search
from harness.loadgen import target_rate as rates
from harness.loadgen.probes import goal
from harness.loadgen.session import Bench
from harness.monitoring import background_load as others
from harness.monitoring.engine_start import start
from harness.monitoring.watchdog import Watchdog
from harness.profiling import load as profiling
from harness.profiling import traces
from harness.quantization import checkpoints
from harness.reporting import report as rendering
from harness.results import endpoint_overhead as beside
from harness.results.summary import Summary
from harness.runs import folder as results
from harness.runs.folder import RunFolder
from harness.runs.probe import Probe
from harness.workloads import cnn_dailymail as samples
from harness.workloads import custom as workload_samples


def run(config: RunConfig, folder: RunFolder, display: Display) -> int:
    """One run of the benchmark in its folder; returns the exit code. Raises BenchmarkError."""
    weights, reference = model.weight_bytes(config), model.is_reference(config)
    tokenizer = model.load_tokenizer(config)
    if not config.official_workload:
        display.stage("reading the workload")
    workload = workload_samples.load(config, tokenizer)
    asked, random = workload.asked if workload else None, model.has_random_weights(config)
    plan = resolve(config, system.gpus(), weights, reference, asked, random)
    results.record(folder, plan, command=processes.command_line(), started=results.now(), system=system.facts())
    warn(display, plan.deviations)
    title = checkpoints.title(config)
    library = workload or official_samples(plan, tokenizer)
    if not library.official:
        known, plan = plan.deviations, replace(plan, official_data=False)
        warn(display, [reason for reason in plan.deviations if reason not in known])
    warn_short(display, plan)
    for said in rates.unused(config):
        display.say(said, style="yellow")

    taken = others.taken_gpus()
    engine = engines.create(plan, folder.path / traces.FOLDER)
    start(engine, folder, config.stall_timeout, display)
    known, plan = plan.deviations, replace(plan, running=engine.running)
    warn(display, [reason for reason in plan.deviations if reason not in known])
    data = {"data": library.source, "mean_prompt_tokens": round(library.mean_prompt_tokens, 1)}
    data |= {"concurrency": None if config.endpoint else engine.concurrency}  # a server's own is not told
    data |= {"checkpoint": title if plan.running.quantized_checkpoint else None}
    results.record(
        folder, plan, engine_start_s=round(engine.start_s, 1), engine_args=hide_settings(engine.args), **data
    )
    gc.collect()
    gc.freeze()  # what is loaded stays: no need to look through it again while measuring
    bench = Bench(folder, engine, library, display, Watchdog(engine, config.stall_timeout), taken_gpus=taken)
    plan = find_rate(plan, bench)
    evaluation = measure(plan, bench, tokenizer)
    display.stage(f"stopping {engine.name}")
    engine.close()
    summary = report(plan, folder, display)
    return exit_code(config, evaluation, summary)


def official_samples(plan: Plan, tokenizer: Any) -> samples.Library:
    """MLPerf's samples, which all fit the context."""
    library = samples.load(plan.config, tokenizer, plan.samples)
    samples.check_lengths(library, plan.max_model_len, plan.max_new_tokens)
    return library


def warn(display: Display, deviations: list[str]) -> None:
    if deviations:
        display.say(f"not comparable with MLPerf results: {'; '.join(deviations)}", style="yellow")


def warn_short(display: Display, plan: Plan) -> None:
    if plan.too_short:
        display.say(plan.too_short, style="yellow")


def find_rate(plan: Plan, bench: Bench) -> Plan:
    """The plan with its target rate: from the history, a short calibration, or a search."""
    need = rates.needed(plan.config)
    if need == "nothing":
        return plan
    known = known_offline(plan) if plan.config.row.fixed_rate else None
    if plan.config.batches:
        found = try_batches(plan, bench)
    elif plan.config.tries_rates:
        found = try_rates(plan, bench, known)
    elif known:
        found = rates.from_history(plan, known)
    else:
        found = rates.from_trial(plan, calibrate(plan, bench))
    bench.display.done(found.notes[-1])
    warn_short(bench.display, found)
    results.record(bench.run, found)
    return found


def known_offline(plan: Plan) -> rates.Known | None:
    """The last Offline run of the same set-up on these GPUs."""
    names = [gpu.name for gpu in system.gpus()]
    return rates.known_offline(plan, names, results.history(plan.config.results_dir))


def calibrate(plan: Plan, bench: Bench) -> rates.Trial:
    """A short trial on the loaded engine."""
    bench.display.stage("calibrating")
    requests = rates.trial_samples(plan, bench.library.requests, bench.engine.concurrency)
    return bench.measure(rates.trial(bench.engine, requests, rates.trial_batch(plan)))


def try_rates(plan: Plan, bench: Bench, known: rates.Known | None) -> Plan:
    """The plan with the best of several rates, each a short test; every one is kept in config.json at once."""

    def probe(qps: float, seconds: float | None = None) -> Probe:
        bench.probes.append(bench.probe(plan, rates.at_rate(plan, qps, seconds)))
        results.record(bench.run, plan, probes=[asdict(probe) for probe in bench.probes])
        return bench.probes[-1]

    given = plan.config.server_target_qps
    if not isinstance(given, tuple):
        return rates.from_search(plan, search.search(start_rate(plan, bench, known), probe, goal(plan)))
    for qps in sorted(set(given)):
        probe(qps)
    if more := search.beyond(goal(plan), bench.probes):
        probe(more)
    return rates.from_curve(plan, bench.probes)


def try_batches(plan: Plan, bench: Bench) -> Plan:
    """The plan with the most samples per query, after a short test with each number of them."""
    for size in sorted(set(plan.config.batches)):
        short = rates.in_batches(plan, size)
        found = rates.from_trial(short, calibrate(short, bench))
        bench.probes.append(bench.probe(plan, found))
        results.record(bench.run, plan, probes=[asdict(probe) for probe in bench.probes])
    return plan.noted(found.notes[-1], expected_latency_ms=found.expected_latency_ms)


def start_rate(plan: Plan, bench: Bench, known: rates.Known | None) -> float:
    """Where a search begins: at a share of the Offline rate, known or from a short trial."""
    row = plan.config.row
    if known is None:
        return (row.offline_share or 1.0) * calibrate(plan, bench).samples_per_sec
    return (row.search_share or 1.0) * known.requests_per_sec


def measure(plan: Plan, bench: Bench, tokenizer: Any) -> Evaluation | None:
    """Accuracy, performance, compliance, profile. A failed gate ends it, unless the user said otherwise."""
    config, evaluation = plan.config, None
    if config.mode != "performance":
        evaluation = measure_accuracy(plan, bench, tokenizer)
        if gate_failed(config, evaluation):
            return evaluation
    if config.mode != "accuracy":
        plan = measure_performance(plan, bench)
    if config.compliance != "none":
        outcome = compliance.run(bench, plan, config.compliance, tokenizer.eos_token_id)
        bench.display.done(f"compliance: {outcome.headline}")
    if config.profile:
        bench.display.done(f"profile: {profiling.run(plan, bench).headline}")
    return evaluation


def measure_accuracy(plan: Plan, bench: Bench, tokenizer: Any) -> Evaluation:
    folder = bench.test("accuracy", plan)
    bench.display.stage("scoring")
    evaluation = accuracy.evaluate(folder, plan, bench.library, tokenizer)
    bench.display.done(f"accuracy: {evaluation.headline}")
    return evaluation


def measure_performance(plan: Plan, bench: Bench) -> Plan:
    """Runs the performance test, again with a corrected rate if the first was wrong; the plan of the last one."""
    attempts: list[Probe] = []
    for left in reversed(range(rates.max_attempts(plan.config))):
        result, attempt = bench.attempt(plan)
        better = rates.corrected(plan, result, [*bench.probes, *attempts, attempt]) if left else None
        if better is None:
            break
        attempts.append(bench.set_aside(attempt, len(attempts) + 1))
        plan = better
        bench.display.done(plan.notes[-1])
        results.record(bench.run, plan, attempts=[asdict(attempt) for attempt in attempts])
    speed = f"{result.tokens_per_sec:,.0f} output tokens/s" if result.tokens_per_sec else "no tokens"
    bench.display.done(f"performance: {'VALID' if result.valid else 'INVALID'}, {speed}")
    return plan


def report(plan: Plan, folder: RunFolder, display: Display) -> Summary:
    """Writes all that is made from the run's logs, and shows the result."""
    display.stage("writing the report")
    other = beside.find(plan, results.history(plan.config.results_dir))
    results.note(folder, stages=display.stages, in_process=other and other.model_dump())
    config, summary = plan.config, rendering.build(folder.path)
    results.finish(folder, rendering.history_line(summary), bool(config.keep_all), display.done)
    with results.or_say(display.done, f"{config.results_dir / 'index.md'} could not be written"):
        rendering.write_index(config.results_dir)
    display.say("")
    display.console.print(rendering.table(summary))
    display.say(f"report: {folder.path / 'report.md'}")
    return summary


def gate_failed(config: RunConfig, evaluation: Evaluation | None) -> bool:
    return evaluation is not None and evaluation.verdict == "FAIL" and not config.no_exit_on_accuracy_fail


def exit_code(config: RunConfig, evaluation: Evaluation | None, summary: Summary) -> int:
    """1 where the gate or a compliance test failed, or the result is not accepted and the user wants that to count."""
    invalid = config.exit_on_invalid and not summary.accepted
    caught = not all(test.passed for test in (summary.run.compliance or {}).values())
    return NOT_ACCEPTED if gate_failed(config, evaluation) or invalid or caught else DONE
