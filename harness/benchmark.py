"""The way of one run: plan, data, engine, rate, tests, report."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

from harness import engines
from harness.common import files, processes, system
from harness.common.errors import DONE, NOT_ACCEPTED, NotAcceptedError
from harness.common.progress import Display
from harness.common.schema import SCHEMA
from harness.common.secrets import hide_settings
from harness.config import checkpoint as model
from harness.config.plan import Plan, resolve
from harness.config.run import MAXIMA, RunConfig
from harness.engines import shared_memory
from harness.evaluation import accuracy, compliance
from harness.loadgen import levels, outlook, search
from harness.loadgen import target_rate as rates
from harness.loadgen.failures import Sparing
from harness.loadgen.probes import goal
from harness.loadgen.session import Bench, Tested
from harness.monitoring import background_load
from harness.monitoring.engine_start import start
from harness.monitoring.watchdog import Watchdog
from harness.profiling import load as profiling
from harness.profiling import traces
from harness.quantization import checkpoints
from harness.reporting import report as rendering
from harness.results import endpoint_overhead
from harness.results.summary import Accuracy, Summary
from harness.runs import folder as results
from harness.runs.folder import RunFolder
from harness.runs.probe import Probe
from harness.runs.records import RunFacts
from harness.workloads import cnn_dailymail as samples
from harness.workloads import custom as workload_samples


@dataclass(frozen=True)
class BenchmarkRun:
    """One run under way: its folder, the screen, and what is known of it, which config.json always holds."""

    folder: RunFolder
    display: Display
    facts: RunFacts

    @classmethod
    def begin(cls, plan: Plan, folder: RunFolder, display: Display) -> Self:
        """A run whose settings are known as far as they can be before its samples are read."""
        facts = RunFacts(
            schema_version=SCHEMA,
            plan=plan,
            deviations=[],
            command=processes.command_line(),
            started=results.now(),
            system=system.detect(),
            installed=system.installed(),
        )
        run = cls(folder, display, facts)
        run.adopt(plan)
        return run

    @property
    def plan(self) -> Plan:
        return self.facts.plan

    @property
    def config(self) -> RunConfig:
        return self.plan.config

    def adopt(self, plan: Plan) -> None:
        """Takes the plan as it is known now, and says what is new in it: a rate, or why nothing can be compared."""
        told = self.facts.deviations
        self.facts.adopt(plan)
        self.save()
        if new := [reason for reason in plan.deviations if reason not in told]:
            self.display.say(f"not comparable with MLPerf results: {'; '.join(new)}", style="yellow")

    def save(self) -> None:
        results.record_facts(self.folder, self.facts)

    def warn_short(self) -> None:
        if self.plan.too_short:
            self.display.say(self.plan.too_short, style="yellow")


def run_benchmark(config: RunConfig, folder: RunFolder, display: Display) -> int:
    """One run of the benchmark in its folder; returns the exit code. Raises BenchmarkError."""
    display.stage("loading model, tokenizer and data")
    model.weight_bytes(config)  # a model that cannot be had is found first
    tokenizer = model.load_tokenizer(config)
    run, library = planned(config, tokenizer, folder, display)
    bench = started(run, library)
    find_rate(run, bench)
    evaluation = measure(run, bench, tokenizer)
    display.stage(f"stopping {bench.engine.name}")
    bench.engine.close()
    return exit_code(config, evaluation, report(run))


def dry_run(config: RunConfig, say: Callable[[str], None]) -> int:
    """Says what a run would do, and reads all that it would read but the engine; returns the exit code.

    Raises BenchmarkError where the run would, before its engine starts.
    """
    say(config.headline)
    tokenizer = model.load_tokenizer(config)
    plan, library = prepared(config, tokenizer)
    library = library or official_samples(plan, tokenizer)
    for line in outlook.lines(replace(plan, official_data=library.official), library, system.gpus()):
        say(line)
    return DONE


def prepared(config: RunConfig, tokenizer: Any) -> tuple[Plan, samples.Library | None]:
    """The plan as far as it needs no engine, and the samples of a workload; None where they are MLPerf's."""
    workload = workload_samples.load(config, tokenizer)
    request_set, random = workload.request_set if workload else None, model.has_random_weights(config)
    plan = resolve(config, system.gpus(), model.weight_bytes(config), model.is_reference(config), request_set, random)
    checkpoints.title(config)  # a damaged one ends the run here
    if config.backend == "vllm" and config.computes:
        shared_memory.check(plan.data_parallel_size, plan.tensor_parallel_size, bool(system.gpus()))
    return plan, workload


def planned(
    config: RunConfig, tokenizer: Any, folder: RunFolder, display: Display
) -> tuple[BenchmarkRun, samples.Library]:
    """The run with every setting known that needs no engine, and its samples."""
    plan, workload = prepared(config, tokenizer)
    run = BenchmarkRun.begin(plan, folder, display)
    library = workload or official_samples(plan, tokenizer)
    run.facts.data, run.facts.mean_prompt_tokens = library.source, round(library.mean_prompt_tokens, 1)
    run.adopt(replace(plan, official_data=library.official))
    run.warn_short()
    for said in rates.unused(config):
        display.say(said, style="yellow")
    return run, library


