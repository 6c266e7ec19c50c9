"""After the measured tests: the same load once more for a short time, under the engine's own profiler.

No test of LoadGen's: its speed is never measured, since the profiler slows the engine down.
"""

import asyncio
from collections.abc import Coroutine
from itertools import cycle
from typing import Any

from harness.common import files
from harness.common.errors import BenchmarkError, EngineError, first_line
from harness.common.schema import SCHEMA
from harness.config.plan import Plan
from harness.engines.protocol import Engine
from harness.loadgen import log as loadgen_log
from harness.loadgen.log import TestResult
from harness.loadgen.patterns import WAYS, ask
from harness.loadgen.session import LoadGenSession
from harness.profiling import traces
from harness.profiling.traces import Profile
from harness.runs import folder as results
from harness.workloads.cnn_dailymail import Prompt

SECONDS = 10.0  # of load under the profiler; it ends earlier after PROFILED_STEPS of `engines.vllm_args`
LONGEST_RAMP_S = 30.0  # of load before it
Load = Coroutine[Any, Any, object]


def run_profile(plan: Plan, session: LoadGenSession) -> Profile:
    """Profiles the engine and keeps what came of it, a failure too: the measured results stand in any case."""
    session.display.stage("profiling", "load")
    folder = session.folder.sub(traces.FOLDER)
    measured = loadgen_log.read(session.folder.path / results.FOLDER["performance"])
    ramp = ramp_s(plan, measured, session.engine.concurrency)
    try:
        if plan.engine_state.prefix_caching:  # what the tests computed is not to serve the window
            session.measure(session.engine.reset_prefix_cache())
        session.measure(window(session.engine, load(plan, session), ramp))
        found = traces.profile(folder)
    except BenchmarkError as error:
        found = Profile(failure=first_line(error))
    found = found.model_copy(update={"schema_version": SCHEMA})
    files.write_json(folder / traces.RESULT, found.model_dump(mode="json"))
    return found


def ramp_s(plan: Plan, measured: TestResult, concurrency: int) -> float:
    """Seconds of load until the engine is as busy as in the middle of a test: about those that one answer takes.

    By Little's law, from the measured test: requests in flight over their rate.
    """
    in_flight = plan.config.batch_size or plan.config.scenario_rules.pattern.kept_in_flight(plan.load, concurrency)
    if in_flight is None:
        return min(measured.latency_ms.mean / 1000, LONGEST_RAMP_S) if measured.latency_ms else 0.0
    return min(in_flight / measured.samples_per_sec, LONGEST_RAMP_S) if measured.samples_per_sec else 0.0


async def window(engine: Engine, work: Load, ramp: float) -> None:
    """Keeps the load up, turns the profiler on after the ramp and off after the window. Raises EngineError."""
    loading = asyncio.create_task(work)
    try:
        await still(loading, ramp)
        await engine.profile(True)
        await still(loading, SECONDS)
        await engine.profile(False)
    finally:
        loading.cancel()
        await asyncio.wait([loading])


async def still(loading: "asyncio.Task[object]", seconds: float) -> None:
    """Waits, unless the load fails. Raises EngineError."""
    done, _ = await asyncio.wait([loading], timeout=seconds)
    if done:
        error = loading.exception()
        first = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else error
        raise EngineError(f"the load ended: {first_line(first) if first else 'no samples'}")


def load(plan: Plan, session: LoadGenSession) -> Load:
    """The load of the scenario, without end, on the run's samples over and over."""
    engine, requests, pattern = session.engine, session.library.requests, plan.config.scenario_rules.pattern
    if plan.config.sort_by_length:
        requests = sorted(requests, key=lambda request: len(request[0]), reverse=True)

    async def answer(prompt: Prompt) -> None:
        await ask(engine, prompt, pattern)

    return WAYS[type(pattern)].endless(plan, engine.concurrency).send(cycle(requests), answer)
