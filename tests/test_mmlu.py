"""mmlu.py: data in every form, prompts, scores, and whole evaluations of the demo."""

import csv
import json
import math
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest

from harness.common import files
from harness.common.errors import UsageError
from harness.config.models import DEMO
from harness.mmlu import answers, prompts
from harness.mmlu import config as mmlu_config
from harness.mmlu import data as mmlu_data
from harness.mmlu import report as mmlu_report
from harness.mmlu import scores as mmlu_scores
from harness.mmlu.data import DOMAINS, LETTERS, SUBJECTS, Data, Question
from harness.mmlu.scores import Scored
from tests.conftest import ROOT, TOKEN, launch
from tests.test_ends import engines

MMLU = DEMO / "mmlu"


@pytest.fixture(scope="module")
def demo() -> Data:
    return mmlu_data.load(MMLU, SUBJECTS, 5, None, 0)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(DEMO / "model")


# Data


def test_the_paper_s_map() -> None:
    assert {domain: len(subjects) for domain, subjects in DOMAINS.items()} == {
        "STEM": 18,
        "Humanities": 13,
        "Social Sciences": 12,
        "Other": 14,
    }
    assert len(SUBJECTS) == 57


def test_the_demo_has_every_subject(demo: Data) -> None:
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


def as_csv(demo: Data, folder: Path) -> None:
    for split, questions in splits(demo).items():
        (folder / "data" / split).mkdir(parents=True)
        for subject in SUBJECTS:
            with (folder / "data" / split / f"{subject}_{split}.csv").open("w", newline="") as file:
                for q in questions:
                    if q.subject == subject:
                        csv.writer(file).writerow([q.text, *q.choices, LETTERS[q.answer]])


def as_parquet(demo: Data, folder: Path) -> None:
    from datasets import Dataset

    for split, questions in splits(demo).items():
        for subject in SUBJECTS:
            (folder / subject).mkdir(exist_ok=True, parents=True)
            part = [
                {k: v for k, v in r.items() if k != "subject"} for r in records(questions) if r["subject"] == subject
            ]
            Dataset.from_list(part).to_parquet(folder / subject / f"{split}-00000-of-00001.parquet")


def as_saved(demo: Data, folder: Path) -> None:
    from datasets import Dataset, DatasetDict

    DatasetDict({s: Dataset.from_list(records(q)) for s, q in splits(demo).items()}).save_to_disk(folder)


def as_saved_folders(demo: Data, folder: Path) -> None:
    from datasets import Dataset, DatasetDict

    for subject in SUBJECTS:
        parts = {s: [q for q in questions if q.subject == subject] for s, questions in splits(demo).items()}
        saved = DatasetDict({split: Dataset.from_list(records(part)) for split, part in parts.items()})
        saved.save_to_disk(folder / subject)


def splits(demo: Data) -> dict[str, list[Question]]:
    return {"test": demo.test, "dev": [question for examples in demo.examples.values() for question in examples]}


@pytest.mark.parametrize("write", [as_csv, as_parquet, as_saved, as_saved_folders])
def test_every_form_gives_the_same_questions(write: Callable[[Data, Path], None], demo: Data, tmp_path: Path) -> None:
    write(demo, tmp_path / "mmlu")
    assert replace(mmlu_data.load(tmp_path / "mmlu", SUBJECTS, 5, None, 0), source="") == replace(demo, source="")


def test_what_is_wrong_with_the_data_is_said_in_one_line(demo: Data, tmp_path: Path) -> None:
    def refused(*words: str, subjects: Sequence[str] = SUBJECTS, folder: Path = tmp_path) -> None:
        with pytest.raises(UsageError) as caught:
            mmlu_data.load(folder, subjects, 5, None, 0)
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
    assert len(mmlu_data.load(tmp_path, ["anatomy"], 3, None, 0).test) == 6
    found = mmlu_data.load(tmp_path, ["anatomy"], 3, None, 0)
    test.write_text("\ufeff" + whole)
    assert mmlu_data.load(tmp_path, ["anatomy"], 3, None, 0) == found
    for choices in ("abcd", 4, [1, 2, 3, 4]):
        with pytest.raises(UsageError, match="row 1 does not have four choices"):
            mmlu_data.checked(mmlu_data.QuestionRow("row 1", "anatomy", "What?", choices, 0), 0)  # type: ignore[arg-type]


