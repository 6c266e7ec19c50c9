"""MMLU: answers -> accuracy by subject, domain and overall."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import JsonValue

from harness.core.files import write_table
from harness.core.schema import SCHEMA, File
from harness.core.statistics import wilson
from harness.engines.protocol import ChoiceLogprobs
from harness.mmlu.data import DOMAIN_OF, DOMAINS, LETTERS, Prompt
from harness.runs.records import Facts


# What an MMLU evaluation leaves behind, typed: config.json, overall.json and the lines of its history.
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


@dataclass(frozen=True)
class Answer:
    """What the model chose for a question: log-probabilities of the four letters, which sum to 1 as probabilities."""

    prompt: Prompt
    choice: ChoiceLogprobs
    latency_s: float  # from when the engine was handed the question

    @property
    def subject(self) -> str:
        return self.prompt.question.subject

    @property
    def domain(self) -> str:
        return DOMAIN_OF[self.subject]

    @property
    def right(self) -> str:
        return LETTERS[self.prompt.question.answer]

    @property
    def prediction(self) -> str:
        """The likeliest letter; where several are, the first in the alphabet."""
        return LETTERS[self.choice.logprobs.index(max(self.choice.logprobs))]

    @property
    def is_correct(self) -> bool:
        return self.prediction == self.right

    @property
    def is_tied(self) -> bool:
        """Whether two letters share the highest log-probability."""
        return self.choice.logprobs.count(max(self.choice.logprobs)) > 1


@dataclass(frozen=True)
class Score:
    """Accuracy over `n` questions; `low` and `high` are Wilson's 95 % interval."""

    n: int
    correct: int
    accuracy: float
    standard_error: float | None
    low: float
    high: float


def score(rows: Iterable[Answer]) -> Score:
    """The standard error is the sample standard deviation of right and wrong over sqrt(n): None for one question."""
    hits = [answer.is_correct for answer in rows]
    n, correct = len(hits), sum(hits)
    accuracy = correct / n
    error = math.sqrt(accuracy * (1 - accuracy) / (n - 1)) if n > 1 else None
    return Score(n, correct, accuracy, error, *wilson(correct, n))


def group_scores(rows: Sequence[Answer], name: str) -> dict[str, Score]:
    """Scores by `domain` or by `subject`, in the order of the domains, then of the alphabet."""
    groups: dict[str, list[Answer]] = {}
    for answer in sorted(rows, key=lambda answer: (list(DOMAINS).index(answer.domain), answer.subject)):
        groups.setdefault(getattr(answer, name), []).append(answer)
    return {key: score(group) for key, group in groups.items()}


def overall(rows: Sequence[Answer], seconds: float, test_questions: int, shots: int, notes: list[str]) -> Overall:
    """What overall.json holds of the answers, which took so many seconds."""
    whole, subjects = score(rows), group_scores(rows, "subject")
    dropped = [answer.prompt.dropped for answer in rows if answer.prompt.dropped]
    prompt_tokens = sum(len(answer.prompt.tokens) for answer in rows)
    counts = [answer.choice.cached_tokens for answer in rows if answer.choice.cached_tokens is not None]
    cached = sum(counts) if len(counts) == len(rows) else None
    return Overall(
        schema_version=SCHEMA,
        overall_accuracy=whole.accuracy,
        n=whole.n,
        correct=whole.correct,
        standard_error=whole.standard_error,
        interval_95=(whole.low, whole.high),
        macro_average=sum(part.accuracy for part in subjects.values()) / len(subjects),
        subjects=len(subjects),
        predictions={letter: sum(answer.prediction == letter for answer in rows) for letter in LETTERS},
        answers={letter: sum(answer.right == letter for answer in rows) for letter in LETTERS},
        ties=sum(answer.is_tied for answer in rows),
        shortened_prompts={"questions": len(dropped), "examples_dropped": sum(dropped)},
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        cache_hit_rate=None if cached is None else cached / prompt_tokens,
        questions_per_s=whole.n / seconds,
        seconds=seconds,
        test_questions=test_questions,
        num_fewshot=shots,
        notes=notes,
    )


def cells(answer: Answer) -> dict[str, object]:
    """A line of samples.csv, by column."""
    prompt, choice = answer.prompt, answer.choice
    return {
        "subject": answer.subject,
        "domain": answer.domain,
        "number": prompt.question.number,
        "answer": answer.right,
        "prediction": answer.prediction,
        "correct": int(answer.is_correct),
        **{f"logprob_{letter}": f"{value:.6f}" for letter, value in zip(LETTERS, choice.logprobs, strict=True)},
        "prompt_tokens": len(prompt.tokens),
        "cached_tokens": choice.cached_tokens,
        "latency_s": f"{answer.latency_s:.6f}",
        "examples": prompt.examples,
        "dropped_examples": prompt.dropped,
    }


def write_csv(path: Path, rows: Sequence[Answer]) -> None:
    write_table(path, cells(rows[0]), (cells(answer).values() for answer in rows))
