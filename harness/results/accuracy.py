"""Accuracy and compliance: scores against the reference, their verdicts, and the files that keep them."""

import hashlib
import math
from collections.abc import Collection, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, computed_field

from harness.config import engine, pretrained
from harness.config.mlperf import GATE_SHARE, ROUGE, ReferenceScores, Task, bounds
from harness.config.plan import Plan
from harness.core import reading, statistics, templates
from harness.core.csv_files import write_table
from harness.core.errors import UsageError
from harness.core.files import write_json, write_text
from harness.core.remedies import splitter_command
from harness.core.schema import SCHEMA, File, FrozenModel
from harness.core.tokenizer import Tokenizer
from harness.loadgen.requests import ANSWERS_FILE
from harness.results.scoring import Row, read_log, score_answers, sentence_splitter, to_text, totals
from harness.workloads import cnn_dailymail, custom, sample_library

SCORES_FILE = "rouge.json"
GateResult = Literal["PASS", "FAIL", "INCONCLUSIVE", "NOT JUDGED"]


class ScoreCheck(FrozenModel):
    """One score, the bounds `low` and `high` that it must keep within, and the verdict.

    `interval` (bootstrap, 95 %) is given only if a part of the samples ran.
    """

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
    """Why the scores are not judged; empty if they are."""
    samples: Annotated[int, Field(ge=1)]
    full_set: bool
    high_accuracy: bool
    generated_tokens: NonNegativeInt
    characters: NonNegativeInt
    at_token_limit: NonNegativeInt
    splitter: str
    splitter_version: str = ""
    """The version of NLTK, since versions split a few texts differently; empty for the built-in splitter, or if it was
    not recorded."""
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
        """True if the verdict is PASS, false if it is FAIL; null if it is INCONCLUSIVE or NOT JUDGED."""
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
        """The number of answers, by MLPerf's name."""
        return self.samples


class ScoresFile(Accuracy, File):
    """The accuracy of a run as rouge.json stores it. `log` is the SHA-256 of the accuracy log that was scored."""

    log: str | None = None

    def flat(self) -> dict[str, object]:
        """Return the content of rouge.json: the fields of the model, and at the top level what simple scripts look for.

        That is each ROUGE score, its threshold, all reference scores, and the share of the reference that the gate asks
        for.
        """
        content: dict[str, object] = self.model_dump(mode="json")
        content |= self.rouge
        content["baseline"] = {check.name: check.reference for check in self.checks}
        content["gate_multiplier"] = GATE_SHARE[self.high_accuracy]
        for check in self.checks:
            if check.name in ROUGE:
                content[f"threshold_{check.name}"] = check.low
        return content


MOST_WORST_ANSWERS = 10  # answers that worst.md shows
SAMPLE_COLUMNS = ("index", "prompt_tokens", "new_tokens", "stop", *ROUGE, "characters")  # the columns of samples.csv


def judge_scores(rows: Sequence[Row], task: Task, high_accuracy: bool = False) -> list[ScoreCheck]:
    """Return a check for each score that has bounds. `high_accuracy` asks for MLPerf's stricter bounds.

    `rows` has the scores of each sample.
    """
    scores, limits = totals(rows), bounds(task.reference, high_accuracy)
    share_run = len(rows) / task.samples
    is_full_set = share_run == 1
    has_enough_samples = is_full_set or len(rows) >= statistics.FEWEST_SAMPLES
    # If only a part of the samples ran, the bootstrap interval of a score must keep the bounds.
    intervals = {} if is_full_set else score_intervals(rows, list(limits))
    checks = []
    for name, (least, most) in limits.items():
        # Only gen_len has an upper bound. It is a sum over all answers, so its bounds are scaled to the part that ran.
        scale = 1.0 if most is None else share_run
        low = least * scale
        high = None if most is None else most * scale
        score, interval = getattr(scores, name), intervals.get(name)
        result: GateResult = "INCONCLUSIVE"
        if has_enough_samples:
            # The score of the full set is exact, so it is both ends of its interval.
            result = verdict(interval or (score, score), low, high)
        check = ScoreCheck(
            name=name,
            score=score,
            reference=getattr(task.reference, name) * scale,
            low=low,
            high=high,
            interval=interval,
            verdict=result,
        )
        checks.append(check)
    return checks


