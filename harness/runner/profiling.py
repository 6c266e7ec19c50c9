"""Run a measured load once more for a short time under the engine's own profiler."""

import asyncio
from collections.abc import Coroutine
from itertools import cycle

from harness.config.plan import Plan
from harness.core import files, schema
from harness.core.errors import BenchmarkError, EngineError
from harness.core.message_text import first_line
from harness.engines.protocol import Engine
from harness.loadgen import log, senders, sending
from harness.loadgen.session import LoadGenSession
from harness.results.kernel_profile import PROFILE_FILE, PROFILE_FOLDER, Profile, profile_of
from harness.results.kernel_traffic import with_traffic
from harness.runs import run_folder
from harness.workloads.sample_library import Prompt

# The profiled load is not sent by LoadGen. Its speed is not measured, since the profiler slows the engine down.
WINDOW_S = 10.0  # seconds of load under the profiler, which ends earlier after PROFILED_STEPS of `engines.vllm`
LONGEST_RAMP_S = 30.0  # seconds of load before the profiler is turned on


def run_profile(plan: Plan, session: LoadGenSession) -> Profile:
    """Run the measured load again under the engine's profiler, write profile.json, and return the profile.

    An error does not fail the run, whose measured results stay valid. It is written as a profile with the reason.
    """
    session.display.stage("profiling", "load")
    folder, engine = session.folder.subfolder(PROFILE_FOLDER), session.engine
    measured = log.read(session.folder.path / run_folder.TEST_FOLDERS["performance"])
    seconds_before = ramp_s(plan, measured, engine.concurrency)  # of load, until the engine is as busy as in a test
    try:
        if plan.engine_state.prefix_caching:  # The tests have left prefixes in the cache, which would be reused.
            session.run_watched(engine.reset_prefix_cache())
        session.run_watched(profile_window(engine, endless_load(plan, session), seconds_before))
        profile = with_traffic(profile_of(folder), plan)  # with the bytes that the largest kernels move
    except BenchmarkError as error:
        profile = Profile(failure=first_line(error))
    profile = profile.model_copy(update={"schema_version": schema.SCHEMA})
    files.write_json(folder / PROFILE_FILE, profile.model_dump(mode="json"))
    return profile


def endless_load(plan: Plan, session: LoadGenSession) -> Coroutine[object, object, object]:
    """Return the load of the run's scenario, which sends the run's samples over and over until it is cancelled."""
    engine, requests = session.engine, session.library.requests
    if plan.config.sort_by_length:  # The tests sent the longest prompts first, too.
        requests = sorted(requests, key=prompt_length, reverse=True)
    sender = sending.pattern_sender(plan, engine.concurrency)
    return sender.send(cycle(requests), lambda prompt: senders.ask(engine, prompt, plan.pattern))


def prompt_length(request: Prompt) -> int:
    tokens, _ = request
    return len(tokens)


def ramp_s(plan: Plan, measured: log.TestResult, concurrency: int) -> float:
    """Return the seconds of load after which the engine is as busy as in the middle of a test: the time of an answer.

    `concurrency` is the number of requests that the engine computes at once.
    """
    # None if the load has no fixed number of requests in flight.
    in_flight = plan.config.batch_size or plan.pattern.steady_concurrency(plan, concurrency)
    if in_flight is None and measured.latency_ms:
        return min(measured.latency_ms.mean / 1000, LONGEST_RAMP_S)
    # By Little's law, an answer takes the number of requests in flight, divided by their rate.
    if in_flight is not None and measured.samples_per_sec:
        return min(in_flight / measured.samples_per_sec, LONGEST_RAMP_S)
    return 0.0  # The measured test has neither a latency nor a rate.


async def profile_window(engine: Engine, load: Coroutine[object, object, object], ramp_s: float) -> None:
    """Run the engine's profiler for WINDOW_S seconds under load.

    `load` sends without an end. It runs for `ramp_s` seconds before the profiler is turned on, and is cancelled after
    the profiler was turned off. Raises EngineError if the load ends before that.
    """
    loading = asyncio.create_task(load)
    try:
        await wait_under_load(loading, ramp_s)
        await engine.profile(on=True)
        await wait_under_load(loading, WINDOW_S)
        await engine.profile(on=False)
    finally:  # The load has no end of its own, so it is cancelled after an error as well.
        loading.cancel()
        await asyncio.wait([loading])


async def wait_under_load(loading: "asyncio.Task[object]", seconds: float) -> None:
    """Wait for some seconds while the load runs. Raises EngineError, with the reason, if the load ends meanwhile.

    `loading` sends the samples over and over, so it ends by itself only if a request fails or if there is no sample.
    """
    done, _pending = await asyncio.wait([loading], timeout=seconds)
    if not done:
        return
    error = loading.exception()
    # Several requests may have failed at once; the first error stands for all.
    if isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    reason = "no samples"
    if error:
        reason = first_line(error)
    raise EngineError(f"the load ended: {reason}")
