"""MMLU: answers -> accuracy by subject, domain and overall, calibration, and the comparison of two runs."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.common.coerce import read_given
from harness.common.errors import UsageError
from harness.common.files import read_table, write_table
from harness.common.schema import SCHEMA
from harness.common.statistics import mcnemar, wilson
from harness.engines.protocol import ChoiceLogprobs
from harness.mmlu.data import DOMAIN_OF, DOMAINS, LETTERS, Question
from harness.mmlu.prompts import Prompt
from harness.mmlu.summary import Overall

BINS = 10


Key = tuple[str, int]  # of a question: its subject, and its place there


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
    def key(self) -> Key:
        return self.subject, self.prompt.question.number

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
    def confidence(self) -> float:
        """The probability of the letter chosen, among the four."""
        return math.exp(max(self.choice.logprobs))

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
        calibration_error=calibration_error(rows),
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


def bins(rows: Sequence[Answer]) -> list[list[Answer]]:
    """The answers by confidence, in ten equal steps from 0 to 1; none can be below 0.25."""
    parts: list[list[Answer]] = [[] for _ in range(BINS)]
    for answer in rows:
        parts[min(BINS - 1, int(answer.confidence * BINS))].append(answer)
    return parts


def calibration_error(rows: Sequence[Answer]) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, on average over the answers."""
    gaps = (sum(answer.confidence - answer.is_correct for answer in part) for part in bins(rows))
    return sum(map(abs, gaps)) / len(rows)


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


def from_csv(folder: Path) -> dict[Key, tuple[str, bool]]:
    """The right letter of each question of a finished run, and whether it was chosen. Raises UsageError where there are
    none."""
    lines = read_given("--compare", folder / "samples.csv", "a table", read_table, csv.Error)
    try:
        return {(line["subject"], int(line["number"])): (line["answer"], bool(int(line["correct"]))) for line in lines}
    except (KeyError, ValueError, TypeError) as error:
        raise UsageError(f"--compare {folder}: a damaged samples.csv: {type(error).__name__} {error}.") from None


@dataclass(frozen=True)
class ScoreChange:
    """Accuracy before and after on the same questions, and McNemar's test on those that changed sides."""

    name: str
    n: int
    before: float
    after: float
    difference: float
    standard_error: float
    lost: int  # right before, wrong after
    gained: int
    p_value: float

    @property
    def points(self) -> str:
        """The difference in percentage points."""
        return f"{100 * self.difference:+.2f}"


def check_comparable(before: Mapping[Key, tuple[str, bool]], questions: Sequence[Question]) -> None:
    """Raises UsageError where an earlier run shares no question with these, or had other data."""
    common = [question for question in questions if (question.subject, question.number) in before]
    if not common:
        raise UsageError("--compare: that run has no question in common with this one.")
    for question in common:
        if before[question.subject, question.number][0] != LETTERS[question.answer]:
            raise UsageError(
                f"--compare: different data: {question.subject} {question.number} has a different answer there."
            )


def compare(before: Mapping[Key, tuple[str, bool]], after: Sequence[Answer]) -> list[ScoreChange]:
    """Overall and by domain, on the questions in both runs."""
    pairs = [(before[answer.key][1], answer) for answer in after if answer.key in before]
    groups = {"overall": pairs} | {domain: [p for p in pairs if p[1].domain == domain] for domain in DOMAINS}
    return [change(name, [(old, new.is_correct) for old, new in group]) for name, group in groups.items() if group]


def change(name: str, pairs: Sequence[tuple[bool, bool]]) -> ScoreChange:
    n = len(pairs)
    before, after = (sum(hits) / n for hits in zip(*pairs, strict=True))
    lost = sum(old and not new for old, new in pairs)
    gained = sum(new and not old for old, new in pairs)
    error = math.sqrt(lost + gained - (gained - lost) ** 2 / n) / n
    return ScoreChange(name, n, before, after, after - before, error, lost, gained, mcnemar(lost, gained))