def test_subjects_and_domains_by_name() -> None:
    assert mmlu_data.chosen_subjects("all") == SUBJECTS
    assert mmlu_data.chosen_subjects("virology, astronomy,virology") == ["astronomy", "virology"]
    assert mmlu_data.chosen_subjects("social_sciences") == sorted(DOMAINS["Social Sciences"])
    with pytest.raises(UsageError, match="did you mean anatomy"):
        mmlu_config.MMLUConfig(subjects="anatomie")


def test_a_limit_is_spread_seeded_and_nested() -> None:
    sizes = {"anatomy": 400, "astronomy": 100, "virology": 100}
    test = {s: [Question(s, n, f"{n}?", ("a", "b", "c", "d"), 0) for n in range(size)] for s, size in sizes.items()}
    drawn = mmlu_data.spread(test, 60, seed=1)
    assert len(drawn) == 60
    for subject, size in sizes.items():
        assert Counter(q.subject for q in drawn)[subject] == pytest.approx(size / 10, abs=1)
    assert drawn == mmlu_data.spread(test, 60, seed=1) != mmlu_data.spread(test, 60, seed=2)
    assert set(mmlu_data.spread(test, 30, seed=1)) < set(drawn)
    assert max(q.number for q in drawn if q.subject == "anatomy") > 200
    assert [q.subject for q in drawn] == sorted(q.subject for q in drawn)


def test_a_limit_reaches_every_subject_of_the_demo() -> None:
    drawn = mmlu_data.load(MMLU, SUBJECTS, 0, 57, 0).test
    assert [question.subject for question in drawn] == SUBJECTS


# Prompts


def test_the_prompt_to_the_letter() -> None:
    example = Question("world_religions", 0, " Which?\n", ("w", "x", "y", "z"), 2)
    question = Question("world_religions", 0, "What is it?", ("a", "b ", "c", "d"), 0)
    assert prompts.text(question, [example]) == (
        "The following are multiple choice questions (with answers) about world religions.\n\n"
        "Which?\nA. w\nB. x\nC. y\nD. z\nAnswer: C\n\n"
        "What is it?\nA. a\nB. b \nC. c\nD. d\nAnswer:"
    )


def test_letters_are_the_tokens_that_follow(tokenizer: Any, demo: Data) -> None:
    prompt = prompts.text(demo.test[0], [])
    assert [tokenizer.decode([token]) for token in prompts.letter_tokens(tokenizer, prompt)] == [" A", " B", " C", " D"]

    def by_character(text: str) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) for letter in text]}

    def unknown(text: str) -> dict[str, list[int]]:
        return {"input_ids": [0] * len(text.split())}

    for odd in (by_character, unknown):
        with pytest.raises(UsageError, match="one token"):
            prompts.letter_tokens(odd, prompt)


def test_examples_that_do_not_fit_are_dropped_from_the_end(tokenizer: Any, demo: Data) -> None:
    made = prompts.build(demo, 5, tokenizer, 400)
    assert [prompt.question for prompt in made] == demo.test
    assert {prompt.examples for prompt in made} >= {4, 5}
    for prompt in made:
        examples = demo.examples[prompt.question.subject]
        assert prompt.tokens == tokenizer(prompts.text(prompt.question, examples[: prompt.examples]))["input_ids"]
        assert len(prompt.tokens) < 400
        if prompt.examples < 5:
            longer = prompts.text(prompt.question, examples[: prompt.examples + 1])
            assert len(tokenizer(longer)["input_ids"]) >= 400
    with pytest.raises(UsageError, match=r"do not fit --max-model-len 100 without examples: \w+ \d+ needs \d+"):
        prompts.build(demo, 5, tokenizer, 100)


# Scores


def row(number: int, answer: str, prediction: str, subject: str = "anatomy", sure: float = 0.7) -> Scored:
    logprobs = tuple(math.log(sure if letter == prediction else (1 - sure) / 3) for letter in LETTERS)
    domain = mmlu_data.DOMAIN_OF[subject]
    return Scored(subject, number, domain, answer, prediction, logprobs, 100, 32, 0.5, 4, (5,))


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
    found = mmlu_scores.overall(rows)
    assert (found.overall_accuracy, found.macro_average) == (0.9, 0.5)
    assert found.shortened_prompts.model_dump() == {"questions": 10, "examples_dropped": 10}
    assert found.cache_hit_rate == 0.32
    assert found.calibration_error == pytest.approx(0.2)


