"""MMLU's scores: accuracy, its errors, and two evaluations side by side."""

import math
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev

import pytest

from harness.common.errors import UsageError
from harness.engines.protocol import ChoiceLogprobs
from harness.mmlu import report as mmlu_report
from harness.mmlu import scores as mmlu_scores
from harness.mmlu.data import LETTERS, SUBJECTS, Question
from harness.mmlu.prompts import Prompt
from harness.mmlu.scores import Answer


def row(number: int, answer: str, prediction: str, subject: str = "anatomy", sure: float = 0.7) -> Answer:
    logprobs = tuple(math.log(sure if letter == prediction else (1 - sure) / 3) for letter in LETTERS)
    question = Question(subject, number, "?", ("a", "b", "c", "d"), LETTERS.index(answer))
    return Answer(Prompt(question, [1] * 100, 4, 1), ChoiceLogprobs(logprobs, 32), 0.5)


def kept(rows: list[Answer]) -> dict[tuple[str, int], tuple[str, bool]]:
    """What samples.csv tells a later evaluation."""
    return {answer.key: (answer.right, answer.is_correct) for answer in rows}


def test_accuracy_and_its_errors() -> None:
    rows = [row(n, "A", "A" if n < 7 else "B") for n in range(10)]
    score = mmlu_scores.score(rows)
    assert (score.n, score.correct, score.accuracy) == (10, 7, 0.7)
    assert score.standard_error == pytest.approx(stdev([1] * 7 + [0] * 3) / math.sqrt(10))
    assert (score.low, score.high) == pytest.approx((0.39678, 0.89221), abs=1e-5)
    assert mmlu_scores.score(rows[:1]).standard_error is None
    assert mmlu_scores.wilson(0, 4)[0] == 0
    assert mmlu_scores.wilson(4, 4)[1] == pytest.approx(1)


def test_overall_weighs_questions_and_the_macro_average_subjects() -> None:
    rows = [row(n, "A", "A") for n in range(9)] + [row(0, "A", "B", "virology")]
    found = mmlu_scores.overall(rows, 2.0, 20, 5, [])
    assert (found.overall_accuracy, found.macro_average) == (0.9, 0.5)
    assert found.questions_per_s == 5
    assert found.shortened_prompts == {"questions": 10, "examples_dropped": 10}
    assert found.cache_hit_rate == 0.32
    assert found.calibration_error == pytest.approx(0.2)


def test_a_tie_goes_to_the_first_letter() -> None:
    tied = replace(row(0, "B", "A"), choice=ChoiceLogprobs((-2.0, -1.0, -1.0, -3.0), 0))
    assert (tied.prediction, tied.is_tied, tied.is_correct) == ("B", True, True)


def test_samples_csv_tells_a_later_evaluation(tmp_path: Path) -> None:
    rows = [row(n, "A", letter, subject) for n, (letter, subject) in enumerate(zip("ABCD", SUBJECTS, strict=False))]
    mmlu_scores.write_csv(tmp_path / "samples.csv", rows)
    assert mmlu_scores.from_csv(tmp_path) == kept(rows)


@pytest.mark.parametrize(
    ("lost", "gained", "p"), [(0, 0, 1.0), (5, 5, 1.0), (0, 5, 2 / 32), (1, 9, 22 / 1024), (9, 1, 22 / 1024)]
)
def test_mcnemar(lost: int, gained: int, p: float) -> None:
    assert mmlu_scores.mcnemar(lost, gained) == pytest.approx(p)


def test_mcnemar_of_many() -> None:
    assert 0 < mmlu_scores.mcnemar(6000, 7000) < 1e-15


def test_comparing_uses_the_questions_in_both() -> None:
    before = [row(n, "A", "A" if n < 6 else "B") for n in range(12)]
    after = [row(n, "A", "A" if n % 2 else "B") for n in range(10)] + [row(0, "A", "A", "virology")]
    (overall, other) = mmlu_scores.compare(kept(before), after)
    assert (overall.name, other.name, overall.n) == ("overall", "Other", 10)
    assert (overall.lost, overall.gained) == (3, 2)
    shifts = [int(new.is_correct) - int(old.is_correct) for old, new in zip(before, after[:10], strict=False)]
    assert overall.difference == pytest.approx(mean(shifts)) == pytest.approx(-0.1)
    assert overall.standard_error == pytest.approx(math.sqrt(sum((s + 0.1) ** 2 for s in shifts)) / 10)


def test_runs_with_other_data_are_not_compared() -> None:
    before = kept([row(0, "A", "A")])
    same = Question("anatomy", 0, "?", ("a", "b", "c", "d"), 0)
    mmlu_scores.check_comparable(before, [same])
    with pytest.raises(UsageError, match="different data: anatomy 0"):
        mmlu_scores.check_comparable(before, [replace(same, answer=1)])
    with pytest.raises(UsageError, match="no question in common"):
        mmlu_scores.check_comparable(before, [replace(same, number=1)])


def test_plots_of_a_single_question(tmp_path: Path) -> None:
    rows = [row(0, "A", "A", sure=1 - 1e-9)]
    subjects = mmlu_scores.group_scores(rows, "subject")
    drawn = {"score": mmlu_report.by_subject(subjects), "calibration": mmlu_report.calibration(rows)}
    assert len(mmlu_report.figures.save(drawn, tmp_path / "plots")) == 2