def started(run: BenchmarkRun, library: samples.Library) -> Bench:
    """The run's engine, up, with the samples: the bench of its tests."""
    config, taken = run.config, background_load.busy_gpus()
    engine = engines.create(run.plan, run.folder.path / traces.FOLDER)
    start(engine, run.folder, config.stall_timeout, run.display)
    facts = run.facts
    facts.engine = f"{engine.name} {engine.version}".strip()
    facts.engine_start_s, facts.engine_args = round(engine.start_s, 1), files.as_json(hide_settings(engine.args))
    facts.kernels = engine.kernels
    facts.concurrency = None if config.endpoint else engine.concurrency  # a server's own is not told
    facts.checkpoint = checkpoints.title(config) if engine.engine_state.quantized_checkpoint else None
    run.adopt(replace(run.plan, engine_state=engine.engine_state))
    gc.collect()
    gc.freeze()  # what is loaded stays: no need to look through it again while measuring
    watchdog = Watchdog(engine, config.stall_timeout)
    return Bench(run.folder, engine, library, run.display, watchdog, busy_gpus=taken)


def official_samples(plan: Plan, tokenizer: Any) -> samples.Library:
    """MLPerf's samples, which all fit the context."""
    library = samples.load(plan.config, tokenizer, plan.samples)
    samples.check_lengths(library, plan.max_model_len, plan.max_new_tokens)
    return library


def find_rate(run: BenchmarkRun, bench: Bench) -> None:
    """Completes the plan with its target rate: from the history, a short calibration, or a search."""
    if (need := rates.needed(run.config)) == "nothing":
        return
    found = FINDERS[need](run, bench)
    run.display.done(found.notes[-1])
    run.adopt(found)
    run.warn_short()


def known_offline(plan: Plan) -> rates.Known | None:
    """The last Offline run of the same set-up on these GPUs."""
    names = [gpu.name for gpu in system.gpus()]
    return rates.known_offline(plan, names, results.history(plan.config.results_dir))


def calibrate(plan: Plan, bench: Bench) -> rates.Trial:
    """A short trial on the loaded engine."""
    bench.display.stage("calibrating", "load")
    requests = rates.trial_samples(plan, bench.library.requests, bench.engine.concurrency)
    engine = Sparing.of(bench.engine, plan.config.max_failed, len(requests))
    return bench.measure(rates.trial(engine, requests, rates.trial_batch(plan)))


def probed(run: BenchmarkRun, bench: Bench, short: Plan) -> Probe:
    """A short test, kept in config.json at once."""
    run.facts.probes.append(bench.probe(short))
    run.save()
    return run.facts.probes[-1]


def by_trial(run: BenchmarkRun, bench: Bench) -> Plan:
    """The plan with the rate, or the latency, of a short trial."""
    return rates.from_trial(run.plan, calibrate(run.plan, bench))


def by_history(run: BenchmarkRun, bench: Bench) -> Plan:
    """The plan with a share of the rate of the last Offline run, or else of a trial."""
    last_offline = known_offline(run.plan)
    return rates.from_history(run.plan, last_offline) if last_offline else by_trial(run, bench)


def by_search(run: BenchmarkRun, bench: Bench) -> Plan:
    """The plan with the highest rate that a full test should keep."""
    plan = run.plan

    def probe(qps: float, seconds: float) -> Probe:
        return probed(run, bench, rates.at_rate(plan, qps, seconds))

    return rates.from_search(plan, search.search(start_rate(plan, bench), probe, goal(plan)))


def try_rates(run: BenchmarkRun, bench: Bench) -> Plan:
    """The plan with the best of the rates that were given, each a short test."""
    plan, given = run.plan, run.config.server_target_qps
    for qps in sorted(set(given)) if isinstance(given, tuple) else ():
        probed(run, bench, rates.at_rate(plan, qps))
    if more := search.beyond(goal(plan), run.facts.probes):
        probed(run, bench, rates.at_rate(plan, more))
    return rates.from_curve(plan, run.facts.probes)


def try_batches(run: BenchmarkRun, bench: Bench) -> Plan:
    """The plan with the most samples per query, after a short test with each number of them."""
    for size in sorted(set(run.config.batches)):
        short = rates.in_batches(run.plan, size)
        found = rates.from_trial(short, calibrate(short, bench))
        probed(run, bench, found)
    return run.plan.noted(found.notes[-1], expected_latency_ms=found.expected_latency_ms)


def try_levels(run: BenchmarkRun, bench: Bench) -> Plan:
    """The plan at the highest level of concurrency; the others are tests of their own before it, as long as it."""
    plan = run.plan
    *before, last = levels.chosen(run.config.levels, bench.engine.concurrency)
    for level in before:
        probed(run, bench, at_level(plan, bench, level))
    return at_level(plan, bench, last)


