"""Accuracy by subject, by domain and overall, from the answers."""

import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from harness.core import statistics
from harness.core.formatting import Measured
from harness.core.schema import SCHEMA
from harness.engines.protocol import ChoiceLogprobs
from harness.mmlu.question_data import DOMAIN_OF, DOMAINS, LETTERS
from harness.mmlu.question_prompts import QuestionPrompt
from harness.mmlu.records import Overall


class MMLUAnswer(NamedTuple):
    """The model's choice for a question: log-probabilities of the four letters, which sum to 1 as probabilities."""

    prompt: QuestionPrompt
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
        """The likeliest letter. Of equally likely ones it is the first in the alphabet."""
        return LETTERS[self.choice.logprobs.index(max(self.choice.logprobs))]

    @property
    def is_correct(self) -> bool:
        return self.prediction == self.right

    @property
    def is_tied(self) -> bool:
        """Tell whether two letters share the highest log-probability."""
        return self.choice.logprobs.count(max(self.choice.logprobs)) > 1


class Score(NamedTuple):
    """Accuracy over `n` questions; `low` and `high` are Wilson's 95 % interval."""

    n: int
    correct: int
    accuracy: float
    standard_error: Measured
    low: float
    high: float


def score_of(rows: Iterable[MMLUAnswer]) -> Score:
    """Return the score of answers, with its Wilson interval.

    The standard error is the sample standard deviation of right and wrong over sqrt(n); None for a single question.
    """
    hits = [answer.is_correct for answer in rows]
    n, correct = len(hits), sum(hits)
    accuracy, error = correct / n, None
    if n > 1:
        error = math.sqrt(accuracy * (1 - accuracy) / (n - 1))
    return Score(n, correct, accuracy, error, *statistics.wilson(correct, n))


ScoresByName = dict[str, Score]  # scores by subject, or by domain


def group_scores(rows: Sequence[MMLUAnswer], name: str) -> ScoresByName:
    """Return the scores by `domain` or by `subject`, in the order of the domains, then of the alphabet."""
    order = sorted(rows, key=place_of)
    return {key: score_of(group) for key, group in groupby(order, attrgetter(name))}


def place_of(answer: MMLUAnswer) -> tuple[int, str]:
    """Return the sort key of an answer: the place of its domain, then its subject."""
    return list(DOMAINS).index(answer.domain), answer.subject


def overall_of(
    rows: Sequence[MMLUAnswer], seconds: float, test_questions: int, shots: int, notes: list[str]
) -> Overall:
    """Return the content of overall.json. `seconds` is how long the answers took."""
    whole, subjects = score_of(rows), group_scores(rows, "subject")
    dropped = [answer.prompt.dropped for answer in rows if answer.prompt.dropped]
    prompt_tokens = sum(len(answer.prompt.tokens) for answer in rows)
    cached, cache_hit_rate = cached_tokens(rows), None
    if cached is not None:
        cache_hit_rate = cached / prompt_tokens
    return Overall(
        n=whole.n,
        correct=whole.correct,
        standard_error=whole.standard_error,
        schema_version=SCHEMA,
        overall_accuracy=whole.accuracy,
        interval_95=(whole.low, whole.high),
        macro_average=sum(part.accuracy for part in subjects.values()) / len(subjects),
        subjects=len(subjects),
        ties=sum(answer.is_tied for answer in rows),
        shortened_prompts={"questions": len(dropped), "examples_dropped": sum(dropped)},
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        cache_hit_rate=cache_hit_rate,
        questions_per_s=whole.n / seconds,
        seconds=seconds,
        test_questions=test_questions,
        num_fewshot=shots,
        notes=notes,
    )


def cached_tokens(rows: Sequence[MMLUAnswer]) -> int | None:
    """Return how many prompt tokens came from the cache; None if the server did not report this for every prompt."""
    total = 0
    for answer in rows:
        if answer.choice.cached_tokens is None:
            return None
        total += answer.choice.cached_tokens
    return total


def sample_cells(answer: MMLUAnswer) -> dict[str, object]:
    """Return a row of samples.csv by column."""
    prompt, choice = answer.prompt, answer.choice
    values: dict[str, object] = {
        "subject": answer.subject,
        "domain": answer.domain,
        "number": prompt.question.number,
        "answer": answer.right,
        "prediction": answer.prediction,
        "correct": int(answer.is_correct),
    }
    for letter, logprob in zip(LETTERS, choice.logprobs, strict=True):
        values[f"logprob_{letter}"] = round(logprob, 6)
    return values | {
        "prompt_tokens": len(prompt.tokens),
        "cached_tokens": choice.cached_tokens,
        "latency_s": round(answer.latency_s, 6),
        "examples": prompt.examples,
        "dropped_examples": prompt.dropped,
    }
