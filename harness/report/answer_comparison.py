"""The answers of two runs to the same samples: where they part, and their scores with a paired interval."""

from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

from harness.config.mlperf import ROUGE, SHORT_SCORES
from harness.core import csv_files, statistics
from harness.core.document import Tone
from harness.core.formatting import Measured, number
from harness.loadgen.requests import ANSWERS
from harness.results.scoring import read_log

# The answers of two runs to the same samples: where they part, and their scores with a paired interval.
SAMPLES_FILE = "samples.csv"


class Divergence(NamedTuple):
    """The place where the answers of A and B to one sample part: the token of each there, or that it had ended; their
    scores.
    """

    sample: int
    prompt_tokens: Measured
    position: int
    a: str
    b: str
    score_a: Measured
    score_b: Measured


class AnswerPair(NamedTuple):
    """The answers of two runs to the same samples."""

    samples: int
    scores: dict[str, statistics.PairedChange]
    same_splitter: bool
    differing: list[Divergence]

    @property
    def words(self) -> str:
        sentence = f"{number(len(self.differing))} of {number(self.samples)} answers differ"
        first = next(iter(self.differing), None)
        return f"{sentence}, the first in sample {first.sample} from token {first.position} on" if first else sentence

    @property
    def tone(self) -> Tone:
        return "careful" if self.differing else "good"


def answers(a: Path, b: Path, same_splitter: bool) -> AnswerPair | None:
    """Return what two runs answered to the same samples, by their folders of the accuracy test; None where the samples
    were not the same, or the answers of one are not kept. Raises UsageError.
    """
    if not all((run / name).exists() for run in (a, b) for name in (SAMPLES_FILE, ANSWERS)):
        return None
    tables = [csv_files.read_columns(run / SAMPLES_FILE, ("index", "prompt_tokens", *ROUGE)) for run in (a, b)]
    lengths, other_lengths = (table["prompt_tokens"] for table in tables)
    if lengths != other_lengths or tables[0]["index"] != tables[1]["index"]:
        return None
    changes = statistics.paired_changes(*([*zip(*(table[name] for name in ROUGE), strict=True)] for table in tables))
    logs, differing = [read_log(run / ANSWERS, len(lengths)) for run in (a, b)], []
    for n, sides in enumerate(zip(*logs, strict=True)):
        pairs = enumerate(zip_longest(*sides, fillvalue="(ended)"))
        if parted := next(
            ((at, str(token_a), str(token_b)) for at, (token_a, token_b) in pairs if token_a != token_b), None
        ):
            scores = (table[SHORT_SCORES[-1]][n] for table in tables)
            differing.append(Divergence(n, lengths[n], *parted, *scores))
    return AnswerPair(len(lengths), dict(zip(ROUGE, changes, strict=True)), same_splitter, differing)