def test_a_tie_goes_to_the_first_letter() -> None:
    prompt = prompts.Prompt(Question("anatomy", 0, "?", ("a", "b", "c", "d"), 1), [1], 0)
    tied = mmlu_scores.scored(answers.ChoiceAnswer(prompt, (-2.0, -1.0, -1.0, -3.0), 0, 0.1), 2)
    assert (tied.prediction, tied.tied, tied.correct, tied.dropped) == ("B", True, True, (1, 2))


def test_samples_csv_comes_back_as_it_was(tmp_path: Path) -> None:
    rows = [row(n, "A", letter, subject) for n, (letter, subject) in enumerate(zip("ABCD", SUBJECTS, strict=False))]
    (tmp_path / "samples.csv").write_text(mmlu_scores.to_csv(rows))
    for before, after in zip(rows, mmlu_scores.from_csv(tmp_path), strict=True):
        assert after == replace(before, logprobs=after.logprobs)
        assert after.logprobs == pytest.approx(before.logprobs, abs=1e-6)


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
    (overall, other) = mmlu_scores.compare(before, after)
    assert (overall.name, other.name, overall.n) == ("overall", "Other", 10)
    assert (overall.lost, overall.gained) == (3, 2)
    shifts = [int(new.correct) - int(old.correct) for old, new in zip(before, after[:10], strict=False)]
    assert overall.difference == pytest.approx(mean(shifts)) == pytest.approx(-0.1)
    assert overall.standard_error == pytest.approx(math.sqrt(sum((s + 0.1) ** 2 for s in shifts)) / 10)


def test_runs_with_other_data_are_not_compared() -> None:
    before = [row(0, "A", "A")]
    same = Question("anatomy", 0, "?", ("a", "b", "c", "d"), 0)
    mmlu_scores.check_comparable(before, [same])
    with pytest.raises(UsageError, match="other data: anatomy 0"):
        mmlu_scores.check_comparable(before, [replace(same, answer=1)])
    with pytest.raises(UsageError, match="no question in common"):
        mmlu_scores.check_comparable(before, [replace(same, number=1)])


def test_results_appear_whole_or_not_at_all(tmp_path: Path) -> None:
    with files.whole_or_nothing(tmp_path) as place:
        (place / "plots").mkdir()
        (place / "plots" / "a.png").write_text("a")
        assert not (tmp_path / "plots").exists()
    assert (tmp_path / "plots" / "a.png").exists()
    with pytest.raises(OSError), files.whole_or_nothing(tmp_path) as place:
        (place / "overall.json").write_text("{")
        raise OSError("disk full")
    assert [path.name for path in tmp_path.iterdir()] == ["plots"]


# Whole evaluations


@dataclass(frozen=True)
class Finished:
    """An `mmlu.py` that has ended."""

    code: int
    output: str
    seconds: float
    folder: Path

    def json(self, name: str) -> Any:
        return json.loads((self.folder / f"{name}.json").read_text())

    @property
    def samples(self) -> list[Scored]:
        return mmlu_scores.from_csv(self.folder)


