"""The demo's questions and tokenizer."""

from typing import Any

import pytest

from harness.config.models import DEMO
from harness.mmlu import data as mmlu_data
from harness.mmlu.data import SUBJECTS, Data


@pytest.fixture(scope="session")
def demo() -> Data:
    return mmlu_data.load(DEMO / "mmlu", SUBJECTS, 5, None, 0)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO / "model")
