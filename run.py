"""The command: one run of the benchmark, from flags to report. `python run.py --help` lists the flags."""

import gc
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, NoReturn

from harness.cli import run_command
from harness.config import Plan, RunConfig, resolve, without_secrets
from harness.errors import DONE, NOT_ACCEPTED

if TYPE_CHECKING:
    from harness.accuracy import Evaluation
    from harness.bench import Bench
    from harness.progress import Display
    from harness.results import RunFolder


def main(config: RunConfig) -> NoReturn:
    """Runs the benchmark in a folder of its own; ends the process with the exit code."""
    from harness import ending, progress, results

    ending.heed_signals()
    run = results.open_run(config.results_dir, f"{config.category}-{config.scenario}")
    with progress.screen(run.path / "engine.log") as console:
        try:
            with progress.Display(console) as display:
                code = benchmark(config, run, display)
        except (Exception, KeyboardInterrupt) as error:
            code = ending.give_up(error, run, console)
        ending.leave(code)


def benchmark(config: RunConfig, run: "RunFolder", display: "Display") -> int:
    """The way of one run."""
    display.say(f"{config.model}, {config.category} {config.scenario}, {config.mode}, MLPerf v{config.version}")
    from harness import bench, ending, engine, rendering, results, samples, system, tracking

    weights, reference = system.weight_bytes(config), system.is_reference(config)
    plan = resolve(config, samples.task(config), system.gpus(), weights, reference)
    results.record(run, plan, command=ending.command_line(), started=results.now(), system=system.facts())
    warn(display, plan.shortcomings)
    tokenizer = samples.load_tokenizer(config)
    library = samples.load(config, tokenizer, plan.samples)
    samples.check_lengths(library, plan.max_model_len, config.max_new_tokens)

    room = engine.Engine(engine.args_for(plan), engine.Sampling(config.max_new_tokens), config.streaming)
    display.stage("starting vLLM")
    room.start(display.tick)
    display.done(f"vLLM {room.version} is up after {room.start_s:.0f} s")
    known, plan = plan.shortcomings, replace(plan, running=room.running)
    warn(display, [reason for reason in plan.shortcomings if reason not in known])
    data = {"data": library.source, "mean_prompt_tokens": round(library.mean_prompt_tokens, 1)}
    results.record(run, plan, engine_start_s=round(room.start_s, 1), engine_args=without_secrets(room.args), **data)
    gc.collect()
    gc.freeze()  # what is loaded stays: no need to look through it again while measuring
    place = bench.Bench(run, room, library, display)
    plan = find_rate(plan, place)
    evaluation = measure(plan, place, tokenizer)
    display.stage("stopping vLLM")
    room.close()

    display.stage("writing the report")
    results.note(run, stages=display.stages)
    summary = rendering.build(run.path)
    results.finish(run, rendering.history_line(summary), bool(config.keep_all), display.done)
    rendering.write_index(config.results_dir)
    tracking.after(run.path, config.mlflow, config.results_dir, display.done)
    display.say("")
    display.console.print(rendering.table(summary))
    display.say(f"report: {run.path / 'report.md'}")
    failed = evaluation is not None and evaluation.verdict == "FAIL" and not config.no_exit_on_accuracy_fail
    invalid = config.exit_on_invalid and not summary.accepted
    caught = not all(test.passed for test in (summary.run.compliance or {}).values())
    return NOT_ACCEPTED if failed or invalid or caught else DONE


def warn(display: "Display", shortcomings: list[str]) -> None:
    if shortcomings:
        display.say(f"not comparable with MLPerf results: {'; '.join(shortcomings)}", style="yellow")


def find_rate(plan: Plan, bench: "Bench") -> Plan:
    """Resolves the rate LoadGen must be told: from the history, a short calibration, or a search on the engine."""
    from harness import rates, results, search, system

    room, display = bench.engine, bench.display

    need = rates.needed(plan.config)
    if need == "nothing":
        return plan
    known = None
    if need == "server":
        names = [gpu.name for gpu in system.gpus()]
        known = rates.from_history(plan, names, results.history(plan.config.results_dir))
    if known is None:
        display.stage("calibrating")
        prompts = rates.trial_prompts(plan, bench.library.prompts, room.concurrency)
        trial = room.wait(room.spawn(rates.trial(room, prompts, rates.trial_batch(plan))), display.tick)
        known = rates.from_trial(plan, trial)
    if need == "max":
        start = rates.SERVER_SHARE * trial.samples_per_s
        probes = []

        def probe(qps: float) -> search.Probe:
            probes.append(bench.probe(plan, qps))
            display.done(f"{qps:.4g} queries/s: {'VALID' if probes[-1].valid else 'INVALID'}")
            results.record(bench.run, plan, probes=[asdict(probe) for probe in probes])
            return probes[-1]

        known = rates.from_search(plan, search.search(start, probe))
    display.done(known.notes[-1])
    results.record(bench.run, known)
    return known


def measure(plan: Plan, bench: "Bench", tokenizer: Any) -> "Evaluation | None":
    """Accuracy first, then performance, then compliance. A failed gate ends it, unless the user said otherwise."""
    import util_logs
    from harness import accuracy, compliance, rates, results

    config, evaluation = plan.config, None
    if config.mode != "performance":
        folder = bench.test("accuracy", plan)
        bench.display.stage("scoring")
        evaluation = accuracy.evaluate(folder, plan, bench.library, tokenizer)
        bench.display.done(f"accuracy: {evaluation.headline}")
        if evaluation.verdict == "FAIL" and not config.no_exit_on_accuracy_fail:
            return evaluation
    if config.mode != "accuracy":
        for left in reversed(range(rates.tries(config))):
            facts = util_logs.read(bench.test("performance", plan))
            better = rates.corrected(plan, facts) if left else None
            if better is None:
                break
            plan = better
            bench.display.done(plan.notes[-1])
            results.record(bench.run, plan)
        bench.display.done(f"performance: {'VALID' if facts.valid else 'INVALID'}, {facts.tokens_per_s:,.0f} tokens/s")
    if config.compliance != "none":
        outcome = compliance.run(bench, plan, config.compliance, tokenizer.eos_token_id)
        bench.display.done(f"compliance: {outcome.headline}")
    return evaluation


if __name__ == "__main__":
    run_command(RunConfig, main, "Benchmark Llama-3.1-8B with MLPerf's LoadGen on vLLM: accuracy, then performance.")
