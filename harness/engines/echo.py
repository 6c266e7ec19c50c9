"""An engine that computes nothing: it answers with the beginning of the prompt, at once. The template of an engine.

With real LoadGen it shows the whole way of a run in seconds, and what the harness itself costs. `--engine-arg
first_token_s=0.1` and `token_s=0.004` let it take the time that they say for the first token and for each that follows.
"""

import asyncio
import math
import time
from pathlib import Path

from harness.config.plan import Plan
from harness.core.errors import UsageError
from harness.engines import answer_delivery, protocol, sampling_of

TIME_ARGUMENTS = ("first_token_s", "token_s")


def create(plan: Plan, traces: Path, may_score: bool = False) -> "Echo":
    """Return the engine with the times that --engine-arg gives, 0 s if it gives none.

    `traces` stays empty, since there is no profiler. `may_score` has no effect. Raises UsageError for any other engine
    argument, or for a time that is no number of seconds.
    """
    times = dict.fromkeys(TIME_ARGUMENTS, 0.0)
    for name, value in plan.config.engine_args.items():
        if name not in TIME_ARGUMENTS or not isinstance(value, int | float) or not 0 <= value < math.inf:
            raise UsageError(f"--engine-arg {name}: --backend echo takes {' and '.join(TIME_ARGUMENTS)}, in seconds.")
        times[name] = float(value)
    return Echo(sampling_of(plan), **times)


class Echo(protocol.Engine):
    """Answers with as many tokens as are allowed: the prompt's own, from its first one on, over and over."""

    name = "echo"
    concurrency = 256

    def __init__(self, sampling: protocol.Sampling, **times: float) -> None:
        """Prepare the engine. `times` are the delays in seconds that it imitates, by the names of TIME_ARGUMENTS."""
        super().__init__({**times}, sampling)
        self.times = times

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: answer_delivery.Exchange | None = None,
        is_whole: bool = False,
    ) -> protocol.TokenStream:
        """Yield the first token after `first_token_s` seconds, and all others after `token_s` seconds for each.

        The answer is the prompt, repeated to the full length. `exchange` and `is_whole` are not used.
        """
        count = self.sampling.for_request(max_new_tokens).max_new_tokens
        repeats = count // len(prompt) + 1
        answer = (prompt * repeats)[:count]
        await asyncio.sleep(self.times["first_token_s"])
        yield answer[:1]
        await asyncio.sleep(self.times["token_s"] * (count - 1))
        self.last_response_at = time.monotonic()
        yield answer[1:]
