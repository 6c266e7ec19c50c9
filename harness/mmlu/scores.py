"""MMLU: answers -> accuracy by subject, domain and overall, calibration, and the comparison of two runs."""

import csv
import io
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from harness.common.errors import UsageError
from harness.common.reading import open_regular
from harness.common.schema import SCHEMA
from harness.common.statistics import mcnemar, wilson
from harness.mmlu.answers import Answer
from harness.mmlu.data import DOMAIN_OF, DOMAINS, LETTERS, Question
from harness.mmlu.summary import Answered, Shortened

BINS = 10


@dataclass(frozen=True)
class Scored:
    """One question's outcome, as samples.csv keeps it; `dropped` are the examples left out, the first being 1."""

    subject: str
    number: int
    answer: str
    prediction: str
    logprobs: tuple[float, ...]
    prompt_tokens: int
    cached_tokens: int | None
    latency_s: float
    examples: int
    dropped: tuple[int, ...]

    @property
    def domain(self) -> str:
        return DOMAIN_OF[self.subject]

    @property
    def correct(self) -> bool:
        return self.prediction == self.answer

    @property
    def confidence(self) -> float:
        """The probability of the letter chosen, among the four."""
        return math.exp(max(self.logprobs))

    @property
    def tied(self) -> bool:
        """Whether two letters share the highest log-probability; the first in the alphabet counts."""
        return self.logprobs.count(max(self.logprobs)) > 1

    @property
    def key(self) -> tuple[str, int]:
        return self.subject, self.number


@dataclass(frozen=True)
class Score:
    """Accuracy over `n` questions; `low` and `high` are Wilson's 95 % interval."""

    n: int
    correct: int
    accuracy: float
    standard_error: float | None
    low: float
    high: float


def score_answer(answer: Answer, shots: int) -> Scored:
    prompt, question, logprobs = answer.prompt, answer.prompt.question, answer.choice.logprobs
    return Scored(
        question.subject,
        question.number,
        LETTERS[question.answer],
        LETTERS[logprobs.index(max(logprobs))],
        logprobs,
        len(prompt.tokens),
        answer.choice.cached_tokens,
        answer.latency_s,
        prompt.examples,
        tuple(range(prompt.examples + 1, shots + 1)),
    )


def score(rows: Iterable[Scored]) -> Score:
    """The standard error is the sample standard deviation of right and wrong over sqrt(n): None for one question."""
    hits = [question.correct for question in rows]
    n, correct = len(hits), sum(hits)
    accuracy = correct / n
    error = math.sqrt(accuracy * (1 - accuracy) / (n - 1)) if n > 1 else None
    return Score(n, correct, accuracy, error, *wilson(correct, n))


def group_scores(rows: Sequence[Scored], name: str) -> dict[str, Score]:
    """Scores by `domain` or by `subject`, in the order of the domains, then of the alphabet."""
    groups: dict[str, list[Scored]] = {}
    for question in sorted(rows, key=lambda question: (list(DOMAINS).index(question.domain), question.subject)):
        groups.setdefault(getattr(question, name), []).append(question)
    return {key: score(group) for key, group in groups.items()}


def overall(rows: Sequence[Scored]) -> Answered:
    """The numbers of overall.json that the answers alone give."""
    whole, subjects = score(rows), group_scores(rows, "subject")
    cut = [question for question in rows if question.dropped]
    prompt_tokens = sum(question.prompt_tokens for question in rows)
    counts = [question.cached_tokens for question in rows if question.cached_tokens is not None]
    cached = sum(counts) if len(counts) == len(rows) else None
    return Answered(
        schema_version=SCHEMA,
        overall_accuracy=whole.accuracy,
        n=whole.n,
        correct=whole.correct,
        standard_error=whole.standard_error,
        interval_95=(whole.low, whole.high),
        macro_average=sum(part.accuracy for part in subjects.values()) / len(subjects),
        subjects=len(subjects),
        predictions={letter: Counter(question.prediction for question in rows)[letter] for letter in LETTERS},
        answers={letter: Counter(question.answer for question in rows)[letter] for letter in LETTERS},
        calibration_error=calibration_error(rows),
        ties=sum(question.tied for question in rows),
        shortened_prompts=Shortened(
            questions=len(cut), examples_dropped=sum(len(question.dropped) for question in cut)
        ),
        prompt_tokens=prompt_tokens,
        cached_tokens=cached,
        cache_hit_rate=None if cached is None else cached / prompt_tokens,
    )


