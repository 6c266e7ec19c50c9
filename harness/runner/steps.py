"""The way of one run: plan, data, engine, rate, tests, report."""

import contextlib
import gc
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console

from harness import engines
from harness.config import checkpoint, pretrained, quantization
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import files, nvml, processes, secrets, system
from harness.core.errors import DONE, NOT_ACCEPTED, BenchmarkError
from harness.core.files import json_value
from harness.core.formatting import gpu_names, number
from harness.core.last_screen import show
from harness.core.progress import Display
from harness.core.statements import merge_by_remedy
from harness.core.tokenizer import Tokenizer
from harness.engines import cuda_toolkit, discovery
from harness.loadgen import background_load, test_run
from harness.loadgen.session import LoadGenSession
from harness.loadgen.watchdog import Watchdog
from harness.rates import bench
from harness.rates.server_model import LoneRequest
from harness.report import answer
from harness.report import report as rendering
from harness.results import accuracy, kernel_profile, metrics, test_outcome
from harness.results.accuracy import Accuracy
from harness.results.benchmark_run import BenchmarkRun
from harness.results.card_limits import ASSUMED_PROMPT, MeanLengths, run_limits
from harness.results.history_line import scatter
from harness.results.outcome import Outcome
from harness.results.summary import Summary
from harness.runner import doctor, profiling, test06_run
from harness.runner.load_source import DoneTests
from harness.runner.rate import find_rate, left_s, rate_source
from harness.runner.samples import are_local, official_samples, prepare_plan, read_samples
from harness.runner.start import start
from harness.runner.tracking import send_to_mlflow
from harness.runs.history import finish, or_say, read_history
from harness.runs.run_folder import TEST_FOLDERS, RunFolder
from harness.workloads.sample_library import Library


def lines(plan: Plan, library: Library, gpus: list[nvml.GPU]) -> list[str]:
    """Return a line for each thing for which a user may want to stop a run.

    These are machine, samples, tests, minutes, disk, and comparability.
    """
    config, source = plan.config, rate_source(plan.config)
    weights = "as the server has it" if config.endpoint else quantization.format_of(config)
    comparability = "yes"
    if plan.deviations:
        comparability = f"no: {merge_by_remedy(plan.deviations)}"
    texts = [
        f"model: {config.model}, {weights}",
        f"machine: {machine(plan, gpus)}",
        f"samples: {len(library):,} of {library.source}, prompts of {library.mean_prompt_tokens:,.0f} tokens on "
        f"average, answers of at most {plan.max_new_tokens:,}",
    ]
    if plan.replay:
        texts.append(str(plan.replay))
    for part in plan.parts(source.outlook(plan)):
        texts.append(f"{part.name}: {part.text}")
    texts.append(source.total(plan))
    texts.append(f"disk: {files.free_gib(config.results_dir):,.0f} GiB free for {config.results_dir}")
    texts.append(f"comparable with MLPerf results: {comparability}")
    return texts


def machine(plan: Plan, gpus: list[nvml.GPU]) -> str:
    """Return what the answers are computed on, as far as this process decides it."""
    if plan.config.endpoint:
        return f"the servers behind {', '.join(plan.config.endpoint)}"
    if not gpus:
        return f"no GPU, {system.core_count()} CPU cores"
    split = f"tensor parallel {plan.tensor_parallel_size}, data parallel {plan.data_parallel_size}"
    return f"{gpu_names([gpu.name for gpu in gpus])}; {split}"


def run_benchmark(config: RunConfig, folder: RunFolder, display: Display) -> int:
    """Run the benchmark once in its folder. Return the exit code. Raises BenchmarkError."""
    display.stage("loading model, tokenizer and data")
    doctor.require(config)  # ends the run if something is missing that it needs
    run, session, tokenizer = begin(config, folder, display)
    evaluation = None if config.quick else run_tests(run, session, tokenizer)
    if config.is_in_process:
        display.stage(f"stopping {session.engine.name}")
    session.engine.close()
    if config.quick:  # an estimate is kept in the folder, but not in the history
        run.folder.set_status("complete")
        return DONE
    return exit_code(config, evaluation, report(run))


class Begun(NamedTuple):
    """A run whose load is known, its session, and what encodes its prompts."""

    run: BenchmarkRun
    session: LoadGenSession
    tokenizer: Tokenizer