def most_in_flight(run: BenchmarkRun, bench: Bench) -> Plan:
    """The plan at the highest concurrency that keeps both limits, by short tests."""
    plan, first = run.plan, bench.engine.concurrency // 4

    def probe(level: int) -> Probe:
        return probed(run, bench, levels.short(at_level(plan, bench, level)))

    found = levels.highest(probe, max(1, first), MAXIMA["concurrency"])
    if found is None:
        raise NotAcceptedError("a single request in flight does not keep the limits: see Probes/ in the run's folder.")
    return at_level(plan, bench, found)


def at_level(plan: Plan, bench: Bench, level: int) -> Plan:
    """The plan of a test with so many requests in flight, after a short trial."""
    bench.display.stage("calibrating", "load")
    engine = Sparing.of(bench.engine, plan.config.max_failed, levels.trial_requests(level))
    return levels.at_level(plan, level, bench.measure(levels.trial(engine, bench.library.requests, level)))


def start_rate(plan: Plan, bench: Bench) -> float:
    """Where a search begins: at a share of the Offline rate, known or from a short trial."""
    rules, last_offline = plan.config.scenario_rules, known_offline(plan)
    if last_offline is None:
        return (rules.offline_share or 1.0) * calibrate(plan, bench).samples_per_sec
    return (rules.search_share or 1.0) * last_offline.requests_per_sec


FINDERS: dict[rates.Need, Callable[[BenchmarkRun, Bench], Plan]] = {
    "offline": by_trial,
    "latency": by_trial,
    "batches": try_batches,
    "server": by_history,
    "max": by_search,
    "curve": try_rates,
    "levels": try_levels,
    "most": most_in_flight,
}


def measure(run: BenchmarkRun, bench: Bench, tokenizer: Any) -> Accuracy | None:
    """Accuracy, performance, compliance, profile. A failed gate ends it, unless the user said otherwise."""
    config, evaluation, loaded = run.config, None, list[int]()
    if config.mode != "performance":
        evaluation = measure_accuracy(run.plan, bench, tokenizer)
        if gate_failed(config, evaluation):
            return evaluation
    if config.mode != "accuracy":
        loaded = measure_performance(run, bench).loaded
    if config.compliance != "none":
        outcome = compliance.run_compliance(bench, run.plan, config.compliance, tokenizer.eos_token_id, loaded)
        run.display.done(f"compliance: {outcome.headline}")
    if config.profile:
        run.display.done(f"profile: {profiling.run_profile(run.plan, bench).headline}")
    return evaluation


def measure_accuracy(plan: Plan, bench: Bench, tokenizer: Any) -> Accuracy:
    tested = bench.test("accuracy", plan)
    bench.display.stage("scoring")
    evaluation = accuracy.evaluate(tested.folder, plan, bench.library, tokenizer)
    bench.display.done(f"accuracy: {evaluation.headline}")
    return evaluation


def measure_performance(run: BenchmarkRun, bench: Bench) -> Tested:
    """Runs the performance test, again with a corrected rate if the first was wrong."""
    attempts = run.facts.attempts
    for left in reversed(range(rates.max_attempts(run.config))):
        tested, result, attempt = bench.attempt(run.plan)
        better = rates.corrected(run.plan, result, [*run.facts.probes, *attempts, attempt]) if left else None
        if better is None:
            break
        attempts.append(bench.set_aside(attempt, len(attempts) + 1))
        run.display.done(better.notes[-1])
        run.adopt(better)
    if run.config.scenario_rules.capped:  # a point of the curve as the others
        run.facts.probes.append(attempt)
    speed = f"{result.tokens_per_sec:,.0f} output tokens/s" if result.tokens_per_sec else "no tokens"
    run.display.done(f"performance: {'VALID' if result.valid else 'INVALID'}, {speed}")
    return tested


def report(run: BenchmarkRun) -> Summary:
    """Writes all that is made from the run's logs, and shows the result."""
    config, display = run.config, run.display
    display.stage("writing the report")
    run.facts.in_process = endpoint_overhead.find(run.plan, results.history(config.results_dir))
    run.facts.stages = display.stages
    run.save()
    summary = rendering.build(run.folder.path)
    results.finish(run.folder, rendering.history_line(summary), bool(config.keep_all), display.done)
    with results.or_say(display.done, f"{config.results_dir / 'index.md'} could not be written"):
        rendering.write_index(config.results_dir)
    display.say("")
    display.console.print(rendering.table(summary))
    display.say(f"report: {run.folder.path / 'report.md'}")
    return summary


def gate_failed(config: RunConfig, evaluation: Accuracy | None) -> bool:
    return evaluation is not None and evaluation.verdict == "FAIL" and not config.no_exit_on_accuracy_fail


def exit_code(config: RunConfig, evaluation: Accuracy | None, summary: Summary) -> int:
    """1 where the gate or a compliance test failed, or the result is not accepted and the user wants that to count."""
    invalid = config.exit_on_invalid and not summary.accepted
    caught = not all(test.passed for test in (summary.run.compliance or {}).values())
    return NOT_ACCEPTED if gate_failed(config, evaluation) or invalid or caught else DONE
