"""Accuracy and compliance: scores against the reference, their verdicts, and the files that keep them."""

import hashlib
import math
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, NonNegativeInt, computed_field

from harness.config import engine, pretrained
from harness.config.mlperf import GATE_SHARE, ROUGE, ReferenceScores, Task, bounds
from harness.config.plan import Plan
from harness.core import reading, statistics, templates
from harness.core.csv_files import write_table
from harness.core.errors import UsageError
from harness.core.files import write_json, write_text
from harness.core.schema import SCHEMA, File, FrozenModel
from harness.core.tokenizer import Tokenizer
from harness.loadgen.requests import ANSWERS
from harness.results.scoring import Row, read_log, score, sentence_splitter, to_text, totals
from harness.workloads import cnn_dailymail, custom, sample_library

SCORES_FILE = "rouge.json"
GateResult = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT JUDGED"]


class ScoreCheck(FrozenModel):
    """One score against what it must keep to; `interval` (bootstrap, 95 %) only where not all samples ran."""

    name: str
    score: float
    reference: float
    low: float
    high: float | None = None
    interval: tuple[float, float] | None = None
    verdict: GateResult


class Accuracy(FrozenModel):
    """The accuracy of a run. ROUGE is F1 x100, the mean over samples; gen_len is characters, summed over samples."""

    verdict: GateResult
    note: str = ""
    samples: Annotated[int, Field(ge=1)]
    full_set: bool
    high_accuracy: bool
    generated_tokens: NonNegativeInt
    characters: NonNegativeInt
    at_token_limit: NonNegativeInt
    splitter: str
    splitter_version: str = ""
    """NLTK's, whose versions split a few texts differently; empty for the built-in splitter, or not recorded."""
    approximate: list[str]  # scores that depend on the sentence splitter and were made without NLTK's
    checks: list[ScoreCheck]

    @computed_field  # type: ignore[prop-decorator]
    @property
    def scores(self) -> dict[str, float]:
        """ROUGE is F1 x100, the mean over samples; gen_len is characters, summed over samples."""
        return {check.name: check.score for check in self.checks}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def rouge(self) -> dict[str, float]:
        """F1 x100."""
        return {name: score for name, score in self.scores.items() if name in ROUGE}

    @computed_field  # type: ignore[prop-decorator]
    @property
    def passed(self) -> bool | None:
        """The gate's verdict; null where it is inconclusive, or switched off."""
        return {"PASS": True, "FAIL": False}.get(self.verdict)

    @computed_field
    def total_samples(self) -> int:
        return self.samples

    @computed_field
    def run_gen_len(self) -> int:
        """Characters, summed over samples."""
        return self.characters

    @computed_field
    def run_gen_num(self) -> int:
        """Answers."""
        return self.samples


class ScoresFile(Accuracy, File):
    """rouge.json; `log` is the SHA-256 of the accuracy log that was scored."""

    log: str | None = None

    def flat(self) -> dict[str, object]:
        """Return what the file holds: all of this, and scores, references and thresholds under their own names."""
        page: dict[str, object] = self.model_dump(mode="json")
        page |= self.rouge
        page["baseline"] = {check.name: check.reference for check in self.checks}
        page["gate_multiplier"] = GATE_SHARE[self.high_accuracy]
        for check in self.checks:
            if check.name in ROUGE:
                page[f"threshold_{check.name}"] = check.low
        return page


WORST = 10


def judge(rows: Sequence[Row], task: Task, high_accuracy: bool = False) -> list[ScoreCheck]:
    """Each score against its bounds: by the official rule on the whole set, by its bootstrap interval on a part."""
    scores, limits = totals(rows), bounds(task.reference, high_accuracy)
    part, spread, checks = len(rows) / task.samples, None, []
    if part != 1:
        spread = statistics.intervals(
            [(*sample_scores, characters * len(rows)) for *sample_scores, characters in rows]
        ).tolist()
    for column, (name, (least, most)) in enumerate(limits.items()):
        share = 1.0 if most is None else part  # the length of all answers grows with their number; a score does not
        low, high = least * share, most and most * share
        reference = getattr(task.reference, name) * share
        value, interval = getattr(scores, name), spread and tuple(spread[column])
        enough = part == 1 or len(rows) >= statistics.FEWEST_SAMPLES
        checks.append(
            ScoreCheck(
                name=name,
                score=value,
                reference=reference,
                low=low,
                high=high,
                interval=interval,
                verdict=verdict(interval or (value, value), low, high) if enough else "INCONCLUSIVE",
            )
        )
    return checks


