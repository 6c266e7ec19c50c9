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
    """The model's choice for a question: the log-probabilities of the four letters, whose probabilities sum to 1."""

    prompt: QuestionPrompt
    choice: ChoiceLogprobs
    latency_s: float  # from the moment at which the engine got the question

    @property
    def subject(self) -> str:
        return self.prompt.question.subject

    @property
    def domain(self) -> str:
        return DOMAIN_OF[self.subject]

    @property
    def right(self) -> str:
        """The letter of the right choice."""
        return LETTERS[self.prompt.question.answer]

    @property
    def prediction(self) -> str:
        """The likeliest letter; of equally likely letters, the first in the alphabet."""
        logprobs = self.choice.logprobs
        return LETTERS[logprobs.index(max(logprobs))]

    @property
    def is_correct(self) -> bool:
        return self.prediction == self.right

    @property
    def is_tied(self) -> bool:
        """Tell whether at least two letters share the highest log-probability."""
        logprobs = self.choice.logprobs
        return logprobs.count(max(logprobs)) > 1


class Score(NamedTuple):
    """Accuracy over `n` questions; `low` and `high` are Wilson's 95 % interval."""

    n: int
    correct: int
    accuracy: float
    standard_error: Measured
    low: float
    high: float


def score_of(answers: Iterable[MMLUAnswer]) -> Score:
    """Return the score of answers, with its Wilson interval. There must be at least one answer.

    The standard error is the sample standard deviation of right (1) and wrong (0), divided by sqrt(n); None for a
    single question.
    """
    n = correct = 0
    for answer in answers:
        n += 1
        correct += answer.is_correct
    accuracy = correct / n
    standard_error = None
    if n > 1:
        standard_error = math.sqrt(accuracy * (1 - accuracy) / (n - 1))
    low, high = statistics.wilson(correct, n)
    return Score(n, correct, accuracy, standard_error, low, high)


ScoresByName = dict[str, Score]  # scores by subject, or by domain


def group_scores(answers: Sequence[MMLUAnswer], name: str) -> ScoresByName:
    """Return the score of each domain or of each subject. `name` is "domain" or "subject".

    Domains are in the order of the report. Subjects are in the order of their domains, and within a domain in that of
    the alphabet.
    """
    ordered_answers = sorted(answers, key=sort_key)  # groupby joins only neighbours
    answers_by_group = groupby(ordered_answers, attrgetter(name))
    return {group_name: score_of(group) for group_name, group in answers_by_group}


def sort_key(answer: MMLUAnswer) -> tuple[int, str]:
    """Return the key by which answers are sorted: the index of the domain, then the subject."""
    return list(DOMAINS).index(answer.domain), answer.subject


def overall_of(
    answers: Sequence[MMLUAnswer], seconds: float, test_questions: int, shots: int, notes: list[str]
) -> Overall:
    """Return the content of overall.json. There must be at least one answer.

    `seconds` is how long the answers took, and `notes` say why the accuracy is not the model's MMLU score.
    """
    score = score_of(answers)
    accuracies = [subject_score.accuracy for subject_score in group_scores(answers, "subject").values()]
    ties = prompt_tokens = shortened_prompts = examples_dropped = 0
    for answer in answers:
        ties += answer.is_tied
        prompt_tokens += len(answer.prompt.tokens)
        shortened_prompts += answer.prompt.dropped > 0
        examples_dropped += answer.prompt.dropped
    cached = cached_tokens(answers)
    cache_hit_rate = None
    if cached is not None:
        cache_hit_rate = cached / prompt_tokens
    return Overall(
        n=score.n,
        correct=score.correct,
        standard_error=score.standard_error,
        schema_version=SCHEMA,
        overall_accuracy=score.accuracy,
        interval_95=(score.low, score.high),
        macro_average=sum(accuracies) / len(accuracies),
        subjects=len(accuracies),
        ties=ties,
        shortened_prompts={"questions": shortened_prompts, "examples_dropped": examples_dropped},
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        cache_hit_rate=cache_hit_rate,
        questions_per_s=score.n / seconds,
        seconds=seconds,
        test_questions=test_questions,
        num_fewshot=shots,
        notes=notes,
    )


def cached_tokens(answers: Sequence[MMLUAnswer]) -> int | None:
    """Return how many prompt tokens came from the cache; None if the server did not report this for every prompt."""
    total = 0
    for answer in answers:
        if answer.choice.cached_tokens is None:
            return None
        total += answer.choice.cached_tokens
    return total


def sample_cells(answer: MMLUAnswer) -> dict[str, object]:
    """Return the row of an answer in samples.csv, by column. `number` is the question's index in its subject."""
    prompt, choice = answer.prompt, answer.choice
    cells: dict[str, object] = {
        "subject": answer.subject,
        "domain": answer.domain,
        "number": prompt.question.number,
        "answer": answer.right,
        "prediction": answer.prediction,
        "correct": int(answer.is_correct),
    }
    for letter, logprob in zip(LETTERS, choice.logprobs, strict=True):
        cells[f"logprob_{letter}"] = round(logprob, 6)
    cells["prompt_tokens"] = len(prompt.tokens)
    cells["cached_tokens"] = choice.cached_tokens
    cells["latency_s"] = round(answer.latency_s, 6)
    cells["examples"] = prompt.examples
    cells["dropped_examples"] = prompt.dropped
    return cells
