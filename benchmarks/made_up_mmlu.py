"""Made-up questions, as many as MMLU has and of about their lengths, and a tokenizer for Llama-3.1-8B's shape."""

import math
from collections.abc import Iterator
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any

from benchmarks import random_llama
from harness.mmlu.question_data import SUBJECTS

KNOWN_WORDS = ["A", "B", "C", "D", "Answer", ".", ":"]  # All other tokens are numbered words.
DEV_QUESTIONS_PER_SUBJECT = 5
TEST_QUESTIONS = 14_042
# Medians of the log-normal lengths, in tokens. With the spreads, 5-shot prompts have about 650 tokens.
STEM_TOKENS, CHOICE_TOKENS = 50.0, 6.0
SUBJECT_SPREAD, STEM_SPREAD, CHOICE_SPREAD = 0.6, 0.4, 0.6


def make(folder: Path) -> None:
    """Write folder/model, without weights, and folder/mmlu with the questions. They are the same every time."""
    random_llama.make(folder, 1)
    save_tokenizer(folder / "model")
    save_questions(folder / "mmlu" / "all")


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer that knows the words of a prompt's frame, and otherwise numbered words, such as w17."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = [*KNOWN_WORDS, *(f"w{number}" for number in range(len(KNOWN_WORDS), random_llama.VOCABULARY))]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=words[-1]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    fast_tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=f"w{random_llama.BEGIN_TOKEN}",
        eos_token=f"w{random_llama.END_TOKEN}",
    )
    fast_tokenizer.save_pretrained(folder)


def save_questions(folder: Path) -> None:
    """Write the examples (dev) and the test as cais/mmlu has them, in parquet."""
    from pyarrow import Table, parquet  # type: ignore[import-untyped]

    folder.mkdir(parents=True, exist_ok=True)
    rng = Random(0)
    stem_medians = {subject: STEM_TOKENS * rng.lognormvariate(0, SUBJECT_SPREAD) for subject in SUBJECTS}
    counts = {"dev": DEV_QUESTIONS_PER_SUBJECT * len(SUBJECTS), "test": TEST_QUESTIONS}
    for split, count in counts.items():
        records = [*questions(rng, stem_medians, count)]
        parquet.write_table(Table.from_pylist(records), folder / f"{split}-00000-of-00001.parquet")


def questions(rng: Random, stem_medians: dict[str, float], count: int) -> Iterator[dict[str, Any]]:
    """Yield records of questions, the subjects in turn."""
    for subject in islice(cycle(stem_medians), count):
        yield {
            "question": random_text(rng, stem_medians[subject], STEM_SPREAD),
            "subject": subject,
            "choices": [random_text(rng, CHOICE_TOKENS, CHOICE_SPREAD) for _letter in "ABCD"],
            "answer": rng.randrange(4),
        }


def random_text(rng: Random, median_tokens: float, spread: float) -> str:
    """Return numbered words, a token each. Their count is log-normal, at least 1."""
    count = max(1, round(rng.lognormvariate(math.log(median_tokens), spread)))
    return " ".join(f"w{rng.randrange(len(KNOWN_WORDS), random_llama.ORDINARY_TOKENS)}" for _word in range(count))