def verdict(interval: tuple[float, float], low: float, high: float | None) -> GateResult:
    """PASS when the whole interval is within the bounds, FAIL when all of it is outside."""
    (begin, end), most = interval, math.inf if high is None else high
    if low <= begin and end <= most:
        return "PASS"
    return "FAIL" if end < low or begin > most else "INCONCLUSIVE"


def overall(checks: Sequence[ScoreCheck]) -> GateResult:
    """The worst verdict of all."""
    return max((check.verdict for check in checks), key=("PASS", "INCONCLUSIVE", "FAIL").index)


def load_again(plan: Plan, scores: ScoresFile) -> tuple[sample_library.Library, Any]:
    """The samples and the tokenizer that scores are made again with. Raises BenchmarkError where they cannot be had, or
    scores made here would be others.
    """
    if scores.splitter != (here := sentence_splitter()[0]):
        raise UsageError(f"made with {scores.splitter} sentences, and here is {here}: `make punkt` on both.")
    tokenizer = pretrained.load_tokenizer(plan.config)
    return custom.load(plan.config, tokenizer) or cnn_dailymail.load(plan.config, tokenizer, scores.samples), tokenizer


def evaluate(folder: Path, plan: Plan, library: sample_library.Library, tokenizer: Tokenizer) -> Accuracy:
    """Scores the accuracy log in `folder` and judges it; leaves rouge.json and samples.csv beside it."""
    answers = read_log(folder / ANSWERS, len(library))
    texts = to_text(answers, tokenizer)
    rows, splitter = score(texts, library.references), sentence_splitter()[0]
    config, is_nltk = plan.config, splitter == "nltk punkt_tab"
    checks = judge(rows, plan.task, config.high_accuracy)
    special = set(tokenizer.all_special_ids)
    stops = ["eos" if a and a[-1] in special else "length" if len(a) >= config.max_new_tokens else "" for a in answers]
    kind = "dummies" if config.has_dummy_weights else "random" if plan.random_weights else ""
    note = f"the weights are {kind}: the answers, and so the scores, mean nothing" if kind else ""
    result = ScoresFile(
        schema_version=SCHEMA,
        verdict="NOT JUDGED" if note else overall(checks),
        checks=checks,
        samples=len(answers),
        full_set=plan.samples == plan.task.samples,
        high_accuracy=config.high_accuracy,
        generated_tokens=sum(map(len, answers)),
        characters=int(totals(rows).gen_len),
        at_token_limit=stops.count("length"),
        splitter=splitter,
        splitter_version=metadata.version("nltk") * is_nltk,
        approximate=[] if is_nltk else ["rougeLsum", "gen_len"],
        note=note,
        log=digest(folder / ANSWERS),
    )
    write_json(folder / "rouge.json", result.flat())
    lines = (
        (n, len(library.prompts[n]), len(answers[n]), stops[n], *(f"{value:.4f}" for value in shares), characters)
        for n, (*shares, characters) in enumerate(rows)
    )
    write_table(folder / "samples.csv", ("index", "prompt_tokens", "new_tokens", "stop", *ROUGE, "characters"), lines)
    worst = sorted(range(len(rows)), key=lambda index: rows[index][ROUGE.index("rougeL")])[:WORST]
    page = templates.render("worst.md.j2", worst=worst, rows=rows, answers=answers, texts=texts, library=library)
    write_text(folder / "worst.md", f"{page}\n")
    return result


def digest(log: Path) -> str:
    """An accuracy log's SHA-256, which says that scores are of that log."""
    return hashlib.sha256(reading.read_bytes(log)).hexdigest()


def accuracy_txt(scores: ReferenceScores, samples: int, sha256: str) -> str:
    """Return what the official submission checker reads: the scores as its evaluation prints them, and the
    log's hash.
    """
    rouge = {name: f"{getattr(scores, name)}" for name in ROUGE}
    return f"\nResults\n\n{rouge | {'gen_len': int(scores.gen_len), 'gen_num': samples}}\nhash={sha256}\n"


def score_log(log: Path, dataset: Path, model: str, token_bytes: int) -> str:
    """Scores a foreign accuracy log against the references of a data set, and writes accuracy.txt beside the log;
    its text.
    """
    records = cnn_dailymail.from_json(dataset)
    answers = read_log(log, len(records), token_bytes)
    texts = to_text(answers, pretrained.load_tokenizer(engine.EngineConfig(model=model)))
    text = accuracy_txt(totals(score(texts, [record.reference for record in records])), len(answers), digest(log))
    write_text(log.parent / "accuracy.txt", text)
    return text
