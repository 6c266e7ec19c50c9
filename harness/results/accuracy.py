"""Accuracy and compliance: scores against the reference, their verdicts, and the files that keep them."""

import contextlib
import hashlib
import json
import math
import re
import zlib
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Literal
from zipfile import BadZipFile

from pydantic import Field, JsonValue, NonNegativeInt, computed_field

from harness.config import engine, pretrained, run
from harness.config.mlperf import GATE, ROUGE, Scores, Task, bounds
from harness.config.plan import Plan
from harness.core import reading, statistics, system, templates
from harness.core.csv_files import write_table
from harness.core.errors import LoadGenError, UsageError
from harness.core.files import write_json, write_text
from harness.core.message_text import why
from harness.core.schema import SCHEMA, File, Model
from harness.loadgen.requests import ANSWERS
from harness.loadgen.session import LoadGenSession
from harness.workloads import cnn_dailymail, custom, sample_library

SCORES_FILE = "rouge.json"
Verdict = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT JUDGED"]


class ScoreCheck(Model):
    """One score against what it must keep to; `interval` (bootstrap, 95 %) only where not all samples ran."""

    name: str
    score: float
    reference: float
    low: float
    high: float | None = None
    interval: tuple[float, float] | None = None
    verdict: Verdict


class Accuracy(Model):
    """The accuracy of a run. ROUGE is F1 x100, the mean over samples; gen_len is characters, summed over samples."""

    verdict: Verdict
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
        """What the file holds: all of this, and scores, references and thresholds under their own names."""
        return self.model_dump(mode="json") | {
            **self.rouge,
            "baseline": {check.name: check.reference for check in self.checks},
            "gate_multiplier": GATE[self.high_accuracy],
            **{f"threshold_{check.name}": check.low for check in self.checks if check.name in ROUGE},
        }


class Compliance(Model):
    """result.json of a compliance test; each check's verdict, null where it has none."""

    test: str
    passed: bool
    checks: dict[str, bool | None]
    facts: dict[str, JsonValue]

    @property
    def verdict(self) -> Verdict:
        return "PASS" if self.passed else "FAIL"

    @property
    def headline(self) -> str:
        failed = ", ".join(name for name, passed in self.checks.items() if passed is False)
        return f"{self.test.upper()}: {self.verdict}{f' ({failed})' if failed else ''}"


# mlperf_log_accuracy.json -> token ids -> text -> ROUGE -> gate.
LARGEST_LOG = 2**32  # bytes of an accuracy log
Row = tuple[float, ...]  # of a sample: its scores, and the characters of its answer
Splitter = Literal["nltk punkt_tab", "built-in"]
CUT = "\n\n...\n\n"  # between the two ends that MLPerf's truncate_accuracy_log leaves of a log


def read_log(path: Path, samples: int, width: int = 4) -> list[list[int]]:
    """The token ids of each sample's answer in a LoadGen accuracy log; the first of each index counts, as officially.

    `width` is the size of a token id in bytes: 4 for int32, 8 for int64. Raises LoadGenError, naming the entry, on
    anything but one whole answer for each of `samples` samples.
    """
    text = ""
    try:
        text = reading.read_text(path, LARGEST_LOG)
        entries = json.loads(text)
    except OSError as error:
        raise LoadGenError(f"{path}: {why(error)}.") from None
    except (ValueError, RecursionError) as error:
        cause = "it was cut for a submission, so take the run's own" if CUT in text else "did the run end early?"
        raise LoadGenError(f"{path}: not a whole JSON file ({error}); {cause}") from None
    if not isinstance(entries, list) or not entries:
        raise LoadGenError(f"{path} contains no answers.")
    answers: dict[int, list[int]] = {}
    for number, entry in enumerate(entries):
        where = f"{path}: entry {number}"
        try:
            index, data = entry["qsl_idx"], entry["data"]
        except reading.DAMAGED:
            raise LoadGenError(f"{where} has no qsl_idx and data.") from None
        if type(index) is not int or not 0 <= index < samples:
            raise LoadGenError(f"{where}: sample index {index!r:.40} is not one of 0..{samples - 1}.")
        if index not in answers:
            answers[index] = decode_hex(data, width, where)
    if missing := [index for index in range(samples) if index not in answers]:
        raise LoadGenError(f"{path}: no answer for {len(missing):,} of {samples:,} samples, the first {missing[0]}.")
    return [answers[index] for index in range(samples)]


def decode_hex(data: Any, width: int, where: str) -> list[int]:
    """Token ids from LoadGen's hex text of little-endian integers of `width` bytes."""
    tokens = array({4: "i", 8: "q"}[width])
    try:
        tokens.frombytes(bytes.fromhex(data))
    except (TypeError, ValueError) as error:
        raise LoadGenError(f"{where}: its data are not int{8 * width} token ids: {error}.") from None
    return tokens.tolist()


