"""Answers whose tokens are counted and never sent: the run goes on, their first token has no time, never 0."""

import json
from pathlib import Path
from typing import Any

import pytest

from harness.config.mlperf import LatencyLimits
from harness.core.errors import EmptyAnswerError
from harness.engines.answer_delivery import ServerUse
from harness.loadgen import log as loadgen_log
from harness.loadgen import sut
from harness.loadgen.requests import Request, read_requests, write_requests
from harness.loadgen.test_run import corrected_result
from tests.conftest import run, tells
from tests.engines.test_openai import PROMPT, client
from tests.loadgen.test_failures import asked
from tests.support import example_runs
from tests.support.fake_servers import Fake, serving, whole

CHAT: dict[str, Any] = {"endpoint_api": "chat", "scenario": "server"}


def frames(text: str = "", end: str = "length", counted: int | None = 16) -> tuple[str, ...]:
    """A stream with this text, and with so many tokens by `usage`."""
    message = {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": end}]}
    usage = {
        "choices": [],
        "usage": {"prompt_tokens": 9, "completion_tokens": counted, "total_tokens": 9 + (counted or 0)},
    }
    parts = [message] if counted is None else [message, usage]
    return (*(f"data: {json.dumps(part)}\n\n" for part in parts), "data: [DONE]\n\n")


def fake(**how: Any) -> Fake:
    return Fake(frames=frames(**how), token_ids=False, extras=False)


@pytest.mark.parametrize("end", ["length", "stop"])
@pytest.mark.parametrize(
    "kind", [{}, {"streams": False}, {"is_timed_by_client": True}], ids=["Server", "Offline", "closed"]
)
def test_they_are_counted_by_usage_and_have_no_first_token(kind: dict[str, Any], end: str) -> None:
    with client(fake(end=end), **CHAT) as engine:
        if kind.get("streams") is False:
            # A document instead of a stream is another answer.
            kind = {**kind, "streams": True, "is_timed_by_client": True}
        system, heard = asked(engine, 2, **kind)
    assert [request.output_tokens for request in system.requests] == [16, 16]
    assert [(request.ttft_ms, request.tpot_ms, request.first_tokens) for request in system.requests] == [
        (None, None, 0)
    ] * 2
    first = [id for report, id, _ in heard if report is sut.lg.FirstTokenComplete]
    assert first == ([] if kind else [0, 1])
    use = ServerUse.from_deliveries(system.deliveries)
    assert (use.hidden, use.output_tokens, use.client_tokens) == (2, 32, 0)
    assert any("2 of 2 answers" in line and "usage" in line for line in use.disagreements)


@pytest.mark.parametrize(
    ("server", "said"),
    [
        (fake(counted=None), ("limit of tokens", "no `usage`", "thinking off")),
        (fake(counted=0), ("limit of tokens", "no `usage`", "thinking off")),
        (Fake(fault="empty", end="stop", usage=False), ("finish_reason 'stop'", "min_tokens", "does not honor")),
        (
            Fake(fault="empty", end="stop", by_usage=1),
            ("finish_reason 'stop'", "`usage` counts 1", "decode to no text"),
        ),
        (
            Fake(fault="empty", end="end_turn", usage=False, refuses=("min_tokens",)),
            ("finish_reason 'end_turn'", "does not take min_tokens"),
        ),
    ],
    ids=["length", "length, counted 0", "stop", "stop, counted 1", "no min_tokens"],
)
def test_an_answer_without_any_token_says_why(server: Fake, said: tuple[str, ...]) -> None:
    chat = CHAT if server.frames else {"scenario": "server"}
    with client(server, **chat) as engine, pytest.raises(EmptyAnswerError) as caught:
        asked(engine, 1)
    assert tells(caught.value, *said) and "\n" not in str(caught.value)


def requests_of(hidden: int, seen: int) -> list[Request]:
    """Answers of a Server test as LoadGen timed them."""
    return [
        Request(
            0, 9, 16, first_tokens=0 if number < hidden else 1, issued_s=0.1 * number, latency_ms=500.0, sent_ms=1.0
        )
        for number in range(hidden + seen)
    ]


@pytest.mark.parametrize(("hidden", "seen"), [(64, 0), (32, 32)])
def test_a_test_has_the_times_of_the_answers_that_came(tmp_path: Path, hidden: int, seen: int) -> None:
    example_runs.run(tmp_path / "run", scenario="server", server_target_qps=8.5)
    result = loadgen_log.read(tmp_path / "run" / "Performance")
    requests = requests_of(hidden, seen)
    for request in requests[hidden:]:
        request.ttft_ms, request.clock = 50.0, "loadgen"
    write_requests(tmp_path, requests)
    assert [request.first_tokens for request in read_requests(tmp_path)] == [0] * hidden + [1] * seen
    mended = corrected_result(
        result, read_requests(tmp_path), LatencyLimits(ttft=2000, tpot=100), may_have_single_tokens=False
    )
    if not seen:
        assert mended.ttft_ms is None and mended.tpot_ms is None
    else:
        assert mended.ttft_ms and mended.ttft_ms.max == 50.0
        assert mended.tpot_ms and mended.tpot_ms.p50 == pytest.approx(30.0)
    untouched = corrected_result(
        result, requests_of(0, 64), LatencyLimits(ttft=2000, tpot=100), may_have_single_tokens=False
    )
    assert untouched.ttft_ms == result.ttft_ms


@pytest.mark.slow
@pytest.mark.parametrize("flags", [("--concurrency", "2"), ("--scenario", "server", "--server-target-qps", "20")])
def test_a_run_of_them_ends_with_a_result_that_is_disputed(tmp_path: Path, flags: tuple[str, ...]) -> None:
    (tmp_path / "work.jsonl").write_text('{"prompt": "hello there", "max_tokens": 16}\n' * 32)
    shared = ("--mode", "performance", "--workload", str(tmp_path / "work.jsonl"), "--endpoint-api", "chat")
    with serving(fake()) as server:
        done = run(tmp_path / "r", "--endpoint", server.address, *shared, "--min-duration", "2", *flags)
    assert done.code == 0, done.output
    test = done.summary["run"]["performance"]
    assert test["total_new_tokens"] == 16 * test["samples"] and test["tokens_per_sec"] > 0
    assert test["ttft_ms"] is None and test["tpot_ms"] is None
    assert any("came without text" in line for line in test["disagreements"])


def test_half_of_the_answers_may_be_hidden() -> None:
    class Mixed(Fake):
        async def answer(self, request: Any, body: dict[str, Any], fault: str) -> Any:
            self.frames = frames(text=" a b", counted=2) if len(self.asked) % 2 else frames()
            return await super().answer(request, body, fault)

    with client(Mixed(token_ids=False, extras=False), **CHAT) as engine:
        system, _ = asked(engine, 4)
        assert engine.run(whole(engine.stream(PROMPT)), lambda: None)
    assert sorted((request.ttft_ms is None, request.output_tokens) for request in system.requests) == [
        (False, 2),
        (False, 2),
        (True, 16),
        (True, 16),
    ]
