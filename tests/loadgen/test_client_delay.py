"""How late the client itself sends: measured where a request leaves, reported, and warned of where it shows."""

import asyncio
import json
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.engines.openai import OpenAI
from harness.engines.protocol import ON_SENT
from harness.loadgen import client_delay
from harness.loadgen.sut import Query, StreamingSUT
from harness.reporting import report as rendering
from tests import made
from tests.conftest import run
from tests.engines.test_openai import PROMPT, client
from tests.servers import Fake

CAME, SENT = (0.0, 0.1005, 0.2), (0.001, 0.1015, 0.24)  # s, by this program's clock


def trace(folder: Path, came_ms: Sequence[float] = (5000.0, 5100.0, 5200.0), delay_ms: float = 2.0) -> None:
    """LoadGen's trace of queries that it issued `delay_ms` after their scheduled times, by a clock of its own."""
    lines = []
    for number, at in enumerate(came_ms):
        about = {"sample_seq": number, "sample_idx": 0, "issue_start_ns": 1e6 * delay_ms, "complete_ns": 9e6}
        event = {"name": "Sample", "ph": "b", "ts": 1000 * (at - delay_ms), "args": about}
        lines.append(json.dumps(event, separators=(",", ":")))
    (folder / "mlperf_log_trace.json").write_text("\n".join([*lines, '"LastTrace"']))


def test_the_delay_is_loadgens_and_the_threads_and_the_clients_own(tmp_path: Path) -> None:
    """2 ms until LoadGen issues each; the second reaches this program half a millisecond late; then 1, 1 and 40 ms."""
    trace(tmp_path)
    client_delay.write(tmp_path, CAME, SENT)
    found = client_delay.client_delays(tmp_path)
    assert found is not None
    assert (found.min, found.p50, found.max) == pytest.approx((3.0, 3.5, 42.0))


def test_no_delay_without_its_times_or_of_another_test(tmp_path: Path) -> None:
    trace(tmp_path)
    assert client_delay.client_delays(tmp_path) is None
    client_delay.write(tmp_path, CAME[:2], SENT[:2])
    assert client_delay.client_delays(tmp_path) is None


def test_a_request_is_sent_when_it_is_written_to_a_connection(processes: int) -> None:
    told: list[float] = []

    async def asked(engine: OpenAI) -> None:
        ON_SENT.set(told.append)
        async for _ in engine.stream(PROMPT):
            pass

    with client(Fake(delay_s=0.3), client_processes=processes) as engine:
        begin = time.perf_counter()
        engine.wait(engine.spawn(asked(engine)), lambda: None)
        took = time.perf_counter() - begin
    assert len(told) == 1 and 0 < told[0] - begin < took - 0.3


@pytest.fixture(params=[1, 2])
def processes(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def test_what_waits_for_a_place_is_late() -> None:
    """With one place, the second of two requests is sent once the first is answered."""

    async def both(sut: Any) -> None:
        await asyncio.gather(*(sut.answer(Query(0, 0, order)) for order in (0, 1)))

    with client(Fake(delay_s=0.3), max_in_flight=1) as engine:
        sut = StreamingSUT(engine, [PROMPT], sent_at=[0.0, 0.0], new_tokens=[0, 0], completed_at=[0.0, 0.0])
        sut.send = lambda *_: None  # type: ignore[method-assign]
        engine.wait(engine.spawn(both(sut)), lambda: None)
    first, second = sorted(sut.sent_at)
    assert second - first >= 0.3


def test_of_an_engine_that_says_nothing_a_request_is_sent_when_it_is_asked() -> None:
    async def stream(*_: Any) -> Any:
        yield [1]

    sut = StreamingSUT(SimpleNamespace(stream=stream), [PROMPT], sent_at=[0.0], new_tokens=[0], completed_at=[0.0])  # type: ignore[arg-type]
    sut.send = lambda *_: None  # type: ignore[method-assign]
    asyncio.run(sut.answer(Query(0, 0, 0)))
    assert time.perf_counter() - 5 < sut.sent_at[0] <= sut.completed_at[0]


@pytest.mark.parametrize("late_s", [0.0005, 0.04])
def test_a_report_warns_where_it_shows_in_ttft(late_s: float, tmp_path: Path) -> None:
    """TTFT p99 is 20 ms: 5 % of it is 1 ms."""
    folder = made.run(tmp_path / "run", scenario="server", server_target_qps=8.0)
    logs = folder / "Performance"
    (logs / "tokens.json").unlink()
    (logs / "prompt_tokens.json").unlink()
    trace(logs, delay_ms=0.0)
    came = (0.0, 0.1, 0.2)
    client_delay.write(logs, came, [at + late_s for at in came])
    summary, page = rendering.build(folder), (folder / "report.md").read_text()
    test = summary.run.performance
    assert test is not None and test.client_delay_ms is not None
    assert test.client_delay_ms.p99 == pytest.approx(1000 * late_s)
    assert f"| client delay p99, ms | {1000 * late_s:g} |" in page
    said = "- **The client was late: p99 40 ms from its schedule until a request was sent, 200 % of TTFT p99"
    assert (said in page) == (late_s > 0.001) == ("The client was late" in page)


@pytest.mark.slow
def test_a_run_at_a_rate_tells_it(tmp_path: Path) -> None:
    flags = ("--backend", "echo", "--mode", "performance", "--scenario", "server", "--server-target-qps", "200,400")
    done = run(tmp_path, *flags, "--min-duration", "3", "--total-sample-count", "16")
    assert done.code == 0, done.output
    delay = done.summary["run"]["performance"]["client_delay_ms"]
    assert 0 < delay["min"] <= delay["p50"] <= done.summary["run"]["performance"]["ttft_ms"]["p50"]
    assert all(probe["client_delay_p99"] > 0 for probe in done.summary["run"]["search"])
    assert "| client delay p99, ms |" in (done.folder / "report.md").read_text()
