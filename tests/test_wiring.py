"""Values that functions with several parameters of one kind are handed, and members of masks and sets: what their own
tests cannot see, and a user would.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.commands import mlflow
from harness.config.lengths import SALT_TOKENS
from harness.config.run import RunConfig
from harness.core import secrets
from harness.engines.protocol import ChoiceLogprobs
from harness.loadgen import gpu_readings
from harness.loadgen import log as loadgen_log
from harness.loadgen.requests import Request
from harness.loadgen.steady_window import steady_window
from harness.loadgen.sut import SUT
from harness.mmlu import scores
from harness.report import report as rendering
from harness.submission import refusals
from harness.sweep import gathering
from harness.workloads.sample_library import Library, Salt
from tests.mmlu.test_scores import row
from tests.support import example_runs
from tests.support import example_sweeps as made_sweep


def closed_loop(count: int, at_once: int, slower_from: int | None = None) -> list[Any]:
    """Requests of a closed loop: each takes 100 ms, from one number on 300."""
    ends = [0.0] * at_once
    found = []
    for order in range(count):
        begin = min(ends)
        took = 300.0 if slower_from is not None and order >= slower_from else 100.0
        ends[ends.index(begin)] = begin + took / 1e3
        known = {"prompt_tokens": 700, "output_tokens": 10, "issued_s": begin, "clock": "client"}
        found.append(example_runs.timed(order, 20.0, took, **known))
    return found


def test_what_tokens_cost_at_fixed_concurrency(tmp_path: Path) -> None:
    """The steady part's own rates: output tokens, all tokens, requests."""
    folder = example_runs.run(tmp_path / "run", concurrency=4, price_per_hour=3.6)
    example_runs.requests(folder / "Performance", *closed_loop(64, 4))
    test = rendering.build_report(folder).run.performance
    assert test and test.details.cost and test.details.steady
    steady, cost = test.details.steady, test.details.cost
    assert steady.tokens_per_sec == pytest.approx(400) and steady.total_tokens_per_sec == pytest.approx(28_400)
    assert cost.per_million_output_tokens == pytest.approx(1e6 * 0.001 / 400)
    assert cost.per_million_tokens == pytest.approx(1e6 * 0.001 / 28_400)
    assert cost.per_thousand_requests == pytest.approx(1e3 * 0.001 / 40)


def test_a_server_that_slows_down_has_a_trend_below_one() -> None:
    part = steady_window(closed_loop(80, 4, slower_from=60), 4)
    assert part and part.trend < 0.8
    part = steady_window([*closed_loop(80, 4)], 4)
    assert part and part.trend == pytest.approx(1)


@pytest.mark.parametrize("reason", [1 << bit for bit in range(9)])
def test_what_holds_a_clock_down(reason: int) -> None:
    """nvmlClocksEventReasons in nvml.h: the hardware's slowdowns, and both thermal ones, are heat."""
    nvml = SimpleNamespace(nvmlDeviceGetCurrentClocksThrottleReasons=lambda handle: reason)
    found = [
        gpu_readings.throttle_percent(nvml, None, mask) for mask in (gpu_readings.TOO_HOT, gpu_readings.POWER_CAPPED)
    ]
    assert found == [100 * (reason in (0x8, 0x20, 0x40)), 100 * (reason in (0x4, 0x80))]


def entry(tmp_path: Path, **logged: Any) -> Any:
    """An Offline entry of a submission whose performance test logged this besides."""
    folder = example_runs.run(tmp_path / "run", scenario="offline") / "Performance"
    text = "".join(f":::MLLOG {json.dumps({'key': k, 'value': v, 'metadata': {}})}\n" for k, v in logged.items())
    (folder / "mlperf_log_detail.txt").write_text((folder / "mlperf_log_detail.txt").read_text() + text)
    result = loadgen_log.read(folder, "Offline", "PerformanceOnly")
    side = SimpleNamespace(log=lambda kind: result, folder=lambda kind: folder)
    return SimpleNamespace(config=RunConfig(scenario="offline", category="datacenter"), performance=side, accuracy=side)


