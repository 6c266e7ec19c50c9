"""What an MMLU evaluation leaves behind, typed: config.json, overall.json and the lines of its history."""

from typing import Literal, Self

from pydantic import JsonValue

from harness.common.schema import File
from harness.runs.records import Facts


class MMLUFacts(Facts):
    """config.json: every setting, and what is known of the evaluation."""

    config: dict[str, JsonValue]
    prompts_s: float | None = None
    """Seconds in which the prompts were built."""


class Overall(File):
    """overall.json; accuracies are shares of 1."""

    overall_accuracy: float
    n: int
    correct: int
    standard_error: float | None
    interval_95: tuple[float, float]
    macro_average: float
    """The mean of the subjects."""
    subjects: int
    predictions: dict[str, int]
    answers: dict[str, int]
    ties: int
    shortened_prompts: dict[Literal["questions", "examples_dropped"], int]
    """Prompts that did not fit with all their examples."""
    prompt_tokens: int
    cached_tokens: int | None
    """Null where a server does not tell."""
    cache_hit_rate: float | None
    questions_per_s: float
    seconds: float
    test_questions: int
    num_fewshot: int
    notes: list[str]


class MMLUHistory(File):
    """A line of results/mmlu/history.jsonl."""

    run: str
    started: str | None = None
    model: str | None = None
    precision: str | None = None
    quantization: str | None = None
    kv_cache_dtype: str | None = None
    load_format: str | None = None
    seed: int | None = None
    overall_accuracy: float | None = None
    standard_error: float | None = None
    macro_average: float | None = None
    n: int | None = None
    test_questions: int | None = None
    subjects: int | None = None
    num_fewshot: int | None = None
    questions_per_s: float | None = None
    cache_hit_rate: float | None = None
    notes: list[str] = []
    gpus: list[str] = []

    @classmethod
    def of(cls, run: str, facts: MMLUFacts, overall: Overall) -> Self:
        values = facts.config | dict(overall) | {"gpus": facts.system.gpus, "started": facts.started, "run": run}
        return cls(**{name: value for name, value in values.items() if name in cls.model_fields})
