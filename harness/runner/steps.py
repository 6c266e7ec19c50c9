"""The way of one run: plan, data, engine, rate, tests, report."""

import contextlib
import gc
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from rich.console import Console

from harness import engines
from harness.config import checkpoint, pretrained, quantization
from harness.config.plan import Plan
from harness.config.run import RunConfig
from harness.core import files, nvml, processes, system
from harness.core.errors import DONE, NOT_ACCEPTED, BenchmarkError
from harness.core.formatting import gpu_names, number, plural
from harness.core.last_screen import show
from harness.core.progress import Display
from harness.core.statements import merge_by_remedy
from harness.core.tokenizer import Tokenizer
from harness.engines import cuda_toolkit, discovery
from harness.engines.protocol import Engine
from harness.loadgen import background_load, test_run
from harness.loadgen.session import LoadGenSession
from harness.loadgen.watchdog import Watchdog
from harness.rates import bench, quick
from harness.rates.server_model import LoneRequest
from harness.report import answer, quick_estimate
from harness.report import report as rendering
from harness.results import accuracy, kernel_profile, metrics, test_outcome
from harness.results.accuracy import Accuracy
from harness.results.benchmark_run import BenchmarkRun
from harness.results.card_limits import ASSUMED_PROMPT, MeanLengths, run_limits
from harness.results.history_line import range_in_earlier_runs
from harness.results.outcome import Outcome
from harness.results.summary import Summary
from harness.runner import doctor, profiling, test06_run
from harness.runner.load_source import DoneTests, RateSource
from harness.runner.rate import find_rate, left_s, rate_source
from harness.runner.samples import are_local, official_samples, prepare_plan, read_samples
from harness.runner.start import recorded_arguments, start_engine
from harness.runner.tracking import send_to_mlflow
from harness.runs.history import finish, read_history, report_os_error
from harness.runs.run_folder import TEST_FOLDERS, RunFolder
from harness.workloads.sample_library import Library


def plan_lines(plan: Plan, library: Library, gpus: list[nvml.GPU]) -> list[str]:
    """Return in lines what a run would do, for a user who decides whether to start it.

    The lines are about the model, machine, samples, tests, minutes, disk space, and comparability with MLPerf's
    results.
    """
    config, source = plan.config, rate_source(plan.config)
    weights = "as the server has it" if config.endpoint else quantization.format_of(config)
    lengths = (
        f"prompts of {library.mean_prompt_tokens:,.0f} tokens on average, answers of at most {plan.max_new_tokens:,}"
    )
    texts = [
        f"model: {config.model}, {weights}",
        f"machine: {machine(plan, gpus)}",
        f"samples: {len(library):,} of {library.source}, {lengths}",
    ]
    if plan.replay:  # The arrivals are those of a recorded trace.
        texts.append(str(plan.replay))
    for part in plan.parts(source.part_before(plan)):
        texts.append(f"{part.name}: {part.text}")
    texts.append(source.duration_line(plan))
    texts.append(f"disk: {files.free_gib(config.results_dir):,.0f} GiB free for {config.results_dir}")
    comparability = "yes"
    if plan.deviations:
        comparability = f"no: {merge_by_remedy(plan.deviations)}"
    texts.append(f"comparable with MLPerf results: {comparability}")
    return texts


def machine(plan: Plan, gpus: list[nvml.GPU]) -> str:
    """Return in words the hardware that computes the answers, as far as it is known: servers, GPUs or CPU cores."""
    if plan.config.endpoint:
        return f"the servers behind {', '.join(plan.config.endpoint)}"
    if not gpus:
        return f"no GPU, {plural(system.core_count(), 'CPU core')}"
    names = gpu_names([gpu.name for gpu in gpus])
    return f"{names}; tensor parallel {plan.tensor_parallel_size}, data parallel {plan.data_parallel_size}"