def score_intervals(rows: Sequence[Row], names: Sequence[str]) -> dict[str, tuple[float, float]]:
    """Return the 95 % bootstrap interval of each score by its name.

    A row has a sample's scores in the order of `names`; the last one is its number of characters (gen_len).
    """
    scaled_rows = []
    for *scores, characters in rows:
        # The bootstrap gives intervals of means, but gen_len is a sum: the mean of these products.
        scaled_rows.append((*scores, characters * len(rows)))
    intervals = map(tuple, statistics.bootstrap_intervals(scaled_rows).tolist())
    return dict(zip(names, intervals, strict=True))


def verdict(interval: tuple[float, float], low: float, high: float | None) -> GateResult:
    """Return PASS if the whole interval is within the bounds, FAIL if all of it is outside, else INCONCLUSIVE.

    `high` is None for a score without an upper bound.
    """
    begin, end = interval
    if high is None:
        high = math.inf
    if low <= begin and end <= high:
        return "PASS"
    if end < low or begin > high:
        return "FAIL"
    return "INCONCLUSIVE"


def worst_verdict(checks: Sequence[ScoreCheck]) -> GateResult:
    """Return the verdict of the gate, the worst of the checks: FAIL if any failed, else
    INCONCLUSIVE if any is, else PASS.
    """
    verdicts = [check.verdict for check in checks]
    return max(verdicts, key=("PASS", "INCONCLUSIVE", "FAIL").index)


def load_again(plan: Plan, scores: ScoresFile) -> tuple[sample_library.Library, Tokenizer]:
    """Load the samples and the tokenizer, so that the scores of a run can be computed again.

    Raises UsageError if the run used another sentence splitter, with which the scores would differ, and BenchmarkError
    if something cannot be loaded.
    """
    splitter, _ = sentence_splitter()
    if scores.splitter != splitter:
        problem = f"made with {scores.splitter} sentences, and here is {splitter}; on both machines"
        raise UsageError(problem, command=splitter_command())  # The message ends with the command.
    tokenizer = pretrained.load_tokenizer(plan.config)
    library = custom.load(plan.config, tokenizer)
    if library is None:  # The run asked MLPerf's articles.
        library = cnn_dailymail.load(plan.config, tokenizer, scores.samples)
    return library, tokenizer


def evaluate_answers(folder: Path, plan: Plan, library: sample_library.Library, tokenizer: Tokenizer) -> Accuracy:
    """Score the accuracy log in `folder`, judge the scores, and return them.

    Writes rouge.json, samples.csv and worst.md (the answers with the lowest ROUGE-L) into the folder.
    """
    answers = read_log(folder / ANSWERS_FILE, len(library))
    texts = to_text(answers, tokenizer)
    rows = score_answers(texts, library.references)  # the scores of each sample
    special_ids = set(tokenizer.all_special_ids)
    stop_reasons = [stop_of(answer, special_ids, plan.config.max_new_tokens) for answer in answers]
    result = judged_scores(plan, rows, answers, stop_reasons, log_digest(folder / ANSWERS_FILE))
    write_json(folder / "rouge.json", result.flat())
    write_table(folder / "samples.csv", SAMPLE_COLUMNS, sample_rows(rows, answers, stop_reasons, library))
    worst = worst_answers(rows)
    page = templates.render("worst.md.j2", worst=worst, rows=rows, answers=answers, texts=texts, library=library)
    write_text(folder / "worst.md", f"{page}\n")
    return result


