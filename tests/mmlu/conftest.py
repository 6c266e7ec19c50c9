"""The demo's questions and tokenizer."""

import csv
from pathlib import Path
from typing import Any

import pytest

from harness.config.models import DEMO
from harness.mmlu import question_data as mmlu_data
from harness.mmlu.question_data import SUBJECTS, QuestionSet


@pytest.fixture(scope="session")
def demo() -> QuestionSet:
    return mmlu_data.load_questions(DEMO / "mmlu", SUBJECTS, 5, None, 0)


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO / "model")


def samples_of(folder: Path) -> list[dict[str, Any]]:
    """The lines of samples.csv, their numbers as numbers."""
    with (folder / "samples.csv").open() as file:
        lines = list(csv.DictReader(file))
    return [{name: float(text) if text[-1:].isdigit() else text for name, text in line.items()} for line in lines]
