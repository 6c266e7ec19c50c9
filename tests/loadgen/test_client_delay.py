"""How late the client itself sends: measured where a request leaves, reported, and warned of where it shows."""

import asyncio
import gzip
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.engines.answer_delivery import Exchange
from harness.engines.echo import Echo
from harness.engines.openai import OpenAI
from harness.engines.protocol import Sampling
from harness.loadgen.log_entries import LogError
from harness.loadgen.requests import TRACE_FILE, Request, take_times
from harness.loadgen.sut import SUT
from harness.loadgen.test_run import gaps_ms
from harness.report import report as rendering
from harness.runs.run_folder import RunFolder
from harness.workloads.sample_library import Library
from tests.conftest import run
from tests.engines.test_openai import PROMPT, client
from tests.support import example_runs
from tests.support.fake_servers import Fake

CAME, SENT = (0.0, 0.1005, 0.2), (0.001, 0.1015, 0.24)  # s, by this program's clock


def noted() -> list[Request]:
    """Requests as the system under test notes them, by this program's clock."""
    return [
        Request(0, 5, 9, first_tokens=5, issued_s=came, sent_ms=1e3 * (sent - came), order=n)
        for n, (came, sent) in enumerate(zip(CAME, SENT, strict=True))
    ]


def trace(folder: Path, came_ms: Sequence[float] = (5000.0, 5100.0, 5200.0), delay_ms: float = 2.0) -> None:
    """LoadGen's trace of queries that it issued `delay_ms` after their scheduled times, by its own clock."""
    lines = []
    for number, at in enumerate(came_ms):
        about = {"sample_seq": number, "sample_idx": 0, "issue_start_ns": 1e6 * delay_ms, "complete_ns": 9e6}
        event = {"name": "Sample", "ph": "b", "ts": 1000 * (at - delay_ms), "args": about}
        lines.append(json.dumps(event, separators=(",", ":")))
    (folder / TRACE_FILE).write_text("\n".join([*lines, '"LastTrace"']))


def test_the_delay_is_loadgens_and_the_threads_and_the_clients_own(tmp_path: Path) -> None:
    """2 ms until LoadGen issues each; the second reaches this program half a millisecond late; then 1, 1 and 40 ms."""
    trace(tmp_path)
    requests = noted()
    take_times(requests, tmp_path)
    assert [request.sent_ms for request in requests] == pytest.approx([3.0, 3.5, 42.0])
    assert [request.issued_s for request in requests] == pytest.approx([0.0, 0.1, 0.2])
    assert {(request.latency_ms, request.clock, request.first_tokens) for request in requests} == {(9.0, "loadgen", 1)}