def to_text(answers: Sequence[list[int]], tokenizer: Any) -> list[str]:
    """The answers as text, special tokens left out. Raises LoadGenError on ids outside the vocabulary.

    Spaces before punctuation go where the tokenizer's config asks for it, as Llama-3.1's does: the reference's
    transformers 4.46.2 honours that, later ones ignore it for byte-pair encodings.
    """
    size = len(tokenizer)
    for index, answer in enumerate(answers):
        if bad := [token for token in answer if not 0 <= token < size]:
            raise LoadGenError(f"the answer to sample {index} has token id {bad[0]}, outside the vocabulary.")
    clean = tokenizer.clean_up_tokenization if tokenizer.clean_up_tokenization_spaces else str
    as_they_are = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}
    return [clean(text).strip() for text in tokenizer.batch_decode(answers, **as_they_are)]


def sentence_splitter() -> tuple[Splitter, Callable[[str], list[str]]]:
    """NLTK's splitter where its punkt_tab data are installed and whole, else one of the same role."""
    from nltk.tokenize.punkt import PunktTokenizer

    # What NLTK raises for data that are not there, half unpacked, or in a zip that was cut.
    with contextlib.suppress(OSError, RuntimeError, BadZipFile, zlib.error, *reading.DAMAGED):
        punkt = PunktTokenizer("english")
        if punkt._params.abbrev_types and punkt._params.ortho_context:
            return "nltk punkt_tab", punkt.tokenize
    return "built-in", lambda text: re.split(r"(?<=[.!?])\s+(?=[\"'(\[]?[A-Z0-9])", text)


def rouge(pairs: Sequence[tuple[str, str]]) -> list[Row]:
    """ROUGE-1, -2, -L, -Lsum F1 x100 of each (answer, reference), and the answer's characters (gen_len).

    One newline a sentence, Porter stemmer: what the official evaluation does, with each word stemmed only once.
    """
    from rouge_score import rouge_scorer, tokenizers

    default = tokenizers.DefaultTokenizer(use_stemmer=True)
    default._stemmer.stem = lru_cache(maxsize=None)(default._stemmer.stem)
    scorer = rouge_scorer.RougeScorer(list(ROUGE), tokenizer=default)
    _, split = sentence_splitter()

    def lines(text: str) -> str:
        return "\n".join(split(text.strip()))

    rows = []
    for answer, reference in pairs:
        text = lines(answer)
        scores = scorer.score(lines(reference), text)
        rows.append((*(100 * scores[name].fmeasure for name in ROUGE), len(text)))
    return rows