class PreparedRun(NamedTuple):
    """A run whose load is known, its session, and the tokenizer of its prompts."""

    run: BenchmarkRun
    session: LoadGenSession
    tokenizer: Tokenizer


class RunEnd(NamedTuple):
    """The end of a run: its exit code, and the run itself, whose engine still runs if another run follows."""

    exit_code: int
    run: PreparedRun


def run_benchmark(
    config: RunConfig,
    folder: RunFolder,
    display: Display,
    earlier: PreparedRun | None = None,
    is_last: bool = True,
) -> RunEnd:
    """Run the benchmark once in its folder. Raises BenchmarkError.

    The run uses the engine of the `earlier` run of the same command, if there is one. Another run follows if `is_last`
    is false.
    """
    display.stage("loading model, tokenizer and data")
    doctor.require(config)  # It raises an error if something that the run needs is missing.
    prepared = prepare_run(config, folder, display, earlier)
    run, session, tokenizer = prepared
    evaluation = None
    if not config.quick:
        evaluation = run_tests(run, session, tokenizer)
    if config.is_in_process and is_last:
        display.stage(f"stopping {session.engine.name}")
    is_engine_needed = config.is_in_process and not is_last  # The next run uses only an engine in this process.
    if not is_engine_needed:
        session.engine.close()
    if config.quick:
        return RunEnd(report_estimate(run), prepared)
    return RunEnd(exit_code(config, evaluation, report_run(run)), prepared)


def prepare_run(
    config: RunConfig,
    folder: RunFolder,
    display: Display,
    earlier: PreparedRun | None = None,
    same_requests: LoadGenSession | None = None,
) -> PreparedRun:
    """Prepare a run up to its tests: read the data, start the engine, and find the rate.

    If the engine of an `earlier` run is in this process, this run uses it. If `same_requests` is given, the run sends
    the same requests as that session.
    """
    tokenizer = pretrained.load_tokenizer(config)
    plan, user_samples = prepare_plan(config, tokenizer)
    run = BenchmarkRun.begin(plan, folder, display)
    library = user_samples or official_samples(plan, tokenizer)
    run.facts.data = library.source
    run.facts.mean_prompt_tokens = round(library.mean_prompt_tokens, 1)
    if config.is_in_process:  # The weights of a server are not known.
        run.facts.weights = quantization.format_of(config)
    run.facts.card_limits = run_limits(config, nvml.gpus())
    notes = (*plan.notes, *library.notes)
    run.adopt(replace(plan, official_data=library.official, notes=notes))
    run.warn_short()
    if plan.replay:  # The arrivals are those of a recorded trace.
        display.say(str(plan.replay))
    if earlier and config.is_in_process:
        session = continue_session(run, library, earlier)
    else:
        session = start_session(run, library)
    # A salt is random text that makes a prompt unique. All salts of a session follow from its `run_id`, so with the
    # same id the requests are the same.
    if same_requests:
        session.run_id = same_requests.run_id
    find_rate(run, session)
    return PreparedRun(run, session, tokenizer)


def dry_run(config: RunConfig, say: Callable[[str], None]) -> int:
    """Say what a run would do, read everything that it would read except the engine, and return the exit code.

    Raises BenchmarkError if the run would raise one before its engine starts.
    """
    config = discovery.config_of_served_model(config)
    say(config.headline)
    doctor.require(config)
    limits, has_local_samples = run_limits(config, nvml.gpus()), are_local(config)
    # The lines on the GPU's limits depend on the mean prompt. If the samples must be downloaded, which takes a while,
    # the lines come before that, for an assumed mean prompt. Else they come last, for the samples' own mean prompt.
    if limits and not has_local_samples:
        for line in limits.lines(MeanLengths(ASSUMED_PROMPT, config.max_new_tokens, is_assumed=True)):
            say(line)
    plan, library = read_samples(config)
    for line in plan_lines(replace(plan, official_data=library.official), library, nvml.gpus()):
        say(line)
    if limits and has_local_samples:
        for line in limits.lines(MeanLengths(library.mean_prompt_tokens, plan.max_new_tokens)):
            say(line)
    return DONE


