"""Short trials on the loaded engine, without LoadGen: how fast it is, before a test that has to know."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.common.errors import EndpointError
from harness.common.markdown import number
from harness.config.endpoint import may_fail
from harness.config.plan import Plan
from harness.engines.protocol import Engine
from harness.loadgen.patterns import WAYS, ask
from harness.workloads.cnn_dailymail import Prompt

TRIAL_S = 60.0  # then the answers that came are counted
WARM_UP = 4  # prompts


@dataclass(frozen=True)
class Trial:
    """What a short trial on the loaded engine found; the runner's own clock, so never a result."""

    samples: int
    seconds: float

    @property
    def samples_per_sec(self) -> float:
        return self.samples / self.seconds

    def __str__(self) -> str:
        return f"{number(self.samples_per_sec)} samples/s, measured on {self.samples:,} samples in {self.seconds:.1f} s"


@dataclass
class Sparing:
    """An engine of whose requests in a trial some may fail, as of a test; but no fewer than one."""

    engine: Engine
    most: int = 0
    rule: str = ""  # which allows so many

    @classmethod
    def of(cls, engine: Engine, max_failed: str, requests: int) -> "Sparing":
        most = max(1, may_fail(max_failed, requests)) if may_fail(max_failed, 10**9) else 0
        rule = f"--max-failed {max_failed}: {most} of the {requests} requests of the trial before a test may fail"
        return cls(engine, most, rule if most else "")

    def spare(self, error: EndpointError) -> None:
        self.most -= 1
        if self.most < 0:
            raise EndpointError(f"{str(error).removesuffix('.')}; {self.rule}.") if self.rule else error

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


async def run_trial(plan: Plan, engine: Engine | Sparing, prompts: Sequence[Prompt], at_once: int) -> Trial:
    """Warms up on a few prompts, then sends all as the run itself will, to an engine that computes so many `at_once`.

    After `TRIAL_S` it ends with the answers that came by then, or with the first. Raises EngineError.
    """
    pattern, answered, first = plan.config.scenario_rules.pattern, 0, asyncio.Event()

    async def answer(prompt: Prompt) -> None:
        nonlocal answered
        await ask(engine, prompt, pattern)
        answered += 1
        first.set()

    sender = WAYS[type(pattern)].trial(plan, at_once)
    await sender.send(prompts[:WARM_UP], lambda prompt: ask(engine, prompt, pattern))
    begin = time.perf_counter()
    work = asyncio.ensure_future(sender.send(prompts, answer))
    try:
        await asyncio.wait([work], timeout=TRIAL_S)
        if not answered:
            await asyncio.wait([work, asyncio.ensure_future(first.wait())], return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            work.result()
        return Trial(answered, time.perf_counter() - begin)
    finally:
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
