"""The share of requests that keep both limits, and what tokens cost."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.config import mlperf
from harness.loadgen import request_times
from harness.loadgen.trace import TRACE, Sample
from harness.results import performance


def share(monkeypatch: pytest.MonkeyPatch, folder: Path, samples: list[Sample], tokens: list[int]) -> float | None:
    (folder / TRACE).touch()
    monkeypatch.setattr(request_times, "read_trace", lambda _: samples)
    return performance.slo_attainment(folder, tokens, mlperf.Limits(100, 10))


def test_goodput_counts_requests_that_keep_both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    samples = [
        Sample(0, 0, 0.0, 100.0, 200.0),  # 11 tokens: 10 ms each, both kept to the edge
        Sample(1, 0, 0.0, 101.0, 150.0),  # the first too late
        Sample(2, 0, 0.0, 50.0, 161.0),  # 11.1 ms each
        Sample(3, 0, 0.0, 50.0, 9000.0),  # one token alone
    ]
    assert share(monkeypatch, tmp_path, samples, [11, 11, 11, 1]) == 50.0
    assert share(monkeypatch, tmp_path, samples, [11]) is None
    assert performance.slo_attainment(tmp_path, [11], None) is None
    assert performance.slo_attainment(tmp_path / "none", [11], mlperf.Limits(1, 1)) is None


@given(st.floats(0.01, 1000), st.floats(1, 1e6))
def test_what_tokens_cost(price: float, speed: float) -> None:
    found = performance.cost(price, speed, 2 * speed, speed / 128)
    assert found is not None
    hours = 1e6 / speed / 3600
    assert found.per_million_output_tokens == pytest.approx(price * hours)
    assert found.per_million_tokens == pytest.approx(price * hours / 2)
    assert found.per_thousand_requests == pytest.approx(price * 128_000 / speed / 3600)
    assert performance.cost(None, speed, speed, speed) is None