@pytest.mark.parametrize("which", ["same", "unique"])
def test_one_sample_again_and_again_is_in_no_closed_submission(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals.claims, "summary_claims", lambda *_: iter(()))
    found = refusals.performance_refusals(entry(tmp_path, **{f"effective_performance_issue_{which}": True}))
    assert any("again and again" in reason for reason in found)


@pytest.mark.parametrize(("value", "refused"), [(None, True), (True, False)])  # false makes the test INVALID
def test_a_log_must_say_that_early_stopping_was_met(
    value: bool | None, refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        refusals, "logged_setting", lambda log, name: 10**9 if name != "accuracy_sample_count" else 13_368
    )
    monkeypatch.setattr(refusals, "seed_refusals", lambda *_: iter(()))
    logged = {} if value is None else {"early_stopping_met": value}
    found = [*refusals.entry_refusals(entry(tmp_path, **logged))]
    assert any("early stopping" in reason for reason in found) == refused


@pytest.mark.parametrize("status", ["complete", "failed", "interrupted", "skipped"])
def test_a_task_that_did_not_complete_is_submitted_again(status: str, tmp_path: Path) -> None:
    sweep = made_sweep.loaded(tmp_path, "- {name: fast, set: {max_num_seqs: 8}}\n")
    record = replace(made_sweep.ran("fast", 100.0), status=status)
    state = replace(made_sweep.state(record), sweep=sweep)
    assert ("no result of fast" in gathering.notes_text({tmp_path: state})) == (status != "complete")


def test_a_cache_that_some_answers_do_not_tell_of_is_not_known() -> None:
    rows = [row(n, "A", "A") for n in range(3)]
    assert scores.overall_of(rows, 1.0, 3, 5, []).cache_hit_rate == pytest.approx(0.32)
    rows[1] = rows[1]._replace(choice=ChoiceLogprobs(rows[1].choice.logprobs, None))
    found = scores.overall_of(rows, 1.0, 3, 5, [])
    assert found.cached_tokens is found.cache_hit_rate is None


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    return mlflow.Store(tmp_path)


def test_a_metric_of_zero_is_one(store: Any) -> None:
    item = mlflow.TrackedRun(None, "2026-01-31T10:00:00+0000", numbers={"preemptions": 0, "gate": 0.0, "x": None})
    store.log(item, "once")
    (found,) = store.client.search_runs([store.experiment_id])
    assert found.data.metrics == {"preemptions": 0.0, "gate": 0.0}


def test_headers_of_the_environment_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENDPOINT_HEADERS", "X-Team: search-quality\nX-Key:k-1234567890")
    assert secrets.hide_text("sent search-quality and k-1234567890") == "sent *** and ***"


def test_the_rate_of_arrivals_is_of_what_was_sent_without_the_drain(tmp_path: Path) -> None:
    folder = example_runs.run(tmp_path / "run", arrivals="constant", server_target_qps=10.0)
    known = {"output_tokens": 10, "clock": "client", "sent_ms": 5.0}
    requests = [example_runs.timed(n, 20.0, 5000.0, issued_s=n / 10, **known) for n in range(64)]
    example_runs.requests(folder / "Performance", *requests)
    test = rendering.build_report(folder).run.performance
    assert (
        test
        and test.details.achieved_qps == pytest.approx(10)
        and test.details.arrivals_cv == pytest.approx(0, abs=1e-6)
    )


def test_salt_that_is_sent_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = list[int]()

    async def stream(prompt: list[int], *_: Any) -> AsyncIterator[list[int]]:
        sent.extend(prompt)
        yield [1]

    monkeypatch.setattr(SUT, "report", lambda *_: None)
    library = Library([[1] * 16], "data", salt=Salt(range(100), 0, True))
    request, engine = Request(0, 16), SimpleNamespace(stream=stream)
    asyncio.run(SUT(engine, library).answer(request))  # type: ignore[arg-type]
    assert request.prompt_tokens == len(sent) == 16 + SALT_TOKENS
