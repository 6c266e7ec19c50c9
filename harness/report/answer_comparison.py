"""The answers of two runs to the same samples: where they part, and their scores with a paired interval."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from math import nan
from pathlib import Path
from typing import NamedTuple

from harness.config.mlperf import ROUGE, SHORT_SCORES
from harness.core import csv_files, statistics
from harness.core.document import Tone
from harness.core.formatting import Measured, number, plural
from harness.loadgen.requests import ANSWERS_FILE
from harness.results.scoring import read_log

SAMPLES_FILE = "samples.csv"


class Divergence(NamedTuple):
    """The first place at which the answers of runs A and B to one sample differ."""

    sample: int
    prompt_tokens: Measured
    position: int  # the position of the first differing token
    a: str  # the token of A's answer at this position, or "(ended)"
    b: str
    score_a: Measured  # the ROUGE-L of A's answer
    score_b: Measured


class AnswerPair(NamedTuple):
    """The answers of two runs to the same samples: their changes by score, and where they differ."""

    samples: int
    scores: dict[str, statistics.PairedChange]
    same_splitter: bool  # whether both runs split sentences in the same way; else ROUGE-Lsum and gen_len may differ
    differing: list[Divergence]

    @property
    def changed_percent(self) -> float:
        """The percentage of answers that have other tokens."""
        return 100 * len(self.differing) / self.samples

    @property
    def words(self) -> str:
        """How many answers differ, and where the first of them begins to differ, in words."""
        count = len(self.differing)
        verb = "differs" if count == 1 else "differ"
        text = f"{number(count)} of {plural(self.samples, 'answer')} {verb}"
        if self.differing:
            first = self.differing[0]
            text += f", the first in sample {first.sample} from token {first.position} on"
        return text

    @property
    def tone(self) -> Tone:
        """The tone of the line on the answers: careful if any answer differs."""
        if self.differing:
            return "careful"
        return "good"


def compare_answers(a: Path, b: Path, same_splitter: bool) -> AnswerPair | None:
    """Compare the answers of two runs to the same samples, given the folders of their accuracy tests.

    None if the answers of a run were not kept or the samples differ. Raises UsageError or LoadGenError for a damaged
    file.
    """
    if not (has_answers(a) and has_answers(b)):
        return None
    table_a, table_b = read_samples(a), read_samples(b)
    # The same samples have the same prompt lengths in the same order.
    lengths = table_a["prompt_tokens"]
    if table_b["prompt_tokens"] != lengths or table_a["index"] != table_b["index"]:
        return None
    changes = statistics.paired_changes(score_rows(table_a), score_rows(table_b))
    change_by_score = dict(zip(ROUGE, changes, strict=True))
    answers_a, answers_b = read_log(a / ANSWERS_FILE, len(lengths)), read_log(b / ANSWERS_FILE, len(lengths))
    differing = list(divergences(table_a, table_b, answers_a, answers_b))
    return AnswerPair(len(lengths), scores=change_by_score, same_splitter=same_splitter, differing=differing)


def divergences(
    table_a: csv_files.Columns,
    table_b: csv_files.Columns,
    answers_a: Sequence[Sequence[int]],
    answers_b: Sequence[Sequence[int]],
) -> Iterator[Divergence]:
    """Yield where the two answers to a sample begin to differ, with the ROUGE-L of both; nothing for equal answers.

    `table_a` and `table_b` are the columns of the runs' samples.csv.
    """
    rouge_l = SHORT_SCORES[-1]
    for sample, (answer_a, answer_b) in enumerate(zip(answers_a, answers_b, strict=True)):
        difference = first_difference(answer_a, answer_b)
        if not difference:
            continue
        position, token_a, token_b = difference
        yield Divergence(
            sample,
            prompt_tokens=table_a["prompt_tokens"][sample],
            position=position,
            a=token_a,
            b=token_b,
            score_a=table_a[rouge_l][sample],
            score_b=table_b[rouge_l][sample],
        )


def has_answers(test: Path) -> bool:
    """Tell whether a test's folder has both the samples and the answers, which a comparison reads."""
    return (test / SAMPLES_FILE).exists() and (test / ANSWERS_FILE).exists()


def read_samples(test: Path) -> csv_files.Columns:
    """Return the columns of samples.csv that a comparison reads."""
    return csv_files.read_columns(test / SAMPLES_FILE, ("index", "prompt_tokens", *ROUGE))


def score_rows(table: csv_files.Columns) -> list[tuple[float, ...]]:
    """Return a tuple of scores for each sample, in the order of ROUGE. A missing score is NaN."""
    columns = []
    for name in ROUGE:
        columns.append([nan if score is None else score for score in table[name]])
    return [*zip(*columns, strict=True)]


def first_difference(answer_a: Sequence[int], answer_b: Sequence[int]) -> tuple[int, str, str] | None:
    """Return the first position at which two answers differ and their tokens there; None if they are equal.

    An answer that has no token there counts as "(ended)".
    """
    for position, (token_a, token_b) in enumerate(zip_longest(answer_a, answer_b, fillvalue="(ended)")):
        if token_a != token_b:
            return position, str(token_a), str(token_b)
    return None
