"""MMLU's prompts put to the engine."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.common.errors import EngineError
from harness.common.files import check_space
from harness.engines.vllm import VLLM
from harness.mmlu.prompts import Prompt
from harness.monitoring.watchdog import Watchdog
from harness.terminal.progress import Counters, Display

QUEUE_FACTOR = 2  # requests handed to the engine for each one it can compute at once: enough to keep it busy
CHECK_S = 1.0


@dataclass(frozen=True)
class ChoiceAnswer:
    """What the model chose: log-probabilities of the four letters, which sum to 1 as probabilities."""

    prompt: Prompt
    logprobs: tuple[float, ...]
    cached_tokens: int
    latency_s: float  # from when the engine was handed the question


@dataclass(frozen=True)
class CollectedAnswers:
    """Every answer, in the order of the questions, and the seconds from the first question to the last answer."""

    answers: list[ChoiceAnswer]
    seconds: float


def warm_up(engine: VLLM, letters: list[int], display: Display, watchdog: Watchdog) -> None:
    """Chooses once for nothing: vLLM compiles what ranks log-probabilities only then, which takes seconds."""

    def watch() -> None:
        display.tick()
        watchdog.check()

    watchdog.reset()
    engine.wait(engine.spawn(engine.score_choices(letters, letters)), watch)


def collect_answers(
    engine: VLLM, prompts: Sequence[Prompt], letters: list[int], display: Display, folder: Path, watchdog: Watchdog
) -> CollectedAnswers:
    """Puts every prompt to the engine, in order. Raises EngineError, or BenchmarkError when the disk is full."""
    counters = Counters(issued=len(prompts))
    looked = begin = time.perf_counter()

    def watch() -> None:
        nonlocal looked
        display.tick(counters, len(prompts))
        if engine.failure:
            raise EngineError(engine.failure)
        watchdog.check()
        if time.perf_counter() - looked > CHECK_S:
            looked = time.perf_counter()
            check_space(folder)

    watchdog.reset()
    answers = engine.wait(engine.spawn(answer_all(engine, prompts, letters, counters)), watch)
    return CollectedAnswers(answers, time.perf_counter() - begin)


async def answer_all(
    engine: VLLM, prompts: Sequence[Prompt], letters: list[int], counters: Counters
) -> list[ChoiceAnswer]:
    gate = asyncio.Semaphore(QUEUE_FACTOR * engine.concurrency)

    async def answer(prompt: Prompt) -> ChoiceAnswer:
        async with gate:
            begin = time.perf_counter()
            choice = await engine.score_choices(prompt.tokens, letters)
            counters.completed += 1
            counters.tokens += len(prompt.tokens)
            return ChoiceAnswer(prompt, choice.logprobs, choice.cached_tokens, time.perf_counter() - begin)

    return await asyncio.gather(*map(answer, prompts))
