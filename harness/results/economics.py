"""What a measured rate costs, and how close it is to what the hardware can do."""

from typing import Self

from pydantic import AliasChoices, Field

from harness.common.schema import Model
from harness.config import mlperf, models
from harness.config.plan import Plan
from harness.loadgen.test_run import TestRun
from harness.results import roofline
from harness.runs.records import Capacity, Cost, RunFacts


class Economics(Model):
    """What the rate costs, and how close it is to what the hardware can do."""

    joules_per_output_token: float | None = None
    """`gpu_joules` over the output tokens."""
    cost: Cost | None = None
    capacity: Capacity | None = None
    mfu_percent: float | None = Field(default=None, validation_alias=AliasChoices("mfu_percent", "arithmetic_percent"))
    """Model FLOPs utilization: Offline, of the GPUs' peak; null where the model or the GPU is not known."""
    mbu_percent: float | None = Field(default=None, validation_alias=AliasChoices("mbu_percent", "bandwidth_percent"))
    """Model bandwidth utilization: at least this share of the GPUs' memory bandwidth; null as for MFU."""

    @classmethod
    def of(cls, test: TestRun, facts: RunFacts) -> Self:
        plan, log, tokens = facts.plan, test.result, sum(each.output_tokens for each in test.answered)
        here = plan.config.may_see_gpus and not plan.config.has_other_hosts
        joules, shares = test.machine.gpu_joules if here else None, near_peak(test, facts)
        speeds = (log.tokens_per_sec, test.total_tokens_per_sec, log.samples_per_sec)
        if (part := test.window) and part.requests:  # the result of a fixed concurrency is without its ramps
            both = part.tokens_per_sec + part.input_tokens_per_sec
            speeds = (part.tokens_per_sec, both, part.samples_per_sec)
        counts = log.valid or not plan.config.scenario_rules.pattern.is_rated
        return cls(
            joules_per_output_token=joules / tokens if joules and tokens else None,
            cost=cost(plan.config.price_per_hour, *speeds),
            capacity=capacity(plan, log.samples_per_sec) if counts else None,
            mfu_percent=shares[0] if shares else None,
            mbu_percent=shares[1] if shares else None,
        )


def near_peak(test: TestRun, facts: RunFacts) -> tuple[float, float] | None:
    """The shares of arithmetic and bandwidth of an Offline test of the reference model, all of it computed as the
    formula has it, on the GPUs of this host; else None."""
    plan, seconds = facts.plan, test.result.duration_s
    if not facts.concurrency or not seconds or not test.answered or test.result.ttft_ms:
        return None
    engine_state = plan.engine_state
    if not plan.reference_model or plan.config.has_other_hosts or plan.config.precision == "fp32":
        return None
    if engine_state.prefix_caching is not False or engine_state.speculation:
        return None
    model = plan.config.model
    in_eight_bits = model in models.QUANTIZED or bool(models.made_of(model))
    return roofline.shares(
        roofline.OfflineLoad(
            gpus=facts.system.gpus[: plan.tensor_parallel_size * plan.data_parallel_size],
            bits=roofline.bits(engine_state.quantization, in_eight_bits),
            kv_cache_dtype=engine_state.kv_cache_dtype,
            replicas=plan.data_parallel_size,
            concurrency=facts.concurrency,
            prompts=[each.prompt_tokens for each in test.answered],
            answers=[each.output_tokens for each in test.answered],
            seconds=seconds,
        )
    )


def capacity(plan: Plan, rate: float | None) -> Capacity | None:
    """Cost and energy at a rate of samples/s; for MLPerf's whole set where the samples were MLPerf's."""
    if not rate:
        return None
    official = plan.official_data and not plan.request_set and not plan.config.model_spec.deviation
    official = official and plan.max_new_tokens == mlperf.MAX_NEW_TOKENS
    full = mlperf.OFFICIAL[plan.config.category].samples / rate if official else None
    return Capacity(requests_per_hour=3600 * rate, requests_per_day=86400 * rate, full_set_s=full)


def cost(price_per_hour: float | None, output: float | None, total: float | None, rate: float | None) -> Cost | None:
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
