"""MMLU's questions in every form they come in."""

import csv
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.config.models import DEMO
from harness.core.errors import UsageError
from harness.mmlu import mmlu_config, question_data
from harness.mmlu.question_data import DOMAINS, LETTERS, SUBJECTS, Question, QuestionSet

MMLU = DEMO / "mmlu"


def test_the_paper_s_map() -> None:
    assert {domain: len(subjects) for domain, subjects in DOMAINS.items()} == {
        "STEM": 18,
        "Humanities": 13,
        "Social Sciences": 12,
        "Other": 14,
    }
    assert len(SUBJECTS) == 57


def test_the_demo_has_every_subject(demo: QuestionSet) -> None:
    counts = Counter(question.subject for question in demo.test)
    assert sorted(counts) == SUBJECTS
    assert min(counts.values()) >= 4
    assert {len(examples) for examples in demo.examples.values()} == {5}
    for subject in SUBJECTS:
        asked = {q.text for q in demo.test if q.subject == subject}
        assert not asked & {example.text for example in demo.examples[subject]}


def records(questions: Sequence[Question]) -> list[dict[str, Any]]:
    return [
        {"question": q.text, "subject": q.subject, "choices": list(q.choices), "answer": q.answer} for q in questions
    ]


def as_csv(demo: QuestionSet, folder: Path) -> None:
    for split, questions in splits(demo).items():
        (folder / "data" / split).mkdir(parents=True)
        for subject in SUBJECTS:
            with (folder / "data" / split / f"{subject}_{split}.csv").open("w", newline="") as file:
                for q in questions:
                    if q.subject == subject:
                        csv.writer(file).writerow([q.text, *q.choices, LETTERS[q.answer]])


def as_parquet(demo: QuestionSet, folder: Path) -> None:
    from datasets import Dataset

    for split, questions in splits(demo).items():
        for subject in SUBJECTS:
            (folder / subject).mkdir(exist_ok=True, parents=True)
            part = [
                {k: v for k, v in r.items() if k != "subject"} for r in records(questions) if r["subject"] == subject
            ]
            Dataset.from_list(part).to_parquet(folder / subject / f"{split}-00000-of-00001.parquet")


def as_saved(demo: QuestionSet, folder: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict({s: Dataset.from_list(records(q)) for s, q in splits(demo).items()}).save_to_disk(folder)


def as_saved_folders(demo: QuestionSet, folder: Path) -> None:
    from datasets import Dataset, DatasetDict

    for subject in SUBJECTS:
        parts = {s: [q for q in questions if q.subject == subject] for s, questions in splits(demo).items()}
        saved = DatasetDict({split: Dataset.from_list(records(part)) for split, part in parts.items()})
        saved.save_to_disk(folder / subject)


def splits(demo: QuestionSet) -> dict[str, list[Question]]:
    return {"test": demo.test, "dev": [question for examples in demo.examples.values() for question in examples]}


@pytest.mark.parametrize("write", [as_csv, as_parquet, as_saved, as_saved_folders])
def test_every_form_gives_the_same_questions(
    write: Callable[[QuestionSet, Path], None], demo: QuestionSet, tmp_path: Path
) -> None:
    write(demo, tmp_path / "mmlu")
    assert question_data.load_questions(tmp_path / "mmlu", SUBJECTS, 5, None, 0)._replace(source="") == demo._replace(
        source=""
    )


def test_what_is_wrong_with_the_data_is_said_in_one_line(demo: QuestionSet, tmp_path: Path) -> None:
    def refused(*words: str, subjects: Sequence[str] = SUBJECTS, folder: Path = tmp_path) -> None:
        with pytest.raises(UsageError) as caught:
            question_data.load_questions(folder, subjects, 5, None, 0)
        assert "\n" not in str(caught.value)
        for word in words:
            assert word in str(caught.value)

    refused("no such folder", folder=tmp_path / "nowhere")
    refused("no test questions in it")
    as_csv(demo, tmp_path)
    test, dev = (tmp_path / "data" / split / f"anatomy_{split}.csv" for split in ("test", "dev"))
    whole = test.read_text()
    test.write_text(whole + "What?,a,b,c,d,E\n")
    refused(f"{test}: row 7", "'E'", "not one of A, B, C, D")
    test.write_text(whole + "What?,a,b,c,d\n")
    refused(f"{test}: row 7", "5 columns")
    test.write_text(whole + ",a,b,c,d,A\n")
    refused(f"{test}: row 7", "no question")
    test.unlink()
    refused("no test questions for anatomy", "--subjects")
    test.write_text(whole)
    dev.write_text("".join(dev.read_text().splitlines(keepends=True)[:3]))
    refused("anatomy has 3 dev questions", "--num-fewshot 5")
    assert len(question_data.load_questions(tmp_path, ["anatomy"], 3, None, 0).test) == 6
    found = question_data.load_questions(tmp_path, ["anatomy"], 3, None, 0)
    test.write_text("\ufeff" + whole)
    assert question_data.load_questions(tmp_path, ["anatomy"], 3, None, 0) == found
    for choices in ("abcd", 4, [1, 2, 3, 4]):
        with pytest.raises(UsageError, match=r"row 1 .*four choices"):
            question_data.check_question("row 1", {"question": "What?", "choices": choices, "answer": 0}, 0)
    with pytest.raises(UsageError, match=r"row 1 .*'answer'; it has question, choices"):
        question_data.check_question("row 1", {"question": "What?", "choices": list("abcd")}, 0)


def test_subjects_and_domains_by_name() -> None:
    assert question_data.chosen_subjects("all") == SUBJECTS
    assert question_data.chosen_subjects("virology, astronomy,virology") == ["astronomy", "virology"]
    assert question_data.chosen_subjects("social_sciences") == sorted(DOMAINS["Social Sciences"])
    with pytest.raises(UsageError, match="did you mean anatomy"):
        mmlu_config.MMLUConfig(subjects="anatomie")


def test_a_limit_is_spread_seeded_and_nested() -> None:
    sizes = {"anatomy": 400, "astronomy": 100, "virology": 100}
    test = {s: [Question(s, n, f"{n}?", ("a", "b", "c", "d"), 0) for n in range(size)] for s, size in sizes.items()}
    drawn = question_data.spread_sample(test, 60, seed=1)
    assert len(drawn) == 60
    for subject, size in sizes.items():
        assert Counter(q.subject for q in drawn)[subject] == pytest.approx(size / 10, abs=1)
    assert drawn == question_data.spread_sample(test, 60, seed=1) != question_data.spread_sample(test, 60, seed=2)
    assert set(question_data.spread_sample(test, 30, seed=1)) < set(drawn)
    assert max(q.number for q in drawn if q.subject == "anatomy") > 200
    assert [q.subject for q in drawn] == sorted(q.subject for q in drawn)


def test_a_limit_reaches_every_subject_of_the_demo() -> None:
    drawn = question_data.load_questions(MMLU, SUBJECTS, 0, 57, 0).test
    assert [question.subject for question in drawn] == SUBJECTS