def begin(config: RunConfig, folder: RunFolder, display: Display, other: LoadGenSession | None = None) -> Begun:
    """Prepare a run up to its tests: read the data, start the engine, and find the rate.

    If `other` is given, the run sends the same requests as that session. It takes over the session's salt, and its
    LoadGen settings, which a process can read only once.
    """
    tokenizer = pretrained.load_tokenizer(config)
    plan, workload = prepare_plan(config, tokenizer)
    run = BenchmarkRun.begin(plan, folder, display)
    library = workload or official_samples(plan, tokenizer)
    run.facts.data, run.facts.mean_prompt_tokens = library.source, round(library.mean_prompt_tokens, 1)
    run.facts.weights = quantization.format_of(config) if config.is_in_process else None
    run.facts.card_limits = run_limits(config, nvml.gpus())
    run.adopt(replace(plan, official_data=library.official, notes=(*plan.notes, *library.notes)))
    run.warn_short()
    if plan.replay:
        display.say(str(plan.replay))
    session = start_session(run, library)
    if other:
        session.run, session.settings = other.run, other.settings
    find_rate(run, session)
    return Begun(run, session, tokenizer)


def dry_run(config: RunConfig, say: Callable[[str], None]) -> int:
    """Say what a run would do, and read everything that it would read except the engine.

    Return the exit code. Raises BenchmarkError if the run would raise one before its engine starts.
    """
    config = discovery.config_of_served_model(config)
    say(config.headline)
    doctor.require(config)
    limits = run_limits(config, nvml.gpus())
    if limits and not are_local(config):  # say so before anything is downloaded
        for line in limits.lines(MeanLengths(ASSUMED_PROMPT, config.max_new_tokens, is_assumed=True)):
            say(line)
    plan, library = read_samples(config)
    for line in lines(replace(plan, official_data=library.official), library, nvml.gpus()):
        say(line)
    if limits and are_local(config):
        for line in limits.lines(MeanLengths(library.mean_prompt_tokens, plan.max_new_tokens)):
            say(line)
    return DONE


def start_session(run: BenchmarkRun, library: Library) -> LoadGenSession:
    """Start the run's engine. Return the session in which its tests run."""
    config, busy_gpus = run.config, background_load.busy_gpus()
    if config.is_in_process and (warning := cuda_toolkit.set_cuda_home(config.engine_args)):
        run.display.say(warning, style="yellow")
    engine = engines.create(run.plan, run.folder.path / kernel_profile.PROFILE_FOLDER)
    facts = run.facts
    start(engine, facts, run.folder, config.stall_timeout, run.display)
    facts.engine_args |= json_value(secrets.hide(background_load.precision_of(config.endpoint), foreign=True))
    # A server does not report how many requests it computes at once.
    facts.concurrency = None if config.endpoint else engine.concurrency
    facts.checkpoint = checkpoint.title(config) if engine.engine_state.quantized_checkpoint else None
    run.adopt(replace(run.plan, engine_state=engine.engine_state))
    run.display.say(rate_source(config).total(run.plan))
    gc.collect()
    gc.freeze()  # the garbage collector need not look through loaded objects while measuring
    return LoadGenSession(
        run.folder, engine, library, run.display, Watchdog(engine, config.stall_timeout), busy_gpus=busy_gpus
    )


def run_tests(run: BenchmarkRun, session: LoadGenSession, tokenizer: Tokenizer) -> Accuracy | None:
    """Run the tests for accuracy, performance and compliance, and the profile.

    Return the accuracy, None if not tested. A failed accuracy gate ends the tests, unless the user asked to continue.
    """
    config, evaluation = run.config, None
    if config.mode != "performance":
        begin = time.monotonic()
        folder = session.test("accuracy", run.plan)
        session.display.stage("scoring")
        evaluation = accuracy.evaluate_answers(folder, run.plan, session.library, tokenizer)
        session.display.leave_line(f"accuracy {evaluation.verdict}: {answer.scores_text(evaluation)}")
        session.began += time.monotonic() - begin  # --minutes does not count the accuracy test
        if has_failed_gate(config, evaluation):
            return evaluation
    if config.mode != "accuracy":
        measure_performance(run, session)
    if config.compliance != "none":
        run.display.leave_line(
            f"compliance: {test06_run.run_test06(session, run.plan, tokenizer.eos_token_id).headline}"
        )
    if config.profile:
        run.display.leave_line(f"profile: {profiling.run_profile(run.plan, session).headline}")
    return evaluation


