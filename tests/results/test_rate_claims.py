"""Rates that were raised consistently in every file still do not fit the requests and their times."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.loadgen import test_run
from harness.loadgen.requests import Request
from harness.loadgen.test_run import TestRun
from harness.results import claims
from tests.support import example_runs


def measured(folder: Path, scenario: str, requests: list[Request], seconds: float, **changed: Any) -> TestRun:
    """A test whose rates are those of its requests, but for what is changed."""
    flags = {"category": "edge"} if scenario == "singlestream" else {}
    run = example_runs.run(folder, scenario=scenario, **flags)
    test = TestRun.from_logs(run / "Performance", None, None)
    tokens = sum(request.output_tokens for request in requests)
    rates = {"samples_per_sec": len(requests) / seconds, "tokens_per_sec": tokens / seconds}
    return replace(test, result=replace(test.result, **rates | changed), requests=tuple(requests))


def one_after_the_other(count: int, seconds_each: float) -> list[Request]:
    about = {"output_tokens": 16, "clock": "loadgen", "ttft_ms": 1.0, "latency_ms": 1000 * seconds_each}
    return [Request(n, 500, **about, issued_s=n * seconds_each, order=n) for n in range(count)]  # type: ignore[arg-type]


@pytest.mark.parametrize("scenario", ["singlestream", "server"])
@pytest.mark.parametrize("factor", [0.9, 0.96, 1.0, 1.04, 1.1])
@pytest.mark.parametrize("rate", ["samples_per_sec", "tokens_per_sec"])
def test_a_rate_that_does_not_fit_the_requests_differs(scenario: str, factor: float, rate: str, tmp_path: Path) -> None:
    requests = one_after_the_other(400, 0.05)
    honest = {"samples_per_sec": 20.0, "tokens_per_sec": 320.0}
    test = measured(tmp_path / "run", scenario, requests, 20.0, **{rate: factor * honest[rate]})
    verdicts = {claim.name: claim.verdict for claim in claims.rate_claims(test)}
    assert len(verdicts) == 2
    assert ("differs" in verdicts.values()) == (factor != 1.0)


def test_tokens_that_were_doubled_differ(tmp_path: Path) -> None:
    doubled = [replace(request, output_tokens=32) for request in one_after_the_other(400, 0.05)]
    test = measured(tmp_path / "run", "singlestream", doubled, 20.0, tokens_per_sec=320.0)
    assert [claim.verdict for claim in claims.rate_claims(test)] == ["equal", "differs"]


def test_few_requests_may_lack_one_at_the_ends(tmp_path: Path) -> None:
    test = measured(tmp_path / "run", "singlestream", one_after_the_other(8, 0.5), 4.0, samples_per_sec=7 / 4)
    assert {claim.verdict for claim in claims.rate_claims(test)} == {"equal"}


def test_without_times_nothing_is_claimed(tmp_path: Path) -> None:
    requests = [replace(request, latency_ms=None) for request in one_after_the_other(8, 0.5)]
    assert [*claims.rate_claims(measured(tmp_path / "run", "server", requests, 4.0))] == []


def test_the_rates_of_multistream_are_over_one_time(tmp_path: Path) -> None:
    requests = [Request(n, 500, output_tokens=10) for n in range(40)]
    test = measured(tmp_path / "run", "server", requests, 4.0)
    result = replace(test.result, scenario="MultiStream", samples=40, samples_per_sec=99.0, tokens_per_sec=100.0)
    mended = test_run.corrected_result(result, requests, None, may_have_single_tokens=False)
    assert (mended.duration_s, mended.samples_per_sec) == (4.0, 10.0)