def test_the_trace_is_read_once_and_kept_compressed(tmp_path: Path) -> None:
    trace(tmp_path)
    text = (tmp_path / TRACE_FILE).read_text()
    take_times(noted(), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [f"{TRACE_FILE}.gz"]
    assert gzip.decompress((tmp_path / f"{TRACE_FILE}.gz").read_bytes()).decode() == text


@pytest.mark.parametrize("change", ["fewer", "other"])
def test_the_trace_of_another_test_is_refused(change: str, tmp_path: Path) -> None:
    trace(tmp_path)
    requests = noted()[:2] if change == "fewer" else [*noted()[:2], Request(7, 5, 9)]
    with pytest.raises(LogError, match="to another test"):
        take_times(requests, tmp_path)


def test_a_request_is_sent_when_it_is_written_to_a_connection(processes: int) -> None:
    exchange = Exchange(0.0)

    async def asked(engine: OpenAI) -> None:
        async for _ in engine.stream(PROMPT, None, exchange):
            pass

    with client(Fake(delay_s=0.3), processes=processes) as engine:
        begin = time.perf_counter()
        engine.run(asked(engine), lambda: None)
        took = time.perf_counter() - begin
    assert 0 < exchange.sent_at - begin < took - 0.3


@pytest.fixture(params=[1, 2])
def processes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def answered(engine: Any, count: int) -> SUT:
    """A system under test after so many queries at once."""
    sut = SUT(engine, Library([PROMPT], "one prompt"))
    sut.report = lambda *_: None  # type: ignore[method-assign]
    now = time.perf_counter()
    sut.requests = [Request(0, len(PROMPT), issued_s=now, order=order) for order in range(count)]

    async def all_of_them() -> None:
        await asyncio.gather(*(sut.answer(request) for request in sut.requests))

    engine.run(all_of_them(), lambda: None)
    return sut


def test_what_waits_for_a_place_is_late() -> None:
    """With one place, the second of two requests is sent once the first is answered."""
    with client(Fake(delay_s=0.3), max_in_flight=1) as engine:
        sut = answered(engine, 2)
    first, second = sorted(request.sent_ms or 0.0 for request in sut.requests)
    assert second - first >= 300


def test_of_an_engine_that_says_nothing_a_request_is_sent_when_it_is_asked() -> None:
    engine = Echo(Sampling(max_new_tokens=2), first_token_s=0.1, token_s=0.0)
    engine.start()
    request = answered(engine, 1).requests[0]
    engine.close()
    assert request.sent_ms is not None and request.ttft_ms is not None and request.latency_ms is not None
    assert 0 <= request.sent_ms < 100 < request.ttft_ms <= request.latency_ms


@pytest.mark.parametrize("late_s", [0.0005, 0.04])
def test_a_report_warns_where_it_shows_in_ttft(late_s: float, tmp_path: Path) -> None:
    """TTFT p99 is 20 ms: 5 % of it is 1 ms."""
    folder = example_runs.run(tmp_path / "run", scenario="server", server_target_qps=8.0)
    logs = folder / "Performance"
    example_runs.requests(
        logs, *(example_runs.timed(n, 20.0, 20.0, output_tokens=128, sent_ms=1e3 * late_s) for n in range(64))
    )
    summary, page = rendering.build_report(folder), (folder / "report.md").read_text()
    test = summary.run.performance
    assert test is not None and test.client_delay_ms is not None
    assert test.client_delay_ms.p99 == pytest.approx(1000 * late_s)
    said = "client delay: slowest delay 40 ms from its schedule until a request was sent, 200 % of slowest TTFT"
    assert (said in page) == (late_s > 0.001) == ("client delay: " in page)


def in_places(delay_s: float, rounds: int = 20, places: int = 4, stagger_s: float = 0.0) -> list[Request]:
    """A closed loop of answers of 20 ms, the next sent `delay_s` after each."""
    return [
        example_runs.timed(
            place + places * turn,
            5.0,
            20.0,
            output_tokens=128,
            issued_s=stagger_s * place / places + turn * (0.02 + delay_s / 2),
            sent_ms=1e3 * delay_s / 2,
            clock="client",
        )
        for turn in range(rounds)
        for place in range(places)
    ]


@pytest.mark.parametrize("stagger_s", [0.0, 0.015])
def test_in_a_closed_loop_it_is_from_an_answers_end_to_the_next_request(stagger_s: float) -> None:
    found = list(gaps_ms(in_places(0.002, stagger_s=stagger_s)))
    assert len(found) == 4 * 19 and found == pytest.approx([2.0] * len(found))


@pytest.mark.parametrize("delay_s", [0.0001, 0.004])
def test_a_report_warns_where_places_stand_empty(delay_s: float, tmp_path: Path) -> None:
    """2 % of a place's time are 0.4 ms."""
    folder = example_runs.run(tmp_path / "run", concurrency=4)
    example_runs.note(
        RunFolder(tmp_path, "run"),
        probes=[example_runs.probe(None, True, 5.0, 1.0, tokens_per_sec=9.0, concurrency=4, queries=72)],
    )
    example_runs.requests(folder / "Performance", *in_places(delay_s))
    test, page = rendering.build_report(folder).run.performance, (folder / "report.md").read_text()
    assert test is not None and test.client_delay_ms is not None
    assert test.client_delay_ms.p99 == pytest.approx(1000 * delay_s)
    assert ("client delay: slowest delay 4 ms from an answer's end" in page) == (delay_s > 0.001)
    assert "| client delay p50, ms |" in page


@pytest.mark.slow
def test_a_run_at_a_rate_tells_it(tmp_path: Path) -> None:
    flags = ("--backend", "echo", "--mode", "performance", "--scenario", "server", "--server-target-qps", "200,400")
    done = run(tmp_path, *flags, "--min-duration", "3", "--total-sample-count", "16")
    assert done.code == 0, done.output
    delay = done.summary["run"]["performance"]["client_delay_ms"]
    assert 0 < delay["min"] <= delay["p50"] <= done.summary["run"]["performance"]["ttft_ms"]["p50"]
    assert all(probe["client_delay_ms"]["p99"] > 0 for probe in done.summary["run"]["search"])
    assert "| client delay p99, ms |" in (done.folder / "report.md").read_text()