def bins(rows: Sequence[Scored]) -> list[list[Scored]]:
    """The answers by confidence, in ten equal steps from 0 to 1; none can be below 0.25."""
    parts: list[list[Scored]] = [[] for _ in range(BINS)]
    for question in rows:
        parts[min(BINS - 1, int(question.confidence * BINS))].append(question)
    return parts


def calibration_error(rows: Sequence[Scored]) -> float:
    """Expected calibration error: how far confidence and accuracy are apart, on average over the answers."""
    gaps = (sum(question.confidence - question.correct for question in part) for part in bins(rows))
    return sum(map(abs, gaps)) / len(rows)


def cells(question: Scored) -> dict[str, object]:
    """A line of samples.csv, by column."""
    found = asdict(question) | {"domain": question.domain, "correct": int(question.correct)}
    found |= {f"logprob_{letter}": f"{value:.6f}" for letter, value in zip(LETTERS, question.logprobs, strict=True)}
    found |= {"latency_s": f"{question.latency_s:.6f}", "dropped_examples": " ".join(map(str, question.dropped))}
    return {name: value for name, value in found.items() if name not in ("logprobs", "dropped")}


def to_csv(rows: Sequence[Scored]) -> str:
    """samples.csv"""
    text = io.StringIO()
    table = csv.DictWriter(text, list(cells(rows[0])), lineterminator="\n")
    table.writeheader()
    table.writerows(map(cells, rows))
    return text.getvalue()


def from_csv(folder: Path) -> list[Scored]:
    """The answers of a finished run. Raises UsageError where there are none."""
    try:
        with open_regular(folder / "samples.csv", 2**30) as file:
            return [read(line) for line in csv.DictReader(file)]
    except OSError:
        raise UsageError(f"--compare {folder}: no samples.csv in it; it takes a finished evaluation.") from None
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UsageError(
            f"--compare {folder}: its samples.csv cannot be read: {type(error).__name__} {error}"
        ) from None


def read(line: dict[str, str]) -> Scored:
    """A line of samples.csv. Raises ValueError, KeyError, TypeError for a damaged one."""
    return Scored(
        line["subject"],
        int(line["number"]),
        line["answer"],
        line["prediction"],
        tuple(float(line[f"logprob_{letter}"]) for letter in LETTERS),
        int(line["prompt_tokens"]),
        int(line["cached_tokens"]) if line["cached_tokens"] else None,
        float(line["latency_s"]),
        int(line["examples"]),
        tuple(map(int, line["dropped_examples"].split())),
    )


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


def check_comparable(before: Sequence[Scored], questions: Sequence[Question]) -> None:
    """Raises UsageError where an earlier run shares no question with these, or had other data."""
    earlier = {question.key: question.answer for question in before}
    common = [question for question in questions if (question.subject, question.number) in earlier]
    if not common:
        raise UsageError("--compare: that run has no question in common with this one.")
    for question in common:
        if earlier[question.subject, question.number] != LETTERS[question.answer]:
            raise UsageError(
                f"--compare: that run had other data: {question.subject} {question.number} has another answer there."
            )


def compare(before: Sequence[Scored], after: Sequence[Scored]) -> list[ScoreChange]:
    """Overall and by domain, on the questions in both runs."""
    earlier = {question.key: question for question in before}
    pairs = [(earlier[question.key], question) for question in after if question.key in earlier]
    groups = {"overall": pairs} | {domain: [p for p in pairs if p[1].domain == domain] for domain in DOMAINS}
    return [change(name, group) for name, group in groups.items() if group]


def change(name: str, pairs: Sequence[tuple[Scored, Scored]]) -> ScoreChange:
    n = len(pairs)
    before, after = (sum(pair[side].correct for pair in pairs) / n for side in (0, 1))
    lost = sum(old.correct and not new.correct for old, new in pairs)
    gained = sum(new.correct and not old.correct for old, new in pairs)
    error = math.sqrt(lost + gained - (gained - lost) ** 2 / n) / n
    return ScoreChange(name, n, before, after, after - before, error, lost, gained, mcnemar(lost, gained))
