"""The share of requests that keep both limits, and what tokens cost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import mlperf
from harness.loadgen.requests import Request
from harness.results import figures
from harness.results.cost import cost
from tests.support import example_runs

LIMITS = mlperf.LatencyLimits(100, 10)


def share(*requests: Request, limits: mlperf.LatencyLimits | None = LIMITS) -> float | None:
    return figures.slo_attainment(requests, limits, is_buffered=False)


def test_goodput_counts_requests_that_keep_both() -> None:
    requests = (
        example_runs.timed(0, 100.0, 200.0, output_tokens=11),  # 10 ms each, both kept to the edge
        example_runs.timed(1, 101.0, 150.0, output_tokens=11),  # the first too late
        example_runs.timed(2, 50.0, 161.0, output_tokens=11),  # 11.1 ms each
        example_runs.timed(3, 50.0, 9000.0, output_tokens=1),  # one token alone
    )
    assert share(*requests) == 50.0
    assert share(*requests, example_runs.timed(4, 1.0, 2.0, failure="429")) == 40.0
    assert share(*requests, example_runs.timed(4, None, 2.0)) is None
    assert share(*requests, limits=None) is None
    assert share() is None


@given(st.floats(0.01, 1000), st.floats(1, 1e6))
def test_what_tokens_cost(price: float, speed: float) -> None:
    found = cost(price, speed, 2 * speed, speed / 128)
    assert found is not None
    hours = 1e6 / speed / 3600
    assert found.per_million_output_tokens == pytest.approx(price * hours)
    assert found.per_million_tokens == pytest.approx(price * hours / 2)
    assert found.per_thousand_requests == pytest.approx(price * 128_000 / speed / 3600)
    assert cost(None, speed, speed, speed) is None
