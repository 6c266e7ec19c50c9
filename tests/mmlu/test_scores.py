"""MMLU's scores: accuracy and its errors."""

import math
from pathlib import Path
from statistics import stdev

import pytest

from harness.core import statistics
from harness.engines.protocol import ChoiceLogprobs
from harness.mmlu import report, scores
from harness.mmlu.question_data import LETTERS, Question
from harness.mmlu.question_prompts import QuestionPrompt
from harness.mmlu.scores import MMLUAnswer
from harness.report import charts


def row(number: int, answer: str, prediction: str, subject: str = "anatomy", sure: float = 0.7) -> MMLUAnswer:
    logprobs = tuple(math.log(sure if letter == prediction else (1 - sure) / 3) for letter in LETTERS)
    question = Question(subject, number, "?", ("a", "b", "c", "d"), LETTERS.index(answer))
    return MMLUAnswer(QuestionPrompt(question, [1] * 100, 4, 1), ChoiceLogprobs(logprobs, 32), 0.5)


def test_accuracy_and_its_errors() -> None:
    rows = [row(n, "A", "A" if n < 7 else "B") for n in range(10)]
    score = scores.score_of(rows)
    assert (score.n, score.correct, score.accuracy) == (10, 7, 0.7)
    assert score.standard_error == pytest.approx(stdev([1] * 7 + [0] * 3) / math.sqrt(10))
    assert (score.low, score.high) == pytest.approx((0.39678, 0.89221), abs=1e-5)
    assert scores.score_of(rows[:1]).standard_error is None
    assert statistics.wilson(0, 4)[0] == 0
    assert statistics.wilson(4, 4)[1] == pytest.approx(1)


def test_overall_weighs_questions_and_the_macro_average_subjects() -> None:
    rows = [row(n, "A", "A") for n in range(9)] + [row(0, "A", "B", "virology")]
    found = scores.overall_of(rows, 2.0, 20, 5, [])
    assert (found.overall_accuracy, found.macro_average) == (0.9, 0.5)
    assert found.questions_per_s == 5
    assert found.shortened_prompts == {"questions": 10, "examples_dropped": 10}
    assert found.cache_hit_rate == 0.32


def test_a_tie_goes_to_the_first_letter() -> None:
    tied = row(0, "B", "A")._replace(choice=ChoiceLogprobs((-2.0, -1.0, -1.0, -3.0), 0))
    assert (tied.prediction, tied.is_tied, tied.is_correct) == ("B", True, True)


def test_every_subject_is_drawn_and_is_hollow_below_thirty_questions(tmp_path: Path) -> None:
    few = [row(0, "A", "A", sure=1 - 1e-9)]
    many = [row(n, "A", "AB"[n % 2], "virology") for n in range(30)]
    domains, subjects = (scores.group_scores([*few, *many], kind) for kind in ("domain", "subject"))
    of_domains, of_subjects = report.score_panels(domains, subjects)
    assert isinstance(of_subjects, charts.Bars) and isinstance(of_domains, charts.Bars)
    assert [bar.name for bar in of_domains.rows] == [f"{name} ({part.n})" for name, part in domains.items()]
    hollow = {bar.name: [part.is_hollow for part in bar.parts] for bar in of_subjects.rows}
    assert hollow == {"anatomy (1)": [True], "virology (30)": [False]}
    for panel in (of_domains, of_subjects):
        assert all(bar.interval and bar.interval[0] < bar.interval[1] for bar in panel.rows)
    assert len(charts.save_pictures({"score": ("scores", [of_domains, of_subjects])}, tmp_path / "plots")) == 1