def measure_performance(run: BenchmarkRun, session: LoadGenSession) -> None:
    """Run the performance test, and again at another rate if the first one was wrong or had room."""
    attempts, source = run.facts.attempts, rate_source(run.config)
    while True:
        test = test_run.TestRun.read(session.test("performance", run.plan), run.plan)
        attempt = test_outcome.outcome_of(test, run.plan, session.folder.path)
        lone = LoneRequest(*run.facts.lone_request_s) if run.facts.lone_request_s else None
        tests = DoneTests(run.facts.probes, [*attempts, attempt], left_s(run, session), lone)
        better = source.correct(run.plan, test.result, tests) if len(attempts) < source.corrections else None
        if not better:
            break
        attempts.append(set_aside(session, attempt, len(attempts) + 1))
        run.adopt(better)
    if (last := source.conclude(run.plan, tests)) is not run.plan:
        best = next((earlier for earlier in attempts if earlier.valid and earlier.load == last.target_qps), None)
        if best and not attempt.valid:
            attempts[attempts.index(best)] = set_aside(session, attempt, len(attempts) + 1)
            (run.folder.path / best.folder).rename(run.folder.path / TEST_FOLDERS["performance"])
            attempt = best
        run.adopt(last)
    if run.plan.concurrency or run.config.batches:  # show the test as a row of the curve, as the tests before
        bench.leave_row(run.display, bench.keep_test(run, run.plan, attempt))
        return
    speed = f"{number(attempt.tokens_per_sec)} output tokens/s" if attempt.tokens_per_sec else "no tokens"
    run.display.leave_line(f"performance test: {attempt.verdict.word}, {speed}")


def set_aside(session: LoadGenSession, attempt: Outcome, number: int) -> Outcome:
    """Move the logs of a performance test aside for another one. Return the outcome with its new folder."""
    folder = session.folder.sub("Attempts") / str(number)
    (session.folder.path / attempt.folder).rename(folder)
    return attempt.model_copy(update={"folder": str(folder.relative_to(session.folder.path))})


def report(run: BenchmarkRun) -> Summary:
    """Write everything that is made from the run's logs, and show the result. Return the summary."""
    config, display = run.config, run.display
    processes.ignore_signals()  # everything is measured, so a signal must not lose the run now
    display.stage("writing the report")
    run.facts.stages = display.stages
    run.save()
    summary = rendering.build_report(run.folder.path)
    line = rendering.history_line(summary)
    headline = summary.scenario.headline
    doubt = scatter(line, headline, metrics.METRIC_BY_NAME[headline].label, read_history(config.results_dir))
    finish(run.folder, line, config.keep_all, display.leave_line)
    with or_say(display.leave_line, f"{config.results_dir / 'index.md'} could not be written"):
        rendering.write_index(config.results_dir)
    show(display.console, answer.document(summary, scatter=doubt), run.folder.shown / "report.html")
    send_to_mlflow(run.folder.path, config.mlflow, config.results_dir, display.leave_line)
    return summary


def report_partial(folder: RunFolder, console: Console) -> None:
    """Write the report of a run that ended early, and show its last screen. Does nothing if no test finished."""
    with contextlib.suppress(BenchmarkError, OSError):  # if no test finished, there is nothing to report
        show(console, answer.document(rendering.build_report(folder.path)), folder.path / "report.html")


def has_failed_gate(config: RunConfig, evaluation: Accuracy | None) -> bool:
    return evaluation is not None and evaluation.verdict == "FAIL" and not config.no_exit_on_accuracy_fail


def exit_code(config: RunConfig, evaluation: Accuracy | None, summary: Summary) -> int:
    """Return the exit code of a run.

    It is NOT_ACCEPTED if the accuracy gate or a compliance test failed. With --exit-on-invalid this also goes for an
    INVALID performance test and for errors that LoadGen logged in it.
    """
    test = summary.result
    invalid = config.exit_on_invalid and test and (not test.valid or test.details.errors)
    caught = not all(test.passed for test in (summary.run.compliance or {}).values())
    return NOT_ACCEPTED if has_failed_gate(config, evaluation) or invalid or caught else DONE