def start_session(run: BenchmarkRun, library: Library) -> LoadGenSession:
    """Start the run's engine, record what is known of it, and return the session in which the run's tests run."""
    config, facts = run.config, run.facts
    busy_gpus = background_load.busy_gpus()  # before the engine makes its own GPUs busy
    if config.is_in_process:
        warning = cuda_toolkit.set_cuda_home(config.engine_args)
        if warning:
            run.display.say(warning, style="yellow")
    profile_folder = run.folder.path / kernel_profile.PROFILE_FOLDER  # where an engine under a profiler writes
    engine = engines.create(run.plan, profile_folder)
    start_engine(engine, facts, run.folder, config.stall_timeout, run.display)
    if config.endpoint:
        # The flags of a server on this machine show its number format. They are read from the command lines of its
        # processes, which may have any text after such a flag.
        facts.engine_args |= recorded_arguments(background_load.precision_of(config.endpoint))
        facts.concurrency = None  # A server does not report how many requests it computes at once.
    else:
        facts.concurrency = engine.concurrency
    facts.checkpoint = checkpoint.title(config) if engine.engine_state.quantized_checkpoint else None
    run.adopt(replace(run.plan, engine_state=engine.engine_state))
    return open_session(run, engine, library, busy_gpus)


def continue_session(run: BenchmarkRun, library: Library, earlier: PreparedRun) -> LoadGenSession:
    """Return the session of a run on the engine that an earlier run of the same command has started.

    What is known of the engine is taken over from the earlier run.
    """
    engine, facts, earlier_facts = earlier.session.engine, run.facts, earlier.run.facts
    facts.engine = earlier_facts.engine
    facts.engine_start_s = earlier_facts.engine_start_s
    facts.engine_args = earlier_facts.engine_args
    facts.kernels = earlier_facts.kernels
    facts.concurrency = earlier_facts.concurrency
    facts.checkpoint = earlier_facts.checkpoint
    # The engine goes on writing to the log of the run that started it. This run gets a second name of that file, if the
    # file system has such links.
    with contextlib.suppress(OSError):
        os.link(earlier.run.folder.path / "engine.log", run.folder.path / "engine.log")
    note = f"the engine was started by {earlier.run.folder.name}"
    # vLLM has other defaults for a server, as in Server, than for prompts that all come at once, as in Offline. The
    # engine has those for the earlier run's scenario.
    if run.config.backend == "vllm":
        note += f", with vLLM's defaults for {earlier.run.config.scenario}"
    run.adopt(replace(run.plan, engine_state=engine.engine_state).with_note(note))
    # Which GPUs other programs used could be seen only before the engine used some.
    return open_session(run, engine, library, earlier.session.busy_gpus)


def open_session(run: BenchmarkRun, engine: Engine, library: Library, busy_gpus: list[int]) -> LoadGenSession:
    """Say how long the tests take, and return a session for them. The run's engine must be running.

    `busy_gpus` are the GPUs that other programs used before the engine started.
    """
    run.display.say(rate_source(run.config).duration_line(run.plan))
    gc.collect()
    gc.freeze()  # While measuring, the garbage collector then does not look through all loaded objects.
    watchdog = Watchdog(engine, run.config.stall_timeout)
    return LoadGenSession(run.folder, engine, library, run.display, watchdog, busy_gpus=busy_gpus)


