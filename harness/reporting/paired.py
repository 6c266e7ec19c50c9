"""The answers of two runs to the same samples: where they part, and their scores with a paired interval."""

from dataclasses import dataclass
from pathlib import Path

from harness.common import files
from harness.common.statistics import PairedChange, paired_changes
from harness.config import mlperf
from harness.evaluation.accuracy import read_log

SAMPLES = "samples.csv"


@dataclass(frozen=True)
class Divergence:
    """Where the answers of A and B to one sample part: the token of each there, None where it had ended."""

    index: int
    prompt_tokens: float | None
    position: int
    a: int | None
    b: int | None
    score_a: float | None
    score_b: float | None


@dataclass(frozen=True)
class Pair:
    """The answers of two runs to the same samples."""

    samples: int
    scores: dict[str, PairedChange]
    same_splitter: bool
    differing: list[Divergence]


Tables = list[dict[str, list[float | None]]]  # of two accuracy tests on the same samples


def answers(a: Path, b: Path, same_splitter: bool) -> Pair | None:
    """What two runs answered to the same samples, by their folders of the accuracy test; None where the samples were
    not the same."""
    if (tables := read_tables(a, b)) is None:
        return None
    return Pair(len(tables[0]["index"]), score_changes(tables), same_splitter, divergences(a, b, tables))


def read_tables(a: Path, b: Path) -> Tables | None:
    """The samples.csv of two accuracy tests; None where the samples were not the same. Raises UsageError."""
    tables = [files.read_columns(run / SAMPLES, ("index", "prompt_tokens", *mlperf.SAMPLE_SCORES)) for run in (a, b)]
    return tables if all(tables[0][name] == tables[1][name] for name in ("index", "prompt_tokens")) else None


def score_changes(tables: Tables) -> dict[str, PairedChange]:
    import numpy as np

    each = [np.array([table[name] for name in mlperf.SAMPLE_SCORES], dtype=float).T for table in tables]
    return dict(zip(mlperf.SAMPLE_SCORES, paired_changes(*each), strict=True))


def divergences(a: Path, b: Path, tables: Tables) -> list[Divergence]:
    count, score = len(tables[0]["prompt_tokens"]), mlperf.SHORT_SCORES[-1]
    logs = [read_log(run / "mlperf_log_accuracy.json", count) for run in (a, b)]
    found = []
    for n, (one, other) in enumerate(zip(*logs, strict=True)):
        if one == other:
            continue
        shorter = min(len(one), len(other))
        at = next((n for n in range(shorter) if one[n] != other[n]), shorter)
        there = [answer[at] if at < len(answer) else None for answer in (one, other)]
        prompt, (first, second) = tables[0]["prompt_tokens"][n], (table[score][n] for table in tables)
        found.append(Divergence(n, prompt, at, there[0], there[1], first, second))
    return found
