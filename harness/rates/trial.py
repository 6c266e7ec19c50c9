"""Short trials on the loaded engine, without LoadGen: how fast it is, before a test that has to know."""

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Sequence
from dataclasses import dataclass
from itertools import cycle, islice, starmap
from typing import Any

from harness.common.errors import EndpointError
from harness.config.endpoint import may_fail
from harness.config.plan import Plan
from harness.engines.protocol import Engine
from harness.loadgen.patterns import Item, batches

STREAM_TRIAL = 10  # queries
TRIAL_S = 60.0  # then the answers that came are counted
Request = tuple[list[int], int | None]  # as `Library.requests`


@dataclass(frozen=True)
class Trial:
    """What a short trial on the loaded engine found; the runner's own clock, so never a result."""

    samples: int
    seconds: float

    @property
    def samples_per_sec(self) -> float:
        return self.samples / self.seconds

    def __str__(self) -> str:
        return f"{self.samples_per_sec:.4g} samples/s, measured on {self.samples:,} samples in {self.seconds:.1f} s"


@dataclass
class Sparing:
    """An engine of whose requests in a trial some may fail, as of a test; but no fewer than one."""

    engine: Engine
    most: int = 0

    @classmethod
    def of(cls, engine: Engine, max_failed: str, requests: int) -> "Sparing":
        return cls(engine, max(1, may_fail(max_failed, requests)) if may_fail(max_failed, 10**9) else 0)

    def spare(self, error: EndpointError) -> None:
        self.most -= 1
        if self.most < 0:
            raise error

    async def generate(self, *request: Any) -> Sequence[int]:
        try:
            return await self.engine.generate(*request)
        except EndpointError as error:
            self.spare(error)
            return []

    async def stream(self, *request: Any) -> AsyncIterator[Sequence[int]]:
        try:
            async for tokens in self.engine.stream(*request):
                yield tokens
        except EndpointError as error:
            self.spare(error)


def trial_samples(plan: Plan, samples: list[Item], concurrency: int) -> list[Item]:
    """Which samples to try: one full load of the engine, or a few queries one after the other."""
    if not plan.config.scenario_rules.planned_by_rate:
        return list(islice(cycle(samples), STREAM_TRIAL * plan.samples_per_query))
    if plan.config.batch_size:
        return samples[: plan.config.batch_size]
    return list(islice(cycle(samples), concurrency))


def trial_batch(plan: Plan) -> int | None:
    return plan.config.batch_size if plan.config.scenario_rules.planned_by_rate else plan.samples_per_query


async def run_trial(engine: Engine | Sparing, requests: Sequence[Request], batch_size: int | None) -> Trial:
    """Warms up on a few requests, then answers all of them: together, or in batches as the run itself will.

    After `TRIAL_S` it ends with the answers that came by then, or with the first.
    """
    await asyncio.gather(*starmap(engine.generate, requests[: batch_size or 4]))
    begin = time.perf_counter()
    answered = 0
    for batch in batches(requests, batch_size or len(requests)):
        answered += await count_answered(list(starmap(engine.generate, batch)), TRIAL_S + begin - time.perf_counter())
        if time.perf_counter() - begin >= TRIAL_S:
            break
    return Trial(answered, time.perf_counter() - begin)


async def count_answered(work: Sequence[Coroutine[Any, Any, Any]], seconds: float) -> int:
    """How much of the work was done in time; at least one piece, for which it waits. The rest is given up."""
    tasks = [asyncio.ensure_future(piece) for piece in work]
    try:
        done, _ = await asyncio.wait(tasks, timeout=max(0.0, seconds), return_when=asyncio.FIRST_EXCEPTION)
        if not done:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        return len(done)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def run_concurrent_trial(engine: Engine | Sparing, requests: Sequence[Request], at_once: int) -> Trial:
    """The engine's speed with so many requests in flight, on two waves of them; ends after `TRIAL_S` with the answers
    that came by then, or with the first."""
    left = islice(cycle(requests), trial_requests(at_once))
    begin = time.perf_counter()
    answered = 0

    async def one_after_the_other() -> None:
        nonlocal answered
        for request in left:
            async for _ in engine.stream(*request):
                pass
            answered += 1
            if time.perf_counter() - begin > TRIAL_S:
                break

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(one_after_the_other())
    except ExceptionGroup as failed:
        raise failed.exceptions[0] from None
    return Trial(answered, time.perf_counter() - begin)


def trial_requests(at_once: int) -> int:
    """How many requests a trial has."""
    return max(2 * at_once, STREAM_TRIAL)
