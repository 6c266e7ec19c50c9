"""The times that the benchmark of streams reads from a test's requests.csv."""

from pathlib import Path

import pytest

from benchmarks import streams
from harness.loadgen.requests import Request, write_requests


def test_lateness_is_what_exceeds_the_servers_pace(tmp_path: Path) -> None:
    """A request that was written 20 ms after its issue, whose tokens came 5 ms late."""
    sent_ms = 20.0
    ttft_ms = sent_ms + 1e3 * streams.FIRST_TOKEN_S + 5
    latency_ms = ttft_ms + 1e3 * (streams.TOKENS - 1) * streams.TOKEN_GAP_S
    request = Request(0, issued_s=3.0, sent_ms=sent_ms, ttft_ms=ttft_ms, latency_ms=latency_ms)
    write_requests(tmp_path, [request])
    (times,) = streams.read_times(tmp_path)
    assert times.sent == pytest.approx(3.02)
    assert times.ttft_lateness_ms == pytest.approx(5, abs=0.01)
    assert times.tpot_lateness_ms == pytest.approx(0, abs=0.01)


def test_a_request_without_times_ends_the_benchmark(tmp_path: Path) -> None:
    write_requests(tmp_path, [Request(0, issued_s=3.0)])
    with pytest.raises(SystemExit, match="has no times"):
        streams.read_times(tmp_path)
