"""After the measured tests: the same load once more for a short time, under the engine's own profiler.

No test of LoadGen's: its speed is never measured, since the profiler slows the engine down.
"""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import cycle
from typing import Any

from harness.common import files
from harness.common.errors import BenchmarkError, EngineError, first_line
from harness.common.schema import SCHEMA
from harness.config.plan import Plan
from harness.engines.protocol import Engine
from harness.loadgen import log as loadgen_log
from harness.loadgen.log import TestResult
from harness.loadgen.patterns import Batches, InFlight, RandomArrivals, Sender
from harness.loadgen.session import LoadGenSession
from harness.profiling import traces
from harness.profiling.traces import Profile
from harness.runs import folder as results

SECONDS = 10.0  # of load under the profiler; it ends earlier after `engines.profiler.STEPS` steps
LONGEST_RAMP_S = 30.0  # of load before it
QUEUE_FACTOR = 2  # requests at the engine for each that it computes, in Offline: some always wait
Load = Coroutine[Any, Any, object]
Prompt = tuple[list[int], int | None]  # as `Library.requests`


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
    if plan.config.scenario_rules.streaming:
        return min(measured.latency_ms.mean / 1000, LONGEST_RAMP_S) if measured.latency_ms else 0.0
    in_flight = plan.config.batch_size or concurrency
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
    engine, requests = session.engine, session.library.requests
    if plan.config.sort_by_length:
        requests = sorted(requests, key=lambda request: len(request[0]), reverse=True)

    async def answer(request: Prompt) -> None:
        if plan.config.scenario_rules.streaming:
            async for _ in engine.stream(*request):
                pass
        else:
            await engine.generate(*request)

    sender = SENDERS[plan.config.scenario_rules.load_pattern](plan, engine)
    return sender.send(cycle(requests), answer)


def at_a_rate(plan: Plan, engine: Engine) -> Sender[Prompt]:
    """Random arrivals at the rate of the measured test."""
    return RandomArrivals(plan.target_qps or 1.0, plan.seeds.schedule)


def always_busy(plan: Plan, engine: Engine) -> Sender[Prompt]:
    """Offline: the engine always has as many requests as it takes, and others that wait; or one batch at a time."""
    size = plan.config.batch_size
    return Batches(size) if size else InFlight(QUEUE_FACTOR * engine.concurrency)


SENDERS: dict[str, Callable[[Plan, Engine], Sender[Prompt]]] = {
    "burst": always_busy,
    "poisson": at_a_rate,
    "schedule": at_a_rate,
    "sequential": lambda plan, engine: Batches(plan.samples_per_query),
    "closed loop": lambda plan, engine: InFlight(plan.concurrency or engine.concurrency),
}
