"""An engine that computes nothing: it answers with the beginning of the prompt, at once. The template of an engine.

With real LoadGen it shows the whole way of a run in seconds, and what the harness itself costs. `--engine-arg
first_token_s=0.1` and `token_s=0.004` let it take the time that they say for the first token and for each that follows.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from harness.common.errors import EngineError, UsageError
from harness.config.engine import EngineState
from harness.config.plan import Plan
from harness.engines import sampling_of
from harness.engines.loop import LoopThread
from harness.engines.protocol import ChoiceLogprobs, Sampling
from harness.runs.delivery import Exchange

TIMES = ("first_token_s", "token_s")


def create(plan: Plan, traces: Path, choosing: bool = False) -> "Echo":
    """Raises UsageError for a setting that it does not know; `traces` stays empty, since it has no profiler."""
    times = dict.fromkeys(TIMES, 0.0)
    for name, value in plan.config.engine_args.items():
        if name not in TIMES or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UsageError(f"--engine-arg {name}: --backend echo takes {' and '.join(TIMES)}, in seconds.")
        times[name] = float(value)
    return Echo(sampling_of(plan), **times)


class Echo(LoopThread):
    """Answers with as many tokens as are allowed: the prompt's own, from its first one on, over and over."""

    name, version = "echo", ""
    engine_state = EngineState()
    concurrency = 256
    failure = None

    def __init__(self, sampling: Sampling, first_token_s: float, token_s: float) -> None:
        super().__init__()
        self.sampling, self.first_token_s, self.token_s = sampling, first_token_s, token_s
        self.args = {"first_token_s": first_token_s, "token_s": token_s}
        self.start_s = self.last_response_at = 0.0

    def start(self, watch: Callable[[], None] = lambda: None) -> None:
        self.open_loop()

    async def generate(
        self, prompt: list[int], max_new_tokens: int | None = None, exchange: Exchange | None = None
    ) -> Sequence[int]:
        return [token async for tokens in self.stream(prompt, max_new_tokens) for token in tokens]

    async def stream(
        self, prompt: list[int], max_new_tokens: int | None = None, exchange: Exchange | None = None
    ) -> AsyncIterator[Sequence[int]]:
        count = self.sampling.of(max_new_tokens).max_new_tokens
        answer = (prompt * (count // len(prompt) + 1))[:count]
        await asyncio.sleep(self.first_token_s)
        yield answer[:1]
        await asyncio.sleep(self.token_s * (count - 1))
        self.last_response_at = time.monotonic()
        yield answer[1:]

    async def score_choices(self, prompt: list[int], choices: list[int]) -> ChoiceLogprobs:
        raise UsageError("--backend echo computes no probabilities.")

    async def reset_prefix_cache(self) -> None:
        """It has none."""

    async def profile(self, on: bool) -> None:
        raise EngineError("echo has no profiler")

    def prometheus_metrics(self) -> list[str]:
        return []

    def close(self) -> None:
        self.stop_loop()
