"""The first requests of a search, without LoadGen: lone ones, and a burst of some at once."""

import asyncio
import time
from collections.abc import Sequence
from statistics import median
from typing import NamedTuple

from harness.config.plan import Plan
from harness.core.errors import EndpointError
from harness.engines.answer_delivery import Exchange
from harness.loadgen.requests import Request
from harness.loadgen.senders import ask
from harness.rates.server_model import LoneRequest
from harness.rates.trials import TolerantEngine
from harness.workloads.sample_library import Prompt

LONE_REQUESTS = 10
LONE_S = 20.0  # the seconds after which no further lone request is sent
BURST_REQUESTS = 32
LARGER_BURST_RATIO = 4  # the size of the next burst over that of a burst that showed no limit
MOST_BURST_REQUESTS = 512
# A burst is so small that its requests would take no longer one after the other, in seconds.
MOST_BURST_S = 60.0
# A burst that takes no larger share of its time beyond that of a lone request fits at once: it shows no limit.
FITS_SHARE = 0.1


class BurstResult(NamedTuple):
    """Requests that were sent at once: how many were answered and how many refused, and the seconds until the last
    answer.
    """

    answered: int
    refused: int
    seconds: float

    def has_limit(self, lone: LoneRequest) -> bool:
        """Tell whether the burst shows a limit of the server: it took clearly longer than a lone request, or was partly
        refused.
        """
        beyond_s = self.seconds - lone.latency_s
        return self.refused > 0 or beyond_s > FITS_SHARE * self.seconds

    def qps(self, lone: LoneRequest) -> float:
        """Estimate the server's capacity in queries/s from the burst.

        A burst of n requests is taken to last a lone request's time + n / capacity.
        """
        beyond_s = self.seconds - lone.latency_s
        if beyond_s <= FITS_SHARE * self.seconds:  # The burst was too small to show the capacity, but it is no less.
            return self.answered / self.seconds
        return self.answered / beyond_s


def burst_size(wanted: int, at_once: int, lone: LoneRequest) -> int:
    """Return how many requests to send at once: `wanted`, but no more than the engine runs at once (`at_once`), and no
    more than a slow server can answer soon.
    """
    most_in_time = wanted
    if lone.latency_s:
        # A slow server gets so few requests that they end in MOST_BURST_S seconds even if it answers one after the
        # other. Two are the fewest that show whether it answers several at once.
        most_in_time = max(2, int(MOST_BURST_S / lone.latency_s))
    return max(1, min(wanted, at_once, MOST_BURST_REQUESTS, most_in_time))


async def run_lone_requests(engine: TolerantEngine, prompts: Sequence[Prompt], most_s: float = LONE_S) -> LoneRequest:
    """Send prompts one after the other for at most about `most_s` seconds, and return the medians of their times.

    Raises EngineError, or EndpointError if no request was answered.
    """
    answered, begin = list[Request](), time.perf_counter()
    for prompt in prompts:
        request = await run_lone_request(engine, prompt)
        has_failed = not request.latency_ms
        if not has_failed:
            answered.append(request)
        if time.perf_counter() - begin > most_s:
            break
    if not answered:
        raise EndpointError("no request of those sent alone was answered: see the server's log.")
    # The first request may have waited for the engine's start.
    counted = answered[1:] or answered
    token_times = [request.tpot_ms for request in counted if request.tpot_ms] or [0.0]  # 0 if no answer has two tokens
    ttft_ms = median(request.ttft_ms or 0.0 for request in counted)
    latency_ms = median(request.latency_ms or 0.0 for request in counted)
    return LoneRequest(ttft_ms / 1e3, median(token_times) / 1e3, latency_ms / 1e3)


async def run_lone_request(engine: TolerantEngine, prompt: Prompt) -> Request:
    """Send one prompt and return its request with the times of its answer.

    The request has no latency if it failed and failures are allowed.
    """
    begin = time.perf_counter()
    exchange, request = Exchange(begin), Request(sample=0)  # No sample of a test: the number is of no use here.
    tokens_of_prompt, max_new_tokens = prompt
    async for tokens in engine.stream(tokens_of_prompt, max_new_tokens, exchange, is_whole=False):
        request.latency_ms = 1e3 * (time.perf_counter() - begin)  # The last message gives the time of the answer.
        is_first = request.ttft_ms is None
        if is_first:
            request.ttft_ms = request.latency_ms
            request.first_tokens = max(1, len(tokens))  # A message without a whole token counts as one token.
        request.output_tokens += len(tokens)
    delivery = exchange.delivery
    if delivery:  # It has the counts that results use. A server may count other tokens than it sends.
        request.output_tokens = delivery.tokens
        request.first_tokens = max(1, delivery.first_tokens)  # They are counted as 0 if the answer came whole.
    return request


async def run_burst(engine: TolerantEngine, prompts: Sequence[Prompt], plan: Plan) -> BurstResult:
    """Send all prompts at once, wait for all answers, and return how many were answered and refused in which time.

    `engine` counts both. Raises EngineError, or EndpointError if more requests fail than `engine` allows.
    """
    begin = time.perf_counter()
    await asyncio.gather(*(ask(engine, prompt, plan.pattern) for prompt in prompts))
    return BurstResult(engine.answered, len(engine.admission.refusal_times), time.perf_counter() - begin)
