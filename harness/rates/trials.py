"""Short trials on the loaded engine, without LoadGen: how fast it is, before a test that has to know.

Their times are this program's own, so they are never a result.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import NamedTuple

from harness.config.engine import allows_failures, failure_allowance
from harness.config.patterns import LoadPattern
from harness.config.plan import Plan
from harness.core.errors import EndpointError, ServerFullError
from harness.core.formatting import number, plural
from harness.engines.answer_delivery import Exchange
from harness.engines.protocol import WATCH_INTERVAL_S, Engine, TokenStream
from harness.loadgen.admission import Admission, remedy_for_full_server
from harness.loadgen.senders import ask
from harness.loadgen.sending import trial_sender
from harness.workloads.sample_library import Prompt

TRIAL_S = 60.0  # A trial ends after this many seconds with the answers that came.
WARM_UP_PROMPTS = 4


class Trial(NamedTuple):
    """The result of a short trial on the loaded engine."""

    samples: int
    seconds: float
    full_at: int | None = None  # the number of requests that the server was answering when it refused others

    @property
    def samples_per_sec(self) -> float:
        return self.samples / self.seconds

    def __str__(self) -> str:
        basis = f"{plural(self.samples, 'sample')} in {self.seconds:.1f} s"
        return f"{number(self.samples_per_sec)} samples/s, measured on {basis}"


class TolerantEngine:
    """An engine that lets some requests of a trial fail, as --max-failed allows it of a test, but at least one.

    If `is_probe`, a refusal by a full server is a measurement and no failure.
    """

    def __init__(
        self,
        engine: Engine,
        max_failed: str,
        requests: int,
        is_probe: bool = False,
        most_in_flight_flag: str = LoadPattern.most_in_flight_flag,
    ) -> None:
        """Wrap an engine for a trial of `requests` requests. `max_failed` is the value of --max-failed.

        `most_in_flight_flag` is the flag that limits how many requests are in flight.
        """
        self.engine = engine
        self.most_in_flight_flag = most_in_flight_flag
        self.is_probe = is_probe
        self.failures_left = 0
        self.rule = ""  # what --max-failed allows of this trial, as the end of an error message
        if allows_failures(max_failed):
            # At least one, even if the allowed share of the few requests is less than one.
            self.failures_left = max(1, failure_allowance(max_failed, requests))
            self.rule = (
                f"; --max-failed {max_failed}: {self.failures_left} of {plural(requests, 'request')} of the trial "
                "before a test may fail."
            )
        self.answered = 0
        self.admission = Admission()

    async def stream(
        self,
        prompt: list[int],
        max_new_tokens: int | None = None,
        exchange: Exchange | None = None,
        is_whole: bool = False,
    ) -> TokenStream:
        """Yield the engine's tokens for a prompt. A request that fails ends without further tokens.

        The parameters are those of the engine's own `stream`. Raises EndpointError if more requests failed than may
        fail.
        """
        request = self.admission.note_sent(time.perf_counter())
        try:
            async for tokens in self.engine.stream(prompt, max_new_tokens, exchange, is_whole):
                yield tokens
            self.answered += 1
            self.admission.note_answered(request, time.perf_counter())
        except ServerFullError as error:
            if self.is_probe:
                self.admission.note_refused(request, time.perf_counter(), error)
            else:
                self.admission.forget(request)
                others = len(self.admission.in_progress)
                self.count_failure(error, remedy_for_full_server(others, self.most_in_flight_flag))
        except EndpointError as error:
            self.admission.forget(request)
            self.count_failure(error)

    def count_failure(self, error: EndpointError, remedy: str = "") -> None:
        """Count a failed request. Raises EndpointError if more requests failed than may fail.

        The message then has the `remedy`, if one is known, and names --max-failed (`rule`). If that flag allows no
        failure at all, it did not decide and is not named.
        """
        self.failures_left -= 1
        if self.failures_left >= 0:
            return
        if not (remedy or self.rule):
            raise error from None
        raise EndpointError(f"{str(error).removesuffix('.')}{remedy}{self.rule}")


async def run_trial(plan: Plan, engine: TolerantEngine, prompts: Sequence[Prompt], at_once: int) -> Trial:
    """Warm up on a few prompts, then send all prompts as the run itself will, and return how fast answers came.

    `at_once` is the engine's concurrency. Raises EngineError, or EndpointError if no request was answered.
    """
    sender = trial_sender(plan, at_once)

    async def answer(prompt: Prompt) -> None:
        """Send one prompt, and wait for its answer."""
        await ask(engine, prompt, plan.pattern)

    await sender.send(prompts[:WARM_UP_PROMPTS], answer)
    begin, before = time.perf_counter(), engine.answered  # The answers to the warm-up do not count.
    work = asyncio.ensure_future(sender.send(prompts, answer))
    try:
        # The trial ends when all are answered, or after TRIAL_S seconds if an answer came by then.
        await asyncio.wait([work], timeout=TRIAL_S)
        while engine.answered == before and not work.done():
            await asyncio.wait([work], timeout=WATCH_INTERVAL_S)
        if work.done():
            work.result()  # raises the error of a request that failed
        answered = engine.answered - before
        if not answered:
            raise EndpointError("no request of the trial was answered: see the server's log.")
        # `full_at` is the number of requests in flight beyond which the server refused others, if it did.
        return Trial(answered, time.perf_counter() - begin, full_at=engine.admission.full_at)
    finally:
        # After TRIAL_S or an error, requests are still under way. Work that is done is not changed by this.
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
