"""--max-failed: requests that fail are counted and left out; one more than allowed ends the run."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from harness.config.engine import failure_allowance
from harness.config.mlperf import LatencyLimits
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import EndpointError, UsageError
from harness.loadgen import log as loadgen_log
from harness.loadgen import sut
from harness.loadgen.requests import Request, read_requests
from harness.loadgen.sut import SUT
from harness.loadgen.test_run import corrected_result
from harness.rates import trials
from harness.rates.trials import TolerantEngine
from harness.report import report as rendering
from harness.workloads.sample_library import Library
from tests.conftest import run, tells
from tests.engines.test_openai import PROMPT, client
from tests.support import example_runs
from tests.support.fake_servers import TOKENS, Fake, serving, whole


@pytest.mark.parametrize(("most", "requests", "count"), [("0", 500, 0), ("3", 9, 3), ("1%", 250, 2), ("0.5%", 99, 0)])
def test_how_many_may_fail(most: str, requests: int, count: int) -> None:
    assert failure_allowance(most, requests) == count


@pytest.mark.parametrize("most", ["-1", "1.5", "101%", "nan%", "some", ""])
def test_what_is_no_number_of_failures(most: str) -> None:
    with pytest.raises(UsageError, match=r"--max-failed takes .*; got "):
        RunConfig(endpoint=("http://h/v1",), max_failed=most)


def test_it_is_never_comparable() -> None:
    config = RunConfig(model="demo", endpoint=("http://h/v1",), max_failed="1%")
    assert "--max-failed 1%" in [str(line).partition(":")[0] for line in resolve(config, [], 0).deviations]
    with pytest.raises(UsageError, match="--max-failed: only with --endpoint"):
        RunConfig(max_failed="1%")
    with pytest.raises(UsageError, match="--compliance test06 allows no failed request"):
        RunConfig(endpoint=("http://h/v1",), max_failed="1%", compliance="test06")


LIBRARY = Library([PROMPT], "one prompt")


def asked(engine: Any, count: int, **how: Any) -> tuple[SUT, list[tuple[Any, int, list[int]]]]:
    """A system under test after so many queries, and what LoadGen heard of each."""
    heard: list[tuple[Any, int, list[int]]] = []
    system = SUT(engine, LIBRARY, **how)
    system.report = lambda report, id, tokens, count=None: heard.append((report, id, list(tokens)))  # type: ignore[method-assign]
    system.counters.issued = count
    system.requests = [Request(0, len(PROMPT), issued_s=0.0, order=order) for order in range(count)]

    async def all_of_them() -> None:
        for order, request in enumerate(system.requests):
            request.id = order
            await system.attempt(request)

    engine.run(all_of_them(), lambda: None)
    return system, heard


@pytest.mark.parametrize(
    "kind",
    [{}, {"streams": False}, {"is_timed_by_client": True}],
    ids=["Server", "Offline", "a closed loop"],
)
def test_what_failed_is_told_to_loadgen_as_a_short_answer(kind: dict[str, Any]) -> None:
    with client(Fake(fault="429", after=2), scenario="server") as engine:
        system, heard = asked(engine, 4, max_failed="50%", **kind)
    assert ["answered 429: too much to do" in request.failure for request in system.requests] == [0, 0, 1, 1]
    assert [request.output_tokens for request in system.requests] == [4, 4, 0, 0] and system.counters.completed == 4
    whole = [tokens for report, _, tokens in heard if report is sut.lg.QuerySamplesComplete]
    assert whole == [TOKENS, TOKENS, [0, 0], [0, 0]]
    first = [id for report, id, _ in heard if report is sut.lg.FirstTokenComplete]
    assert first == ([] if kind else [0, 1, 2, 3])


def test_the_first_token_of_an_answer_that_breaks_off_is_told_once() -> None:
    with client(Fake(fault="error"), scenario="server") as engine:
        _, heard = asked(engine, 1, max_failed="1")
    assert [(report is sut.lg.FirstTokenComplete, tokens) for report, _, tokens in heard] == [
        (True, TOKENS[:1]),
        (False, [0, 0]),
    ]


def test_where_answers_are_scored_it_is_empty() -> None:
    with client(Fake(fault="429"), scenario="server") as engine:
        _, heard = asked(engine, 1, max_failed="1", timed=False)
    assert [tokens for _, _, tokens in heard] == [[]]


def test_a_failure_in_a_trial_of_a_level_is_one_line() -> None:
    with client(Fake(fault="429"), scenario="server") as engine, pytest.raises(EndpointError, match="429: too much"):
        target = resolve(RunConfig(model="demo", concurrency=2), [], 0)
        engine.run(trials.run_trial(target, TolerantEngine(engine, "0", 1), [(PROMPT, None)], 2), lambda: None)


def test_a_trial_counts_answers_and_no_failures() -> None:
    with client(Fake(fault="429", after=10, every=2), scenario="server") as engine:
        target = resolve(RunConfig(model="demo", concurrency=2), [], 0)
        tolerant = TolerantEngine(engine, "60%", 40)
        found = engine.run(trials.run_trial(target, tolerant, [(PROMPT, None)] * 40, 2), lambda: None)
    assert 15 <= found.samples <= 30  # of 40 about every second


def test_a_trial_without_an_answer_ends_in_one_line() -> None:
    with client(Fake(fault="429"), scenario="server") as engine:
        target = resolve(RunConfig(model="demo", concurrency=2), [], 0)
        tolerant = TolerantEngine(engine, "100", 100)
        with pytest.raises(EndpointError, match="no request of the trial was answered"):
            engine.run(trials.run_trial(target, tolerant, [(PROMPT, None)] * 4, 2), lambda: None)


def test_one_more_ends_the_run() -> None:
    said = r"429: too much to do \(request 3 of about 200 to fail; --max-failed 1%\)"
    with client(Fake(fault="429"), scenario="server") as engine:
        with pytest.raises(EndpointError, match=said):
            asked(engine, 4, max_failed="1%", expected=200)
        with pytest.raises(EndpointError, match=r"429: too much to do$"):
            asked(engine, 4)


def test_one_request_of_a_trial_may_fail_at_least() -> None:
    class Failing:
        async def stream(self, *_: Any) -> AsyncIterator[list[int]]:
            raise EndpointError("it failed")
            yield []

    with client(Fake()) as engine:
        for most, counted in (("0", 0), ("1%", 1), ("3", 3)):
            tolerant = TolerantEngine(Failing(), most, 10)  # type: ignore[arg-type]
            for _ in range(counted):
                assert engine.run(whole(tolerant.stream(PROMPT)), lambda: None) == []
            with pytest.raises(EndpointError, match="it failed"):
                engine.run(whole(tolerant.stream(PROMPT)), lambda: None)


def server_test(folder: Path) -> Path:
    """64 requests of 11 tokens with a TTFT of 100 ms and 10 ms a token, but that the last two failed after 5 ms."""
    run = example_runs.run(folder, scenario="server", server_target_qps=8.0, endpoint="http://h/v1", max_failed="5%")
    said = "h answered 429: too much to do"
    whole = [example_runs.timed(n, 100.0, 200.0, output_tokens=11) for n in range(62)]
    example_runs.requests(
        run / "Performance", *whole, *(example_runs.timed(n, 1.0, 5.0, failure=said) for n in (62, 63))
    )
    config = json.loads((run / "config.json").read_text())
    config["engine_args"] = {"server": "vLLM 1.0", "serves": "demo", "exchange": "text in", "max_in_flight": 64}
    (run / "config.json").write_text(json.dumps(config))
    return run


def test_latencies_and_tokens_are_those_of_the_others(tmp_path: Path) -> None:
    folder = server_test(tmp_path / "run")
    summary = rendering.build_report(folder)
    test, page = summary.run.performance, (folder / "report.md").read_text()
    assert test is not None and test.ttft_ms and test.tpot_ms and test.latency_ms
    assert (test.ttft_ms.min, test.tpot_ms.max, test.latency_ms.min) == (100.0, 10.0, 200.0)
    details = test.details
    counts = (details.samples, details.failed_requests, details.total_new_tokens, details.total_input_tokens)
    assert counts == (62, 2, 682, 31000)
    assert test.tokens_per_sec == pytest.approx(1024 * 682 / 686)  # LoadGen counted two tokens for each failure
    assert test.samples_per_sec == pytest.approx(7.875 * 62 / 64)
    whole = details.whole
    assert whole.slo_attainment == pytest.approx(100 * 62 / 64) and whole.goodput == pytest.approx(7.875 * 62 / 64)
    assert test.valid and details.single_token == 0
    assert "| caution | left out: 2 of 64 requests" in page and tells(page, "| failed: h answered 429", "(2 times)")
    assert "| failed requests | 2 |" in page
    assert any(str(line).startswith("2 failed requests") for line in summary.meta.deviations)


def test_a_limit_that_only_failures_kept_is_broken(tmp_path: Path) -> None:
    logs = server_test(tmp_path / "run") / "Performance"
    found = corrected_result(
        loadgen_log.read(logs), read_requests(logs), LatencyLimits(99, 100), may_have_single_tokens=False
    )
    assert not found.valid and tells(found.invalid_reasons[0], "TTFT p99 ", "failed requests was 100 ms")


FLAGS = ("--mode", "performance", "--total-sample-count", "16", "--min-duration", "3", "--max-failed", "20%")


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        ("--scenario", "server", "--server-target-qps", "40"),
        ("--scenario", "offline", "--offline-expected-qps", "50"),
        ("--concurrency", "4"),
    ],
)
def test_a_run_with_failures_comes_to_its_end(tmp_path: Path, flags: tuple[str, ...]) -> None:
    with serving(Fake(fault="429", every=10, delay_s=0.02)) as fake:
        done = run(tmp_path, "--endpoint", fake.address, *FLAGS, *flags)
    assert done.code == 0, done.output
    test = done.summary["run"]["performance"]
    assert test["failed_requests"] > 0 and test["errors"] == []
    assert test["total_new_tokens"] == len(TOKENS) * test["samples"]
    assert test["server"]["output_tokens"] == test["total_new_tokens"]
