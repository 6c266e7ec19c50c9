"""MMLU's questions are watched while an engine answers them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from harness.core.errors import EngineError
from harness.core.progress import Display
from harness.engines.protocol import Engine
from harness.loadgen.watchdog import Watchdog
from harness.mmlu.evaluation import ask_all
from harness.mmlu.question_prompts import QuestionPrompt
from tests.conftest import patience


class Silent(Engine):
    """An engine that lives and answers nothing."""

    name, last_response_at, failure, concurrency = "vLLM", 0.0, None, 4

    async def score_choices(self, prompt: list[int], letters: list[int]) -> Any:
        await asyncio.sleep(3600)


def test_an_engine_that_answers_nothing_ends_it(tmp_path: Path) -> None:
    engine: Any = Silent()
    engine.start()
    watchdog, display = Watchdog(engine, 0.1), Display(Console(quiet=True))
    prompt = QuestionPrompt(None, [1, 2, 3], 0, 0)  # type: ignore[arg-type]
    begin = time.monotonic()
    with pytest.raises(EngineError, match="no response from"):
        ask_all([prompt], [1, 2], engine, watchdog, display, tmp_path)
    assert time.monotonic() - begin < patience(5)
    engine.stop_loop()
