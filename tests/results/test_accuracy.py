"""The accuracy log decoder, the scorer, the gate, and the files they leave."""

import json
import random
import shutil
import subprocess
import sys
from array import array
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer

from harness.__main__ import main
from harness.config import mlperf
from harness.core.errors import LoadGenError
from harness.core.statistics import FEWEST_SAMPLES, bootstrap_intervals
from harness.results import scoring
from harness.results.accuracy import judge_scores, worst_verdict
from harness.results.scoring import read_log, rouge_rows, sentence_splitter, totals
from tests.conftest import ROOT

DEMO = json.loads((ROOT / "demo" / "cnn_eval.json").read_text())
REFERENCES = [record["output"] for record in DEMO]
ARTICLES = [record["input"] for record in DEMO]
WIDTHS = {4: ("i", 2**31), 8: ("q", 2**63)}


def entry(index: int, tokens: list[int], width: int = 4) -> dict[str, Any]:
    """One answer as LoadGen writes it."""
    return {"seq_id": 0, "qsl_idx": index, "data": array(WIDTHS[width][0], tokens).tobytes().hex().upper()}


def written(folder: Path, entries: object) -> Path:
    path = folder / "mlperf_log_accuracy.json"
    path.write_text(entries if isinstance(entries, str) else json.dumps(entries))
    return path


