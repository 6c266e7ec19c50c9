"""mmlu.py: whole evaluations of the demo, and what ends one at once."""

import json
import math
import re
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import pytest

from harness.config.models import DEMO
from harness.mmlu import question_prompts
from harness.mmlu.question_data import DOMAINS, LETTERS, QuestionSet
from tests.conftest import ROOT, TOKEN, launch, patience, tells
from tests.mmlu.conftest import samples_of
from tests.runs.test_failed_runs import engines
from tests.support.warm_process import cold


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
    def samples(self) -> list[dict[str, Any]]:
        return samples_of(self.folder)


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
    """A sample in less context, after the whole in the same results folder."""
    flags = ("--total-limit", "120", "--max-model-len", "400", "--seed", "3")
    return evaluate(whole.folder.parent.parent, *flags)


def test_a_whole_evaluation(whole: Finished) -> None:
    assert "<svg" in (whole.folder / "report.html").read_text()
    assert whole.code == 0, whole.output
    assert re.fullmatch(r"\d{8}-\d{6}", whole.folder.name)
    assert (whole.folder.parent / "latest").resolve() == whole.folder.resolve()
    assert whole.json("status")["status"] == "complete"
    overall, rows = whole.json("overall"), whole.samples
    assert overall["n"] == len(rows) == 342
    assert overall["subjects"] == len(whole.json("by_subject")) == 57
    assert overall["overall_accuracy"] == pytest.approx(mean(row["correct"] for row in rows))
    assert list(whole.json("by_domain")) == list(DOMAINS)
    for row in rows:
        assert sum(math.exp(row[f"logprob_{letter}"]) for letter in LETTERS) == pytest.approx(1, abs=1e-4)
        assert row["examples"] == 5 and 0 <= row["cached_tokens"] < row["prompt_tokens"] and row["latency_s"] > 0
    assert overall["cache_hit_rate"] > 0.5
    assert [row["subject"] for row in rows] == sorted(row["subject"] for row in rows)
    details = (whole.folder / "details.jsonl").read_text().splitlines()
    assert len(details) == 342 and len(json.loads(details[0])["examples"]) == 5
    report = (whole.folder / "report.md").read_text()
    assert "high school computer science" in report and "by domain" in whole.output
    assert "not the model's MMLU score" in report and "All examples fitted" in report
    for name in re.findall(r"\((plots/.*?)\)", report):
        assert (whole.folder / name).read_bytes().startswith(b"\x89PNG")
    assert not [path for path in whole.folder.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_the_same_answers_as_a_plain_forward_pass(whole: Finished, demo: QuestionSet, tokenizer: Any) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(DEMO / "model", dtype=torch.float32)
    letters = [tokenizer.encode(f" {letter}", add_special_tokens=False)[0] for letter in LETTERS]
    for row, question in list(zip(whole.samples, demo.test, strict=True))[::17]:
        ids = tokenizer(question_prompts.prompt_text(question, demo.examples[question.subject]), return_tensors="pt")[
            "input_ids"
        ]
        with torch.no_grad():
            logits = model(ids).logits[0, -1, letters]
        assert [row[f"logprob_{letter}"] for letter in LETTERS] == pytest.approx(
            logits.log_softmax(-1).tolist(), abs=1e-3
        )


def test_a_part_of_it(whole: Finished, part: Finished) -> None:
    assert part.code == 0, part.output
    overall, rows = part.json("overall"), part.samples
    assert overall["n"] == 120 and overall["test_questions"] == 342
    assert set(Counter(row["subject"] for row in rows).values()) <= {2, 3}
    short = [row for row in rows if row["dropped_examples"]]
    assert overall["shortened_prompts"]["questions"] == len(short) > 0
    assert (
        overall["shortened_prompts"]["examples_dropped"]
        == sum(row["dropped_examples"] for row in rows)
        == sum(5 - row["examples"] for row in rows)
    )
    assert all(row["prompt_tokens"] < 400 for row in rows)
    report = (part.folder / "report.md").read_text()
    assert f"{len(short)} prompts did not fit 400 tokens" in report
    assert tells(report, "120 of 342 questions, seed 3")
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
    assert done.seconds < patience(15)
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
        pytest.param(["--max-model-len", "64"], "--max-model-len 64 is too short", marks=pytest.mark.slow),
        (["--num-fewshot", "6"], "--num-fewshot"),
        (["--total-limit", "0"], "--total-sample-count takes a whole number above 0"),
    ],
)
def test_bad_input_ends_at_once(flags: list[str], words: str, tmp_path: Path) -> None:
    done = evaluate(tmp_path, *flags, start=cold)
    assert done.code == 2, done.output
    assert words in done.output
    assert "Traceback" not in done.output


def test_help_is_quick() -> None:
    begin = time.monotonic()
    shown = subprocess.run([sys.executable, "mmlu.py", "--help"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert time.monotonic() - begin < patience(5)
    for flag in ("--num-fewshot", "--total-sample-count", "--details", "--quantization", "--engine-arg"):
        assert flag in shown.stdout