def evaluate(to: Path, *flags: str, **how: Any) -> Finished:
    """A run of `mmlu.py`, as `launch` has it."""
    ended = launch("mmlu.py", to, *flags, **how)
    return Finished(*ended, max(to.glob("mmlu/2*"), default=to))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Every question of the demo, with details."""
    return evaluate(tmp_path_factory.mktemp("results"), "--precision", "fp32", "--details", "1")


@pytest.fixture(scope="module")
def part(whole: Finished) -> Finished:
    """A sample in less context, compared with the whole."""
    flags = ("--total-limit", "120", "--max-model-len", "400", "--seed", "3", "--compare", "latest")
    return evaluate(whole.folder.parent.parent, *flags)


def test_a_whole_evaluation(whole: Finished) -> None:
    assert whole.code == 0, whole.output
    assert re.fullmatch(r"\d{8}-\d{6}", whole.folder.name)
    assert (whole.folder.parent / "latest").resolve() == whole.folder.resolve()
    assert whole.json("status")["status"] == "complete"
    overall, rows = whole.json("overall"), whole.samples
    assert overall["n"] == len(rows) == 342
    assert overall["subjects"] == len(whole.json("by_subject")) == 57
    assert overall["overall_accuracy"] == pytest.approx(mean(row.correct for row in rows))
    assert list(whole.json("by_domain")) == list(DOMAINS)
    for row in rows:
        assert sum(map(math.exp, row.logprobs)) == pytest.approx(1, abs=1e-4)
        assert row.examples == 5 and 0 <= row.cached_tokens < row.prompt_tokens and row.latency_s > 0
    assert overall["cache_hit_rate"] > 0.5
    assert [row.subject for row in rows] == sorted(row.subject for row in rows)
    details = (whole.folder / "details.jsonl").read_text().splitlines()
    assert len(details) == 342 and len(json.loads(details[0])["examples"]) == 5
    assert "high_school_computer_science" in whole.output
    report = (whole.folder / "report.md").read_text()
    assert "Not the model's MMLU score" in report and "All examples fitted" in report
    for name in re.findall(r"\((plots/.*?)\)", report):
        assert (whole.folder / name).read_bytes().startswith(b"\x89PNG")
    assert not [path for path in whole.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_the_same_answers_as_a_plain_forward_pass(whole: Finished, demo: Data, tokenizer: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    letters = [tokenizer.encode(f" {letter}", add_special_tokens=False)[0] for letter in LETTERS]
    for row, question in list(zip(whole.samples, demo.test, strict=True))[::17]:
        ids = tokenizer(prompts.text(question, demo.examples[question.subject]), return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(ids).logits[0, -1, letters]
        assert row.logprobs == pytest.approx(logits.log_softmax(-1).tolist(), abs=1e-3)


def test_a_part_of_it_compared_with_the_whole(whole: Finished, part: Finished) -> None:
    assert part.code == 0, part.output
    overall, rows = part.json("overall"), part.samples
    assert overall["n"] == 120 and overall["test_questions"] == 342
    assert set(Counter(row.subject for row in rows).values()) <= {2, 3}
    short = [row for row in rows if row.dropped]
    assert overall["shortened_prompts"]["questions"] == len(short) > 0
    assert overall["shortened_prompts"]["examples_dropped"] == sum(5 - row.examples for row in rows)
    assert all(row.prompt_tokens < 400 for row in rows)
    report = (part.folder / "report.md").read_text()
    assert f"{len(short)} prompt(s) did not fit 400 tokens" in report
    assert f"{short[0].subject} {short[0].number}" in report
    assert f"Against {whole.folder.name}" in report and "McNemar" in report
    assert [change["name"] for change in part.json("comparison")] == ["overall", *DOMAINS]
    assert "a sample of 120 of 342 questions, seed 3" in report
    lines = [json.loads(line) for line in (part.folder.parent / "history.jsonl").read_text().splitlines()]
    assert [line["run"] for line in lines] == [whole.folder.name, part.folder.name]
    index = (part.folder.parent / "index.md").read_text()
    assert index.index(part.folder.name) < index.index(whole.folder.name)
    assert (part.folder.parent / "latest").resolve() == part.folder.resolve()


@pytest.mark.engine
def test_an_engine_that_dies_leaves_nothing_half_written(tmp_path: Path) -> None:
    def kill(pid: int) -> None:
        for process in engines(pid):
            process.kill()

    done = evaluate(tmp_path, when="asking", then=kill)
    assert done.code == 3, done.output
    assert done.seconds < 15
    assert "engine process ended unexpectedly" in done.json("status")["reason"]
    assert "Traceback" not in done.output
    assert sorted(path.name for path in done.folder.iterdir()) == ["config.json", "engine.log", "status.json"]
    assert not (tmp_path / "mmlu" / "latest").exists()
    assert not (tmp_path / "mmlu" / "history.jsonl").exists()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--subjects", "astronomie"], "did you mean astronomy"),
        (["--data", "nowhere"], "nowhere: no such folder"),
        (["--max-model-len", "64"], "do not fit --max-model-len 64"),
        (["--compare", "never"], "--compare never: no finished evaluation"),
        (["--num-fewshot", "6"], "--num-fewshot"),
        (["--total-limit", "0"], "--total-limit takes a number above 0"),
    ],
)
def test_bad_input_ends_at_once(flags: list[str], words: str, tmp_path: Path) -> None:
    done = evaluate(tmp_path, *flags)
    assert done.code == 2, done.output
    assert words in done.output
    assert "Traceback" not in done.output


def test_help_is_quick() -> None:
    begin = time.monotonic()
    shown = subprocess.run([sys.executable, "mmlu.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert time.monotonic() - begin < 5
    for flag in ("--num-fewshot", "--total-limit", "--details", "--quantization", "--engine-arg", "--compare"):
        assert flag in shown.stdout


def test_plots_of_a_single_question(tmp_path: Path) -> None:
    rows = [row(0, "A", "A", sure=1 - 1e-9)]
    mmlu_report.draw_plots(tmp_path / "plots", rows, mmlu_scores.grouped(rows, "subject"))
    assert len(list((tmp_path / "plots").iterdir())) == 2
