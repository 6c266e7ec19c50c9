"""The share of requests that keep both limits, and what tokens cost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import mlperf
from harness.loadgen.requests import Request
from harness.report import report as rendering
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


AT_ONCE = 4


def closed_loop(failed: frozenset[int], late: frozenset[int]) -> list[Request]:
    """Requests of a second each, four in flight, some of which fail or come too late for the limit of TTFT."""
    return [
        example_runs.timed(
            n,
            5000.0 if n in late else 100.0,
            1000.0,
            output_tokens=0 if n in failed else 11,
            issued_s=float(n // AT_ONCE),
            clock="client",
            failure="429" if n in failed else "",
        )
        for n in range(10 * AT_ONCE)
    ]


def test_without_ramps_the_speeds_are_of_the_answers_that_ended_in_that_part(tmp_path: Path) -> None:
    """Ten waves of four, the first and the last of which are ramps: eight seconds with 32 ends, three of them failures
    and two late.
    """
    failed, late = frozenset({0, 9, 10, 17}), frozenset({1, 13, 22})
    run = example_runs.run(tmp_path / "run", concurrency=AT_ONCE, ttft_limit=2000, tpot_limit=100)
    example_runs.requests(run / "Performance", *closed_loop(failed, late))
    summary = rendering.build_report(run)
    assert summary.run.performance
    steady, whole = summary.run.performance.details.steady, summary.run.performance.details.whole
    assert steady
    assert steady.seconds == pytest.approx(8.0) and steady.requests == 29
    assert steady.samples_per_sec == pytest.approx(29 / 8)
    assert steady.tokens_per_sec == pytest.approx(29 * 11 / 8)
    assert steady.slo_attainment == pytest.approx(100 * 27 / 32)
    assert steady.goodput == pytest.approx(27 / 8)
    assert whole.slo_attainment == pytest.approx(100 * 33 / 40)
    assert whole.samples_per_sec and whole.goodput == pytest.approx(whole.samples_per_sec * 33 / 36)