@settings(max_examples=50, deadline=None)
@given(data=st.data(), width=st.sampled_from([4, 8]))
def test_any_answers_of_either_width_come_back(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, width: int
):
    token = st.integers(0, WIDTHS[width][1] - 1)
    answers = data.draw(st.lists(st.lists(token, max_size=20), min_size=1, max_size=8))
    entries = [entry(index, tokens, width) for index, tokens in enumerate(answers)]
    repeats = data.draw(st.lists(st.sampled_from(entries), max_size=3))
    log = data.draw(st.permutations(entries)) + [{**repeat, "data": ""} for repeat in repeats]
    path = written(tmp_path_factory.mktemp("log"), log)
    assert read_log(path, len(answers), width) == answers


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([entry(0, [1]), {**entry(1, [2]), "data": "0100"}], "entry 1"),
        ([entry(0, [1]), {**entry(1, [2]), "data": "xyz"}], "entry 1"),
        ([entry(0, [1]), {**entry(1, [2]), "data": None}], "entry 1"),
        ([entry(0, [1]), {"qsl_idx": 1}], "entry 1 has no qsl_idx"),
        ([entry(0, [1]), entry(2, [2])], "entry 1: sample index 2 "),
        ([entry(0, [1]), entry(-1, [2])], "entry 1: sample index -1"),
        ([entry(0, [1]), {**entry(1, [2]), "qsl_idx": "1"}], "entry 1: sample index '1'"),
        ([entry(1, [1])], "1 of 2 samples, the first 0"),
        ([], "contains no answers"),
        ("[\n", "not a whole JSON file"),
        ("", "not a whole JSON file"),
        ('[{"seq_id": 0,\n\n...\n\n}]', "it was cut for a submission"),
        ({"a": 1}, "contains no answers"),
        ('[{"qsl_idx": ' + "7" * 5000 + "}]", "not a whole JSON file"),
        ([{**entry(0, [1]), "qsl_idx": 10**400}], "is not one of 0..1"),
        ("[" * 100_000 + "]" * 100_000, "not a whole JSON file"),
        ('[{"qsl_idx": NaN, "data": ""}]', "entry 0: sample index nan"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_log_that_cannot_be_trusted_names_the_entry(tmp_path: Path, entries: object, says: str):
    with pytest.raises(LoadGenError) as error:
        read_log(written(tmp_path, entries), 2)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 400


def test_no_log_at_all(tmp_path: Path):
    with pytest.raises(LoadGenError, match="No such file"):
        read_log(tmp_path / "mlperf_log_accuracy.json", 2)


def muddled(seed: int) -> list[str]:
    """Answers that are the references with words changed, so that every score is in play."""
    rng = random.Random(seed)
    return [
        " ".join(word if rng.random() < 0.7 else rng.choice(article.split()) for word in reference.split())
        for reference, article in zip(REFERENCES, ARTICLES, strict=True)
    ]


def test_scores_are_those_of_a_plain_loop_over_rouge_score():
    scorer = RougeScorer(list(mlperf.ROUGE), use_stemmer=True)
    _, split = sentence_splitter()
    texts = muddled(1)
    for row, text, reference in zip(
        rouge_rows(list(zip(texts, REFERENCES, strict=True))), texts, REFERENCES, strict=True
    ):
        lines = "\n".join(split(text.strip()))
        plain = scorer.score("\n".join(split(reference.strip())), lines)
        assert row == (*(100 * plain[name].fmeasure for name in mlperf.ROUGE), len(lines))


def test_gen_len_counts_one_newline_between_sentences_as_officially():
    (row,) = rouge_rows([("First point.\n\nSecond point.  Third one.", "First point.")])
    assert row[-1] == len("First point.\nSecond point.\nThird one.")


@pytest.mark.slow
def test_cores_change_nothing(monkeypatch: pytest.MonkeyPatch):
    texts, references = muddled(2) * 8, REFERENCES * 8
    assert len(texts) > 2000
    monkeypatch.setattr(scoring.system, "core_count", lambda: 2)
    assert scoring.score_answers(texts, references) == rouge_rows(list(zip(texts, references, strict=True)))


@settings(max_examples=20, deadline=None)
@given(order=st.permutations(range(24)))
def test_the_order_of_samples_changes_nothing(order: list[int]):
    texts = muddled(3)[:24]
    straight = totals(rouge_rows(list(zip(texts, REFERENCES[:24], strict=True))))
    texts = [texts[index] for index in order]
    mixed = totals(rouge_rows([(text, REFERENCES[index]) for text, index in zip(texts, order, strict=True)]))
    assert mixed.gen_len == straight.gen_len
    for name in mlperf.ROUGE:
        assert getattr(mixed, name) == pytest.approx(getattr(straight, name), abs=2e-4)


def scored(texts: list[str], references: list[str]) -> list[tuple[float, ...]]:
    return rouge_rows(list(zip(texts, references, strict=True)))


def a_task(samples: int, rows: list[tuple[float, ...]]) -> mlperf.Task:
    """A task whose reference is exactly what these answers score, for `samples` samples."""
    scores = totals(rows)
    return mlperf.Task(samples, replace(scores, gen_len=scores.gen_len * samples / len(rows)))


def scaled(rows: list[tuple[float, ...]], share: float) -> list[tuple[float, ...]]:
    """The same answers with every ROUGE at `share` of what it is."""
    return [(*(share * value for value in row[:-1]), row[-1]) for row in rows]


def test_the_whole_set_is_judged_by_the_official_rule_alone():
    rows = scored(muddled(4), REFERENCES)
    task = a_task(len(rows), rows)
    assert worst_verdict(judge_scores(rows, task)) == "PASS"
    for share, verdict in ((0.9901, "PASS"), (0.9899, "FAIL")):
        checks = judge_scores(scaled(rows, share), task)
        assert {check.verdict for check in checks[:4]} == {verdict}
        assert all(check.interval is None for check in checks)
    assert worst_verdict(judge_scores(scaled(rows, 0.995), task, True)) == "FAIL"
    assert judge_scores([(*row[:-1], 1.2 * row[-1]) for row in rows], task)[4].verdict == "FAIL"


@pytest.mark.parametrize("share", [0.5, 1.0, 1.5])
def test_few_samples_decide_nothing(share: float):
    rows = scored(muddled(5), REFERENCES)
    few = scaled(rows, share)[: FEWEST_SAMPLES - 1]
    assert {check.verdict for check in judge_scores(few, a_task(10_000, rows))} == {"INCONCLUSIVE"}


def test_a_part_of_the_set_is_judged_by_intervals():
    rows = scored(muddled(5), REFERENCES)
    task = a_task(10_000, rows)
    checks = judge_scores(rows, task)
    assert all(check.interval and check.interval[0] < check.score < check.interval[1] for check in checks)
    assert worst_verdict(judge_scores(rows[:40], task)) == "INCONCLUSIVE"
    assert worst_verdict(judge_scores(scaled(rows, 0.5), task)) == "FAIL"
    assert worst_verdict(judge_scores(scaled(rows, 1.2), task)) == "PASS"


def test_intervals_are_seeded_and_cover_the_mean():
    rng = random.Random(0)
    values = [[rng.gauss(10, 2), rng.gauss(50, 5)] for _ in range(400)]
    first, again = bootstrap_intervals(values), bootstrap_intervals(values)
    assert (first == again).all()
    assert first.shape == (2, 2)
    # The normal approximation: mean +- 1.96 sigma / sqrt(n).
    assert first[0][1] - first[0][0] == pytest.approx(2 * 1.96 * 2 / 20, rel=0.2)


@pytest.mark.slow
def test_foreign_logs_get_the_accuracy_txt_of_a_submission(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(ROOT / "demo" / "model")
    tokens = [tokenizer.encode(text, add_special_tokens=False) for text in REFERENCES]
    log = written(tmp_path, [entry(index, ids, 8) for index, ids in enumerate(tokens)])
    command = [sys.executable, "-m", "harness", "accuracy", str(log), str(ROOT / "demo" / "cnn_eval.json")]
    done = subprocess.run(
        [*command, "--model", "demo", "--dtype", "int64"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    text = (tmp_path / "accuracy.txt").read_text()
    assert text.strip() == done.stdout.strip()
    characters = sum(map(len, REFERENCES))
    scores = "{'rouge1': '100.0', 'rouge2': '100.0', 'rougeL': '100.0', 'rougeLsum': '100.0', "
    assert scores + f"'gen_len': {characters}, 'gen_num': 256}}" in text
    assert len(text.splitlines()[-1].removeprefix("hash=")) == 64
    monkeypatch.setattr(sys, "argv", [*command[3:], "--model", "demo"])
    with pytest.raises(SystemExit) as end:
        main("accuracy")
    wrong = capsys.readouterr()
    assert end.value.code == 0 or wrong.err.startswith("error:")
    assert "'rouge1': '100.0'" not in wrong.out  # int64 read as int32: ids and zeros


def test_nltks_splitter_is_used_where_its_data_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import nltk
    from nltk.tokenize.punkt import PunktTrainer, save_punkt_params

    folder = tmp_path / "tokenizers" / "punkt_tab" / "english"
    folder.parent.mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    trainer = PunktTrainer(" ".join(ARTICLES))
    save_punkt_params(trainer.get_params(), dir=str(folder))
    name, split = sentence_splitter()
    assert name == "nltk punkt_tab"
    assert split("The council met. It voted on a bridge.") == ["The council met.", "It voted on a bridge."]
    monkeypatch.setattr(nltk.data, "path", [])
    name, split = sentence_splitter()
    assert name == "built-in"
    assert split("The council met. It voted on a bridge.") == ["The council met.", "It voted on a bridge."]


def half_empty(folder: Path) -> None:
    folder.mkdir(parents=True)


def half_of_each_file(folder: Path) -> None:
    from nltk.tokenize.punkt import PunktTrainer, save_punkt_params

    save_punkt_params(PunktTrainer(" ".join(ARTICLES)).get_params(), dir=str(folder))
    (folder / "ortho_context.tab").write_text("a\n")


def only_one_file(folder: Path) -> None:
    half_of_each_file(folder)
    for path in folder.iterdir():
        if path.name != "abbrev_types.txt":
            path.unlink()


def files_without_content(folder: Path) -> None:
    half_of_each_file(folder)
    for path in folder.iterdir():
        path.write_text("")


def bytes_that_are_no_text(folder: Path) -> None:
    half_of_each_file(folder)
    (folder / "collocations.tab").write_bytes(b"\xff\xfe\t\xff\n")


def cut_zip(folder: Path) -> None:
    half_of_each_file(folder)
    archive = shutil.make_archive(str(folder.parent), "zip", folder.parents[1], "punkt_tab")
    shutil.rmtree(folder.parent)
    with open(archive, "r+b") as file:
        file.truncate(Path(archive).stat().st_size // 2)


HALF = [half_empty, half_of_each_file, only_one_file, files_without_content, bytes_that_are_no_text, cut_zip]


@pytest.mark.parametrize("install", HALF)
def test_half_installed_data_are_as_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, install: Callable[[Path], None]
):
    import nltk

    (tmp_path / "tokenizers" / "punkt_tab").mkdir(parents=True)
    monkeypatch.setattr(nltk.data, "path", [str(tmp_path)])
    install(tmp_path / "tokenizers" / "punkt_tab" / "english")
    name, split = sentence_splitter()
    assert name == "built-in"
    assert split("The council met. It voted on a bridge.") == ["The council met.", "It voted on a bridge."]
    assert rouge_rows([("The council met. It voted.", "The council met.")])[0][-1] == len("The council met.\nIt voted.")


@pytest.mark.parametrize("rows", [2, 5, 10])
def test_of_a_part_of_the_set_the_length_is_held_against_that_part_alone(rows: int) -> None:
    reference = mlperf.ReferenceScores(rouge1=40.0, rouge2=20.0, rougeL=30.0, rougeLsum=35.0, gen_len=10_000.0)
    task = mlperf.Task(samples=10, reference=reference)
    checks = {check.name: check for check in judge_scores([(40.0, 20.0, 30.0, 35.0, 1000.0)] * rows, task)}
    least, most = mlperf.bounds(reference, False)["gen_len"]
    length = checks["gen_len"]
    assert most and (length.low, length.high) == (pytest.approx(least * rows / 10), pytest.approx(most * rows / 10))
    assert length.score == 1000.0 * rows and length.low < length.score < length.high
    assert checks["rouge1"].high is None and checks["rouge1"].low == mlperf.bounds(reference, False)["rouge1"][0]
