"""MMLU's prompts put to the engine."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.common.errors import EngineError
from harness.common.files import check_space
from harness.engines.protocol import ChoiceLogprobs, Engine
from harness.mmlu.prompts import Prompt
from harness.monitoring.watchdog import Watchdog
from harness.terminal.progress import Counters, Display

QUEUE_FACTOR = 2  # requests handed to the engine for each one it can compute at once: enough to keep it busy


@dataclass(frozen=True)
class Answer:
    """What the model chose: log-probabilities of the four letters, which sum to 1 as probabilities."""

    prompt: Prompt
    choice: ChoiceLogprobs
    latency_s: float  # from when the engine was handed the question


@dataclass(frozen=True)
class Asker:
    """Puts prompts to an engine, which is watched meanwhile."""

    engine: Engine
    letters: list[int]
    display: Display
    folder: Path
    watchdog: Watchdog

    def ask(self, prompts: Sequence[Prompt]) -> list[Answer]:
        """The answers, in order. Raises EngineError, or BenchmarkError when the disk is full."""
        counters = Counters(issued=len(prompts))

        def watch() -> None:
            self.display.tick(counters, len(prompts))
            if self.engine.failure:
                raise EngineError(self.engine.failure)
            self.watchdog.check()
            check_space(self.folder)

        self.watchdog.reset()
        return self.engine.wait(self.engine.spawn(self.all(prompts, counters)), watch)

    async def all(self, prompts: Sequence[Prompt], counters: Counters) -> list[Answer]:
        gate = asyncio.Semaphore(QUEUE_FACTOR * self.engine.concurrency)

        async def answer(prompt: Prompt) -> Answer:
            async with gate:
                begin = time.perf_counter()
                choice = await self.engine.score_choices(prompt.tokens, self.letters)
                counters.completed += 1
                counters.tokens += len(prompt.tokens)
                return Answer(prompt, choice, time.perf_counter() - begin)

        return await asyncio.gather(*map(answer, prompts))
