"""The files of an MMLU evaluation: config.json, overall.json and the lines of its history."""

from typing import Literal

from pydantic import JsonValue

from harness.core.formatting import Measured
from harness.core.schema import File
from harness.results import records


class MMLUFacts(records.Facts):
    """config.json: every setting, and what is known of the evaluation."""

    config: dict[str, JsonValue]
    prompts_s: Measured = None
    """Seconds in which the prompts were built."""


class Overall(File):
    """overall.json; accuracies are shares of 1."""

    overall_accuracy: float
    n: int
    correct: int
    standard_error: Measured
    interval_95: tuple[float, float]
    macro_average: float
    """The mean of the subjects' accuracies."""
    subjects: int
    ties: int
    shortened_prompts: dict[Literal["questions", "examples_dropped"], int]
    """Prompts that did not fit with all their examples."""
    prompt_tokens: int
    cached_tokens: int | None
    """Null if the server does not report them."""
    cache_hit_rate: Measured
    questions_per_s: float
    seconds: float
    test_questions: int
    num_fewshot: int
    notes: list[str]


class MMLUHistory(File):
    """The part that the index shows of a line of results/mmlu/history.jsonl, which has all settings and all of
    overall.json.
    """

    run: str
    model: str | None = None
    precision: str | None = None
    quantization: str | None = None
    overall_accuracy: Measured = None
    standard_error: Measured = None
    macro_average: Measured = None
    n: int | None = None
    test_questions: int | None = None
    num_fewshot: int | None = None
    questions_per_s: Measured = None
    notes: list[str] = []
