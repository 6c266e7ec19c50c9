"""What a measured rate costs: money and energy per token, and how many replicas a load needs."""

from typing import Any

from pydantic import AliasChoices, Field

from harness.config import mlperf
from harness.config.plan import Plan
from harness.core.formatting import Measured
from harness.core.schema import FrozenModel
from harness.loadgen.test_run import TestRun
from harness.results.hardware_limits import peak_shares
from harness.results.records import RunFacts


class Capacity(FrozenModel):
    """How many requests an hour and a day hold at the measured rate, and how long MLPerf's whole set takes."""

    requests_per_hour: float
    requests_per_day: float
    full_set_s: Measured = None
    """For all samples of MLPerf's set; null where others were asked."""


class Cost(FrozenModel):
    """What tokens and requests cost at --price-per-hour, in its currency."""

    price_per_hour: float
    per_million_output_tokens: Measured = None
    per_million_tokens: Measured = None
    """Input and output."""
    per_thousand_requests: Measured = None


class Economics(FrozenModel):
    """What the rate costs, and how close it is to what the hardware can do."""

    joules_per_output_token: Measured = None
    """`gpu_joules` over the output tokens."""
    cost: Cost | None = None
    capacity: Capacity | None = None
    mfu_percent: Measured = Field(default=None, validation_alias=AliasChoices("mfu_percent", "arithmetic_percent"))
    """Model FLOPs utilization: Offline, of the GPUs' peak; null where the model or the GPU is not known."""
    mbu_percent: Measured = Field(default=None, validation_alias=AliasChoices("mbu_percent", "bandwidth_percent"))
    """Model bandwidth utilization: at least this share of the GPUs' memory bandwidth; null as for MFU."""

    @staticmethod
    def of(test: TestRun, facts: RunFacts) -> dict[str, Any]:
        plan, log, counted, total = facts.plan, test.result, test.counted_result, test.total_tokens_per_sec
        here = plan.config.may_see_gpus and not plan.config.has_other_hosts
        joules = test.machine.gpu_joules if here else None
        arithmetic, bandwidth = peak_shares(test, facts) or (None, None)
        if (part := test.window) and part.requests:  # the result of a fixed concurrency is without its ramps
            total = part.total_tokens_per_sec
        return dict(
            joules_per_output_token=joules / test.total_new_tokens if joules and test.total_new_tokens else None,
            cost=cost(plan.config.price_per_hour, counted.tokens_per_sec, total, counted.samples_per_sec),
            capacity=capacity(plan, log.samples_per_sec) if log.valid or not plan.pattern.is_rated else None,
            mfu_percent=arithmetic,
            mbu_percent=bandwidth,
        )


def capacity(plan: Plan, rate: Measured) -> Capacity | None:
    """Return the requests an hour and a day at a rate in samples/s; with MLPerf's samples, the time for its set."""
    if not rate:
        return None
    other = plan.request_set or plan.config.model_spec.deviation or plan.max_new_tokens != mlperf.MAX_NEW_TOKENS
    full = plan.config.official_samples / rate if plan.official_data and not other else None
    return Capacity(requests_per_hour=3600 * rate, requests_per_day=86400 * rate, full_set_s=full)


def cost(price_per_hour: Measured, output: Measured, total: Measured, rate: Measured) -> Cost | None:
    """What a machine at this price an hour takes for its tokens and requests; rates are per second."""
    if price_per_hour is None:
        return None
    second = price_per_hour / 3600
    return Cost(
        price_per_hour=price_per_hour,
        per_million_output_tokens=1e6 * second / output if output else None,
        per_million_tokens=1e6 * second / total if total else None,
        per_thousand_requests=1e3 * second / rate if rate else None,
    )
