"""An engine that is alive and silent, and what it says while it starts."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.errors import EngineError
from harness.engines.protocol import Engine
from harness.loadgen.watchdog import FIRST_ANSWER_FACTOR, PATIENCE_FACTOR, PAUSED_S, START_FACTOR, StartWatch, Watchdog
from harness.runner import start
from tests.conftest import patience


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    at = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: at.now)
    return at


def engine() -> Any:
    return SimpleNamespace(name="vLLM", last_response_at=0.0)


def silence(clock: Any, dog: Watchdog | StartWatch, seconds: int) -> None:
    """Time that passes while it is checked, as it is many times a second."""
    for _ in range(seconds):
        clock.now += 1
        dog.check_progress()


def test_silence_ends_a_run_with_one_line(clock: Any) -> None:
    silent = engine()
    dog = Watchdog(silent, 10)
    clock.now += 1
    silent.last_response_at = clock.now
    dog.check_progress()
    silence(clock, dog, 20)  # 20 times the one second that the first answer took
    clock.now += 0.1
    with pytest.raises(EngineError, match=r"^no response from vLLM for 20 s.*--stall-timeout \(now 10\)"):
        dog.check_progress()


def test_the_first_answer_may_take_longer(clock: Any) -> None:
    dog = Watchdog(engine(), 10)
    silence(clock, dog, 10 * FIRST_ANSWER_FACTOR)
    clock.now += 1
    with pytest.raises(EngineError):
        dog.check_progress()


def test_the_longest_wait_so_far_sets_the_limit(clock: Any) -> None:
    silent = engine()
    dog = Watchdog(silent, 10)
    for wait in (3, 1):
        clock.now += wait
        silent.last_response_at = clock.now
        dog.check_progress()
    assert dog.limit_s == PATIENCE_FACTOR * 3


def test_an_engine_that_is_asked_nothing_may_be_silent(clock: Any) -> None:
    dog = Watchdog(engine(), 10)
    clock.now += 1000
    dog.restart_stall_timer()
    assert dog.check_progress() is None  # type: ignore[func-returns-value]


def test_a_start_that_says_nothing_is_given_up(clock: Any, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    watch = StartWatch(log, 100)
    watch.check_progress()
    clock.now += 100 * START_FACTOR
    log.write_text("a line")
    watch.check_progress()
    silence(clock, watch, 100 * START_FACTOR)
    clock.now += 1
    with pytest.raises(EngineError, match="600 s while starting"):
        watch.check_progress()


@pytest.fixture
def loop() -> Iterator[Engine]:
    thread = Engine()
    thread.start()
    yield thread
    thread.stop_loop()


def test_a_timeout_of_the_work_itself_is_its_result(loop: Engine) -> None:
    async def work() -> None:
        await asyncio.sleep(0.3)
        raise TimeoutError("the work's own")

    watched = []
    begin = time.perf_counter()
    with pytest.raises(TimeoutError, match="the work's own"):
        loop.run(work(), lambda: watched.append(1))
    assert watched and time.perf_counter() - begin < patience(5)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("", ""),
        ("INFO [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: model='x'", "starting its processes"),
        ("Fetching 4 files:  25%|##5       | 1/4 [00:10<00:30]", "downloading 25%"),
        ("INFO [gpu_model_runner.py:1] Starting to load model meta-llama...", "loading weights"),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 2/4 [00:01<00:01,  1.5it/s]",
            "loading weights 50%",
        ),
        ("INFO [backends.py:1] Dynamo bytecode transform time: 4.20 s", "compiling"),
        ("INFO [gpu_worker.py:1] Available KV cache memory: 110.00 GiB", "measuring memory"),
        (
            "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  33%|###",
            "capturing CUDA graphs 33%",
        ),
        ("Inductor compilation was disabled by user settings", ""),
    ],
)
def test_the_start_says_what_it_does(tmp_path: Path, lines: str, said: str) -> None:
    log = tmp_path / "engine.log"
    log.write_text(f"before\n{lines}\rWARNING something else\n")
    assert start.stage(log) == said


def test_a_run_that_was_stopped_and_continued_blames_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    engine: Any = SimpleNamespace(name="vLLM", last_response_at=0.0)
    dog = Watchdog(engine, 10)
    clock.now += 1
    engine.last_response_at = clock.now
    dog.check_progress()
    clock.now += 10_000 + PAUSED_S
    dog.check_progress()
    clock.now += 1
    assert dog.check_progress() is None  # type: ignore[func-returns-value]


def test_a_start_that_was_stopped_and_continued_blames_nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    watch = StartWatch(tmp_path / "engine.log", 10)
    watch.check_progress()
    clock.now += 10_000
    watch.check_progress()
    for _ in range(int(watch.timeout_s)):
        clock.now += 1
        watch.check_progress()
    clock.now += 1
    with pytest.raises(EngineError, match="it hangs"):
        watch.check_progress()