def run_tests(run: BenchmarkRun, session: LoadGenSession, tokenizer: Tokenizer) -> Accuracy | None:
    """Run the tests that were asked for: accuracy, performance and compliance; then the profile.

    Return the accuracy, None if not tested. A failed accuracy gate ends the tests, unless the user asked to continue.
    """
    config, evaluation = run.config, None
    if config.mode != "performance":
        begin = time.monotonic()
        folder = session.test("accuracy", run.plan)
        session.display.stage("scoring")
        evaluation = accuracy.evaluate_answers(folder, run.plan, session.library, tokenizer)
        session.display.leave_line(f"accuracy {evaluation.verdict}: {answer.scores_text(evaluation)}")
        session.began += time.monotonic() - begin  # --minutes does not count the accuracy test.
        if has_failed_gate(config, evaluation):
            return evaluation
    if config.mode != "accuracy":
        measure_performance(run, session)
    if config.compliance != "none":
        compliance = test06_run.run_test06(session, run.plan, tokenizer.eos_token_id)
        run.display.leave_line(f"compliance: {compliance.headline}")
    if config.profile:
        profile = profiling.run_profile(run.plan, session)
        run.display.leave_line(f"profile: {profile.headline}")
    return evaluation


def measure_performance(run: BenchmarkRun, session: LoadGenSession) -> None:
    """Run the performance test, and again at another rate as long as the source of the load has a better one.

    Tests before the last are recorded as attempts.
    """
    source = rate_source(run.config)
    tests = run_attempts(run, session, source)
    result = tests.attempts[-1]
    final_plan = source.conclude(run.plan, tests)
    if final_plan is not run.plan:  # The plan has a note on all attempts, and the rate of the attempt that counts.
        result = restore_attempt(run, session, result, final_plan.target_qps)
        run.adopt(final_plan)
    if run.plan.concurrency or run.config.batches:  # The test is the last row of a curve over concurrencies or batches.
        bench.leave_row(run.display, bench.keep_test(run, run.plan, result))
        return
    speed = "no tokens"
    if result.tokens_per_sec:
        speed = f"{number(result.tokens_per_sec)} output tokens/s"
    run.display.leave_line(f"performance test: {result.verdict.word}, {speed}")


def run_attempts(run: BenchmarkRun, session: LoadGenSession, source: RateSource) -> DoneTests:
    """Run the performance test, again and again until `source` has no better rate or allows no further attempt.

    Returns all tests so far. Each attempt before the last has a folder of its own for its logs.
    """
    attempts = run.facts.attempts
    lone_request = None  # the times of a request with no other in flight; a search has measured them
    if run.facts.lone_request_s:
        lone_request = LoneRequest(*run.facts.lone_request_s)
    while True:
        test = test_run.TestRun.read(session.test("performance", run.plan), run.plan)
        attempt = test_outcome.outcome_of(test, run.plan, session.folder.path)
        tests = DoneTests(run.facts.probes, [*attempts, attempt], left_s(run, session), lone_request)
        if len(attempts) >= source.corrections:  # No further attempt is allowed.
            return tests
        better_plan = source.correct(run.plan, test.result, tests)
        if not better_plan:  # No other rate is better, or there is no time for another test.
            return tests
        attempts.append(move_attempt(session, attempt, len(attempts) + 1))
        run.adopt(better_plan)


def restore_attempt(run: BenchmarkRun, session: LoadGenSession, last: Outcome, rate: float | None) -> Outcome:
    """Make the VALID attempt at `rate` the performance test, and return its outcome.

    The performance test is the `last` attempt so far. Nothing changes if it ran at `rate`, or if no attempt at `rate`
    was VALID.
    """
    attempts = run.facts.attempts  # those before the last
    best = valid_attempt_at(attempts, rate)
    if last.load == rate or best is None:
        return last
    moved_last = move_attempt(session, last, len(attempts) + 1)
    attempts[attempts.index(best)] = moved_last  # `best` is no longer an earlier attempt, and `last` is one now.
    (run.folder.path / best.folder).rename(run.folder.path / TEST_FOLDERS["performance"])
    return best


def valid_attempt_at(attempts: Sequence[Outcome], rate: float | None) -> Outcome | None:
    """Return the first VALID attempt at this rate; None if there is none."""
    for attempt in attempts:
        if attempt.valid and attempt.load == rate:
            return attempt
    return None