def score(texts: Sequence[str], references: Sequence[str]) -> list[Row]:
    """ROUGE and characters of every sample, shape [samples, 5], spread over the cores where it pays."""
    pairs = list(zip(texts, references, strict=True))
    workers = min(system.core_count(), 1 + len(pairs) // 1000)
    if workers == 1:
        return rouge(pairs)
    size = -(-len(pairs) // (4 * workers))
    chunks = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return [scores for rows in pool.map(rouge, chunks) for scores in rows]


def totals(rows: Sequence[Row]) -> Scores:
    """The means over samples, rounded as the official evaluation does, and the characters in all."""
    *columns, characters = zip(*rows, strict=True)
    means = {name: round(sum(column) / len(rows), 4) for name, column in zip(ROUGE, columns, strict=True)}
    return Scores(**means, gen_len=sum(characters))


WORST = 10


def judge(rows: Sequence[Row], task: Task, high_accuracy: bool = False) -> list[ScoreCheck]:
    """Each score against its bounds: by the official rule on the whole set, by its bootstrap interval on a part."""
    scores, limits = totals(rows), bounds(task.reference, high_accuracy)
    part, spread, checks = len(rows) / task.samples, None, []
    if part != 1:
        spread = statistics.intervals([(*found, characters * len(rows)) for *found, characters in rows]).tolist()
    for column, (name, (low, high)) in enumerate(limits.items()):
        reference = getattr(task.reference, name)
        if high is not None:  # a sum over samples
            low, high, reference = low * part, high * part, reference * part
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


def verdict(interval: tuple[float, float], low: float, high: float | None) -> Verdict:
    """PASS when the whole interval is within the bounds, FAIL when all of it is outside."""
    (begin, end), most = interval, math.inf if high is None else high
    if low <= begin and end <= most:
        return "PASS"
    return "FAIL" if end < low or begin > most else "INCONCLUSIVE"


def overall(checks: Sequence[ScoreCheck]) -> Verdict:
    """The worst verdict of all."""
    return max((check.verdict for check in checks), key=("PASS", "INCONCLUSIVE", "FAIL").index)


def load_again(plan: Plan, scores: ScoresFile) -> tuple[sample_library.Library, Any]:
    """The samples and the tokenizer that scores are made again with. Raises BenchmarkError where they cannot be had, or
    scores made here would be others."""
    if scores.splitter != (here := sentence_splitter()[0]):
        raise UsageError(f"made with {scores.splitter} sentences, and here is {here}: `make punkt` on both.")
    tokenizer = pretrained.load_tokenizer(plan.config)
    return custom.load(plan.config, tokenizer) or cnn_dailymail.load(plan.config, tokenizer, scores.samples), tokenizer


def evaluate(folder: Path, plan: Plan, library: sample_library.Library, tokenizer: Any) -> Accuracy:
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


def accuracy_txt(scores: Scores, samples: int, sha256: str) -> str:
    """What the official submission checker reads: the scores as its evaluation prints them, and the log's hash."""
    rouge = {name: f"{getattr(scores, name)}" for name in ROUGE}
    return f"\nResults\n\n{rouge | {'gen_len': int(scores.gen_len), 'gen_num': samples}}\nhash={sha256}\n"


def score_log(log: Path, dataset: Path, model: str, token_bytes: int) -> str:
    """Scores a foreign accuracy log against the references of a data set, and writes accuracy.txt beside the log;
    its text."""
    records = cnn_dailymail.from_json(dataset)
    answers = read_log(log, len(records), token_bytes)
    texts = to_text(answers, pretrained.load_tokenizer(engine.EngineConfig(model=model)))
    text = accuracy_txt(totals(score(texts, [record.reference for record in records])), len(answers), digest(log))
    write_text(log.parent / "accuracy.txt", text)
    return text


# MLPerf's compliance test TEST06: one more LoadGen test with audit settings on the same engine, and its verdict.
LOGGED_SAMPLES = 100  # samples of the run, all of them logged
SETTINGS = {  # so many samples, each logged, whatever time they take, and no whole permutations
    "mode": 2,  # performance
    "accuracy_log_rng_seed": 720381539243781796,
    "accuracy_log_sampling_target": LOGGED_SAMPLES,
    "min_query_count": LOGGED_SAMPLES,
    "min_duration": 0,
    "sample_concatenate_permutation": 0,
}
# The audit.config, which LoadGen reads over all other settings, for any model and scenario.
AUDIT = "".join(f"*.*.{key} = {value}\n" for key, value in SETTINGS.items())
RESULT = "result.json"


def run_test06(session: LoadGenSession, plan: Plan, eos: int) -> Compliance:
    """Runs the test on the session's engine and judges it. `eos` is the id of the tokenizer's end-of-text token.

    Leaves result.json and the verification's text beside the logs.
    """
    folder = session.test("test06", plan, AUDIT)
    outcome, text = judge_test06(folder, eos, plan.config)
    write_text(folder / "verify_accuracy.txt", text)
    write_json(folder / RESULT, outcome.model_dump())
    return outcome


def judge_test06(folder: Path, eos: int, config: run.RunConfig) -> tuple[Compliance, str]:
    """TEST06's verdict on the accuracy log in `folder`, and the text that the submission checker reads.

    Raises LoadGenError where the log holds other than the samples asked for.
    """
    path = folder / ANSWERS
    try:
        entries = json.loads(reading.read_text(path, LARGEST_LOG))
        answers = [decode_hex(entry["data"], 4, f"{path}: entry {n}") for n, entry in enumerate(entries)]
        counts = [entry["token_count"] for entry in entries]
    except (OSError, *reading.DAMAGED) as error:
        raise LoadGenError(f"{path}: not the log of a TEST06 run: {type(error).__name__}: {error}.") from None
    if len(entries) < LOGGED_SAMPLES:
        raise LoadGenError(f"{path}: {len(entries)} samples logged; TEST06 asks for {LOGGED_SAMPLES}.")
    checks = {
        "first token": all(map(is_as_reported, entries, answers))
        if config.scenario_rules.pattern.is_streamed
        else None,
        "end of text at most once": all(answer[-2:] != [eos, eos] for answer in answers),
        "token count": [len(answer) for answer in answers] == counts,
    }
    passed = False not in checks.values()
    pairs = zip(("First token check", "EOS check", "Sample length check"), checks.values(), strict=True)
    lines = [f"{name} pass: {'Skipped' if verdict is None else verdict}" for name, verdict in pairs]
    lines.append(f"TEST06 verification {'complete' if passed else 'failed'}")
    found = Compliance(test="test06", passed=passed, checks=checks, facts={"samples": len(entries), "eos": eos})
    return found, "\n".join(lines) + "\n"


def is_as_reported(entry: Mapping[str, object], answer: Sequence[int]) -> bool:
    """Whether an answer begins with the tokens that were reported when the first was there: one or more."""
    try:
        reported = decode_hex(entry.get("token_data"), 4, "")
    except LoadGenError:
        return False
    return bool(reported) and answer[: len(reported)] == reported
