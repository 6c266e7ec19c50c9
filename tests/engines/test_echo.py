"""The engine that computes nothing: the whole harness with real LoadGen, and without vLLM."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from harness import engines
from harness.config.resolve import resolve
from harness.config.run import RunConfig
from harness.core.errors import UsageError
from tests.conftest import ended
from tests.support.fake_servers import whole


def echo(**flags: Any) -> Any:
    plan = resolve(RunConfig(model="demo", backend="echo", mode="performance", **flags), [], 0)
    return engines.create(plan, Path())


def answer(engine: Any, prompt: list[int], most: int | None = None) -> list[int]:
    engine.start()
    found: list[int] = engine.run(whole(engine.stream(prompt, most)), lambda: None)
    engine.close()
    return found


def test_it_answers_with_the_prompt_as_long_as_is_allowed() -> None:
    assert answer(echo(), [7, 8, 9], 5) == [7, 8, 9, 7, 8]
    assert len(answer(echo(), [7, 8, 9])) == 128


def test_it_takes_the_time_that_it_is_given() -> None:
    engine = echo(engine_arg=("first_token_s=0.1", "token_s=0.05"))
    begin = time.perf_counter()
    answer(engine, [1], 5)
    assert time.perf_counter() - begin >= 0.1 + 4 * 0.05


@pytest.mark.parametrize("given", ["block_size=16", "token_s=-1", "token_s=soon", "first_token_s=true1"])
def test_other_settings_are_refused(given: str) -> None:
    with pytest.raises(UsageError, match="first_token_s and token_s"):
        echo(engine_arg=(given,))


def test_it_is_no_server() -> None:
    with pytest.raises(UsageError, match=r"--backend echo .*--backend openai"):
        echo(endpoint=("http://localhost:8000/v1",))


@pytest.mark.slow
def test_a_whole_run_without_vllm(tmp_path: Path) -> None:
    flags = ("--model", "demo", "--backend", "echo", "--category", "edge", "--scenario", "singlestream")
    done = ended("run.py", *flags, "--mode", "performance", "--min-duration", "1", "--results-dir", str(tmp_path))
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "latest" / "summary.json").read_text())
    assert summary["run"]["performance"]["valid"]
    assert "the echo engine computes nothing" in [each["what"] for each in summary["meta"]["deviations"]]
    assert "echo" in (tmp_path / "latest" / "report.md").read_text()