def move_attempt(session: LoadGenSession, attempt: Outcome, number: int) -> Outcome:
    """Move the logs of a performance test to Attempts/<number>, and return the test's outcome with its new folder.

    The test's old folder is then free for the logs of another attempt.
    """
    folder = session.folder.subfolder("Attempts") / str(number)
    (session.folder.path / attempt.folder).rename(folder)
    return attempt.model_copy(update={"folder": str(folder.relative_to(session.folder.path))})


def report_run(run: BenchmarkRun) -> Summary:
    """Write every file that is made from the run's logs, show the result, and return the summary.

    The run is added to the history and, if asked, sent to MLflow.
    """
    config, display = run.config, run.display
    processes.ignore_signals()  # Every test is done, so a signal must not lose the run now.
    display.stage("writing the report")
    run.facts.stages = display.stages
    run.save()
    summary = rendering.build_report(run.folder.path)
    line = rendering.history_line(summary)
    main_metric = metrics.METRIC_BY_NAME[summary.scenario.headline]
    # In words, how far the metric ranged in earlier runs of this set-up. This run is not in the history before `finish`
    # adds it.
    earlier_runs = range_in_earlier_runs(line, main_metric.name, main_metric.label, read_history(config.results_dir))
    finish(run.folder, line, config.keep_all, display.leave_line)  # `line` is now in the history.
    with report_os_error(display.leave_line, f"{config.results_dir / 'index.md'} could not be written"):
        rendering.write_index(config.results_dir)
    show(display.console, answer.document(summary, earlier_runs=earlier_runs), run.folder.shown / "report.html")
    send_to_mlflow(run.folder.path, config.mlflow, config.results_dir, display.leave_line)
    return summary


def report_estimate(run: BenchmarkRun) -> int:
    """Write the report of a --quick estimate, show it, and return the exit code: NOT_ACCEPTED if no rate was estimated.

    An estimate is no result, so it does not go into the history.
    """
    processes.ignore_signals()  # The estimate is known, so a signal must not lose its report now.
    run.facts.stages = run.display.stages
    run.save()
    estimate = files.read(run.folder.path / quick.FILE, quick.Estimate)
    document = quick_estimate.write_report(run.folder.path, run.facts, estimate)
    run.folder.set_status("complete")
    show(run.display.console, document, run.folder.shown / "report.html")
    return DONE if estimate.ranges else NOT_ACCEPTED


def report_partial(folder: RunFolder, console: Console) -> None:
    """Write the report of a run that ended early, and show its last screen. Does nothing if no test finished."""
    with contextlib.suppress(BenchmarkError, OSError):  # The error says that no test finished.
        show(console, answer.document(rendering.build_report(folder.path)), folder.path / "report.html")


def has_failed_gate(config: RunConfig, evaluation: Accuracy | None) -> bool:
    """Tell whether the accuracy gate failed and ends the run; the user may have asked to continue all the same."""
    return evaluation is not None and evaluation.verdict == "FAIL" and not config.no_exit_on_accuracy_fail


def exit_code(config: RunConfig, evaluation: Accuracy | None, summary: Summary) -> int:
    """Return the exit code of a run: NOT_ACCEPTED if the accuracy gate or another test that counts failed, else DONE.

    The performance test counts only with --exit-on-invalid. Compliance tests always count.
    """
    if has_failed_gate(config, evaluation):
        return NOT_ACCEPTED
    test = summary.result
    # A performance test fails if it is INVALID, or if LoadGen logged errors in it.
    if config.exit_on_invalid and test and (not test.valid or test.details.errors):
        return NOT_ACCEPTED
    compliance_tests = summary.run.compliance or {}
    if all(compliance_test.passed for compliance_test in compliance_tests.values()):
        return DONE
    return NOT_ACCEPTED