def judged_scores(
    plan: Plan, rows: Sequence[Row], answers: Sequence[Sequence[int]], stop_reasons: Sequence[str], digest: str
) -> ScoresFile:
    """Return the scores of a run's answers with their verdict, which is NOT JUDGED for dummy or random weights.

    `rows` has the scores of each sample, `answers` its token ids, and `stop_reasons` why each answer ended. `digest` is
    the SHA-256 of the accuracy log.
    """
    checks = judge_scores(rows, plan.task, plan.config.high_accuracy)
    why_not_judged = fault_of_weights(plan)
    gate_verdict: GateResult = "NOT JUDGED"
    if not why_not_judged:
        gate_verdict = worst_verdict(checks)
    splitter, _split = sentence_splitter()
    is_nltk = splitter == "nltk punkt_tab"
    return ScoresFile(
        schema_version=SCHEMA,
        verdict=gate_verdict,
        checks=checks,
        samples=len(answers),
        full_set=plan.samples == plan.task.samples,
        high_accuracy=plan.config.high_accuracy,
        generated_tokens=sum(map(len, answers)),
        characters=int(totals(rows).gen_len),
        at_token_limit=stop_reasons.count("length"),
        splitter=splitter,
        splitter_version=metadata.version("nltk") if is_nltk else "",
        # These two depend on the splitter, and MLPerf's reference scores were computed with NLTK's.
        approximate=[] if is_nltk else ["rougeLsum", "gen_len"],
        note=why_not_judged,
        log=digest,
    )


def worst_answers(rows: Sequence[Row]) -> list[int]:
    """Return the indexes of the answers with the lowest ROUGE-L, the lowest first, by the scores of each sample."""
    rouge_l = [row[ROUGE.index("rougeL")] for row in rows]
    return sorted(range(len(rows)), key=rouge_l.__getitem__)[:MOST_WORST_ANSWERS]


def stop_of(answer: Sequence[int], special_ids: Collection[int], most_tokens: int) -> str:
    """Return why an answer ended: "eos" if its last token is a special token, "length" if it has `most_tokens` tokens.

    Empty if the tokens show neither, as when a server cut the end token off.
    """
    if answer and answer[-1] in special_ids:
        return "eos"
    if len(answer) >= most_tokens:
        return "length"
    return ""


def fault_of_weights(plan: Plan) -> str:
    """Return why the weights make the scores meaningless: they are dummies or random. Empty for trained weights."""
    if plan.config.has_dummy_weights:
        kind = "dummies"
    elif plan.random_weights:
        kind = "random"
    else:
        return ""
    return f"the weights are {kind}: the answers, and so the scores, mean nothing"


def sample_rows(
    rows: Sequence[Row], answers: Sequence[Sequence[int]], stops: Sequence[str], library: sample_library.Library
) -> Iterator[tuple[object, ...]]:
    """Yield the rows of samples.csv, one for each sample, with the values of SAMPLE_COLUMNS. Lengths are in tokens.

    `rows` has the scores of each sample, and `stops` says why each answer ended.
    """
    for index, (*scores, characters) in enumerate(rows):
        lengths = len(library.prompts[index]), len(answers[index])
        yield (index, *lengths, stops[index], *(f"{value:.4f}" for value in scores), characters)


def log_digest(log: Path) -> str:
    """Return the SHA-256 of an accuracy log. It ties scores to the log that they were computed from."""
    return hashlib.sha256(reading.read_bytes(log)).hexdigest()


def accuracy_txt(scores: ReferenceScores, samples: int, sha256: str) -> str:
    """Return the text of accuracy.txt, which the official submission checker reads: the scores as MLPerf's evaluation
    prints them, and the hash of the log.
    """
    rouge = {name: f"{getattr(scores, name)}" for name in ROUGE}
    return f"\nResults\n\n{rouge | {'gen_len': int(scores.gen_len), 'gen_num': samples}}\nhash={sha256}\n"


def score_log(log: Path, dataset: Path, model: str, token_bytes: int) -> str:
    """Score an accuracy log of any program against the references of a data set in JSON.

    Writes accuracy.txt, which the submission checker reads, beside the log and returns its text. `model` has the
    tokenizer. A token id has `token_bytes` bytes, 4 or 8.
    """
    references = [record.reference for record in cnn_dailymail.articles_from_json(dataset)]
    answers = read_log(log, len(references), token_bytes)
    tokenizer = pretrained.load_tokenizer(engine.EngineConfig(model=model))
    scores_by_answer = score_answers(to_text(answers, tokenizer), references)
    scores = totals(scores_by_answer)
    text = accuracy_txt(scores, len(answers), log_digest(log))
    write_text(log.parent / "accuracy.txt", text)
    return text
