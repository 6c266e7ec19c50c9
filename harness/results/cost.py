"""The cost of a measured rate, and the requests that it answers in an hour and a day."""

from harness.config import mlperf
from harness.config.plan import Plan
from harness.core.formatting import Measured
from harness.core.schema import FrozenModel


class Capacity(FrozenModel):
    """The requests that the measured rate answers in an hour and a day, and the time that MLPerf's whole set takes."""

    requests_per_hour: float
    requests_per_day: float
    full_set_s: Measured = None
    """Seconds for all samples of MLPerf's set; null if the run asked other samples."""


class Cost(FrozenModel):
    """The cost of tokens and requests at --price-per-hour, in its currency."""

    price_per_hour: float
    per_million_output_tokens: Measured = None
    per_million_tokens: Measured = None
    """For input and output tokens together."""
    per_thousand_requests: Measured = None


def capacity(plan: Plan, rate: Measured) -> Capacity | None:
    """Return how many requests an hour and a day a rate in samples/s makes; None if the rate is not known or 0.

    If the run has MLPerf's samples, model and answer length, return also how long MLPerf's full set takes.
    """
    if not rate:
        return None
    has_own_requests = not plan.official_data or plan.request_set
    has_own_answer_length = plan.max_new_tokens != mlperf.MAX_NEW_TOKENS
    has_other_model = plan.config.model_spec.deviation
    full_set_s = None
    if not (has_own_requests or has_own_answer_length or has_other_model):
        full_set_s = plan.config.official_samples / rate
    return Capacity(requests_per_hour=3600 * rate, requests_per_day=86400 * rate, full_set_s=full_set_s)


def cost(price_per_hour: Measured, output: Measured, total: Measured, rate: Measured) -> Cost | None:
    """Return the cost of tokens and requests on a machine at this price an hour; None without a price.

    All rates are per second: `output` of output tokens, `total` of input and output tokens, `rate` of samples.
    """
    if price_per_hour is None:
        return None
    price_per_s = price_per_hour / 3600
    return Cost(
        price_per_hour=price_per_hour,
        per_million_output_tokens=price_at(1e6 * price_per_s, output),
        per_million_tokens=price_at(1e6 * price_per_s, total),
        per_thousand_requests=price_at(1e3 * price_per_s, rate),
    )


def price_at(price_per_s: float, rate: Measured) -> Measured:
    """Return the price of one unit at a rate of units per second; None if the rate is not known or 0."""
    if not rate:
        return None
    return price_per_s / rate
